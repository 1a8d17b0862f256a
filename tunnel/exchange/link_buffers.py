"""Where the bytes of a link are read to, so that each batch lies in one piece and none is copied to make it so.

A large batch gets a buffer of its own, with room for the header behind it and for nothing else: what is read next is
read to where it is to stay. Small batches share buffers.
"""

from collections import deque

from tunnel.exchange.config import KIB, MIB

__all__ = ["BufferPool", "LinkReader"]

_SHARED_BYTES = 128 * KIB  # a buffer for headers and small batches
_READ_BYTES_MIN = 16 * KIB  # less room than this is not worth another read of them
_LARGE_BYTES = 32 * KIB  # a batch above it has a buffer of its own
_STEP_BYTES = 64 * KIB  # sizes of buffers, so that they can be used again
_AHEAD_BYTES = 1 * MIB + _STEP_BYTES  # allocated at a header's word; what is longer grows as it comes
_KEPT_BYTES_MAX = 16 * MIB


class BufferPool:
    """Memory that is used again. Fresh memory costs as much as copying: its pages are mapped and cleared one by one.

    Who keeps a view of a buffer, or of a part of it, need not say when it is done: a buffer without views is free.
    """

    def __init__(self, kept_bytes_max: int = _KEPT_BYTES_MAX) -> None:
        self._kept: deque[bytearray] = deque()
        self._kept_bytes = 0
        self._kept_bytes_max = kept_bytes_max

    def get(self, size: int) -> memoryview:
        """A buffer of at least so many bytes, with anything in it."""
        size = -(-size // _STEP_BYTES) * _STEP_BYTES
        kept = self._kept
        for _ in range(len(kept)):
            buffer = kept[0]
            kept.rotate(-1)
            if len(buffer) == size and _is_free(buffer):
                return memoryview(buffer)
        buffer = bytearray(size)
        if size <= self._kept_bytes_max:
            self._keep(buffer)
        return memoryview(buffer)

    def _keep(self, buffer: bytearray) -> None:
        """The oldest are forgotten: they live as long as their views."""
        self._kept.append(buffer)
        self._kept_bytes += len(buffer)
        while self._kept_bytes > self._kept_bytes_max:
            self._kept_bytes -= len(self._kept.popleft())


def _is_free(buffer: bytearray) -> bool:
    """Python refuses to resize what has views. One byte less and one more moves nothing."""
    try:
        buffer.pop()
    except BufferError:
        return False
    buffer.append(0)
    return True


class LinkReader:
    """What was read and not taken. `space` says where to read to, `take` gives it in pieces."""

    def __init__(self, buffers: BufferPool) -> None:
        self._buffers = buffers
        self._view = memoryview(b"")
        self._start = 0
        self._end = 0

    @property
    def held_bytes(self) -> int:
        """Read, and not taken."""
        return self._end - self._start

    def space(self, wanted: int, behind: int) -> memoryview:
        """Where to read to, when a piece of `wanted` bytes is to be taken next, and one of `behind` bytes after it."""
        held = self._end - self._start
        missing = wanted - held
        size = len(self._view)
        if wanted <= _LARGE_BYTES:
            if size - self._end < max(missing, _READ_BYTES_MIN):
                self._move(_SHARED_BYTES)
            return self._view[self._end :]
        planned = min(wanted + behind, _AHEAD_BYTES)
        if size - self._start < planned:
            self._move(planned)
        elif size - self._end < min(missing, _READ_BYTES_MIN):
            self._move(2 * held)
        return self._view[self._end : self._end + missing + behind]

    def filled(self, size: int) -> None:
        """So many bytes were read to there."""
        self._end += size

    def take(self, size: int) -> memoryview:
        """The next so many bytes, which must be here. They are not copied, and do not change any more."""
        start = self._start
        self._start = stop = start + size
        return self._view[start:stop]

    def _move(self, size: int) -> None:
        """Go on in another buffer. What was taken stays where it is."""
        held = self._end - self._start
        view = self._buffers.get(size)
        view[:held] = self._view[self._start : self._end]
        self._view, self._start, self._end = view, 0, held
