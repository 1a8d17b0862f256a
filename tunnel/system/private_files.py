"""Creates, opens and checks the files that matter: secrets, which only their owner may read, and files that decide
what a program does, which no other user may change. It also says where a user's own files are.

No function relies on the umask. A directory in which every user may rename files is no place for such files, unless it
has the sticky bit, as /tmp has.
"""

import contextlib
import os
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = [
    "cache_directory",
    "config_directory",
    "create_private",
    "is_open_to_others",
    "make_private_directory",
    "read_private",
    "read_token",
    "require_ordinary",
    "require_private",
    "require_trusted",
    "write_new",
    "write_private",
]

_FILE_BYTES_MAX = 64 * 1024


_OPENED = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")  # the names of files that the shell has opened
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


def make_private_directory(directory: Path) -> None:
    """Create a directory and those above it that are missing, all with mode 0700. Raise OSError if that fails."""
    for place in reversed([directory, *(above for above in directory.parents if not above.exists())]):
        place.mkdir(mode=0o700, exist_ok=True)  # `parents=True` would give those above the mode that the umask leaves


def create_private(path: Path) -> int:
    """Create a file of mode 0600 and return its descriptor, open for writing.

    Raise FileExistsError if something has this name: another user may have put it there as a trap. Raise OSError if the
    file cannot be created for another reason.
    """
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def write_new(path: Path, content: str) -> None:
    """Create a file of mode 0600 with this content. Raise as `create_private` does.

    Raise OSError also if the content cannot be written, as on a full disk: then there is no file.
    """
    descriptor = create_private(path)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def read_private(path: Path, *, if_seen: str = _ANOTHER_TOKEN, bytes_max: int = _FILE_BYTES_MAX) -> bytes:
    """Return the content of a file that holds a secret. `if_seen` says what to do if another user has seen it.

    Raise FileNotFoundError if the file does not exist. Raise ValueError, with advice, if its mode opens it to other
    users, if it belongs to another user (except root), if every user can replace it, if it is longer than `bytes_max`,
    if it is no ordinary file (see `require_ordinary`), or if it cannot be read.
    """
    with _opened_secret(path, if_seen) as file:
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:  # otherwise, its first part would be taken for the whole
        raise ValueError(f"{path} is longer than {bytes_max // 1024} KiB: check that it is the right file")
    return content


def require_private(path: Path, *, if_seen: str) -> None:
    """Raise as `read_private` does, for a file that another library will read. Its length is not checked."""
    with _opened_secret(path, if_seen):
        pass


def require_ordinary(path: Path) -> None:
    """Raise ValueError, with advice, if this is a pipe or a device: to read it could take for ever.

    A pipe that the shell has opened, as for `-c <(COMMAND)`, is none of these. Do nothing if the file does not exist.
    """
    with contextlib.suppress(OSError):
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or str(path).startswith(_OPENED)):
            raise ValueError(f"{path} cannot be read: it is no ordinary file: put one in its place")


def require_trusted(path: Path) -> None:
    """Raise ValueError, with advice, if every user of this machine can change or replace this file, or if it is no
    ordinary file (see `require_ordinary`).

    It may be readable, and writable for its group: many systems give each user a group of its own, and a umask that
    lets this group write. It may belong to another user, as files do that a container gets from its host, but not
    where every user can create files. Do nothing if the file does not exist, or cannot be examined: reading it tells.
    """
    require_ordinary(path)
    with contextlib.suppress(OSError):
        found, folder = path.stat(), path.resolve().parent
        if found.st_mode & stat.S_IWOTH:
            raise ValueError(
                f"every user of this machine can change {path}: check it, and run `chmod o-w {shlex.quote(str(path))}`"
            )
        if found.st_uid not in (os.geteuid(), 0, folder.stat().st_uid) and folder.stat().st_mode & stat.S_IWOTH:
            raise ValueError(f"{path} belongs to another user, and every user can create files in {folder}: check it")
        _check_parents(path)


@contextlib.contextmanager
def _opened_secret(path: Path, if_seen: str) -> Iterator[BinaryIO]:
    require_ordinary(path)
    try:
        with path.open("rb") as file:
            _check_secret(path, os.fstat(file.fileno()), if_seen)
            yield file
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}: check the path and its permissions") from None


def is_open_to_others(found: os.stat_result) -> bool:
    """Whether the mode of this file lets other users read or change it."""
    # A system's own secret may be readable for a group that the system gave to this process, as PostgreSQL allows it
    # for TLS keys: Debian's group ssl-cert, or the group of a volume with secrets.
    forbidden = 0o037 if found.st_uid == 0 and os.geteuid() != 0 else 0o077
    return stat.S_ISREG(found.st_mode) and bool(stat.S_IMODE(found.st_mode) & forbidden)


def _check_secret(path: Path, found: os.stat_result, if_seen: str) -> None:
    if is_open_to_others(found):
        mode = stat.S_IMODE(found.st_mode)
        advice = f"run `chmod 600 {shlex.quote(str(path))}`, and {if_seen}"
        raise ValueError(f"{path} is open to other users (mode {mode:04o}): {advice}")
    if found.st_uid not in (os.geteuid(), 0):
        raise ValueError(f"{path} belongs to another user: use a file of your own")
    _check_parents(path)


def _check_parents(path: Path) -> None:
    """Raise ValueError if every user can put something else in the place of this path, or of what it links to."""
    for place in {Path(os.path.abspath(path)), path.resolve()}:
        for above in place.parents:
            if above.stat().st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
                raise ValueError(
                    f"{path} can be replaced by every user of this machine, because {above} is open to all: run "
                    f"`chmod o-w {shlex.quote(str(above))}`, and check what is in it"
                )


def write_private(path: Path, content: bytes, *, replaces: bool = True, is_synced: bool = True) -> None:
    """Write a file of mode 0600 in one step: no reader, and no crash, ever finds a part of the content.

    Without `replaces`, a file that exists is left as it is. Without `is_synced`, a power failure may damage the file.
    What root writes for the owner of the folder stays that user's: a service goes on reading its own file.
    Raise OSError if the file cannot be written; then nothing has changed.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        draft.unlink()  # left by a process with the same number that was killed
    try:
        descriptor = create_private(draft)
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            _keep_owner(descriptor, path)
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


def _keep_owner(descriptor: int, path: Path) -> None:
    """Give a file that root has opened to the owner of the one that it replaces, if the folder is that user's, too."""
    if os.geteuid():
        return
    with contextlib.suppress(FileNotFoundError):
        found = path.lstat()
        if found.st_uid == path.parent.stat().st_uid:
            os.fchown(descriptor, found.st_uid, found.st_gid)


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
