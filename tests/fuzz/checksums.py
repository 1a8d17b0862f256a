"""Puts right what hides the depths from a fuzzer: sizes and checksums of packets, envelopes and link headers."""

import struct

from tunnel.wire import ENVELOPE_BYTES, HEADER_SIZE, LINK_HEADER_SIZE, PACKET_SIZE_MAX, checksum

__all__ = ["repair_envelope", "repair_link", "repair_packets"]

_SIZE = struct.Struct("!I")
_AT_SIZE, _AT_PACKET_CHECKSUM = 4, 20  # 1.1
_AT_LENGTH, _AT_ENVELOPE_CHECKSUM = 8, 12  # 7.1
_AT_LINK_CHECKSUM = 20  # 8.1


def repair_packets(data: bytes) -> bytes:
    """The same bytes with right checksums, and with the size of a packet that overruns set to what is there."""
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
    """The same bytes as a body of ours: magic, length and checksum right."""
    fixed = bytearray(data.ljust(ENVELOPE_BYTES, b"\0"))
    fixed[:4] = b"TUNL"
    _SIZE.pack_into(fixed, _AT_LENGTH, len(fixed) - ENVELOPE_BYTES)
    _SIZE.pack_into(fixed, _AT_ENVELOPE_CHECKSUM, 0)
    _SIZE.pack_into(fixed, _AT_ENVELOPE_CHECKSUM, checksum(fixed))
    return bytes(fixed)


def repair_link(data: bytes) -> bytes:
    """The same bytes with the magic and the checksum of a link header at their start."""
    fixed = bytearray(data.ljust(LINK_HEADER_SIZE, b"\0"))
    fixed[:4] = b"TLNK"
    _SIZE.pack_into(fixed, _AT_LINK_CHECKSUM, 0)
    _SIZE.pack_into(fixed, _AT_LINK_CHECKSUM, checksum(fixed[:LINK_HEADER_SIZE]))
    return bytes(fixed)
