"""A backlog in memory, for who may lose messages: bounded, and with a rule for what is given up when it is full.

The rules are the discard policies of the CORBA Notification Service, which the document names.
"""

from __future__ import annotations

import asyncio
import enum
import heapq
import time
from collections.abc import Callable

import msgspec

from tunnel.messages.errors import MessageTooLargeError

__all__ = ["BacklogItem", "DiscardPolicy", "MemoryBacklog"]


class DiscardPolicy(enum.Enum):
    """What is given up when there is no room."""

    OLDEST = "oldest"
    """What came first (FifoOrder)."""
    NEWEST = "newest"
    """What came last: the one that finds no room (LifoOrder)."""
    PRIORITY = "priority"
    """What has the lowest priority; of several the oldest (PriorityOrder)."""
    EXPIRED = "expired"
    """What expires first; what never does comes last (DeadlineOrder)."""


class BacklogItem(msgspec.Struct, frozen=True):
    """A message that waits. `expires` is a time of the backlog's clock."""

    payload: bytes
    priority: int = 0
    expires: float = float("inf")


class MemoryBacklog:
    """First in, first out. Items that expire are not given out. One event loop."""

    def __init__(
        self,
        policy: DiscardPolicy = DiscardPolicy.OLDEST,
        *,
        messages_max: int = 100_000,
        bytes_max: int = 64 * 1024 * 1024,
        discarded: Callable[[BacklogItem], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if min(messages_max, bytes_max) < 1:
            raise ValueError("messages_max and bytes_max must be positive")
        self.size_bytes = 0
        self.discarded_count = 0
        self._policy = policy
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._told = discarded
        self._clock = clock
        self._count = 0
        self._items: dict[int, BacklogItem] = {}  # in the order of their numbers, which is that of coming
        self._order: list[tuple[float, int]] = []  # a heap, least valuable first; what is gone is passed over
        self._came = asyncio.Event()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, payload: bytes, *, priority: int = 0, ttl: float | None = None) -> bool:
        """Add a message that expires after `ttl` seconds; False if it was given up itself. Never waits."""
        if len(payload) > self._bytes_max:
            raise MessageTooLargeError(f"a message of {len(payload)} bytes, the backlog holds {self._bytes_max}")
        expires = float("inf") if ttl is None else self._clock() + ttl
        item = BacklogItem(payload, priority, expires)
        number = self._count
        self._count += 1
        self._items[number] = item
        self.size_bytes += len(payload)
        if self._policy is DiscardPolicy.PRIORITY:
            heapq.heappush(self._order, (priority, number))
        elif self._policy is DiscardPolicy.EXPIRED:
            heapq.heappush(self._order, (expires, number))
        while len(self._items) > self._messages_max or self.size_bytes > self._bytes_max:
            self._discard(self._victim())
        self._came.set()
        return number in self._items

    def get_nowait(self) -> BacklogItem | None:
        """The oldest message that has not expired, or None."""
        now = self._clock()
        while self._items:
            number = next(iter(self._items))
            item = self._items[number]
            if item.expires > now:
                self._remove(number)
                return item
            self._discard(number)
        self._came.clear()
        return None

    async def get(self) -> BacklogItem:
        """As `get_nowait`; waits for a message."""
        while (item := self.get_nowait()) is None:
            await self._came.wait()
        return item

    def _victim(self) -> int:
        match self._policy:
            case DiscardPolicy.OLDEST:
                return next(iter(self._items))
            case DiscardPolicy.NEWEST:
                return next(reversed(self._items))
        while self._order[0][1] not in self._items:
            heapq.heappop(self._order)
        return self._order[0][1]

    def _discard(self, number: int) -> None:
        item = self._remove(number)
        self.discarded_count += 1
        if self._told is not None:
            self._told(item)

    def _remove(self, number: int) -> BacklogItem:
        item = self._items.pop(number)
        self.size_bytes -= len(item.payload)
        if len(self._order) > 2 * len(self._items) + 64:
            # What was given out stays in the heap until here: it never holds more than twice what there is.
            self._order = [entry for entry in self._order if entry[1] in self._items]
            heapq.heapify(self._order)
        return item
