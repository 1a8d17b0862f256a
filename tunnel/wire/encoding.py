"""The encoder of packets (PROTOCOL 1.1)."""

import struct
from collections.abc import Iterable

from crc32c import crc32c

from tunnel.wire.buffers import Buffer
from tunnel.wire.packet import PACKET_SIZE_MAX, Packet

__all__ = ["encode_packet", "encode_packets", "whole_packet"]

# For payloads below this size, one copy costs less than a second buffer in every later step (measured).
_COPY_BYTES = 1024

# version, attempt, type, size, source, destination, sequence, checksum (1.1); the attempt is the high byte of the type.
_pack_header = struct.Struct("!HBBIIIII").pack
_pack_unsigned_header = struct.Struct("!HBBIIII4x").pack  # the same with the checksum field zero


def encode_packet(packet: Packet) -> list[Buffer]:
    """Encode a packet into buffers to be sent in order. A large payload is not copied."""
    return encode_packets((packet,))


def encode_packets(packets: Iterable[Packet]) -> list[Buffer]:
    """Encode packets into buffers to be sent in order. Small packets share a buffer; large payloads are not copied.

    Raise ValueError if a packet is too large or a field does not fit the header.
    """
    buffers: list[Buffer] = []
    small: list[Buffer] = []  # consecutive pieces that are joined into one buffer
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
                raise ValueError(f"a packet of {size} bytes is larger than the limit of {PACKET_SIZE_MAX}")
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
    """Encode a packet into one contiguous buffer."""
    payload = packet.payload
    length = len(payload)
    if length >= _COPY_BYTES:
        return b"".join(encode_packets((packet,)))
    # The relay answers up to 1,024 packets at once, each with such a packet.
    version, attempt, type_, size = packet.version, packet.attempt, packet.type, length + 24
    source, destination, sequence = packet.source, packet.destination, packet.sequence
    try:
        value = crc32c(_pack_unsigned_header(version, attempt, type_, size, source, destination, sequence) + payload)
        return _pack_header(version, attempt, type_, size, source, destination, sequence, value) + payload
    except struct.error as error:
        raise ValueError(f"a packet field does not fit its place in the header: {error}") from error
