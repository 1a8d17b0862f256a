"""Measures the processor time of work that a user pays for, without a system call for each piece of it."""

import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["UNREAD_S", "Began", "Collections", "ProcessorMeter"]

# The clock of the thread's processor time is read at most once in this time, in seconds. When it is read, the kernel
# notices that the thread has used its time slice up, and gives the processor to another process; otherwise it notices
# this at its next tick, 4 ms apart. With two readings for each input, a relay on two busy cores moved 4 to 8 % fewer
# bytes (`loadtests.bench.road`); with one in 2 ms, 2 %, and with one in 5 ms, the same.
UNREAD_S = 0.002

Began = tuple[float, float]
"""When a piece of work began: by the clock on the wall, and what the clock of processor time showed when it was read
last. Both are in seconds, and leave collections out."""


class Collections(Protocol):
    """Counts the time that collections of garbage took, in seconds."""

    total_s: float


class _NoCollections:
    total_s = 0.0


class ProcessorMeter:
    """Measures the processor time of the running thread between two calls. No collection of garbage counts.

    The result is never less than the truth, and at most `UNREAD_S` more: for this time, the clock on the wall can count
    what the processor did for another thread or process. Pieces of work may contain others.
    """

    def __init__(
        self,
        wall: Callable[[], float] = time.perf_counter,
        processor: Callable[[], float] = time.thread_time,
        collections: Collections | None = None,
    ) -> None:
        self._wall = wall
        self._processor = processor
        self._collections: Collections = collections or _NoCollections()
        self._read_at_s = float("-inf")  # when `_processor_s` was read
        self._processor_s = 0.0

    def began(self) -> Began:
        """Return the beginning of a piece of work, for `since`. No await may come between the two calls."""
        wall_s = self._wall()
        if wall_s - self._read_at_s > UNREAD_S:
            self._read(wall_s)
        return wall_s - self._collections.total_s, self._processor_s

    def since(self, began: Began) -> float:
        """Return the processor time since then, in seconds."""
        wall_s = self._wall()
        passed_s = wall_s - self._collections.total_s - began[0]
        if passed_s <= UNREAD_S:
            return passed_s
        self._read(wall_s)
        return min(passed_s, self._processor_s - began[1])

    def _read(self, wall_s: float) -> None:
        self._read_at_s = wall_s
        self._processor_s = self._processor() - self._collections.total_s
