"""Connects in flight through the tunnel: how many there may be, and whose turn is next."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Hashable

__all__ = ["CONNECTS_MAX", "Connects"]

CONNECTS_MAX = 1024
"""Half of the routes that a relay allows an attachment: what one command connects leaves room for another."""
_GIVEN_UP_S = 10.0  # how long an exit dials by default


class Connects:
    """Bounds the connects in flight. One local source may not have more of them than are free; sources take turns.

    Without the bound, a local program could fill the places that our user has at the relay and at the exit, and every
    other connection of the user would be refused. A connect that is given up counts for a while longer, since relay and
    exit go on with it: an initiator cannot take a CONNECT back.
    """

    def __init__(self, connects_max: int = CONNECTS_MAX) -> None:
        self.count = 0
        self._connects_max = connects_max
        self._counts: dict[Hashable, int] = {}  # by source
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()  # the next source first

    def turn(self, source: Hashable) -> "_Turn":
        """Wait until the source may connect, at the beginning of an `async with` block, which connects."""
        return _Turn(self, source)

    async def begin(self, source: Hashable) -> None:
        """Wait until the source may connect, and count its connect."""
        if not self._may_begin(source):
            await self._wait(source)
        else:
            self._begin(source)

    def end(self, source: Hashable, error: type[BaseException] | None) -> None:
        """Count a connect no more, if it was not given up, or else in a while."""
        if error is not None and issubclass(error, asyncio.CancelledError | TimeoutError):
            asyncio.get_running_loop().call_later(_GIVEN_UP_S, self._end, source)
        else:
            self._end(source)

    async def _wait(self, source: Hashable) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue = self._waiting.setdefault(source, deque())
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._end(source)  # the turn had just come
            elif turn in queue:
                queue.remove(turn)
                if not queue:
                    self._waiting.pop(source, None)
            raise

    def _may_begin(self, source: Hashable) -> bool:
        free = self._connects_max - self.count
        return free > 0 and self._counts.get(source, 0) < max(1, free)

    def _begin(self, source: Hashable) -> None:
        self.count += 1
        self._counts[source] = self._counts.get(source, 0) + 1

    def _end(self, source: Hashable) -> None:
        self.count -= 1
        self._counts[source] -= 1
        if not self._counts[source]:
            del self._counts[source]
        while (ready := next(filter(self._may_begin, self._waiting), None)) is not None:
            queue = self._waiting[ready]
            turn = queue.popleft()
            if queue:
                self._waiting.move_to_end(ready)
            else:
                del self._waiting[ready]
            if not turn.done():
                self._begin(ready)
                turn.set_result(None)


class _Turn:
    """One connect of a source."""

    def __init__(self, connects: Connects, source: Hashable) -> None:
        self._connects, self._source = connects, source

    async def __aenter__(self) -> None:
        await self._connects.begin(self._source)

    async def __aexit__(self, error: type[BaseException] | None, *rest: object) -> None:
        self._connects.end(self._source, error)
