"""Repairs sizes and checksums of packets, envelopes and link headers: a wrong one keeps a fuzzer out of the code."""

import struct

from tunnel.wire import ENVELOPE_BYTES, HEADER_SIZE, LINK_HEADER_SIZE, PACKET_SIZE_MAX, checksum

__all__ = ["repair_envelope", "repair_link", "repair_packets"]

_SIZE = struct.Struct("!I")
_AT_SIZE, _AT_PACKET_CHECKSUM = 4, 20  # 1.1
_AT_LENGTH, _AT_ENVELOPE_CHECKSUM = 8, 12  # 7.1
_AT_LINK_CHECKSUM = 20  # 8.1


def repair_packets(data: bytes) -> bytes:
    """Return the bytes with right checksums; a packet whose size is not possible gets the size of the bytes left."""
    fixed = bytearray(data)
    offset = 0
    while len(fixed) - offset >= HEADER_SIZE:
        (size,) = _SIZE.unpack_from(fixed, offset + _AT_SIZE)
        if not HEADER_SIZE <= size <= min(PACKET_SIZE_MAX, len(fixed) - offset):
            size = len(fixed) - offset
            _SIZE.pack_into(fixed, offset + _AT_SIZE, size)
        _SIZE.pack_into(fixed, offset + _AT_PACKET_CHECKSUM, 0)
        _SIZE.pack_into(fixed, offset + _AT_PACKET_CHECKSUM, checksum(fixed[offset : offset + size]))
        offset += size
    return bytes(fixed)


def repair_envelope(data: bytes) -> bytes:
    """Return the bytes as a body of this protocol: with the right magic, length and checksum."""
    fixed = bytearray(data.ljust(ENVELOPE_BYTES, b"\0"))
    fixed[:4] = b"TUNL"
    _SIZE.pack_into(fixed, _AT_LENGTH, len(fixed) - ENVELOPE_BYTES)
    _SIZE.pack_into(fixed, _AT_ENVELOPE_CHECKSUM, 0)
    _SIZE.pack_into(fixed, _AT_ENVELOPE_CHECKSUM, checksum(fixed))
    return bytes(fixed)


def repair_link(data: bytes) -> bytes:
    """Return the bytes with the magic and the right checksum of a link header at their start."""
    fixed = bytearray(data.ljust(LINK_HEADER_SIZE, b"\0"))
    fixed[:4] = b"TLNK"
    _SIZE.pack_into(fixed, _AT_LINK_CHECKSUM, 0)
    _SIZE.pack_into(fixed, _AT_LINK_CHECKSUM, checksum(fixed[:LINK_HEADER_SIZE]))
    return bytes(fixed)
