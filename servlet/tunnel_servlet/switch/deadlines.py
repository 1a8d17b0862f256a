"""The timers of the switch: a heap with lazy deletion, so that it is cheap to turn a timer off or to postpone it."""

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

__all__ = ["Deadline", "Deadlines"]

_STALE_MIN = 64  # entries; fewer stale ones are not worth a rebuild


class Deadline:
    """One timer, with the function `fire(now)` that the switch calls when it is due. `Deadlines` sets and clears it."""

    __slots__ = ("armed_us", "due_us", "fire")

    def __init__(self, fire: Callable[[int], None]) -> None:
        self.fire = fire
        self.due_us: int | None = None
        self.armed_us: int | None = None  # the time of its live entry in the heap; None if it has none


class Deadlines:
    """All timers. A timer's live entry is never later than the timer. An entry that comes up too early is put back."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Deadline]] = []
        self._order = 0  # breaks ties: the entry that was added first fires first
        self._stale = 0  # entries whose timer is off or was set to an earlier time

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, deadline: Deadline, due_us: int) -> None:
        """Set or move the timer to `due_us`."""
        armed_us = deadline.armed_us
        if deadline.due_us is None and armed_us is not None:
            self._stale -= 1
        deadline.due_us = due_us
        if armed_us is None:
            self._arm(deadline, due_us)
        elif due_us < armed_us:
            self._stale += 1
            self._arm(deadline, due_us)

    def clear(self, deadline: Deadline) -> None:
        """Turn the timer off."""
        if deadline.due_us is None:
            return
        deadline.due_us = None
        self._stale += 1
        if self._stale > _STALE_MIN and self._stale * 2 > len(self._heap):
            self._rebuild()

    def next_timeout(self) -> int | None:
        """Return a time not later than the earliest timer, or None if there is none.

        It is too early if the timer of the heap's first entry was postponed or cleared. O(1).
        """
        return self._heap[0][0] if self._heap else None

    def pop_expired(self, now: int) -> Iterator[Deadline]:
        """Iterate over the timers due by `now`. A postponed one may come before one that was due earlier.

        Each is off when it is yielded; the caller may set it again, to a time after `now`.
        """
        while self._heap and self._heap[0][0] <= now:
            armed_us, _, deadline = heappop(self._heap)
            if armed_us != deadline.armed_us:
                self._stale -= 1
                continue
            deadline.armed_us = None
            if deadline.due_us is None:
                self._stale -= 1
            elif deadline.due_us > now:
                self._arm(deadline, deadline.due_us)
            else:
                deadline.due_us = None
                yield deadline

    def _arm(self, deadline: Deadline, due_us: int) -> None:
        deadline.armed_us = due_us
        self._order += 1
        heappush(self._heap, (due_us, self._order, deadline))

    def _rebuild(self) -> None:
        """Remove the stale entries from the heap."""
        keep = []
        for entry in self._heap:
            deadline = entry[2]
            if entry[0] != deadline.armed_us:
                continue
            if deadline.due_us is None:
                deadline.armed_us = None
            else:
                keep.append(entry)
        heapify(keep)
        self._heap = keep
        self._stale = 0
