"""The groups that read a partition in memory, and the offset up to which all of them have read it."""

from __future__ import annotations

import heapq

__all__ = ["Readers"]


class Readers:
    """The position of each group. A group counts from its first member or position on."""

    def __init__(self) -> None:
        self._positions: dict[str, int] = {}
        self._order: list[tuple[int, str]] = []  # a heap; entries that are not a group's position are skipped

    def position(self, group: str) -> int | None:
        """Return the position of a group; None if it is not known here."""
        return self._positions.get(group)

    def put(self, group: str, position: int) -> None:
        """Note the position of a group."""
        self._positions[group] = position
        heapq.heappush(self._order, (position, group))
        if len(self._order) > 2 * len(self._positions) + 64:
            self._order = [(position, group) for group, position in self._positions.items()]
            heapq.heapify(self._order)

    def remove(self, group: str) -> None:
        """Forget a group."""
        self._positions.pop(group, None)

    @property
    def last(self) -> tuple[int, str] | None:
        """The lowest position, and a group that has it; None if there are no groups."""
        while self._order and self._positions.get(self._order[0][1]) != self._order[0][0]:
            heapq.heappop(self._order)
        return self._order[0] if self._order else None
