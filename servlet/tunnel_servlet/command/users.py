"""The commands `tunnel-relay init` and `tunnel-relay user`, which write the configuration and tokens files."""

import argparse
import contextlib
import difflib
import json
import shlex
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import SystemRandom
from typing import Unpack

from tunnel.process.command_line import show, show_json, tell
from tunnel.system.private_files import write_new
from tunnel_servlet.access.grants import user_table
from tunnel_servlet.access.instants import show_instant
from tunnel_servlet.access.tokens import KEYS_MAX, Key, KeyLimits, check_user_name, make_admin_secret, make_token
from tunnel_servlet.command.files import parse_allow, read_tokens, tokens_path, write_users
from tunnel_servlet.command.token_terms import expire, is_over, key_to_drop, new_key_limits, terms_text
from tunnel_servlet.config import ConfigError, parse_config
from tunnel_servlet.web.tokens.files import TokenUseFiles, use_folder

__all__ = ["init", "similar_name", "user"]

_Users = dict[str, tuple[Key, ...]]

TEMPLATE = """\
# Configuration of a tunnel relay. Check this file with: tunnel-relay check -c {file}
# A running relay applies changes of rules, rates, users, tokens and certificates within 2 seconds, and changes of other
# settings at its next start. `names_may_resolve_to` is a part of the rules.

# Addresses to listen on: HOST:PORT. They speak plain HTTP, which suffices behind a TLS proxy. With the table [tls]
# below they speak TLS, except those with http:// before them. "unix:/run/tunnel-relay/relay.sock" is a Unix socket.
listen = ["127.0.0.1:8080"]

# A prefix for the paths of all URLs, such as "/api".
base = ""

# The address that serves /livez, /readyz and /metrics, and that `tunnel-relay drain` and `tunnel-relay state` use. Keep
# it private.
admin = "127.0.0.1:9080"

# Whether the metrics name users: at most 100, those with most connections. Everybody who can reach `admin` reads them.
# metrics_by_user = true

# The exit, which dials targets. "inline": this process dials them, while no exit in a process of its own is attached
# (`tunnel-relay exit`, for which a user needs exit = true). "none": only such exits do. Streams through them survive a
# restart of the relay, and they can encrypt from end to end; streams through the inline exit do neither.
exit = "inline"

# The file with the SHA-256 hashes of the tokens, and with the secret that `tunnel-relay drain` and `state` show to the
# relay. `tunnel-relay user` writes it. While a file is missing, empty or broken, a running relay goes on with the
# tokens and rules that it has, and says so in its log and in its state.
tokens = "{tokens}"

# Private networks to which the names in the rules below may resolve. By default only public addresses are allowed.
# names_may_resolve_to = ["10.0.0.0/8"]

# Addresses at which everybody, without the tunnel, reaches HTTP services by host name (`public_hosts` below).
# public_http = ["0.0.0.0:80"]

# [audit]                       # who reached what, and who was refused: `tunnel-relay audit` reads it
# file = "audit.jsonl"
# required = true               # open no connection while the audit cannot be written

# [proxies]                     # in front of the relay: what they say about the addresses of clients counts
# trusted = ["10.0.0.5"]        # whose X-Forwarded-For is believed; "unix" stands for Unix sockets
# proxy_protocol = true         # their connections begin with a PROXY header of version 2

# TLS at the addresses in `listen`. Names of PEM files are relative to the folder of this file.
# [tls]
# certificate = "relay.crt"
# key = "relay.key"
# client_ca = "clients.crt"      # accept only clients that show a certificate from this authority
# client_optional = true         # and those that show none

# What one user may do. A user can reach only what is listed here or under [everyone].
#   connect   targets: "host:port", "10.1.0.0/16:5432", "[fd00::/8]:22". "*:443" is any public host, "host:*" any port.
#             A rule covers loopback, link-local, private or metadata addresses only if it names such an address, or
#             a network within its range: "0.0.0.0/0:22" covers none of them. "udp/10.0.0.53:53" is for datagrams only.
#             "unix:/run/x.sock" is a Unix socket of the exit. "srv/_x._tcp.example" is an SRV record; the hosts and
#             ports in it need rules of their own.
#   services  names of services that the user may connect to; "*" is any
#   listen    names of services that the user may offer; "*" is any that no user's table lists. A listed name belongs
#             to the users whose tables list it; any other name belongs to the user who offers it first
#   public    ports that the user may open to everybody, such as "0.0.0.0:9000" (`tunnel expose --public 9000`).
#             `public_hosts`: host names at `public_http`, such as "demo.example". Each of them belongs to one user
#   rate      "20 MiB/s" or "100 Mbit/s": the most that the user may send, and the most that the user may receive; a
#             table `rates` limits single rules: rates = {{ "example.com:443" = "5 MiB/s" }}
#   certificates   names in certificates from `client_ca` that prove to be this user, without a token: "DNS:...",
#             "URI:...", "email:...", "CN:..." or "SHA256:FINGERPRINT". Each of them belongs to one user
#   exit      true: the user's endpoints may be exits, which dial targets for all users (`tunnel-relay exit`)
{table}
connect = {connect}
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
# connections_per_address_max = 1024     # on which no valid token has come yet
# connections_per_user_max = 2048
# public_connections_max = 2048          # of people without the tunnel
# public_connections_per_address_max = 64
# trace_bytes_max = 1073741824           # of the files that --trace writes: the oldest are removed when there are more

# Users of an identity provider (OpenID Connect), who show its tokens. They may do what is listed for their groups.
# [sso]
# issuer = "https://login.example"
# audience = "tunnel"                    # the relay's client id at the provider
# user_claim = "sub"
# groups_claim = "groups"
#
# [groups.staff]
# connect = ["db.internal:5432"]
"""


def init(arguments: argparse.Namespace) -> int:
    """Write a commented configuration and a tokens file for the first user; print or store the token."""
    path = Path(arguments.file)
    if not path.name:
        raise ConfigError(f"{arguments.file!r} is not a file name: write one such as relay.toml")
    user_name = _name(arguments.user)
    tokens = path.with_name(f"{path.stem}.tokens.toml")
    connect = [rule.text for rule in parse_allow(arguments.allow)] or ["example.com:443"]
    text = TEMPLATE.format(
        file=path, tokens=tokens.name, table=user_table(user_name), connect=json.dumps(connect, ensure_ascii=False)
    )
    parse_config(text, arguments.file)
    token, key = _new_token()
    for existing in (path, tokens):
        if existing.exists():
            raise ConfigError(f"{existing} exists: nothing was changed; choose another name, or remove the file")
    with _token_kept(arguments.token_file, token, beside=(path, tokens)):
        try:
            write_users(tokens, {user_name: (key,)}, make_admin_secret(SystemRandom()))
            write_new(path, text)
        except OSError as error:
            tokens.unlink(missing_ok=True)
            raise ConfigError(f"{path}: cannot be written: {error.strerror}: check the path and its folder") from None
    edit = "now" if arguments.allow else "now edit the rules, then"
    tell(f"wrote {path} and {tokens}; {edit} run: tunnel-relay serve -c {shlex.quote(str(path))}")
    _show(arguments, user_name, token, key)
    return 0


def user(arguments: argparse.Namespace) -> int:
    """Run `user add`, `rotate`, `revoke`, `expire` or `list`."""
    path = tokens_path(arguments.config)
    found = read_tokens(path)
    users: _Users = {name: keys for name, keys in found.users.items() if keys}
    if arguments.action == "list":
        _list(arguments, users, TokenUseFiles(use_folder(path)))
        return 0
    name = _name(arguments.name)
    admin_secret = found.admin_secret or make_admin_secret(SystemRandom())
    if arguments.action == "revoke":
        _revoke(users, name, arguments.key, path, arguments.config)
        # A relay takes a file without any user for a damaged one, and goes on with the tokens that it has.
        write_users(path, users or {name: ()}, admin_secret)
        tell(f"revoked; {name} has {len(users.get(name, ()))} token(s) left; a running relay notices within 2 seconds")
        return 0
    if arguments.action == "expire":
        _require_keys(users, name, arguments.key, path, arguments.config)
        users[name] = expire(users[name], arguments.key, arguments.when)
        write_users(path, users, admin_secret)
        for key in users[name]:
            tell(f"the token of {name} with the key id {key.id} is {terms_text(key) or 'valid until it is revoked'}")
        return 0
    if arguments.action == "add" and name in users:
        raise ConfigError(
            f"{name} exists: run `tunnel-relay user rotate {name} -c {shlex.quote(arguments.config)}` for another token"
        )
    if arguments.action == "rotate" and name not in users:
        raise ConfigError(
            _no_user(path, name, users, f"run `tunnel-relay user add {name} -c {shlex.quote(arguments.config)}`")
        )
    token, key = _new_token(**new_key_limits(arguments))
    keys = users.get(name, ())
    dropped = key_to_drop(keys) if len(keys) >= KEYS_MAX else None
    kept = tuple(old for old in keys if old is not dropped)
    users[name] = (*kept, key)
    with _token_kept(arguments.token_file, token, beside=(Path(arguments.config), path)):
        write_users(path, users, admin_secret)
    _tell_replaced(arguments.config, name, dropped, kept)
    _show(arguments, name, token, key)
    return 0


def _tell_replaced(config: str, name: str, dropped: Key | None, kept: tuple[Key, ...]) -> None:
    if dropped is not None and is_over(dropped):
        tell(f"the token with the key id {dropped.id} is removed: it expired on {show_instant(dropped.expires)}")
    elif dropped is not None:
        tell(f"the token with the key id {dropped.id} is not valid any more: a user has at most {KEYS_MAX} tokens")
    for key in kept:
        if not is_over(key):
            tell(
                "the previous token is still valid; once the new one is in use, run: "
                f"tunnel-relay user revoke {name} --key {key.id} -c {shlex.quote(config)}"
            )


def _revoke(users: _Users, name: str, key_id: str, path: Path, config: str) -> None:
    _require_keys(users, name, key_id, path, config)
    users[name] = rest = tuple(key for key in users[name] if key_id and key.id != key_id)
    if not rest:
        del users[name]


def _require_keys(users: _Users, name: str, key_id: str, path: Path, config: str) -> None:
    """Raise ConfigError if there is no such user, or no such token of this user. Without a key id, all are meant."""
    if name not in users:
        raise ConfigError(
            _no_user(path, name, users, f"`tunnel-relay user list -c {shlex.quote(config)}` shows the users")
        )
    known = [key.id for key in users[name]]
    if key_id and key_id not in known:
        text = f"{path}: {name} has no token with the key id {key_id}: the key ids of {name} are {', '.join(known)}"
        raise ConfigError(text)


def _no_user(path: Path, name: str, users: Iterable[str], advice: str) -> str:
    return f"{path}: no user {name}: {similar_name(name, users)}{advice}"


def similar_name(name: str, known: Iterable[str]) -> str:
    """Return a question that names a known name like this one; empty if there is none."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]}? " if near else ""


def _list(arguments: argparse.Namespace, users: _Users, uses: TokenUseFiles) -> None:
    last = uses.last_uses()
    found = [(name, key) for name, keys in users.items() for key in keys]
    if arguments.json:
        rows = [
            {
                "user": name,
                "key": key.id,
                "created": key.created,
                "expires": key.expires,
                "last_use": last.get(key.id, ""),
                "single_use": key.single_use,
                "used": key.single_use and uses.is_used(key.id),
                "endpoints_max": key.endpoints_max,
                "description": key.description,
            }
            for name, key in found
        ]
        show_json(rows)
        return
    for name, key in found:
        last_use = f"last use {show_instant(last[key.id])}" if key.id in last else ""
        used = "used" if key.single_use and uses.is_used(key.id) else ""
        words = ", ".join(filter(None, (terms_text(key), used, last_use)))
        show("\t".join([name, key.id, key.created, words, key.description]).rstrip("\t"))


@contextlib.contextmanager
def _token_kept(file: str, token: str, beside: tuple[Path, Path]) -> Iterator[None]:
    """Store the token in a new file of mode 0600, which is removed if the block raises. Do nothing if `file` is empty.

    A file that exists is never replaced: it may hold another user's token, or be a trap in a shared folder.
    """
    if not file:
        yield
        return
    path = Path(file)
    if path.absolute() in [other.absolute() for other in beside]:
        raise ConfigError(f"--token-file {file} is the name of another file of the relay: choose another name")
    try:
        write_new(path, f"{token}\n")
    except FileExistsError:
        text = f"--token-file {file} exists: nothing was changed; choose another name, or remove the file"
        raise ConfigError(text) from None
    except OSError as error:
        text = f"--token-file {file} cannot be written: {error.strerror}: nothing was changed; name a file in a folder "
        raise ConfigError(text + "that exists and that you can write") from None
    try:
        yield
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _show(arguments: argparse.Namespace, name: str, token: str, key: Key) -> None:
    """Name the file that holds the token, or print the token alone on standard output, so that it can be piped."""
    file = arguments.token_file
    if file:
        text = f"the token of {name} (key id {key.id}) is in {file}, which only you can read; it is stored nowhere else"
    else:
        text = f"the token of {name} (key id {key.id}); it is stored nowhere and is not shown again"
    terms = terms_text(key)
    tell(f"{text}{f'; it is {terms}' if terms else ''}{'' if file else ':'}")
    if arguments.json:
        show_json({"user": name, "key": key.id} | ({"token_file": file} if file else {"token": token}))
    elif not file:
        show(token)


def _new_token(**limits: Unpack[KeyLimits]) -> tuple[str, Key]:
    return make_token(SystemRandom(), datetime.now(UTC).date().isoformat(), **limits)


def _name(name: str) -> str:
    try:
        return check_user_name(name)
    except ValueError as error:
        raise ConfigError(str(error)) from None
