"""Splits a response body that arrives piece by piece into whole envelopes (PROTOCOL 7.20)."""

import struct

from tunnel.wire import ENVELOPE_BYTES, MAGIC, Buffer

__all__ = ["EnvelopeStream"]

_unpack_length = struct.Struct("!8xI").unpack_from  # of an envelope (7.1)


class EnvelopeStream:
    """Splits the body of one response. It keeps at most one incomplete envelope and the newest piece in memory.

    `is_broken` becomes true when anything but an envelope comes, at the start or after an envelope, or when an envelope
    is larger than the limit. A broken body yields nothing more. The bytes from the place where it broke are kept for an
    error text: at most one piece more than the limit.
    """

    __slots__ = ("_limit_bytes", "_pieces", "_size", "_wanted_bytes", "is_broken")

    def __init__(self, limit_bytes: int) -> None:
        self.is_broken = False
        self._limit_bytes = limit_bytes
        self._pieces: list[Buffer] = []
        self._size = 0
        self._wanted_bytes = ENVELOPE_BYTES  # the size that must have come before anything can be decided

    @property
    def held_bytes(self) -> int:
        """The number of bytes that belong to no whole envelope."""
        return self._size

    @property
    def rest(self) -> bytes:
        """The bytes that belong to no whole envelope."""
        return b"".join(self._pieces)

    def feed(self, piece: Buffer) -> list[Buffer]:
        """Process the next piece of the body. Return the envelopes that are whole now, in order."""
        if self.is_broken and self._size >= self._limit_bytes:
            return []
        self._pieces.append(piece)
        self._size += len(piece)
        if self.is_broken or self._size < self._wanted_bytes:
            return []
        return self._split()

    def _split(self) -> list[Buffer]:
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        view = memoryview(data)
        whole: list[Buffer] = []
        start, size = 0, len(view)
        self._wanted_bytes = ENVELOPE_BYTES
        while size - start >= ENVELOPE_BYTES:
            length = ENVELOPE_BYTES + _unpack_length(view, start)[0]
            if view[start : start + len(MAGIC)] != MAGIC or length > self._limit_bytes:
                self.is_broken = True
                break
            if size - start < length:
                self._wanted_bytes = length
                break
            whole.append(view[start : start + length])
            start += length
        # A copy of the rest, which would otherwise keep the envelopes before it alive.
        self._pieces = [bytes(view[start:])] if start else [data]
        self._size = size - start
        return whole
