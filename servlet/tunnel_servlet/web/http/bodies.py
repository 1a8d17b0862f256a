"""Reads bodies. Chunked bodies, and the rest of refused bodies, are read in their payers' turns."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import aiohttp
from aiohttp import web

from tunnel.turns.queues import Turns

__all__ = ["BodyTooLargeError", "ChunkedBody", "TooManyChunksError", "discard", "read_whole"]

_PART_S = 0.002  # processor time after which a read ends, is charged, and lets others have their turn
_DISCARD_US = 20_000  # processor time for the rest of one refused body
_DISCARD_BYTES = 512  # taken from such a body in one read; in the worst case each byte is a chunk
# Each chunk costs 5 to 10 µs, however small it is. A body may have `_CHUNKS_FREE` chunks, and one more for every
# `_CHUNK_BYTES` of its size.
_CHUNKS_FREE = 1024
_CHUNK_BYTES = 64


class TooManyChunksError(Exception):
    """A body comes in too many chunks for its size."""

    def __init__(self) -> None:
        super().__init__(
            f"the body comes in too many small chunks: it may have {_CHUNKS_FREE}, and one more for every "
            f"{_CHUNK_BYTES} bytes: send larger chunks"
        )


class BodyTooLargeError(Exception):
    """A body is larger than the limit."""


async def read_whole(content: aiohttp.StreamReader) -> bytes:
    """Return a body of stated length when all of it has come.

    It is taken as it comes. Taken in one go, a body of 1 MB that came in parts of two bytes would delay all other users
    by 0.2 s.
    """
    parts: list[bytes] = []
    while part := await content.readany():
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class ChunkedBody:
    """A body that is read chunk by chunk, from its beginning."""

    def __init__(self, content: aiohttp.StreamReader, turns: Turns) -> None:
        self._content = content
        self._turns = turns
        self._size_bytes = 0
        self._chunks = 0

    async def read_all(self, payer: str, limit: int) -> bytes:
        """Return the whole body. Raise BodyTooLargeError if it has more bytes than `limit`."""
        parts: list[bytes] = []
        while part := await self.read(payer):
            parts.append(part)
            if self._size_bytes > limit:
                raise BodyTooLargeError
        return b"".join(parts)

    async def read(self, payer: str) -> bytes:
        """Return the next bytes, in the payer's turn; b"" at the end.

        Raise TooManyChunksError if too many chunks are small.
        """
        await self._turns.wait_for_turn(payer)
        part = await self._next()
        while not part and not self._content.at_eof():
            part = await self._next()
        await self._turns.wait_for_turn(payer)  # others of this payer may have waited for data, too
        parts = [part]
        began = self._turns.meter.start()
        try:
            while self._size_bytes < self._content.total_bytes and self._turns.meter.since(began) < _PART_S:
                parts.append(await self._next())  # does not wait
        finally:
            self._turns.spent_since(payer, began)
        return b"".join(parts)

    async def _next(self) -> bytes:
        part, has_ended = await self._content.readchunk()
        self._size_bytes += len(part)
        self._chunks += has_ended
        if self._chunks > _CHUNKS_FREE + self._size_bytes // _CHUNK_BYTES:
            raise TooManyChunksError
        return part


async def discard(content: aiohttp.StreamReader, turns: Turns, payer: Callable[[], str], seconds: float) -> None:
    """Read the rest of a body and forget it: if the connection were closed with unread data, a reset would destroy the
    answer. Stop after `seconds`, when the body is damaged, or when it costs too much; the answer may then be lost."""
    spent_us = 0.0
    with suppress(TimeoutError, web.RequestPayloadError, ConnectionError):
        async with asyncio.timeout(seconds):
            while spent_us <= _DISCARD_US and not content.at_eof():
                await turns.wait_for_turn(payer())
                await content.read(1)
                await turns.wait_for_turn(payer())
                began = turns.meter.start()
                while content.read_nowait(_DISCARD_BYTES) and turns.meter.since(began) < _PART_S:
                    pass
                spent_us += turns.spent_since(payer(), began)
