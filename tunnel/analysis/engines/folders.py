"""Folders of traces and of tables: the operations that the analysis needs, and their implementation on this machine.

A path without a scheme, or with the scheme `file:`, is a path on this machine, because that is where `--trace` writes.
It is handled without Java. Every other URI belongs to Hadoop (`tunnel.analysis.engines.hadoop`). Spark always gets URIs
with a scheme, so that its default file system does not matter.
"""

import fcntl
import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

from tunnel.system.durable_files import make_directory

__all__ = [
    "FileStatus",
    "Folder",
    "HeldError",
    "LocalFolder",
    "UnusableError",
    "holder",
    "is_hidden",
    "local_path",
]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_NAME_BYTES = 200
_READERS = "readers"


class HeldError(Exception):
    """Another process holds the lock of a folder. The text names that process, if its name is known."""


class UnusableError(OSError):
    """A file system cannot be used. The text says what to do."""


class FileStatus(NamedTuple):
    """A file in a folder; `name` is its path below the folder."""

    name: str
    size_bytes: int
    changed_ns: int


class Folder(Protocol):
    """A folder, and the files and folders in it, which have names such as `commits/00000001.json`.

    Methods raise FileNotFoundError and FileExistsError as the functions of `os` do, and OSError for other failures.
    """

    def uri(self, name: str = "") -> str:
        """Return the URI, for Spark, of the folder, or of the file or folder in it that has this name."""

    def place(self, name: str = "") -> str:
        """Return the path or URI, in the form for people, of the folder, or of the file or folder in it."""

    def is_folder(self, name: str = "") -> bool:
        """Return whether this is an existing folder."""

    def status(self, name: str) -> FileStatus:
        """Return the state of a file."""

    def walk(self) -> list[FileStatus]:
        """Return all files in and below the folder, sorted by name, except those in hidden folders (`is_hidden`)."""

    def names(self, name: str) -> list[str]:
        """Return the sorted names of the files and folders in a folder; empty if there is no such folder."""

    def local_copy(self, name: str) -> AbstractContextManager[Path]:
        """Yield a path on this machine at which a file can be read."""

    def read(self, name: str) -> bytes:
        """Return the content of a small file."""

    def make(self, name: str = "") -> None:
        """Create a folder and those above it, as far as they do not exist.

        Their names survive a crash, unless the folder above cannot be read or synced.
        """

    def write(self, name: str, content: bytes) -> None:
        """Write a new file."""

    def put_if_absent(self, name: str, content: bytes) -> None:
        """Write a file that appears in one step and survives a crash. Raise FileExistsError if the file exists."""

    def sync(self, name: str) -> None:
        """Make sure that a folder and everything in it would survive a crash."""

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with everything in it. Has no effect if there is none.

        In a folder on this machine, files that cannot be removed are left in place without an error.
        """

    def lock(self) -> AbstractContextManager[bool]:
        """Hold the lock of this folder, which must exist. Raise HeldError if another process has it.

        Yield whether the lock was taken from another process, which is probably dead. If that process was only frozen,
        it may wake up, and the caller must prevent it from finishing its work.
        """

    def reading(self) -> AbstractContextManager[None]:
        """Tell others that this process reads files of the folder, which must exist."""

    def unread(self) -> AbstractContextManager[bool | None]:
        """Yield whether no process reads files of the folder; none begins meanwhile. None: this cannot be known."""


def local_path(place: str) -> Path | None:
    """Return the path on this machine that a path or URI means, or None if it is a URI of another file system."""
    scheme = _SCHEME.match(place)
    if scheme is None:
        return Path(place)
    if scheme[1].lower() != "file":
        return None
    return Path("/" + place[len("file:") :].lstrip("/"))  # as Hadoop reads it, which does not decode %-escapes


def is_hidden(name: str) -> bool:
    """Return whether readers of a directory skip this name, as Spark does."""
    return name.startswith(("_", "."))


def holder() -> str:
    """Return the name of this process, for the lock."""
    return f"process {os.getpid()} on {socket.gethostname()}"


class LocalFolder:
    """A folder on this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def uri(self, name: str = "") -> str:
        return f"file:{(self.path / name).absolute()}"

    def place(self, name: str = "") -> str:
        return str(self.path / name)

    def is_folder(self, name: str = "") -> bool:
        return (self.path / name).is_dir()

    def status(self, name: str) -> FileStatus:
        found = (self.path / name).stat()
        return FileStatus(name, found.st_size, found.st_mtime_ns)

    def walk(self) -> list[FileStatus]:
        found = []
        for folder, folders, files in os.walk(self.path):
            folders[:] = [each for each in folders if not is_hidden(each)]
            for file in files:
                try:
                    found.append(self.status(str((Path(folder) / file).relative_to(self.path))))
                except FileNotFoundError:
                    continue  # it has just been renamed or removed
        return sorted(found, key=lambda file: Path(file.name))

    def names(self, name: str) -> list[str]:
        try:
            return sorted(os.listdir(self.path / name))
        except FileNotFoundError:
            return []

    @contextmanager
    def local_copy(self, name: str) -> Iterator[Path]:
        yield self.path / name

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def make(self, name: str = "") -> None:
        make_directory(self.path / name)

    def write(self, name: str, content: bytes) -> None:
        with (self.path / name).open("xb") as file:
            file.write(content)

    def put_if_absent(self, name: str, content: bytes) -> None:
        target = self.path / name
        written = target.with_name(f".{target.name}-{secrets.token_hex(4)}")
        with written.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            _link_or_rename(written, target)
        finally:
            written.unlink(missing_ok=True)
        _sync(target.parent)

    def sync(self, name: str) -> None:
        folder = self.path / name
        for path in folder.rglob("*"):
            _sync(path)
        _sync(folder)
        _sync(folder.parent)

    def remove(self, name: str) -> None:
        path = self.path / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

    @contextmanager
    def lock(self) -> Iterator[bool]:
        """Hold a lock of the operating system. It ends with its process, so it is never taken from a dead one."""
        with (self.path / "lock").open("a+b") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise HeldError(_written_name(lock)) from None
            lock.truncate(0)
            lock.write(holder().encode())
            lock.flush()
            yield False

    @contextmanager
    def reading(self) -> Iterator[None]:
        with (self.path / _READERS).open("a+b") as readers:
            fcntl.flock(readers, fcntl.LOCK_SH)
            yield

    @contextmanager
    def unread(self) -> Iterator[bool | None]:
        with (self.path / _READERS).open("a+b") as readers:
            try:
                fcntl.flock(readers, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True


def _written_name(lock: BinaryIO) -> str:
    lock.seek(0)
    return lock.read(_NAME_BYTES).decode(errors="replace") or "it has not written its name yet"


def _link_or_rename(written: Path, target: Path) -> None:
    try:
        os.link(written, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without links; the lock keeps other processes out
        if target.exists():
            raise FileExistsError(target) from None
        written.rename(target)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
