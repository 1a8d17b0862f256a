"""The assembler of packets that come in pieces. Each half of a lane holds at most one incomplete packet.

Clause 7.6 of docs/PROTOCOL.md.
"""

import struct
from collections.abc import Callable
from typing import TypeVar

from tunnel.wire import HEADER_SIZE, Answer, Buffer, Discarded, Exchange

__all__ = ["PieceAssembler"]

Parsed = TypeVar("Parsed")

_unpack_size = struct.Struct("!4xI").unpack_from  # the size field follows version and type (1.1)


class PieceAssembler:
    """The pieces of an incomplete packet. The packet's size field, which is checked first, says where it ends."""

    __slots__ = ("_held", "_size", "packet_bytes_max")

    def __init__(self, packet_bytes_max: int) -> None:
        self.packet_bytes_max = packet_bytes_max
        self._held = bytearray()  # a copy: even a piece of one byte would otherwise keep a whole body in memory
        self._size = 0  # size of the whole packet; 0 while nothing is held

    @property
    def held_bytes(self) -> int:
        """The number of bytes held of an incomplete packet."""
        return len(self._held)

    def feed(
        self, message: Exchange | Answer, parse: Callable[[Buffer], tuple[list[Parsed], Discarded | None]]
    ) -> tuple[list[Parsed], Discarded | None]:
        """Process the body of a message that is applied.

        Return its packets, or the packet that its piece completes, and a count of what was discarded. An empty body,
        such as that of a pull, does not touch the pieces that are held.
        """
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
        """Add a piece. Return the whole packet if this piece completes it, and a count of what was discarded.

        If the piece does not continue the packet that is held, that packet is discarded. The piece then starts a new
        packet only if its offset is 0.
        """
        discarded = None
        if offset != self.held_bytes:
            discarded = self.clear()
        if offset != self.held_bytes or not len(piece):
            return None, _truncated(discarded, len(piece))
        if not offset:
            # A valid first piece is never shorter than a header, since body limits are at least 1.5 KiB (7.16).
            size = _unpack_size(piece)[0] if len(piece) >= HEADER_SIZE else 0
            if not HEADER_SIZE <= size <= self.packet_bytes_max:
                return None, Discarded(bad_size=1, bytes=len(piece))
            self._size = size
        self._held += piece
        if self.held_bytes < self._size:
            return None, discarded
        # The parser of the packet counts any bytes after its end.
        packet = bytes(self._held)
        self._forget()
        return packet, discarded

    def clear(self) -> Discarded | None:
        """Discard the incomplete packet, whose rest the sender has given up. Return a count of what was discarded."""
        if not self.held_bytes:
            return None
        discarded = Discarded(truncated=1, bytes=self.held_bytes)
        self._forget()
        return discarded

    def _forget(self) -> None:
        self._held = bytearray()
        self._size = 0


def _truncated(discarded: Discarded | None, size: int) -> Discarded | None:
    """Return `discarded` plus a piece of `size` bytes that belongs to no packet."""
    if not size:
        return discarded
    before = discarded or Discarded()
    return Discarded(truncated=before.truncated + 1, bytes=before.bytes + size)
