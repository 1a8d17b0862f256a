"""What `tunnel login` stores: one relay, and what is needed to reach it, in a file that only its owner reads."""

import contextlib
import os
import stat
from pathlib import Path

import msgspec

from tunnel_client.errors import UsageError

__all__ = ["Login", "login_for", "login_path", "read_login", "read_private", "remove_login", "write_login"]

_FILE_BYTES_MAX = 64 * 1024


class Login(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The relay that commands use when they are not told another. The token belongs to it and goes nowhere else."""

    relay: str
    token: str = ""
    proxy: str = ""  # empty: from the environment
    ca: str = ""


def login_path() -> Path:
    """Where it is kept."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    directory = Path(base) if base.startswith("/") else Path.home() / ".config"
    return directory / "tunnel" / "login.json"


def read_login() -> Login | None:
    """None when nobody has logged in. UsageError when the file is not one to be trusted."""
    path = login_path()
    try:
        text = read_private(path)
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(text, type=Login)
    except msgspec.DecodeError as error:
        raise UsageError(f"{path}: {error}: log in anew with `tunnel login`") from None


def login_for(url: str, *, has_token: bool) -> Login:
    """What was stored, if it is of this relay (or if none is named): its token goes to no other one, and neither do its
    certificates. A file that cannot be used is no matter to a command that needs nothing of it: with relay and token
    known, it is not read."""
    nothing = Login("")
    if url and has_token:
        return nothing
    login = read_login()
    if login is None or (url and url.rstrip("/") != login.relay.rstrip("/")):
        return nothing
    return login


def write_login(login: Login) -> Path:
    """Replace it, all or nothing; where it is. The directory is made if need be."""
    path = login_path()
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.suppress(FileNotFoundError):
            new.unlink()
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(login), indent=2) + b"\n")
            file.flush()
            os.fsync(descriptor)
        os.replace(new, path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}: set XDG_CONFIG_HOME to another place") from None
    return path


def remove_login() -> bool:
    """Whether there was one."""
    try:
        login_path().unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise UsageError(f"{login_path()} cannot be removed: {error.strerror}") from None
    return True


def read_private(path: Path) -> bytes:
    """The content of a file with a secret. FileNotFoundError if it is not there, UsageError if others may read it."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if stat.S_ISREG(found.st_mode) and found.st_mode & 0o077:
                raise UsageError(
                    f"{path} can be read by others (mode {stat.S_IMODE(found.st_mode):04o}): run `chmod 600 {path}`, "
                    "and ask for a new token if somebody may have seen this one"
                )
            if found.st_uid not in (os.geteuid(), 0):
                raise UsageError(f"{path} belongs to somebody else: use a file of your own")
            return file.read(_FILE_BYTES_MAX)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
