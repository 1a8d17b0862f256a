"""Message sets in files, as brokers keep them.

A file set is written to sockets and files with `sendfile`, so its bytes never enter this process. A tunnel has no
descriptor; it gets views of the mapped file, and nothing is copied before the tunnel itself copies.
"""

from __future__ import annotations

import io
import mmap
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tunnel.messages.errors import CorruptMessageError
from tunnel.messages.sets.message import (
    HEADER_BYTES,
    LENGTH_BYTES,
    MESSAGE_BYTES_MAX,
    UNPACKED_BYTES_MAX,
    MessageAndOffset,
    parse_header,
    scan,
)
from tunnel.messages.sets.sets import Destination, MessageSet, bounds, send_bytes

__all__ = ["FileMessageSet"]

_CHUNK_BYTES = 1024 * 1024  # bytes that are read at once when iterating
_SAMPLE_BYTES = 64 * 1024  # between two samples of the page cache: half of what Linux reads ahead by default
_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)  # of Linux alone
_SEARCH_BYTES = 32 * 1024  # the same when searching, which usually ends within two entries of a log's index


class FileMessageSet(MessageSet):
    """The message set in a file from byte `start` to `end`; None stands for the current end of the file.

    The file must not be shortened while sets of it are in use. The caller owns the descriptor, unless `open` opened it.
    """

    def __init__(
        self,
        descriptor: int,
        start: int = 0,
        end: int | None = None,
        *,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        unpacked_bytes_max: int = UNPACKED_BYTES_MAX,
    ) -> None:
        self.descriptor = descriptor
        self._start = start
        self._end = end
        self.message_bytes_max = message_bytes_max
        self.unpacked_bytes_max = unpacked_bytes_max
        self._owned = False

    @classmethod
    def open(cls, path: Path | str, *, writable: bool = False) -> FileMessageSet:
        """Open a whole file as a set; with `writable`, create it if necessary. Close the set, or use it in `with`."""
        flags = os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY
        opened = cls(os.open(path, flags | os.O_CLOEXEC, 0o600))
        opened._owned = True
        return opened

    def close(self) -> None:
        """Close the descriptor, if `open` opened it."""
        if self._owned:
            self._owned = False
            os.close(self.descriptor)

    def __enter__(self) -> FileMessageSet:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def size_bytes(self) -> int:
        end = os.fstat(self.descriptor).st_size if self._end is None else self._end
        return max(0, end - self._start)

    def read(self, offset: int, size_max: int) -> FileMessageSet:
        """Return up to `size_max` bytes from `offset` on, as a set of their own."""
        start, end = bounds(self.size_bytes, offset, size_max)
        return FileMessageSet(
            self.descriptor,
            self._start + start,
            self._start + end,
            message_bytes_max=self.message_bytes_max,
            unpacked_bytes_max=self.unpacked_bytes_max,
        )

    # writing to the file

    def append(self, messages: MessageSet) -> int:
        """Write a set at the end of the file, and return its size. It is on disk only after `flush`.

        ValueError if this set has a fixed end.
        """
        if self._end is not None:
            raise ValueError("cannot append to a part of a file: append to the set of the whole file")
        position = self._start + self.size_bytes
        size = messages.size_bytes
        written = 0
        with open(os.dup(self.descriptor), "r+b", buffering=0) as file:
            file.seek(position)
            while written < size:
                written += messages.write_to(file.fileno(), written)
        return size

    def flush(self) -> None:
        """Block until everything written is on disk."""
        os.fdatasync(self.descriptor)

    # reading

    def __iter__(self) -> Iterator[MessageAndOffset]:
        return self._iterate(deep=True)

    def shallow(self) -> Iterator[MessageAndOffset]:
        return self._iterate(deep=False)

    def _iterate(self, *, deep: bool) -> Iterator[MessageAndOffset]:
        position, size = 0, self.size_bytes
        wanted = _CHUNK_BYTES
        while position < size:
            chunk = os.pread(self.descriptor, min(wanted, size - position), self._start + position)
            end = position
            for found in scan(
                chunk,
                base=position,
                message_bytes_max=self.message_bytes_max,
                unpacked_bytes_max=self.unpacked_bytes_max,
                deep=deep,
            ):
                end = found.next_offset
                yield found
            if end > position:
                position, wanted = end, _CHUNK_BYTES
            elif len(chunk) < HEADER_BYTES or position + len(chunk) >= size:
                return  # the tail is truncated
            else:
                # The message is larger than the chunk, and `scan` has checked its length: read all of it.
                wanted = LENGTH_BYTES + int.from_bytes(chunk[:LENGTH_BYTES], "big")
                if wanted > size - position:
                    return

    def search(self, offset: int, count: int) -> int:
        """Return the position of the message that is `count` messages after the one at `offset`. Reads headers only.

        IndexError if fewer than `count` messages begin at `offset` or after it; if exactly `count` do, the result is
        the end.
        """
        length_max = max(self.message_bytes_max, self.unpacked_bytes_max) + HEADER_BYTES
        position, size = offset, self.size_bytes
        chunk, base = b"", position
        for _ in range(count):
            if position + HEADER_BYTES > base + len(chunk):
                base = position
                chunk = os.pread(self.descriptor, min(_SEARCH_BYTES, max(0, size - base)), self._start + base)
            if len(chunk) - (position - base) < HEADER_BYTES:
                raise IndexError(f"fewer than {count} messages from position {offset} on")
            position = base + parse_header(chunk, position - base, length_max, base)[0]
        if position > size:
            raise IndexError(f"fewer than {count} messages from position {offset} on")
        return position

    def write_to(self, destination: Destination, offset: int = 0, size_max: int | None = None) -> int:
        # Unlike this method, the code in message-sets-and-senders.md (docs/REFERENCES.md) limits the count by the size
        # of the whole set, not by what remains after `offset`, and reads beyond the set.
        start, end = bounds(self.size_bytes, offset, size_max)
        if start == end:
            return 0
        target = _descriptor(destination)
        if target is None:
            return send_bytes(destination, self.view(start, end - start))
        try:
            return os.sendfile(target, self.descriptor, self._start + start, end - start)
        except BlockingIOError:
            return 0

    def load(self, offset: int = 0, size_max: int | None = None) -> bytes:
        """Read a part of the set into memory. It has fewer bytes than asked for only if the set or file ends before."""
        start, end = bounds(self.size_bytes, offset, size_max)
        data = os.pread(self.descriptor, end - start, self._start + start)
        while len(data) < end - start:
            more = os.pread(self.descriptor, end - start - len(data), self._start + start + len(data))
            if not more:
                break
            data += more
        return data

    def is_cached(self) -> bool | None:
        """Whether the set is in the page cache, as far as a sample tells; None if the file system does not. Never
        blocks.

        Linux begins to read a page that it reports as missing: only the first call can be relied on.
        """
        if _NOWAIT is None:
            return None
        end = self._start + self.size_bytes
        scratch = [bytearray(1)]
        try:
            for position in range(self._start, end, _SAMPLE_BYTES):
                os.preadv(self.descriptor, scratch, position, _NOWAIT)
            if end > self._start:
                os.preadv(self.descriptor, scratch, end - 1, _NOWAIT)
        except BlockingIOError:
            return False
        except OSError:  # not supported, as on some versions of tmpfs
            return None
        return True

    def warm(self) -> None:
        """Block until the whole set is in the page cache, so that sending it later does not wait for the disk."""
        start, end = self._start, self._start + self.size_bytes
        scratch = bytearray(min(_CHUNK_BYTES, max(1, end - start)))
        while start < end and (got := os.preadv(self.descriptor, [scratch], start)):
            start += got

    def view(self, offset: int, size: int) -> memoryview:
        """Map a part of the set into memory. It is read when it is used, and stays valid after `close`."""
        if not size:
            return memoryview(b"")
        position = self._start + offset
        first = position - position % mmap.ALLOCATIONGRANULARITY
        mapped = mmap.mmap(self.descriptor, position - first + size, access=mmap.ACCESS_READ, offset=first)
        with suppress(OSError):
            mapped.madvise(mmap.MADV_SEQUENTIAL)
        return memoryview(mapped)[position - first :]

    def truncate(self) -> int:
        """Cut the file off before its first invalid or incomplete message, for good; return the number of bytes cut.

        Call it for recovery, before anything else uses the file.
        """
        if self._end is not None:
            raise ValueError("a part of a file cannot be cut: truncate the set of the whole file")
        end = 0
        with suppress(CorruptMessageError):
            for found in self.shallow():
                end = found.next_offset
        cut = self.size_bytes - end
        if cut:
            os.ftruncate(self.descriptor, self._start + end)
            os.fsync(self.descriptor)
        return cut


def _descriptor(destination: Destination) -> int | None:
    """Return the descriptor that sendfile can write to; None if the destination has none."""
    if isinstance(destination, int):
        return destination
    if isinstance(destination, socket.socket):
        return destination.fileno()
    if isinstance(destination, io.IOBase):
        with suppress(io.UnsupportedOperation):
            descriptor = destination.fileno()
            destination.flush()
            return descriptor
    return None
