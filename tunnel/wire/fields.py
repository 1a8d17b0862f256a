"""What the payload codecs share: fixed fields, fixed-size byte strings and counted texts.

Packing is for our own values and raises ValueError when one does not fit. Unpacking is for a peer's and never raises.
"""

import struct
from typing import Any

from tunnel.wire.buffers import Buffer

__all__ = ["BYTE", "SHORT", "exact", "pack", "pack_text", "unpack_text"]

BYTE = struct.Struct("!B")  # the length before a name
SHORT = struct.Struct("!H")  # the length before a text


def pack(layout: struct.Struct, *values: Any) -> bytes:
    """`layout.pack(...)`, with a ValueError for a number that does not fit its field."""
    try:
        return layout.pack(*values)
    except struct.error as error:
        raise ValueError(f"a value does not fit its field on the wire: {error}") from error


def exact(name: str, value: Buffer, size: int) -> Buffer:
    """`value` itself if it has `size` bytes; struct would pad or cut it silently."""
    if len(value) != size:
        raise ValueError(f"{name} must be {size} bytes, not {len(value)}")
    return value


def pack_text(text: str, prefix: struct.Struct) -> bytes:
    """`text` in UTF-8 behind its length."""
    raw = text.encode()
    if len(raw) >= 1 << (8 * prefix.size):
        raise ValueError(f"a text of {len(raw)} bytes is too long for its field on the wire")
    return prefix.pack(len(raw)) + raw


def unpack_text(view: memoryview, offset: int, prefix: struct.Struct) -> tuple[str, int] | None:
    """The counted text at `offset` and the offset behind it; None if it is cut or not UTF-8."""
    start = offset + prefix.size
    if start > len(view):
        return None
    stop = start + int(prefix.unpack_from(view, offset)[0])
    if stop > len(view):
        return None
    try:
        return str(view[start:stop], "utf-8"), stop
    except UnicodeDecodeError:
        return None
