"""The packet: its types and its fields (section 1 of docs/PROTOCOL.md)."""

import enum

import msgspec

from tunnel.wire.buffers import Buffer

__all__ = [
    "HEADER_SIZE",
    "PACKET_SIZE_MAX",
    "SEQUENCED",
    "VERSION",
    "Packet",
    "PacketType",
    "is_sequenced",
]

HEADER_SIZE = 24  # bytes; 1.1
VERSION = 1  # 1.1
PACKET_SIZE_MAX = 16 * 2**20  # bytes, header included; 1.3


class PacketType(enum.IntEnum):
    """The packet types of 1.5. Their numbers never change. Relays forward a type that is not listed here (1.4)."""

    CONNECT = 1
    ACCEPTED = 2
    REJECTED = 3
    DATA = 4
    CLOSE = 5
    ACK = 6
    SHUTDOWN = 7
    ABORT = 9
    OPTION = 10
    LISTEN_STATE = 11
    NOOP = 12
    FINISH = 13
    PING = 14
    PONG = 15
    PROBE = 16
    DROPPED = 17
    EDGE = 18


# The types that take a sequence number on a connection (1.5). OPTION takes none when it concerns the attachment (2.7).
SEQUENCED: frozenset[int] = frozenset(
    int(kind)
    for kind in (
        PacketType.CONNECT,
        PacketType.ACCEPTED,
        PacketType.DATA,
        PacketType.CLOSE,
        PacketType.OPTION,
        PacketType.FINISH,
    )
)


class Packet(msgspec.Struct, gc=False):
    """One packet. Ids and sequence number are as on the wire (32 bits). The checksum exists only on the wire."""

    type: int
    source: int
    destination: int
    sequence: int
    payload: Buffer = b""
    attempt: int = 0
    version: int = VERSION

    @property
    def size(self) -> int:
        """The number of bytes on the wire."""
        return HEADER_SIZE + len(self.payload)


def is_sequenced(kind: int, source: int, destination: int) -> bool:
    """Return whether a packet of type `kind` between these ids takes a sequence number (1.5, 2.7)."""
    return kind in SEQUENCED and (kind != PacketType.OPTION or source != 0 or destination != 0)
