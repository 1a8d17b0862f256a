"""One file of a log: a message set, its first offset in its name, and a sparse index of where messages are.

An offset is the number of a message, counted from the first one that the log ever had. A compressed set is one message.
"""

from __future__ import annotations

import os
import struct
import weakref
from array import array
from bisect import bisect_right
from contextlib import suppress
from pathlib import Path

from tunnel.messages.errors import CorruptMessageError, LogError
from tunnel.messages.file_sets import FileMessageSet
from tunnel.messages.message import LENGTH_BYTES, UNPACKED_BYTES_MAX

__all__ = [
    "INDEX_BYTES",
    "Segment",
    "SegmentSet",
    "recover_segments",
    "segment_path",
    "sync_directory",
    "write_atomically",
]

INDEX_BYTES = (
    16 * 1024
)  # between two entries: a reader passes over 16 messages of 1 KiB, and a GiB needs 1 MiB of index
_SUFFIX = ".log"
_FOOT = struct.Struct(">QQ")  # of an index file: messages and bytes of a sealed segment


def segment_path(directory: Path, base: int) -> Path:
    """Where the segment that begins with this offset is: the names sort as the offsets do."""
    return directory / f"{base:020d}{_SUFFIX}"


def sync_directory(directory: Path) -> None:
    """Return when names made and removed in it will survive the power."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file: whoever reads it, also after the power was cut, finds the old content or the new one."""
    fresh = path.with_name(f"{path.name}.new")
    with open(fresh, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    sync_directory(path.parent)


class _Descriptor:
    """An open file that is closed when nobody refers to it any more: a reader may outlive its segment."""

    def __init__(self, path: Path, flags: int) -> None:
        self.number = os.open(path, flags | os.O_CLOEXEC, 0o600)
        weakref.finalize(self, os.close, self.number)


class SegmentSet(FileMessageSet):
    """A part of a segment. It keeps the file open as long as it lives."""

    keeps: _Descriptor


class Segment:
    """Written by one thread at a time, read by any number. `size` and `count` are what readers may see."""

    def __init__(self, directory: Path, base: int) -> None:
        self.base = base
        self.path = segment_path(directory, base)
        self.size = 0
        self.count = 0
        self._offsets = array("Q")  # of the index: message, relative to base
        self._positions = array("Q")
        self._descriptor: weakref.ref[_Descriptor] | None = None
        self._indexed = 0  # position behind which an entry is due

    @property
    def end(self) -> int:
        """The offset behind the last message that readers may see."""
        return self.base + self.count

    @property
    def index_path(self) -> Path:
        return self.path.with_suffix(".index")

    # opening

    def recover(self, *, last: bool) -> int:
        """Learn what is in the file. Of the last segment a torn tail is cut off: how many bytes it were.

        In every other one, damage is a LogError: what follows was written later, and must not be lost in silence.
        """
        if not last and self._load_index():
            return 0
        found = self.messages()
        self._offsets, self._positions, self._indexed = array("Q"), array("Q"), 0
        end, count = 0, 0
        cut = 0
        try:
            for message in found.shallow():
                self.note(count, message.offset)
                end, count = message.next_offset, count + 1
        except CorruptMessageError as error:
            if not last:
                raise LogError(f"{self.path} is damaged: {error}; restore it, or remove it to go on without") from error
        if end < found.size_bytes:
            if not last:
                raise LogError(f"{self.path} ends within a message; restore it, or remove it to go on without")
            cut = found.size_bytes - end
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            try:
                os.ftruncate(descriptor, end)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        self.size, self.count = end, count
        return cut

    def _load_index(self) -> bool:
        try:
            data = self.index_path.read_bytes()
            size = self.path.stat().st_size
        except OSError:
            return False
        if len(data) % _FOOT.size or not data:
            return False
        count, end = _FOOT.unpack_from(data, len(data) - _FOOT.size)
        if end != size:
            return False
        numbers = array("Q")
        numbers.frombytes(data[: -_FOOT.size])
        if len(numbers) % 2 or any(numbers[index] > limit for index, limit in ((-2, count), (-1, end)) if numbers):
            return False
        self._offsets, self._positions = numbers[0::2], numbers[1::2]
        self.size, self.count = end, count
        return True

    # writing

    def writer(self) -> _Descriptor:
        """The file, to be written at its end."""
        return _Descriptor(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)

    def note(self, count: int, position: int) -> None:
        """The message `count` messages behind the base is at this position: an entry of the index, if one is due."""
        if position >= self._indexed:
            self._offsets.append(count)
            self._positions.append(position)
            self._indexed = position + INDEX_BYTES

    def note_inside(self, data: bytes, count: int, position: int) -> None:
        """As `note`, for each message of a large set that is written there; the set is known to be whole."""
        inside = 0
        while inside < len(data):
            self.note(count, position + inside)
            inside += LENGTH_BYTES + int.from_bytes(data[inside : inside + LENGTH_BYTES], "big")
            count += 1

    def seal(self) -> None:
        """Nothing is written to it any more: keep the index, so that opening the log need not read it."""
        numbers = array("Q", [0]) * (2 * len(self._offsets))
        numbers[0::2], numbers[1::2] = self._offsets, self._positions
        write_atomically(self.index_path, numbers.tobytes() + _FOOT.pack(self.count, self.size))

    def remove(self) -> None:
        """Delete its files; readers that have it open go on."""
        for path in (self.index_path, self.path):
            with suppress(FileNotFoundError):
                path.unlink()

    # reading

    def messages(self, position: int = 0, end: int | None = None) -> SegmentSet:
        """A part of it as a set; the position must be that of a message."""
        descriptor = self._descriptor() if self._descriptor is not None else None
        if descriptor is None:
            descriptor = _Descriptor(self.path, os.O_RDONLY)
            self._descriptor = weakref.ref(descriptor)
        part = SegmentSet(descriptor.number, position, end, message_bytes_max=UNPACKED_BYTES_MAX)
        part.keeps = descriptor
        return part

    def position(self, offset: int) -> int:
        """Where the message of this offset begins; it must be here, or be the next one."""
        wanted = offset - self.base
        if wanted == self.count:
            return self.size
        entry = bisect_right(self._offsets, wanted) - 1
        start = self._positions[entry]
        return self.messages(0, self.size).search(start, wanted - self._offsets[entry])

    def read(self, offset: int, size_max: int) -> SegmentSet:
        """Messages from this offset on: about `size_max` bytes, cut anywhere, but the first one whole."""
        start = self.position(offset)
        end = min(self.size, start + size_max)
        if end < self.size:
            whole = self.messages(0, self.size).search(start, 1)
            end = max(end, whole)
        return self.messages(start, end)


def recover_segments(segments: list[Segment]) -> int:
    """Learn what is in the segments, and that none is missing; how many bytes of a torn tail were cut off."""
    cut = 0
    for segment, successor in zip(segments, [*segments[1:], None], strict=True):
        cut = segment.recover(last=successor is None)
        if successor is not None and segment.end != successor.base:
            raise LogError(
                f"{segment.path} ends at {segment.end}, the next one begins at {successor.base}: one is missing"
            )
    return cut
