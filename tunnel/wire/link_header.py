"""The header before each batch on a link (PROTOCOL 8.1)."""

import struct

import msgspec
from crc32c import crc32c

from tunnel.wire.buffers import Buffer

__all__ = ["LINK_HEADER_SIZE", "LINK_MAGIC", "LinkHeader", "decode_link_header", "encode_link_header"]

LINK_HEADER_SIZE = 24  # bytes; 8.1
LINK_MAGIC = b"TLNK"

_HEADER = struct.Struct("!4sIIIII")  # magic, number, received, length, flags, checksum
_pack = _HEADER.pack
_LEAVING = 1  # in the flags


class LinkHeader(msgspec.Struct):
    """The header of a batch on a link. With `number` 0 and `length` 0 it is a receipt without a batch (8.2)."""

    number: int
    received: int  # the highest number of a batch that was received completely
    length: int  # bytes of packets after this header
    is_leaving: bool = False  # the sender will close this link soon, and awaits no further batches on it (8.7)


def encode_link_header(header: LinkHeader) -> bytes:
    """Encode a link header (8.1) with its checksum."""
    number, received, length = header.number, header.received, header.length
    flags = _LEAVING if header.is_leaving else 0
    try:
        value = crc32c(_pack(LINK_MAGIC, number, received, length, flags, 0))
        return _pack(LINK_MAGIC, number, received, length, flags, value)
    except struct.error as error:
        raise ValueError(f"a field of a link's header does not fit its place: {error}") from error


def decode_link_header(data: Buffer) -> LinkHeader | None:
    """Return the header at the start of `data`; None if it is cut, damaged or has another magic.

    The caller must limit `length`.
    """
    if len(data) < LINK_HEADER_SIZE:
        return None
    magic, number, received, length, flags, value = _HEADER.unpack_from(data)
    if magic != LINK_MAGIC or value != crc32c(_pack(magic, number, received, length, flags, 0)):
        return None
    return LinkHeader(number, received, length, bool(flags & _LEAVING))
