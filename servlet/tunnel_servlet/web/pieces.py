"""Cuts the input of an HTTP connection into pieces, between which its cost is charged and other users have their turn.

Each few bytes of the input may be a request, or a chunk of a body. If a whole read were parsed at once, it could stop
the relay for many milliseconds, and leave thousands of parsed requests in memory.
"""

from typing import Any

__all__ = ["PIECE_BYTES", "Pieces"]

PIECE_BYTES = 4 * 1024  # the largest piece, except of a body of known length
_END = b"\r\n\r\n"  # of a head, and of a chunked body


class Pieces:
    """The input of one connection that has come and was not parsed yet, in `waiting`.

    A piece ends where a head or a chunked body may end, so that it rarely begins a second request.
    """

    def __init__(self) -> None:
        self.waiting = bytearray()
        self._payload: Any = None  # aiohttp's stream for the body of the latest request
        self._length: int | None = None  # of that body; None if it is chunked

    def begin_body(self, message: Any, payload: Any) -> None:
        """Note a request that was parsed, whose body comes next."""
        self._payload = payload
        headers = getattr(message, "headers", {})  # a request that is not valid HTTP has none
        self._length = None if getattr(message, "chunked", False) else int(headers.get("Content-Length", 0))

    @property
    def is_in_body(self) -> bool:
        """Whether the next byte belongs to the body of a request that was parsed."""
        return self._payload is not None and not self._payload.is_eof()

    @property
    def body_bytes(self) -> int:
        """The number of bytes that are missing of a body of known length. They cost little to parse."""
        return self._length - self._payload.total_bytes if self._length and self.is_in_body else 0

    def is_one(self, data: bytes) -> bool:
        """Whether these bytes, which are the next ones, need not be cut."""
        return len(data) <= self.body_bytes or (len(data) <= PIECE_BYTES and data.count(_END) <= 1)

    def add(self, data: bytes) -> None:
        """Add data that has come. An empty line before a request means nothing: some clients end a body with one."""
        self.waiting += data if self.waiting or self.is_in_body else data.lstrip(b"\r\n")

    def take(self, whole: int = 0) -> bytes:
        """Remove the next piece from `waiting`, and return it. The first `whole` bytes need not be cut."""
        size = max(whole, self.body_bytes)
        if not size:
            end = self.waiting.find(_END, 0, PIECE_BYTES)
            size = end + len(_END) if end >= 0 else PIECE_BYTES
        piece = bytes(self.waiting[:size])
        del self.waiting[:size]
        return piece
