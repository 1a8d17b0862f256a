"""Read buffers of a link, arranged so that each batch lies in one contiguous piece and few bytes are copied.

A large batch gets a buffer of its own, with room for the next header and nothing else, so that most of its bytes are
read directly to their final place. Small batches share buffers.
"""

from collections import deque

from tunnel.exchange.config import KIB, MIB

__all__ = ["BufferPool", "LinkReader"]

_SHARED_BYTES = 128 * KIB  # size of a buffer for headers and small batches
_READ_BYTES_MIN = 16 * KIB  # with less room than this left, a new buffer is used
_LARGE_BYTES = 32 * KIB  # a batch larger than this gets a buffer of its own
_STEP_BYTES = 64 * KIB  # buffer sizes are multiples of this, so that buffers can be reused
_AHEAD_BYTES = 1 * MIB + _STEP_BYTES  # allocated when a header announces a batch; longer batches get more later
_KEPT_BYTES_MAX = 16 * MIB


class BufferPool:
    """A pool of reusable buffers. Fresh memory costs as much as copying: its pages are mapped and cleared one by one.

    Users of a buffer need not return it: a buffer is free when no view of it, or of a part of it, is left.
    """

    def __init__(self, kept_bytes_max: int = _KEPT_BYTES_MAX) -> None:
        self._kept: deque[bytearray] = deque()
        self._kept_bytes = 0
        self._kept_bytes_max = kept_bytes_max

    def get(self, size: int) -> memoryview:
        """Return an uninitialised buffer of at least `size` bytes."""
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
        """Add a buffer to the pool, and drop the oldest ones beyond the limit. A dropped buffer lives while viewed."""
        self._kept.append(buffer)
        self._kept_bytes += len(buffer)
        while self._kept_bytes > self._kept_bytes_max:
            self._kept_bytes -= len(self._kept.popleft())


def _is_free(buffer: bytearray) -> bool:
    """Return whether the buffer has no views: Python refuses to resize a bytearray that has one.

    Removing and adding one byte does not move the buffer.
    """
    try:
        buffer.pop()
    except BufferError:
        return False
    buffer.append(0)
    return True


class LinkReader:
    """The bytes that were read and not yet taken. Read into `space`, call `filled`, then `take` contiguous pieces."""

    def __init__(self, buffers: BufferPool) -> None:
        self._buffers = buffers
        self._view = memoryview(b"")
        self._start = 0
        self._end = 0

    @property
    def held_bytes(self) -> int:
        """The number of bytes that were read and not yet taken."""
        return self._end - self._start

    def space(self, wanted: int, behind: int) -> memoryview:
        """Return the memory to read into.

        The next piece to be taken will have `wanted` bytes, and the one after it `behind` bytes.
        """
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
        """Record that `size` bytes were read into `space`."""
        self._end += size

    def take(self, size: int) -> memoryview:
        """Return the next `size` bytes, which must have been read. They are not copied and will not change."""
        start = self._start
        self._start = stop = start + size
        return self._view[start:stop]

    def release(self) -> None:
        """Forget the bytes that were read and not taken, and let the pool have the buffer."""
        self._view, self._start, self._end = memoryview(b""), 0, 0

    def _move(self, size: int) -> None:
        """Move the bytes that are held to another buffer, and continue there. Pieces already taken are not moved."""
        held = self._end - self._start
        view = self._buffers.get(size)
        view[:held] = self._view[self._start : self._end]
        self._view, self._start, self._end = view, 0, held
