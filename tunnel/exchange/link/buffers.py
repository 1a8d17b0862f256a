"""Read buffers of a link, arranged so that each batch lies in one contiguous piece and few bytes are copied.

A large batch gets a buffer of its own, with room for the next header and nothing else, so that most of its bytes are
read directly to their final place. Small batches share buffers. Quiet links have none of their own: a relay may serve
thousands of links, and few of them are busy.
"""

from collections import deque

from tunnel.exchange.config import KIB, MIB

__all__ = ["BufferPool", "LinkReader"]

_SHARED_BYTES = 128 * KIB  # size of a buffer for headers and small batches
_READ_BYTES_MIN = 16 * KIB  # with less room than this left, a new buffer is used
_QUIET_BYTES = 4 * KIB  # size of the buffer of the quiet links, and of one that waits for the rest of a batch
_FULL_BYTES = 2 * KIB  # a read of at least this size that fills a buffer shows that the link is busy
_QUIET_READ_BYTES = 1 * KIB  # as _READ_BYTES_MIN, for a quiet link; smaller reads are those of a quiet link
_QUIET_READS = 16  # after so many small reads in a row, a link is quiet again
_LARGE_BYTES = 32 * KIB  # a batch larger than this gets a buffer of its own
_STEP_BYTES = 64 * KIB  # buffer sizes are multiples of this, so that buffers can be reused
_AHEAD_BYTES = 1 * MIB + _STEP_BYTES  # allocated when a header announces a batch; longer batches get more later
_KEPT_BYTES_MAX = 16 * MIB


class BufferPool:
    """A pool of reusable buffers. Fresh memory costs as much as copying: its pages are mapped and cleared one by one.

    Users of a buffer need not return it: a buffer is free when no view of it, or of a part of it, is left.

    All quiet links of the pool read into `scratch`. So no two of them may read at the same time, as in two threads.
    What a read brings is copied out of it at once: a packet that waits would otherwise keep it, and with it the bytes
    of other links.
    """

    def __init__(self, kept_bytes_max: int = _KEPT_BYTES_MAX) -> None:
        self._kept: deque[bytearray] = deque()
        self._kept_bytes = 0
        self._kept_bytes_max = kept_bytes_max
        self.scratch = memoryview(bytearray(_QUIET_BYTES))

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
    """The bytes of `view` that were read and not yet taken. Read into `space`, call `on_filled`, then take adjoining
    pieces of `view` by moving `start`. Bytes that were taken do not change any more.
    """

    def __init__(self, buffers: BufferPool) -> None:
        self._buffers = buffers
        self.view = memoryview(b"")
        self._scratch: memoryview | None = None  # into which the next read goes, if not into `view`
        self.start = 0  # of what was not taken yet
        self.end = 0  # of what was read
        self._is_busy = False
        self._small_reads = 0  # in a row

    def space(self, wanted: int, behind: int) -> memoryview:
        """Return the memory to read into.

        The next piece to be taken will have `wanted` bytes, and the one after it `behind` bytes.
        """
        held = self.end - self.start
        missing = wanted - held
        size = len(self.view)
        self._scratch = None
        if wanted <= _LARGE_BYTES:
            if self._is_busy or wanted > _QUIET_BYTES - _QUIET_READ_BYTES:
                if size - self.end < max(missing, _READ_BYTES_MIN):
                    self._move(_SHARED_BYTES)
            elif not held:
                self._scratch = self._buffers.scratch
                return self._scratch
            elif size - self.end < max(missing, _QUIET_READ_BYTES):
                self._move(_QUIET_BYTES)
            return self.view[self.end :]
        self._is_busy, self._small_reads = True, 0
        planned = min(wanted + behind, _AHEAD_BYTES)
        if size - self.start < planned:
            self._move(planned)
        elif size - self.end < min(missing, _READ_BYTES_MIN):
            self._move(2 * held)
        return self.view[self.end : self.end + missing + behind]

    def on_filled(self, size: int) -> None:
        """Record that `size` bytes were read into `space`."""
        scratch = self._scratch
        if scratch is None:
            self.end += size
        else:
            self.view, self._scratch = memoryview(bytes(scratch[:size])), None
            self.start, self.end = 0, size
            if size < _QUIET_BYTES:
                return
        if size >= _FULL_BYTES and self.end == len(self.view):
            self._is_busy, self._small_reads = True, 0
        elif size > _QUIET_READ_BYTES:
            self._small_reads = 0
        elif self._is_busy:
            self._small_reads += 1
            self._is_busy = self._small_reads < _QUIET_READS

    def release(self) -> None:
        """Forget the bytes that were read and not taken, and let the pool have the buffer."""
        self.view, self._scratch, self.start, self.end = memoryview(b""), None, 0, 0

    def _move(self, size: int) -> None:
        """Move the bytes that are held to another buffer, and continue there. Pieces already taken are not moved."""
        held = self.end - self.start
        view = memoryview(bytearray(size)) if size <= _QUIET_BYTES else self._buffers.get(size)
        view[:held] = self.view[self.start : self.end]
        self.view, self.start, self.end = view, 0, held
