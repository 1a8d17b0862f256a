"""Helpers of the payload codecs: fixed fields, byte strings of fixed size, and texts with a length before them.

Packing takes our own values and raises ValueError if one does not fit. Unpacking takes a peer's bytes and never raises.
"""

import struct
from typing import Any

from tunnel.wire.buffers import Buffer

__all__ = ["BYTE", "SHORT", "exact", "pack", "pack_text", "unpack_text"]

BYTE = struct.Struct("!B")  # the length before a name
SHORT = struct.Struct("!H")  # the length before a text


def pack(layout: struct.Struct, *values: Any) -> bytes:
    """Call `layout.pack(...)`. Raise ValueError if a number does not fit its field."""
    try:
        return layout.pack(*values)
    except struct.error as error:
        raise ValueError(f"a value does not fit its field on the wire: {error}") from error


def exact(name: str, value: Buffer, size: int) -> Buffer:
    """Return `value` if it has `size` bytes; else raise ValueError, since struct would silently pad or cut it."""
    if len(value) != size:
        raise ValueError(f"{name} must be {size} bytes, not {len(value)}")
    return value


def pack_text(text: str, prefix: struct.Struct) -> bytes:
    """Return `text` in UTF-8, with its length before it. Raise ValueError if it is too long."""
    raw = text.encode()
    if len(raw) >= 1 << (8 * prefix.size):
        raise ValueError(f"a text of {len(raw)} bytes is too long for its field on the wire")
    return prefix.pack(len(raw)) + raw


def unpack_text(view: memoryview, offset: int, prefix: struct.Struct) -> tuple[str, int] | None:
    """Return the text whose length stands at `offset`, and the offset after it; None if it is cut or not UTF-8."""
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
