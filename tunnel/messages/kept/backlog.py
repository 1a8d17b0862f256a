"""A bounded backlog in memory, for callers that tolerate loss: when it is full, a policy chooses what to discard.

The policies are those of the CORBA Notification Service, which the remoting-and-backlog document names.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from tunnel.messages.errors import MessageTooLargeError
from tunnel.messages.kept.numbered import LivingRanks, Numbered

__all__ = ["BacklogItem", "DiscardPolicy", "MemoryBacklog"]


class DiscardPolicy(enum.Enum):
    """Which message is discarded when there is no room, and no message has expired."""

    OLDEST = "oldest"
    """The message that was added first (FifoOrder)."""
    NEWEST = "newest"
    """The message that was added last, that is, the one for which there is no room (LifoOrder)."""
    PRIORITY = "priority"
    """The message of the lowest priority; the oldest of several (PriorityOrder)."""
    EXPIRED = "expired"
    """The message that expires first; messages that never expire come last (DeadlineOrder)."""


_RANKED = (DiscardPolicy.PRIORITY, DiscardPolicy.EXPIRED)


class BacklogItem(msgspec.Struct, frozen=True):
    """A waiting message. `expires` is a time of the backlog's clock, in seconds."""

    payload: bytes
    priority: int = 0
    expires: float = float("inf")


class MemoryBacklog:
    """A first-in, first-out queue that never returns expired messages. Use it from one event loop only.

    When there is no room, free and expired messages make room first, whatever the policy. `discarded` is called with
    each message that is discarded, expired ones included. `first` is the number of the first message.
    """

    def __init__(
        self,
        policy: DiscardPolicy = DiscardPolicy.OLDEST,
        *,
        messages_max: int = 100_000,
        bytes_max: int = 64 * 1024 * 1024,
        discarded: Callable[[BacklogItem], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        first: int = 0,
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
        self._count = first
        self._free_before = first
        self._items: Numbered[BacklogItem] = Numbered()
        self._order = LivingRanks(self._items.__contains__)  # the next to discard first
        self._expiring = LivingRanks(self._items.__contains__)  # the next to expire first
        self._came = asyncio.Event()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, payload: bytes, *, priority: int = 0, ttl: float | None = None) -> bool:
        """Add a message that expires after `ttl` seconds; return False if it was itself discarded. Never waits."""
        return self.put_all([payload], priority=priority, ttl=ttl)

    def put_all(self, payloads: Sequence[bytes], *, priority: int = 0, ttl: float | None = None) -> bool:
        """Add messages that are kept or discarded together. Return False if the policy discards these: then none of
        them is added, none gets a number, and no other message is discarded for them."""
        count, size = len(payloads), sum(map(len, payloads))
        what = "the message has" if count == 1 else f"the {count} messages have"
        if size > self._bytes_max:
            raise MessageTooLargeError(f"{what} {size} bytes, the backlog holds {self._bytes_max}: raise bytes_max")
        if count > self._messages_max:
            raise MessageTooLargeError(
                f"{count} messages come at once, the backlog holds {self._messages_max}: raise messages_max"
            )
        expires = float("inf") if ttl is None else self._clock() + ttl
        items = [BacklogItem(payload, priority, expires) for payload in payloads]
        if not self._make_room(count, size, self._rank(priority, expires)):
            for item in items:
                self._count_discarded(item)
            return False
        for item in items:
            self._add(item)
        self._came.set()
        return True

    def _add(self, item: BacklogItem) -> None:
        number = self._count
        self._count += 1
        self._items.add(number, item)
        self.size_bytes += len(item.payload)
        if item.expires != float("inf"):
            self._expiring.push(item.expires, number)
        if self._policy in _RANKED:
            self._order.push(self._rank(item.priority, item.expires), number)

    def get_nowait(self) -> BacklogItem | None:
        """Remove and return the oldest message that has not expired; None if there is none."""
        now = self._clock()
        while (number := self._items.first()) is not None:
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
        """The number that the next message will get. Messages that are removed or discarded later keep theirs."""
        return self._count

    @property
    def first_number(self) -> int:
        """The number of the oldest message; `next_number` if there is none."""
        number = self._items.first()
        return self._count if number is None else number

    def peek(self, number: int, size_max: int) -> tuple[int, list[bytes]]:
        """Return messages with consecutive numbers, about `size_max` bytes of them, and the number of the first.

        The first is the oldest that is left from `number` on; if none is, the number is `next_number`. Expired messages
        are discarded.
        """
        now = self._clock()
        found: list[bytes] = []
        first, expected, size = self._count, self._count, 0
        expired: list[int] = []
        for present in self._items.numbers_from(number):
            if size >= size_max or (found and present != expected):
                break
            item = self._items[present]
            if item.expires <= now:
                expired.append(present)
                continue
            if not found:
                first = present
            found.append(item.payload)
            size += len(item.payload)
            expected = present + 1
        for each in expired:
            self._discard(each)
        return first, found

    # removing

    def begin_at(self, number: int) -> None:
        """Give the next message this number, or its own if that is higher."""
        self._count = max(self._count, number)

    def free(self, before: int) -> None:
        """Let messages with numbers below `before` be removed. They do not count as discarded."""
        self._free_before = max(self._free_before, before)

    def sweep(self, count_max: int) -> bool:
        """Remove messages that are free or have expired, at most `count_max`. Return whether there may be more."""
        for _ in range(count_max):
            number = self._items.first()
            if number is None or number >= self._free_before:
                break
            self._remove(number)
        else:
            return True
        if not self._expiring:
            return False
        now = self._clock()
        for _ in range(count_max):
            expires = self._expiring.first()
            if expires is None or expires > now:
                return False
            number = self._expiring.pop()
            if number in self._items:
                self._discard(number)
        return True

    def _rank(self, priority: int, expires: float) -> float:
        """Return the place of a message in the order of the policy: the lowest is discarded first."""
        return priority if self._policy is DiscardPolicy.PRIORITY else expires

    def _make_room(self, count: int, size: int, rank: float) -> bool:
        """Make room for new messages of this rank. Return False, and discard none that is alive, if the policy
        discards the new ones."""
        while self._lacks(count, size):
            if not self.sweep(1):
                break
        chosen: list[int] = []
        candidates = self._candidates(rank)
        while self._lacks(count, size):
            number = next(candidates, None)
            if number is None:
                break
            chosen.append(number)
            count -= 1
            size -= len(self._items[number].payload)
        if self._lacks(count, size):
            if self._policy in _RANKED:  # the candidates were taken from the heap
                for number in chosen:
                    item = self._items[number]
                    self._order.push(self._rank(item.priority, item.expires), number)
            return False
        for number in chosen:
            self._discard(number)
        return True

    def _lacks(self, count: int, size: int) -> bool:
        return len(self._items) + count > self._messages_max or self.size_bytes + size > self._bytes_max

    def _candidates(self, rank: float) -> Iterator[int]:
        """Yield the numbers of the messages that the policy discards before new ones of this rank, in its order."""
        if self._policy is DiscardPolicy.OLDEST:
            yield from self._items
        while (lowest := self._order.first()) is not None and lowest <= rank:
            number = self._order.pop()
            if number in self._items:
                yield number

    def _discard(self, number: int) -> None:
        self._count_discarded(self._remove(number))

    def _count_discarded(self, item: BacklogItem) -> None:
        self.discarded_count += 1
        if self._told is not None:
            self._told(item)

    def _remove(self, number: int) -> BacklogItem:
        item = self._items.pop(number)
        self.size_bytes -= len(item.payload)
        most = 2 * len(self._items) + 64
        self._order.tidy(most)
        self._expiring.tidy(most)
        return item
