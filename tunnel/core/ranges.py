"""A set of numbers as sorted, disjoint, non-adjacent ranges."""

from bisect import bisect_left, bisect_right

__all__ = ["RangeSet"]


class RangeSet:
    """A set of ranges that include both ends. Adding one takes two binary searches, and time for the ranges that it
    merges or moves."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __len__(self) -> int:
        return len(self._firsts)

    def __contains__(self, number: int) -> bool:
        index = bisect_right(self._firsts, number) - 1
        return index >= 0 and number <= self._lasts[index]

    def ranges(self) -> list[tuple[int, int]]:
        """Return all ranges in ascending order."""
        return list(zip(self._firsts, self._lasts, strict=True))

    def range_of(self, number: int) -> tuple[int, int] | None:
        """Return the range that holds the number, or None."""
        index = bisect_right(self._firsts, number) - 1
        if index < 0 or number > self._lasts[index]:
            return None
        return self._firsts[index], self._lasts[index]

    def add(self, first: int, last: int) -> list[tuple[int, int]]:
        """Add a range (first <= last). Return the parts of it that were new, in ascending order."""
        low = bisect_left(self._lasts, first - 1)  # the first range that touches or follows
        high = bisect_right(self._firsts, last + 1)  # the first range that neither touches nor precedes
        if low == high:
            self._firsts.insert(low, first)
            self._lasts.insert(low, last)
            return [(first, last)]
        new: list[tuple[int, int]] = []
        cursor = first
        for index in range(low, high):
            if cursor < self._firsts[index]:
                new.append((cursor, min(last, self._firsts[index] - 1)))
            cursor = max(cursor, self._lasts[index] + 1)
        if cursor <= last:
            new.append((cursor, last))
        self._firsts[low:high] = [min(first, self._firsts[low])]
        self._lasts[low:high] = [max(last, self._lasts[high - 1])]
        return new

    def remove_up_to(self, number: int) -> None:
        """Remove everything up to and including the number."""
        index = bisect_right(self._lasts, number)
        del self._firsts[:index]
        del self._lasts[:index]
        if self._firsts and self._firsts[0] <= number:
            self._firsts[0] = number + 1
