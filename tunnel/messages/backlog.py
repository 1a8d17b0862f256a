"""A bounded backlog in memory, for callers that tolerate loss: when it is full, a policy chooses what to discard.

The policies are those of the CORBA Notification Service, which the remoting-and-backlog document names.
"""

from __future__ import annotations

import asyncio
import enum
import heapq
import time
from bisect import bisect_left
from collections.abc import Callable

import msgspec

from tunnel.messages.errors import MessageTooLargeError

__all__ = ["BacklogItem", "DiscardPolicy", "MemoryBacklog"]


class DiscardPolicy(enum.Enum):
    """Which message is discarded when there is no room."""

    OLDEST = "oldest"
    """The message that was added first (FifoOrder)."""
    NEWEST = "newest"
    """The message that was added last, that is, the one for which there is no room (LifoOrder)."""
    PRIORITY = "priority"
    """The message of the lowest priority; the oldest of several (PriorityOrder)."""
    EXPIRED = "expired"
    """The message that expires first; messages that never expire come last (DeadlineOrder)."""


class BacklogItem(msgspec.Struct, frozen=True):
    """A waiting message. `expires` is a time of the backlog's clock, in seconds."""

    payload: bytes
    priority: int = 0
    expires: float = float("inf")


class MemoryBacklog:
    """A first-in, first-out queue that never returns expired messages. Use it from one event loop only.

    `discarded` is called with each message that is discarded, expired ones included.
    """

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
            raise ValueError(f"messages_max ({messages_max}) and bytes_max ({bytes_max}) must be positive")
        self.size_bytes = 0
        self.discarded_count = 0
        self._policy = policy
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._told = discarded
        self._clock = clock
        self._count = 0
        self._items: dict[int, BacklogItem] = {}  # in the order of their numbers, which is the order of arrival
        self._numbers: list[int] = []  # of all items, ascending; those of removed items are skipped
        self._order: list[tuple[float, int]] = []  # a heap, the next to discard first; removed items are skipped
        self._came = asyncio.Event()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, payload: bytes, *, priority: int = 0, ttl: float | None = None) -> bool:
        """Add a message that expires after `ttl` seconds; return False if it was itself discarded. Never waits."""
        if len(payload) > self._bytes_max:
            raise MessageTooLargeError(
                f"the message has {len(payload)} bytes, the backlog holds {self._bytes_max}: raise bytes_max"
            )
        expires = float("inf") if ttl is None else self._clock() + ttl
        item = BacklogItem(payload, priority, expires)
        number = self._count
        self._count += 1
        self._items[number] = item
        self._numbers.append(number)
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
        """Remove and return the oldest message that has not expired; None if there is none."""
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
        """Remove and return the oldest message that has not expired; wait for one if there is none."""
        while (item := self.get_nowait()) is None:
            await self._came.wait()
        return item

    # reading without removing

    @property
    def next_number(self) -> int:
        """The number that the next message will get. Messages are numbered from 0 on, discarded ones included."""
        return self._count

    @property
    def first_number(self) -> int:
        """The number of the oldest message; `next_number` if there is none."""
        return next(iter(self._items), self._count)

    def peek(self, number: int, size_max: int) -> tuple[int, list[bytes]]:
        """Return messages with consecutive numbers, about `size_max` bytes of them, and the number of the first.

        The first is the oldest that is left from `number` on; if none is, the number is `next_number`. Expired messages
        are discarded.
        """
        now = self._clock()
        found: list[bytes] = []
        first, expected, size = self._count, self._count, 0
        index = bisect_left(self._numbers, number)
        while index < len(self._numbers) and size < size_max:
            number = self._numbers[index]
            index += 1
            item = self._items.get(number)
            if item is None:
                continue
            if found and number != expected:
                break
            if item.expires <= now:
                self._discard(number)
                index = bisect_left(self._numbers, number)  # the list may have become shorter
                continue
            if not found:
                first = number
            found.append(item.payload)
            size += len(item.payload)
            expected = number + 1
        return first, found

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
        if len(self._numbers) > 2 * len(self._items) + 64:
            self._numbers = list(self._items)
        if len(self._order) > 2 * len(self._items) + 64:
            # Removed items stay in the heap until now; this keeps the heap at about twice the number of items at most.
            self._order = [entry for entry in self._order if entry[1] in self._items]
            heapq.heapify(self._order)
        return item
