"""The header before each batch on a link (8.1)."""

import struct

import msgspec

from tunnel.wire.buffers import Buffer
from tunnel.wire.checksum import checksum
from tunnel.wire.fields import pack

__all__ = ["LINK_HEADER_SIZE", "LINK_MAGIC", "LinkHeader", "decode_link_header", "encode_link_header"]

LINK_HEADER_SIZE = 24  # bytes; 8.1
LINK_MAGIC = b"TLNK"

_HEADER = struct.Struct("!4sIIIII")  # magic, number, received, length, flags, checksum


class LinkHeader(msgspec.Struct):
    """`number` 0 with `length` 0 is a lone receipt (8.2)."""

    number: int
    received: int  # the highest batch number received whole
    length: int  # bytes of packets behind this header


def encode_link_header(header: LinkHeader) -> bytes:
    """The header of 8.1, checksum filled in."""
    unsigned = pack(_HEADER, LINK_MAGIC, header.number, header.received, header.length, 0, 0)
    return _HEADER.pack(LINK_MAGIC, header.number, header.received, header.length, 0, checksum(unsigned))


def decode_link_header(data: Buffer) -> LinkHeader | None:
    """The header at the start of `data`; None if cut, not ours or damaged. `length` is the caller's to limit."""
    if len(data) < LINK_HEADER_SIZE:
        return None
    magic, number, received, length, flags, value = _HEADER.unpack_from(data)
    if magic != LINK_MAGIC or value != checksum(_HEADER.pack(magic, number, received, length, flags, 0)):
        return None
    return LinkHeader(number, received, length)
