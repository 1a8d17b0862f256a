"""`tunnel-relay init` and `tunnel-relay user`: the files that hold configuration and tokens are written here."""

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path
from random import SystemRandom

import msgspec

from tunnel_servlet.access.tokens import KEYS_MAX, Key, check_user_name, make_token
from tunnel_servlet.command.files import read_users, tokens_path, write_users
from tunnel_servlet.config import ConfigError, parse_config

__all__ = ["init", "user"]

_Users = dict[str, tuple[Key, ...]]

TEMPLATE = """\
# A tunnel relay. Check this file with: tunnel-relay check -c {file}
# Rules, users and tokens are read again when a file changes; the rest when the relay starts.

# Where to listen: HOST:PORT, with https:// before it for TLS. Behind a proxy that speaks TLS, plain HTTP will do.
listen = ["127.0.0.1:8080"]

# A prefix of all paths, as in "/tunnel".
base = ""

# Where /livez, /readyz and /state are answered, and `tunnel-relay drain` is heard. Never open it to the public.
admin = "127.0.0.1:9080"

# Who dials TCP targets: "inline", this process; "none", only exits that attach (tunnel-relay exit). Streams through an
# exit of its own outlive the relay; those of the inline exit do not.
exit = "inline"

# Where SHA-256 of the tokens are kept; `tunnel-relay user` writes it.
tokens = "{tokens}"

# Private networks that names in the rules below may lead to. Without this a name must lead to a public address.
# names_may_resolve_to = ["10.0.0.0/8"]

# [tls]
# certificate = "relay.crt"
# key = "relay.key"
# client_ca = "clients.crt"      # only clients with a certificate of this authority are heard

# What a user may do. Nothing that is not listed is reachable.
#   connect   TCP targets: "host:port", "10.1.0.0/16:5432", "[fd00::/8]:22"; "*:443" is any public host, ":*" any port.
#             Loopback, link-local, private and metadata addresses only count when they, or a network within their
#             range, are listed. "udp/10.0.0.53:53" is for datagrams, and for nothing else.
#   services  names of services to connect to; "*" is any
#   listen    names to offer services under; "*" is any
#   exit      true: what attaches in this name dials targets for everybody
[users."{user}"]
connect = ["example.com:443"]
services = []
listen = []

# What holds for every user besides.
# [everyone]
# connect = []

# [limits]
# body_bytes_max = 1048576
# attachments_per_user_max = 100
# auth_failures_per_minute = 20
"""


def init(arguments: argparse.Namespace) -> int:
    """Write a commented configuration and a token for the first user; the token is shown this once."""
    path = Path(arguments.file)
    user_name = _name(arguments.user)
    tokens = path.with_name(f"{path.stem}.tokens.toml")
    text = TEMPLATE.format(file=path, tokens=tokens.name, user=user_name)
    parse_config(text, arguments.file)
    token, key = _new_token()
    for existing in (path, tokens):
        if existing.exists():
            raise ConfigError(f"{existing} exists: nothing was changed; choose another name, or remove it")
    try:
        write_users(tokens, {user_name: (key,)})
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None
    _note(f"wrote {path} and {tokens}; now edit the rules, then: tunnel-relay serve -c {path}")
    _show(arguments, user_name, token, key)
    return 0


def user(arguments: argparse.Namespace) -> int:
    """Add a user, give one a second token, or take tokens away."""
    path = tokens_path(arguments.config)
    users: _Users = read_users(path)
    if arguments.action == "list":
        _list(arguments, users)
        return 0
    name = _name(arguments.name)
    if arguments.action == "revoke":
        _revoke(users, name, arguments.key, path)
        write_users(path, users)
        _note(f"revoked; a running relay knows it within 2 seconds: {name} has {len(users.get(name, ()))} token(s)")
        return 0
    if arguments.action == "add" and name in users:
        raise ConfigError(f"{name} exists: `user rotate {name}` gives another token")
    if arguments.action == "rotate" and name not in users:
        raise ConfigError(f"{path}: no user {name}: `user add {name}` makes one")
    token, key = _new_token()
    users[name] = (*users.get(name, ()), key)[-KEYS_MAX:]
    write_users(path, users)
    if arguments.action == "rotate":
        _note(
            f"the previous token still counts; when the new one is in use: user revoke {name} --key {users[name][0].id}"
        )
    _show(arguments, name, token, key)
    return 0


def _revoke(users: _Users, name: str, key_id: str, path: Path) -> None:
    if name not in users:
        raise ConfigError(f"{path}: no user {name}")
    rest = tuple(key for key in users[name] if key_id and key.id != key_id)
    if key_id and len(rest) == len(users[name]):
        raise ConfigError(f"{path}: {name} has no token with the key id {key_id}")
    users[name] = rest
    if not rest:
        del users[name]


def _list(arguments: argparse.Namespace, users: _Users) -> None:
    rows = [(name, key.id, key.created) for name, keys in users.items() for key in keys]
    if arguments.json:
        _print_json([{"user": name, "key": key_id, "created": created} for name, key_id, created in rows])
        return
    for name, key_id, created in rows:
        print(f"{name}\t{key_id}\t{created}")


def _show(arguments: argparse.Namespace, name: str, token: str, key: Key) -> None:
    """The token alone on standard output, for a pipe into a file."""
    _note(f"the token of {name} (key id {key.id}); it is kept nowhere, and not shown again:")
    if arguments.json:
        _print_json({"user": name, "key": key.id, "token": token})
    else:
        print(token)


def _new_token() -> tuple[str, Key]:
    return make_token(SystemRandom(), datetime.now(UTC).date().isoformat())


def _name(name: str) -> str:
    try:
        return check_user_name(name)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _note(text: str) -> None:
    print(text, file=sys.stderr)


def _print_json(value: object) -> None:
    print(msgspec.json.encode(value).decode())
