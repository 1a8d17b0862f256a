"""The header before each batch on a link (8.1)."""

import struct

import msgspec

from tunnel.wire.buffers import Buffer
from tunnel.wire.checksum import checksum
from tunnel.wire.fields import pack

__all__ = ["LINK_HEADER_SIZE", "LINK_MAGIC", "LinkHeader", "decode_link_header", "encode_link_header"]

LINK_HEADER_SIZE = 24  # bytes; 8.1
LINK_MAGIC = b"TLNK"

_FIELDS = struct.Struct("!4sIIII")  # magic, number, received, length, flags; then the checksum
_CHECKSUM = struct.Struct("!I")
_ZERO = bytes(_CHECKSUM.size)


class LinkHeader(msgspec.Struct, frozen=True):
    """`number` 0 with `length` 0 is a lone receipt (8.2)."""

    number: int
    received: int  # the highest batch number received whole
    length: int  # bytes of packets behind this header


def encode_link_header(header: LinkHeader) -> bytes:
    """The header of 8.1, checksum filled in."""
    fields = pack(_FIELDS, LINK_MAGIC, header.number, header.received, header.length, 0)
    return fields + _CHECKSUM.pack(checksum(fields, _ZERO))


def decode_link_header(data: Buffer) -> LinkHeader | None:
    """The header at the start of `data`; None if cut, not ours or damaged. `length` is the caller's to limit."""
    view = memoryview(data)
    if len(view) < LINK_HEADER_SIZE:
        return None
    magic, number, received, length, _ = _FIELDS.unpack_from(view)
    (value,) = _CHECKSUM.unpack_from(view, _FIELDS.size)
    if magic != LINK_MAGIC or value != checksum(view[: _FIELDS.size], _ZERO):
        return None
    return LinkHeader(number, received, length)
