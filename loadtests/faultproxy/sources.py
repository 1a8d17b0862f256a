"""Sources of body pieces besides HTTP: a body collected beforehand, and a line that delays another source."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

__all__ = ["DelayLine", "Source", "collected"]

Source = Callable[[], Awaitable[bytes | None]]  # the next piece; None at the end

# Limit for the bytes inside a line. It also limits the rate to this much per delay: 80 MB/s at 50 ms.
LINE_BYTES_MAX = 4 * 1024 * 1024


def collected(body: bytes) -> Source:
    """Return a source that yields `body` as one piece."""
    pieces = [body] if body else []

    async def next_piece() -> bytes | None:
        return pieces.pop() if pieces else None

    return next_piece


class DelayLine:
    """A Source that returns the pieces of another one in order, each `delay_us` after it was read.

    It must be used in an `async with` block.
    """

    def __init__(self, source: Source, delay_us: int) -> None:
        self._source = source
        self._delay_s = delay_us / 1e6
        self._loop = asyncio.get_running_loop()
        self._line: deque[tuple[float, bytes | Exception | None]] = deque()
        self._size = 0
        self._changed = asyncio.Condition()
        self._filling: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._filling = self._loop.create_task(self._fill())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._filling is not None
        self._filling.cancel()
        await asyncio.gather(self._filling, return_exceptions=True)

    async def __call__(self) -> bytes | None:
        """Return the next piece when it is due. An error of the source is delayed likewise, then raised."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._line)
            due, piece = self._line[0]
        await asyncio.sleep(due - self._loop.time())
        async with self._changed:
            self._line.popleft()
            self._size -= len(piece) if isinstance(piece, bytes | bytearray) else 0
            self._changed.notify_all()
        if isinstance(piece, Exception):
            raise piece
        return piece

    async def _fill(self) -> None:
        piece: bytes | Exception | None = b""
        while isinstance(piece, bytes | bytearray):
            try:
                piece = await self._source()
            except Exception as error:
                piece = error
            async with self._changed:
                await self._changed.wait_for(lambda: self._size < LINE_BYTES_MAX)
                self._line.append((self._loop.time() + self._delay_s, piece))
                self._size += len(piece) if isinstance(piece, bytes | bytearray) else 0
                self._changed.notify_all()
