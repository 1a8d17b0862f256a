"""The folder of trace files: only its owner can read them, and together they do not exceed a number of bytes.

A trace shows who talked to whom and when, and a process that traces for months must not fill the disk.
"""

import fcntl
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tunnel.system.private_files import create_private, make_private_directory
from tunnel.traces.salvage import SUFFIX

__all__ = ["FOLDER_BYTES_MAX", "TraceFolder"]

FOLDER_BYTES_MAX = 1 << 30  # compressed; about 10 GB as plain JSON lines
# The names of trace files; no other file is ever removed. A name that begins with _ is a file that is still being
# written.
_OURS = re.compile(r"_?.+-\d+-[0-9a-f]{8}-\d{5,}" + re.escape(SUFFIX))
_MIB = 1 << 20


class _Found(NamedTuple):
    changed_ns: int
    name: str
    size_bytes: int


class TraceFolder:
    """Keeps the trace files of all processes in a folder within `bytes_max`, by removing the oldest complete ones.

    `tell` is called once, when the limit is reached for the first time, with a sentence for the log.
    """

    def __init__(self, path: Path, bytes_max: int, tell: Callable[[str], None]) -> None:
        """Create the folder if it does not exist; only its owner can enter it then. Raise OSError if that fails."""
        make_private_directory(path)
        self.path = path
        self.removed_files = 0
        self.bytes_max = bytes_max
        self._tell = tell
        self._has_told = False
        self._held_bytes = 0  # in all trace files at the last look, plus the bytes written since then

    def create(self, name: str) -> BinaryIO:
        """Create a file. Raise OSError if that fails. While it is open, its lock tells others that it is written."""
        descriptor = create_private(self.path / name)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return open(descriptor, "wb")

    def look(self) -> None:
        """Count the bytes of all files, in case other processes have written some."""
        self._held_bytes = sum(found.size_bytes for found in self._files())

    def takes(self, count: int) -> bool:
        """Make room for `count` bytes that are about to be written. Return whether there is room now."""
        if self._held_bytes + count > self.bytes_max:
            self._remove(count)
        if self._held_bytes + count > self.bytes_max:
            return False
        self._held_bytes += count
        return True

    def _files(self) -> list[_Found]:
        files = []
        with os.scandir(self.path) as entries:
            for entry in entries:
                if _OURS.fullmatch(entry.name):
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:  # it was renamed or removed meanwhile
                        continue
                    files.append(_Found(status.st_mtime_ns, entry.name, status.st_size))
        return sorted(files)

    def _remove(self, count: int) -> None:
        """Remove complete files, the oldest first, until `count` bytes have room.

        Remove none if all of them together would not make enough room.
        """
        files = self._files()
        self._held_bytes = sum(found.size_bytes for found in files)
        complete = [found for found in files if not found.name.startswith("_")]  # the others are still being written
        if self._held_bytes + count - sum(found.size_bytes for found in complete) > self.bytes_max:
            return
        for found in complete:
            if self._held_bytes + count <= self.bytes_max:
                return
            self._say_once()
            (self.path / found.name).unlink(missing_ok=True)
            self.removed_files += 1
            self._held_bytes -= found.size_bytes

    def _say_once(self) -> None:
        if not self._has_told:
            self._has_told = True
            self._tell(
                f"the trace files in {self.path} have reached their limit of {self.bytes_max / _MIB:g} MiB: the oldest "
                "are removed from now on; raise the limit, or copy them elsewhere, to keep them"
            )
