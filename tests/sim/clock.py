"""Virtual time: a queue of actions, each at an integer microsecond, ties broken by a counter."""

from __future__ import annotations

import heapq
from collections.abc import Callable

__all__ = ["MILLISECOND", "MINUTE", "SECOND", "Alarm", "Clock"]

MILLISECOND = 1_000
SECOND = 1_000_000
MINUTE = 60 * SECOND


class Alarm:
    """One action at one time; `cancel()` disables it, but leaves its entry in the queue."""

    __slots__ = ("action", "time_us")

    def __init__(self, time_us: int, action: Callable[[], None] | None) -> None:
        self.time_us = time_us
        self.action = action

    def cancel(self) -> None:
        self.action = None


class Clock:
    """Runs actions in the order of their times; the same calls always give the same order."""

    def __init__(self) -> None:
        self.now_us = 0
        self.steps = 0
        self._queue: list[tuple[int, int, Alarm]] = []
        self._counter = 0

    def at(self, time_us: int, action: Callable[[], None]) -> Alarm:
        """Run `action` at `time_us`; a time in the past counts as now."""
        alarm = Alarm(max(time_us, self.now_us), action)
        self._counter += 1
        heapq.heappush(self._queue, (alarm.time_us, self._counter, alarm))
        return alarm

    def after(self, delay_us: int, action: Callable[[], None]) -> Alarm:
        return self.at(self.now_us + delay_us, action)

    def step(self, until_us: int) -> bool:
        """Run the next action not later than `until_us`; without one, set the clock to `until_us` and return False."""
        while self._queue:
            time_us, _, alarm = self._queue[0]
            if alarm.action is not None and time_us > until_us:
                break
            heapq.heappop(self._queue)
            if alarm.action is None:
                continue
            self.now_us = time_us
            self.steps += 1
            action, alarm.action = alarm.action, None
            action()
            return True
        self.now_us = max(self.now_us, until_us)
        return False
