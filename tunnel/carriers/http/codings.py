"""Undoes the compression that devices on the path put on answers, although these say no-transform."""

import zlib

__all__ = ["undone"]

_ANY_HEADER = 47  # tells zlib to accept what gzip and deflate send
_KNOWN = ("gzip", "x-gzip", "deflate")


def undone(body: bytes, coding: str, limit: int) -> bytes | None:
    """Return the body, or its first `limit` bytes, without this Content-Encoding; None if that is impossible."""
    if coding.lower() not in _KNOWN:
        return None
    try:
        return zlib.decompressobj(_ANY_HEADER).decompress(body, limit)
    except zlib.error:
        return None
