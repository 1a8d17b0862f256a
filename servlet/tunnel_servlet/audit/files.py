"""The file of the audit, and the older ones: it is rotated by size, so that the audit never takes more of the disk."""

import contextlib
import fcntl
import os
import re
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tunnel_servlet.audit.event import decode_event
from tunnel_servlet.audit.places import Place, Removed

__all__ = ["AuditFile", "files_of"]

_FORM = "%Y%m%dT%H%M%S.%fZ"
_STAMP = re.compile(r"\d{8}T\d{6}\.\d{6}Z")
_TAIL_BYTES = 64 * 1024  # of a file, to find its last line in
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class AuditFile(Place):
    """A file of mode 0600 to which whole lines are appended. When it would have more than `bytes_max` bytes, it gets
    the time of its rotation as a suffix, in one step, and a new file takes its place; of all files, only the newest
    `files_max` stay. Whenever the process is killed, no line is lost that `write` has returned for, and at most the
    last line of a file is cut off.

    A lock on the file keeps other relays from writing to it. Raise OSError if the file cannot be opened.
    """

    def __init__(self, path: Path, *, bytes_max: int, files_max: int, syncs: bool) -> None:
        super().__init__()
        self._path = path
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._syncs = syncs
        self._descriptor = -1
        self._size = 0
        self._rest = b""  # of the bytes of the last `write`, those that were not written
        self._open()

    def write(self, data: bytes) -> None:
        """Append whole lines. Raise OSError if that fails; the next call must then have the same bytes, and writes
        those that are missing."""
        if not self._rest:
            self._reopen_if_moved()
            if self._size and self._size + len(data) > self._bytes_max:
                self._rotate()
            self._rest = data
        while self._rest:
            count = os.write(self._descriptor, self._rest)
            self._rest = self._rest[count:]
            self._size += count
        if self._syncs:
            os.fdatasync(self._descriptor)

    def give_up(self) -> None:
        """Forget the rest of the last `write`: its last line stays cut off."""
        if self._rest:
            self._rest = b""
            self._end_line()

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    # --- inside

    def _open(self) -> None:
        descriptor = os.open(self._path, _FLAGS, 0o600)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(f"{self._path} is no ordinary file")
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(descriptor, 0o600)
        except BlockingIOError:
            os.close(descriptor)
            raise OSError("another relay writes to it") from None
        except BaseException:
            os.close(descriptor)
            raise
        self.close()
        self._descriptor, self._size = descriptor, found.st_size
        self._end_line()
        if self._syncs:
            self._sync_folder()

    def _end_line(self) -> None:
        """End a line that was cut off when a process was killed, so that the next one is whole."""
        if self._size and os.pread(self._descriptor, 1, self._size - 1) != b"\n":
            self._size += os.write(self._descriptor, b"\n")

    def _reopen_if_moved(self) -> None:
        """Begin a new file if somebody has moved or removed this one, such as logrotate."""
        own = os.fstat(self._descriptor)
        try:
            found = os.stat(self._path, follow_symlinks=False)
        except FileNotFoundError:
            self._open()
            return
        if (found.st_dev, found.st_ino) != (own.st_dev, own.st_ino):
            self._open()

    def _rotate(self) -> None:
        older = files_of(self._path)[:-1]
        last = older[-1].name.removeprefix(f"{self._path.name}.") if older else ""
        self._path.rename(self._path.with_name(f"{self._path.name}.{_stamp(last)}"))
        self._open()
        for path in files_of(self._path)[: -self._files_max]:
            self.removed.append(Removed(path.name, *_times(path)))
            path.unlink(missing_ok=True)
        if self._syncs:
            self._sync_folder()

    def _sync_folder(self) -> None:
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def files_of(path: Path) -> list[Path]:
    """Return the files of an audit, the oldest first and the present one last, whether or not it exists."""
    prefix = f"{path.name}."
    names = [one.name for one in path.parent.iterdir() if one.name.startswith(prefix)] if path.parent.is_dir() else []
    older = sorted(name for name in names if _STAMP.fullmatch(name.removeprefix(prefix)))
    return [*(path.with_name(name) for name in older), path]


def _stamp(last: str) -> str:
    """Return the present time for the name of a file. If the clock was set back, the name follows `last` all the same,
    so that the order of the names is that of the events."""
    stamp = datetime.now(UTC).strftime(_FORM)
    if stamp > last:
        return stamp
    return (datetime.strptime(last, _FORM).replace(tzinfo=UTC) + timedelta(microseconds=1)).strftime(_FORM)


def _times(path: Path) -> tuple[str, str]:
    """Return the times of the first and the last event of a file, as far as they can be read."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        first = decode_event(file.readline())
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        last = next(filter(None, map(decode_event, reversed(file.read().splitlines()))), None)
        return (first.time if first else ""), (last.time if last else "")
    return "", ""
