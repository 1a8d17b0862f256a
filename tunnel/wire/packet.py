"""The packet: its types, its header and how it is put on the wire (section 1 of the protocol)."""

import enum
import struct
from collections.abc import Iterable

import msgspec
from crc32c import crc32c

from tunnel.wire.buffers import Buffer

__all__ = [
    "HEADER_SIZE",
    "PACKET_SIZE_MAX",
    "SEQUENCED",
    "VERSION",
    "Packet",
    "PacketType",
    "encode_packet",
    "encode_packets",
    "is_sequenced",
    "whole_packet",
]

HEADER_SIZE = 24  # bytes; 1.1
VERSION = 1  # 1.1
PACKET_SIZE_MAX = 16 * 2**20  # bytes, header included; 1.3

# Below this many bytes of payload one copy costs less than a second buffer does in every later step (measured).
_COPY_BYTES = 1024

# version, attempt, type, size, source, destination, sequence, checksum (1.1); the attempt is the high byte of the type.
_pack_header = struct.Struct("!HBBIIIII").pack
_pack_unsigned_header = struct.Struct("!HBBIIII4x").pack  # the same with the checksum field zero


class PacketType(enum.IntEnum):
    """The types of 1.5. Numbers are fixed for ever; a type that is not here is forwarded by relays (1.4)."""

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


# The types that take a sequence number on a connection (1.5). OPTION does not when it speaks of the attachment (2.7).
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
    """One packet. Ids and the sequence number are as on the wire (32 bits); the checksum exists only there."""

    type: int
    source: int
    destination: int
    sequence: int
    payload: Buffer = b""
    attempt: int = 0
    version: int = VERSION

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        return HEADER_SIZE + len(self.payload)


def is_sequenced(kind: int, source: int, destination: int) -> bool:
    """Whether a packet of type `kind` between these ids takes a sequence number (1.5, 2.7)."""
    return kind in SEQUENCED and (kind != PacketType.OPTION or source != 0 or destination != 0)


def encode_packet(packet: Packet) -> list[Buffer]:
    """The packet as buffers to be sent in order; a large payload is not copied."""
    return encode_packets((packet,))


def encode_packets(packets: Iterable[Packet]) -> list[Buffer]:
    """The packets as buffers to be sent in order. Small ones share a buffer; large payloads are not copied."""
    buffers: list[Buffer] = []
    small: list[Buffer] = []  # neighbours that leave as one buffer
    add = small.append
    header, unsigned, crc = _pack_header, _pack_unsigned_header, crc32c
    try:
        for packet in packets:
            version, attempt, type_ = packet.version, packet.attempt, packet.type
            source, destination, sequence = packet.source, packet.destination, packet.sequence
            payload = packet.payload
            length = len(payload)
            size = length + 24
            if length < _COPY_BYTES:
                value = crc(unsigned(version, attempt, type_, size, source, destination, sequence) + payload)
                add(header(version, attempt, type_, size, source, destination, sequence, value) + payload)
                continue
            if size > PACKET_SIZE_MAX:
                raise ValueError(f"a packet of {size} bytes is larger than {PACKET_SIZE_MAX}")
            value = crc(payload, crc(unsigned(version, attempt, type_, size, source, destination, sequence)))
            add(header(version, attempt, type_, size, source, destination, sequence, value))
            buffers.append(b"".join(small))
            buffers.append(payload)
            small.clear()
    except struct.error as error:
        raise ValueError(f"a packet field does not fit its place in the header: {error}") from error
    if small:
        buffers.append(b"".join(small))
    return buffers


def whole_packet(packet: Packet) -> bytes:
    """The packet as one contiguous buffer."""
    return b"".join(encode_packets((packet,)))
