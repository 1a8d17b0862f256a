"""The commands `tunnel-relay init` and `tunnel-relay user`, which write the configuration and tokens files."""

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
# Configuration of a tunnel relay. Check this file with: tunnel-relay check -c {file}
# A running relay applies changes of rules, users and tokens within 2 seconds, all other changes at its next start.

# Addresses to listen on: HOST:PORT, with https:// before it for TLS. Plain HTTP suffices behind a TLS proxy.
listen = ["127.0.0.1:8080"]

# A prefix for the paths of all URLs, such as "/tunnel".
base = ""

# The address that serves /livez, /readyz and /state, and that `tunnel-relay drain` uses. Never make it public.
admin = "127.0.0.1:9080"

# The exit, which dials targets. "inline": this process dials them. "none": only exits that attach do (see
# `tunnel-relay exit --help`). Streams through such an exit survive a restart of the relay; inline ones do not.
exit = "inline"

# The file with the SHA-256 hashes of the tokens. `tunnel-relay user` writes it.
tokens = "{tokens}"

# Private networks to which the names in the rules below may resolve. By default only public addresses are allowed.
# names_may_resolve_to = ["10.0.0.0/8"]

# [tls]
# certificate = "relay.crt"
# key = "relay.key"
# client_ca = "clients.crt"      # accept only clients with a certificate from this authority

# What one user may do. A user can reach only what is listed here or under [everyone].
#   connect   targets: "host:port", "10.1.0.0/16:5432", "[fd00::/8]:22". "*:443" is any public host, "host:*" any port.
#             A rule covers loopback, link-local, private or metadata addresses only if it names such an address, or
#             a network within its range: "0.0.0.0/0:22" covers none of them. "udp/10.0.0.53:53" is for datagrams only.
#   services  names of services that the user may connect to; "*" is any
#   listen    names of services that the user may offer; "*" is any
#   exit      true: the user's endpoints may be exits, which dial targets for all users
[users."{user}"]
connect = ["example.com:443"]
services = []
listen = []

# What every user may do, in addition to the user's own rules.
# [everyone]
# connect = []

# [limits]
# body_bytes_max = 1048576
# attachments_per_user_max = 100
# auth_failures_per_minute = 20
# connections_max = 10000
# connections_per_address_max = 1024     # without a valid token so far
# connections_per_user_max = 2048
"""


def init(arguments: argparse.Namespace) -> int:
    """Write a commented configuration and a tokens file for the first user, and print the token."""
    path = Path(arguments.file)
    if not path.name:
        raise ConfigError(f"{arguments.file!r} is not a file name: write one such as relay.toml")
    user_name = _name(arguments.user)
    tokens = path.with_name(f"{path.stem}.tokens.toml")
    text = TEMPLATE.format(file=path, tokens=tokens.name, user=user_name)
    parse_config(text, arguments.file)
    token, key = _new_token()
    for existing in (path, tokens):
        if existing.exists():
            raise ConfigError(f"{existing} exists: nothing was changed; choose another name, or remove the file")
    try:
        write_users(tokens, {user_name: (key,)})
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None
    _note(f"wrote {path} and {tokens}; now edit the rules, then run: tunnel-relay serve -c {path}")
    _show(arguments, user_name, token, key)
    return 0


def user(arguments: argparse.Namespace) -> int:
    """Run `user add`, `rotate`, `revoke` or `list`."""
    path = tokens_path(arguments.config)
    users: _Users = read_users(path)
    if arguments.action == "list":
        _list(arguments, users)
        return 0
    name = _name(arguments.name)
    if arguments.action == "revoke":
        _revoke(users, name, arguments.key, path)
        write_users(path, users)
        _note(f"revoked; {name} has {len(users.get(name, ()))} token(s) left; a running relay notices within 2 seconds")
        return 0
    if arguments.action == "add" and name in users:
        raise ConfigError(
            f"{name} exists: run `tunnel-relay user rotate {name} -c {arguments.config}` for another token"
        )
    if arguments.action == "rotate" and name not in users:
        raise ConfigError(f"{path}: no user {name}: run `tunnel-relay user add {name} -c {arguments.config}`")
    token, key = _new_token()
    users[name] = (*users.get(name, ()), key)[-KEYS_MAX:]
    write_users(path, users)
    if arguments.action == "rotate":
        _note(
            "the previous token is still valid; once the new one is in use, run: "
            f"tunnel-relay user revoke {name} --key {users[name][0].id} -c {arguments.config}"
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
    """Print the token, alone on standard output so that it can be piped into a file."""
    _note(f"the token of {name} (key id {key.id}); it is stored nowhere and is not shown again:")
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
