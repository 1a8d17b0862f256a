"""A segment, one file of a log: a message set, named after its first offset, with a sparse index of positions.

An offset is the number of a message, counted from the first message that the log ever had. A compressed set counts as
one message.
"""

from __future__ import annotations

import math
import os
import struct
import weakref
from array import array
from bisect import bisect_right
from contextlib import suppress
from pathlib import Path

from tunnel.messages.errors import CorruptMessageError, LogError
from tunnel.messages.sets.file_sets import FileMessageSet
from tunnel.messages.sets.message import LENGTH_BYTES, UNPACKED_BYTES_MAX
from tunnel.system import clock
from tunnel.system.durable_files import write_atomically

__all__ = [
    "INDEX_BYTES",
    "Segment",
    "SegmentSet",
    "recover_segments",
    "segment_base",
    "segment_path",
]

INDEX_BYTES = (
    16 * 1024
)  # between two entries of the index: a reader skips up to 16 messages of 1 KiB, and a GiB needs 1 MiB of index
_ENDS_MAX = 64  # readers that follow a segment are rarely further behind than this number of flushes
_SUFFIX = ".log"
_FOOT = struct.Struct(">QQ")  # the end of an index file: the messages and bytes of a sealed segment


def segment_path(directory: Path, base: int) -> Path:
    """Return the path of the segment that begins with this offset. The names sort in the order of the offsets."""
    return directory / f"{base:020d}{_SUFFIX}"


def segment_base(path: Path) -> int:
    """Return the first offset of a segment, from its name. LogError if no segment has this name."""
    if path.stem.isdecimal() and path == segment_path(path.parent, int(path.stem)):
        return int(path.stem)
    raise LogError(f"{path} is no segment of a log: move it away")


class _Descriptor:
    """An open file that is closed when the last reference to it is gone, since a reader may outlive its segment."""

    def __init__(self, path: Path, flags: int) -> None:
        self.number = os.open(path, flags | os.O_CLOEXEC, 0o600)
        weakref.finalize(self, os.close, self.number)


class SegmentSet(FileMessageSet):
    """A part of a segment. It keeps the segment's file open while it exists."""

    keeps: _Descriptor
    next_offset: int | None = None
    """The offset of the first message after the set; None if the set ends within a message or the offset is unknown."""


class Segment:
    """A segment, which one thread at a time may write and any number may read.

    `size` and `count` are the bytes and messages that readers may see.
    """

    def __init__(self, directory: Path, base: int) -> None:
        self.base = base
        self.path = segment_path(directory, base)
        self.size = 0
        self.count = 0
        self._written_s = clock.passed_s()  # when it was written last, as far as is known
        self._offsets = array("Q")  # the index: message offsets, relative to base, and positions
        self._positions = array("Q")
        self._descriptor: weakref.ref[_Descriptor] | None = None
        self._indexed = 0  # position from which on an index entry is due
        self._ends: dict[int, int] = {}  # the last counts that readers saw as the end, with their positions

    @property
    def end(self) -> int:
        """The offset after the last message that readers may see."""
        return self.base + self.count

    @property
    def index_path(self) -> Path:
        return self.path.with_suffix(".index")

    def age_s(self) -> float:
        """Return the seconds since the segment was last written, or infinity if its file no longer exists.

        The time of the file counts once, in `recover`: a clock that is set later makes no segment older or younger.
        """
        return clock.passed_s() - self._written_s if self.path.exists() else math.inf

    # opening

    def recover(self, *, last: bool) -> int:
        """Read size, count and index from the files. Return the number of bytes cut off, in the last segment only.

        A torn tail of the last segment is cut off, and the rest is synced: a process that was killed may have left
        messages that are not on disk. In any other segment damage raises a LogError: newer messages follow it, which
        must not be lost silently.
        """
        self._written_s = clock.passed_s() - clock.age_s(self.path.stat().st_mtime)
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
                raise LogError(
                    f"{self.path} is damaged: {error}; restore it, or remove it and all older segments"
                ) from error
        if end < found.size_bytes:
            if not last:
                raise LogError(f"{self.path} ends within a message; restore it, or remove it and all older segments")
            cut = found.size_bytes - end
        if last:
            self._keep(end, cut)
        self.size, self.count = end, count
        return cut

    def _keep(self, end: int, cut: int) -> None:
        """Cut the file off at `end`, if there is anything to cut, and block until the file is on disk."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if cut:
                os.ftruncate(descriptor, end)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

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
        """Open the file, and create it if necessary, for writing at its end."""
        descriptor = _Descriptor(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._descriptor = weakref.ref(descriptor)  # readers use it, too, while the segment is written
        return descriptor

    def written(self) -> None:
        """Note that the segment has just been written."""
        self._written_s = clock.passed_s()

    def remember_end(self) -> None:
        """Note the present end, so that a reader that has read up to it knows without a search where to go on."""
        self._ends[self.count] = self.size
        if len(self._ends) > _ENDS_MAX:
            del self._ends[next(iter(self._ends))]

    def note(self, count: int, position: int) -> None:
        """Add an index entry, if one is due: message number `count` of the segment, from 0, is at this position."""
        if position >= self._indexed:
            self._offsets.append(count)
            self._positions.append(position)
            self._indexed = position + INDEX_BYTES

    def note_inside(self, data: bytes, count: int, position: int) -> None:
        """Add the index entries that are due within a large set, which must be whole."""
        inside = 0
        while inside < len(data):
            self.note(count, position + inside)
            inside += LENGTH_BYTES + int.from_bytes(data[inside : inside + LENGTH_BYTES], "big")
            count += 1

    def seal(self) -> None:
        """Write the index to disk, so that opening the log need not read this segment. Nothing may be written later."""
        self._ends = {}
        numbers = array("Q", [0]) * (2 * len(self._offsets))
        numbers[0::2], numbers[1::2] = self._offsets, self._positions
        write_atomically(self.index_path, numbers.tobytes() + _FOOT.pack(self.count, self.size))

    def remove(self) -> None:
        """Delete the files of the segment. Readers that have it open are not affected."""
        for path in (self.index_path, self.path):
            with suppress(FileNotFoundError):
                path.unlink()

    # reading

    def messages(self, position: int = 0, end: int | None = None) -> SegmentSet:
        """Return a part of the segment as a set. A message must begin at `position`."""
        descriptor = self._descriptor() if self._descriptor is not None else None
        if descriptor is None:
            descriptor = _Descriptor(self.path, os.O_RDONLY)
            self._descriptor = weakref.ref(descriptor)
        part = SegmentSet(descriptor.number, position, end, message_bytes_max=UNPACKED_BYTES_MAX)
        part.keeps = descriptor
        return part

    def position(self, offset: int) -> int:
        """Return the position of the message with this offset. It must be in this segment, or the next to be added."""
        wanted = offset - self.base
        if wanted == self.count:
            return self.size
        known = self._ends.get(wanted)
        if known is not None:
            return known
        entry = bisect_right(self._offsets, wanted) - 1
        start = self._positions[entry]
        return self.messages(0, self.size).search(start, wanted - self._offsets[entry])

    def about(self, offset: int) -> int:
        """Return the last position in the index that is not after the message with this offset. Reads no file."""
        wanted = offset - self.base
        if wanted >= self.count:
            return self.size
        return self._positions[bisect_right(self._offsets, wanted) - 1]

    def read(self, offset: int, size_max: int) -> SegmentSet:
        """Return about `size_max` bytes of messages from this offset on. Only the first of them is certainly whole.

        If the end of the segment or an entry of the index lies within `size_max`, the set ends there, and `next_offset`
        is known.
        """
        count, size = self.count, self.size
        start = self.position(offset)
        if size - start <= size_max:
            return self._part(start, size, self.base + count)
        entry = bisect_right(self._positions, start + size_max) - 1
        if self._positions[entry] > start:
            return self._part(start, self._positions[entry], self.base + self._offsets[entry])
        whole = self.messages(0, size).search(start, 1)
        return self._part(start, max(start + size_max, whole), None)

    def _part(self, start: int, end: int, next_offset: int | None) -> SegmentSet:
        part = self.messages(start, end)
        part.next_offset = next_offset
        return part


def recover_segments(segments: list[Segment]) -> int:
    """Recover all segments, and check that none is missing. Return the number of bytes cut off at the end."""
    cut = 0
    for segment, successor in zip(segments, [*segments[1:], None], strict=True):
        cut = segment.recover(last=successor is None)
        if successor is not None and segment.end != successor.base:
            raise LogError(
                f"{segment.path} ends at {segment.end}, but the next segment begins at {successor.base}: one is "
                "missing; restore it"
            )
    return cut
