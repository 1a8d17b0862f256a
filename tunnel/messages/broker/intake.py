"""The input of a broker's connections: it bounds the memory of incomplete requests, and tells calls from produce
requests.

Each connection may hold a small part of a request. For more than that it needs one of a few slots: connections with
large requests wait for each other, and all other connections go on. A connection whose request arrives too slowly is
closed, so that it cannot keep its slot.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from tunnel.messages.broker.users import Slots, User
from tunnel.messages.errors import MalformedFrameError

__all__ = ["FIRST_BYTES", "FREE_BYTES", "MeteredReader", "is_call"]

FREE_BYTES = 256 * 1024  # needs no slot: as much as one read returns, or 2,000 messages of 100 bytes
_SLOW_S = 30.0  # a request may take this long, plus the time that its bytes take at _SLOW_BYTES_S
_SLOW_BYTES_S = 64 * 1024
FIRST_BYTES = 9  # the bytes at the start of a connection that tell calls from produce requests


def is_call(first: bytes) -> bool:
    """Whether a connection that begins with these bytes carries calls, and not produce requests.

    A call begins with two lengths of 4 bytes, the second below 2^24, and a JSON object. In a produce request, byte 4 is
    the first letter of the topic. In a multi-produce request, byte 8 is a letter of the topic or a byte of the
    partition, but never a brace.
    """
    return first[4] == 0 and first[8:9] == b"{"


class MeteredReader(asyncio.StreamReader):
    """A reader on top of another. It returns `first` before the bytes of the other. `held` returns the number of bytes
    that have come of the incomplete request.

    `slots` are shared by all users: a connection has one while it holds a large incomplete request. Bytes are returned
    when it is the user's turn.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        first: bytes,
        slots: Slots,
        user: User,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.held: Callable[[], int] = lambda: 0
        self._source = reader
        self._first = first
        self._slots = slots
        self._user = user
        self._has_slot = False
        self._clock = clock
        self._began: float | None = None

    async def read(self, n: int = -1) -> bytes:
        """Return the next bytes. MalformedFrameError if a request arrives too slowly."""
        if self._first:
            first, self._first = self._first, b""
            return first
        size = self.held()
        if size <= FREE_BYTES:
            self.release()
        elif not self._has_slot:
            await self._slots.acquire(self._user.name)
            self._has_slot = True
            self._began = None  # the peer is not to blame for the time in the queue
        if not size:
            self._began = None
            return await self._in_turn(n)
        if self._began is None:
            self._began = self._clock()
        try:
            async with asyncio.timeout(self._began + _SLOW_S + size / _SLOW_BYTES_S - self._clock()):
                data = await self._source.read(n)
        except TimeoutError:
            raise MalformedFrameError(f"a request has not arrived in time, after {size} bytes of it") from None
        await self._user.turn()
        return data

    async def _in_turn(self, n: int) -> bytes:
        data = await self._source.read(n)
        await self._user.turn()
        return data

    def release(self) -> None:
        """Give back the connection's slot."""
        if self._has_slot:
            self._has_slot = False
            self._slots.release(self._user.name)
