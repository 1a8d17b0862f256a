"""The file in which `tunnel login` stores one relay, and the settings to reach it. Only its owner may read it."""

from pathlib import Path

import msgspec

from tunnel import private_files
from tunnel.private_files import make_private_directory, read_private, write_private
from tunnel_client.errors import UsageError

__all__ = [
    "Login",
    "config_directory",
    "known_peers_path",
    "login_for",
    "login_path",
    "read_login",
    "remove_login",
    "write_login",
]


class Login(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The relay that commands use unless another is named. Its token must not be sent to any other relay."""

    relay: str
    token: str = ""
    proxy: str = ""  # empty: the proxy variables of the environment decide
    ca: str = ""
    insecure_http: bool = False
    headers: dict[str, str] = {}  # for a gateway in front of the relay
    hostname: str = ""
    sni: str = ""


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


def read_login() -> Login | None:
    """Return the stored login, or None if there is none.

    Raises UsageError if the file is malformed, or if its owner or its mode make it unsafe.
    """
    path = login_path()
    try:
        text = _read(path)
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(text, type=Login)
    except msgspec.DecodeError as error:
        raise UsageError(f"{path} is damaged ({error}): log in again with `tunnel login URL`") from None


def login_for(url: str, *, has_token: bool) -> Login:
    """Return the stored login if it is for this relay or if `url` is empty; otherwise return an empty login.

    The stored settings (token, proxy, headers, certificates) are never used with another relay. If `url` names a relay
    and `has_token` is set, a file that cannot be read counts as none: it must not stop a command that does not need it.
    """
    nothing = Login("")
    try:
        login = read_login()
    except UsageError:
        if url and has_token:
            return nothing
        raise
    if login is None or (url and url.rstrip("/") != login.relay.rstrip("/")):
        return nothing
    return login


def write_login(login: Login) -> Path:
    """Replace the login file atomically and return its path. Creates the directory if necessary."""
    path = login_path()
    try:
        make_private_directory(path.parent)
        write_private(path, msgspec.json.format(msgspec.json.encode(login), indent=2) + b"\n")
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}: set XDG_CONFIG_HOME to a directory that you can write"
        ) from None
    return path


def remove_login() -> bool:
    """Remove the login file. Return whether there was one."""
    try:
        login_path().unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise UsageError(f"{login_path()} cannot be removed: {error.strerror}: check its directory") from None
    return True


def _read(path: Path) -> bytes:
    try:
        return read_private(path)
    except FileNotFoundError:
        raise
    except ValueError as error:
        raise UsageError(str(error)) from None
