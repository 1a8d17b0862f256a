"""Reads and writes files that only their owner can read, and says where a user's own files are."""

import contextlib
import os
import stat
from pathlib import Path

__all__ = ["cache_directory", "config_directory", "read_private", "read_token", "write_private"]

_FILE_BYTES_MAX = 64 * 1024


_ANOTHER_TOKEN = "ask for a new token if another user may have seen this one"


def config_directory() -> Path:
    """Return the directory of this user's files: the login, the known peers and the default keys.

    Raise ValueError, with advice, if the user has no home directory.
    """
    return _directory("XDG_CONFIG_HOME", ".config")


def cache_directory() -> Path:
    """Return the directory for data that this user's commands have learned, and could learn again.

    Raise ValueError, with advice, if the user has no home directory.
    """
    return _directory("XDG_CACHE_HOME", ".cache")


def _directory(variable: str, name: str) -> Path:
    base = os.environ.get(variable, "")
    if base.startswith("/"):
        return Path(base) / "tunnel"
    try:
        return Path.home() / name / "tunnel"
    except RuntimeError:
        raise ValueError(f"this user has no home directory: set {variable} to a directory of yours") from None


def read_private(path: Path, *, if_seen: str = _ANOTHER_TOKEN, bytes_max: int = _FILE_BYTES_MAX) -> bytes:
    """Return the content of a file that holds a secret. `if_seen` says what to do if another user has seen it.

    Raise FileNotFoundError if the file does not exist. Raise ValueError, with advice, if its mode opens it to other
    users, if it belongs to another user (except root), if it is longer than `bytes_max`, or if it cannot be read.
    """
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if stat.S_ISREG(found.st_mode) and found.st_mode & 0o077:
                raise ValueError(
                    f"{path} is open to other users (mode {stat.S_IMODE(found.st_mode):04o}): run `chmod 600 {path}`, "
                    f"and {if_seen}"
                )
            if found.st_uid not in (os.geteuid(), 0):
                raise ValueError(f"{path} belongs to another user: use a file of your own")
            content = file.read(bytes_max + 1)
            if len(content) > bytes_max:  # otherwise, its first part would be taken for the whole
                raise ValueError(f"{path} is longer than {bytes_max // 1024} KiB: check that it is the right file")
            return content
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}: check the path and its permissions") from None


def write_private(path: Path, content: bytes, *, replaces: bool = True, is_synced: bool = True) -> None:
    """Write a file of mode 0600 in one step: no reader, and no crash, ever finds a part of the content.

    Without `replaces`, a file that exists is left as it is. Without `is_synced`, a power failure may damage the file.
    Raise OSError if the file cannot be written; then nothing has changed.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        draft.unlink()  # left by a process with the same number that was killed
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if is_synced:
                os.fsync(descriptor)
        if replaces:
            os.replace(draft, path)
        else:
            with contextlib.suppress(FileExistsError):
                os.link(draft, path)  # unlike a rename, it never replaces what another process has just written
    finally:
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()


def read_token(path: Path) -> str:
    """Return the token in a file. Raise ValueError, with advice, if there is none, or as `read_private` does."""
    try:
        token = read_private(path).decode("ascii").strip()
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file: name a file that holds the token") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} does not hold a token, which is plain letters and digits: check the file") from None
    if not token:
        raise ValueError(f"{path} is empty: it must hold the token, on one line")
    return token
