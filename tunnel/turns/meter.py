"""Measures the processor time of work that a user pays for, without a system call for each piece of it."""

import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["EXCESS_S", "GarbageTime", "ProcessorMeter", "Start"]

# In seconds. Work that takes at most this long is charged by the wall clock. Longer work is charged by the clock of the
# thread's processor time, counted from a reading that may be this old. A reading makes the kernel notice that the
# thread has used up its time slice, and give the processor to another process; otherwise the kernel notices this only
# at its next tick (they are 4 ms apart). With two readings for each input, a relay on two busy cores moved 4 to 8 %
# fewer bytes (`loadtests.bench.road`). With one in 2 ms it moved 2 % fewer, and one in 5 ms was no better.
EXCESS_S = 0.002

Start = tuple[float, float]
"""The start of a piece of work: the wall clock then, and the last reading of the clock of processor time. Both are in
seconds, less the time of garbage collections so far."""


class GarbageTime(Protocol):
    """The processor time that garbage collections took in this thread, in seconds."""

    total_s: float


class _NoGarbage:
    total_s = 0.0


class ProcessorMeter:
    """Measures the processor time of the running thread between two calls. Garbage collections do not count.

    The result is never less than the truth, and at most `EXCESS_S` more. The wall clock, which measures short work,
    also counts what the processor did for others. Long work is counted from a reading before its start, so that earlier
    work of this thread may be included. Pieces of work may contain others.
    """

    def __init__(
        self,
        wall: Callable[[], float] = time.perf_counter,
        processor: Callable[[], float] = time.thread_time,
        garbage: GarbageTime | None = None,
    ) -> None:
        self._wall = wall
        self._processor = processor
        self._garbage: GarbageTime = garbage or _NoGarbage()
        self._read_at_s = float("-inf")  # when `_processor_s` was read
        self._processor_s = 0.0

    def start(self) -> Start:
        """Return the start of a piece of work, for `since`. The caller must not be suspended between the two calls."""
        wall_s = self._wall()
        if wall_s - self._read_at_s > EXCESS_S:
            self._read(wall_s)
        return wall_s - self._garbage.total_s, self._processor_s

    def since(self, start: Start) -> float:
        """Return the processor time since `start` in seconds, as exactly as the class promises."""
        wall_s = self._wall()
        passed_s = wall_s - self._garbage.total_s - start[0]
        if passed_s <= EXCESS_S:
            return passed_s
        self._read(wall_s)
        return min(passed_s, self._processor_s - start[1])

    def _read(self, wall_s: float) -> None:
        self._read_at_s = wall_s
        self._processor_s = self._processor() - self._garbage.total_s
