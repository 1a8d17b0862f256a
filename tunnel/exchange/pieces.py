"""A packet that came in pieces (7.6), put together again. Both halves of a lane hold at most one."""

import struct
from collections.abc import Callable
from typing import TypeVar

from tunnel.wire import HEADER_SIZE, Answer, Buffer, Discarded, Exchange

__all__ = ["PieceAssembler"]

Parsed = TypeVar("Parsed")

_unpack_size = struct.Struct("!4xI").unpack_from  # behind version and type (1.1)


class PieceAssembler:
    """The packet of which some pieces are here. Its own size field says where it ends, and is checked first."""

    __slots__ = ("_held", "_size", "packet_bytes_max")

    def __init__(self, packet_bytes_max: int) -> None:
        self.packet_bytes_max = packet_bytes_max
        self._held = bytearray()  # copied: each piece would keep a body alive, and it may be one byte of it
        self._size = 0  # of the whole packet, 0 while nothing is held

    @property
    def held_bytes(self) -> int:
        """Of a packet of which pieces are missing."""
        return len(self._held)

    def feed(
        self, message: Exchange | Answer, parse: Callable[[Buffer], tuple[list[Parsed], Discarded | None]]
    ) -> tuple[list[Parsed], Discarded | None]:
        """What a body that is applied brings: its packets, or the one whose last piece it holds, and what was thrown
        away. An empty body, like that of a pull, leaves what is held alone."""
        data = message.data
        if message.piece:
            packet, abandoned = self.add(message.piece_offset, data)
            if packet is None:
                return [], abandoned
            data = packet
        elif len(data):
            abandoned = self.clear()
        else:
            return [], None
        parsed, discarded = parse(data)
        return parsed, discarded or abandoned

    def add(self, offset: int, piece: Buffer) -> tuple[bytes | None, Discarded | None]:
        """Take the next piece: the whole packet when this was the last one, and what had to be thrown away.

        A piece that does not continue what is held discards it, and starts a packet only at offset 0.
        """
        discarded = None
        if offset != self.held_bytes:
            discarded = self.clear()
        if offset != self.held_bytes or not len(piece):
            return None, _truncated(discarded, len(piece))
        if not offset:
            # A first piece is never shorter than a header: bodies have at least 16 KiB.
            size = _unpack_size(piece)[0] if len(piece) >= HEADER_SIZE else 0
            if not HEADER_SIZE <= size <= self.packet_bytes_max:
                return None, Discarded(bad_size=1, bytes=len(piece))
            self._size = size
        self._held += piece
        if self.held_bytes < self._size:
            return None, discarded
        # What runs past the end of the packet is left for the parser of the packet to count.
        packet = bytes(self._held)
        self._forget()
        return packet, discarded

    def clear(self) -> Discarded | None:
        """The sender gave up the rest: what was thrown away, if anything."""
        if not self.held_bytes:
            return None
        discarded = Discarded(truncated=1, bytes=self.held_bytes)
        self._forget()
        return discarded

    def _forget(self) -> None:
        self._held = bytearray()
        self._size = 0


def _truncated(discarded: Discarded | None, size: int) -> Discarded | None:
    """`discarded` and a piece of `size` bytes that leads nowhere."""
    if not size:
        return discarded
    before = discarded or Discarded()
    return Discarded(truncated=before.truncated + 1, bytes=before.bytes + size)
