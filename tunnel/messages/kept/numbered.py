"""Items with ascending numbers, and the order of their ranks, in structures of which no step takes long.

A dict or a list is copied as a whole now and then when it grows, and one of 100,000 items takes 10 ms for it. A backlog
of that size must not stop an event loop for so long.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

__all__ = ["LivingRanks", "Numbered"]

_T = TypeVar("_T")
_BLOCK_BITS = 9  # numbers that differ only in these bits are in one block: copying it takes some 10 us
_TIDIED = 4  # entries that a removal looks at: two would follow only just


class Numbered(Generic[_T]):
    """Items by number. They are added in the order of their numbers, and removed in any order."""

    def __init__(self) -> None:
        self._blocks: dict[int, dict[int, _T]] = {}  # none is empty
        self._places: list[int] = []  # of the blocks, ascending
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, number: int) -> bool:
        return number in self._blocks.get(number >> _BLOCK_BITS, ())

    def __getitem__(self, number: int) -> _T:
        return self._blocks[number >> _BLOCK_BITS][number]

    def __iter__(self) -> Iterator[int]:
        return self.numbers_from(0)

    def numbers_from(self, number: int) -> Iterator[int]:
        """Yield the numbers from this one on, ascending. Nothing may be added or removed meanwhile."""
        for place in range(bisect_left(self._places, number >> _BLOCK_BITS), len(self._places)):
            for found in self._blocks[self._places[place]]:
                if found >= number:
                    yield found

    def first(self) -> int | None:
        """Return the lowest number, or None if there is no item."""
        return next(iter(self._blocks[self._places[0]])) if self._places else None

    def add(self, number: int, item: _T) -> None:
        """Add an item whose number is higher than all before it."""
        place = number >> _BLOCK_BITS
        block = self._blocks.get(place)
        if block is None:
            block = self._blocks[place] = {}
            self._places.append(place)
        block[number] = item
        self._count += 1

    def pop(self, number: int) -> _T:
        """Remove an item, and return it."""
        place = number >> _BLOCK_BITS
        block = self._blocks[place]
        item = block.pop(number)
        if not block:
            del self._blocks[place]
            del self._places[bisect_left(self._places, place)]
        self._count -= 1
        return item


class LivingRanks:
    """A heap of ranks and numbers, from which entries of numbers that no longer live leave little by little.

    Call `tidy` after each removal of an item. Then there are at most about three entries for each item that lives.
    """

    def __init__(self, is_alive: Callable[[int], bool]) -> None:
        self._is_alive = is_alive
        self._heap: list[tuple[float, int]] = []
        self._old: list[tuple[float, int]] = []  # a heap, too, whose living entries move to the other

    def __len__(self) -> int:
        return len(self._heap) + len(self._old)

    def push(self, rank: float, number: int) -> None:
        heapq.heappush(self._heap, (rank, number))

    def first(self) -> float | None:
        """Return the lowest rank, which may be of a number that no longer lives; None if there is none."""
        heap = self._lower()
        return heap[0][0] if heap else None

    def pop(self) -> int:
        """Remove the entry with the lowest rank, and return its number."""
        return heapq.heappop(self._lower())[1]

    def _lower(self) -> list[tuple[float, int]]:
        if not self._old or (self._heap and self._heap[0] < self._old[0]):
            return self._heap
        return self._old

    def tidy(self, most: int) -> None:
        """Drop some entries that no longer live, if there are more than `most` entries."""
        if not self._old:
            if len(self._heap) <= most:
                return
            self._old, self._heap = self._heap, []
        for _ in range(min(_TIDIED, len(self._old))):
            entry = self._old.pop()  # the last one: without it, the others still are a heap
            if self._is_alive(entry[1]):
                heapq.heappush(self._heap, entry)
