"""The file in which `tunnel login` stores relays, and the settings to reach each. Only its owner may read it.

With one relay, it holds the settings of this relay, as every version can read it. With several, it holds a list of
such settings, the preferred relay first.
"""

import fcntl
import functools
import hashlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import get_type_hints

import msgspec

from tunnel.ground.relay_options import RelayKeywords
from tunnel.ground.relay_urls import relay_key
from tunnel.system import private_files
from tunnel.system.private_files import make_private_directory, read_private, write_private
from tunnel_client.errors import UsageError
from tunnel_client.stored_login import STORED, Login
from tunnel_client.stored_sign_in import StoredSignIn

__all__ = [
    "changing_logins",
    "config_directory",
    "known_peers_path",
    "lock_path",
    "login_for",
    "login_path",
    "open_lock",
    "read_login",
    "read_logins",
    "remove_login",
    "write_login",
]

_log = logging.getLogger("tunnel.sign_in")
_ELSEWHERE = "set XDG_CONFIG_HOME to a directory that you can write"


def _stored(login: Login) -> dict[str, object]:
    """Return what the file holds of a login."""
    return {"relay": login.relay, **login.options()} | ({"sign_in": login.sign_in} if login.sign_in else {})


class _List(msgspec.Struct, forbid_unknown_fields=True):
    """The form of the file with several relays."""

    relays: list[msgspec.Raw]


def _login_type() -> type[msgspec.Struct]:
    """Return the type of a login in the file: a missing option has its default."""
    types = get_type_hints(RelayKeywords)
    options = [(name, types[name], default) for name, default in STORED.items()]
    sign_in = ("sign_in", StoredSignIn | None, None)
    return msgspec.defstruct("Login", [("relay", str), *options, sign_in], forbid_unknown_fields=True)


def login_path() -> Path:
    """Return the path of the login file."""
    return config_directory() / "login.json"


def known_peers_path() -> Path:
    """Return the path of the file with the keys of known exits and services."""
    return config_directory() / "known_peers"


def config_directory() -> Path:
    """Return the directory of this user's settings. Raises UsageError if there is no home directory."""
    try:
        return private_files.config_directory()
    except ValueError as error:
        raise UsageError(str(error)) from None


def read_logins() -> list[Login]:
    """Return the stored logins, the preferred relay first. Of several for one relay, the first counts, and a warning
    says so.

    Earlier versions stored a relay again if it was named in another spelling. Raises UsageError if the file is
    malformed, or if its owner or its mode make it unsafe.
    """
    path = login_path()
    try:
        text = _read(path)
    except FileNotFoundError:
        return []
    try:
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        parts = msgspec.json.decode(text, type=_List).relays if "relays" in fields else [text]
        logins = [Login(**msgspec.structs.asdict(msgspec.json.decode(part, type=_login_type()))) for part in parts]
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{path} is damaged ({error}): log in again with `tunnel login URL`") from None
    first: dict[str, Login] = {}
    for login in logins:
        kept = first.setdefault(relay_key(login.relay), login)
        if kept is not login:
            _warn(
                f"{path} holds one relay twice, as {kept.relay} and {login.relay}: the first counts, and the second "
                "goes when the file is written next; if only its token is right, store that with "
                f"`tunnel login {kept.relay}`"
            )
    return list(first.values())


def read_login(url: str = "") -> Login | None:
    """Return the stored login for this relay, or without a URL the first one. None if there is none."""
    return next((login for login in read_logins() if not url or login.is_for(url)), None)


def login_for(url: str, *, has_token: bool) -> Login:
    """Return the stored login for this relay, or an empty one if there is none.

    The stored settings (token, proxy, headers, certificates) are never used with another relay. If `has_token` is set,
    a file that cannot be read counts as none: it must not stop a command that does not need it.
    """
    try:
        return read_login(url) or Login("")
    except UsageError:
        if has_token:
            return Login("")
        raise


def write_login(*logins: Login) -> Path:
    """Replace the login file atomically and return its path. Creates the directory if necessary."""
    path = login_path()
    found = [_stored(login) for login in logins]
    try:
        make_private_directory(path.parent)
        encoded = msgspec.json.encode(found[0] if len(found) == 1 else {"relays": found})
        write_private(path, msgspec.json.format(encoded, indent=2) + b"\n")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}: {_ELSEWHERE}") from None
    return path


@contextmanager
def changing_logins() -> Iterator[None]:
    """Let no other command change the login file meanwhile: what it has stored since the file was read would be lost.

    Raises UsageError if the directory of the file cannot be used.
    """
    descriptor = open_lock(lock_path())
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)  # this also releases the lock


def lock_path(relay: str = "") -> Path:
    """Return the path of the lock for changes of the login file, or of that for the renewal of this relay's token."""
    name = f"-{hashlib.sha256(relay_key(relay).encode()).hexdigest()[:16]}" if relay else ""
    return login_path().with_name(f".login{name}.lock")


def open_lock(path: Path) -> int:
    """Open a lock file, which is made if it does not exist, and return its descriptor. Raises UsageError."""
    try:
        make_private_directory(path.parent)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}: {_ELSEWHERE}") from None


def remove_login() -> bool:
    """Remove the login file. Return whether there was one."""
    try:
        login_path().unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise UsageError(f"{login_path()} cannot be removed: {error.strerror}: check its directory") from None
    return True


@functools.cache
def _warn(text: str) -> None:
    """Log a warning, once, since a command reads the file several times."""
    _log.warning("%s", text)


def _read(path: Path) -> bytes:
    try:
        return read_private(path)
    except FileNotFoundError:
        raise
    except ValueError as error:
        raise UsageError(str(error)) from None
