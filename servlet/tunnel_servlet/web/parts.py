"""Runs long work in parts, so that it does not delay what else the event loop has to do."""

import asyncio
import time
from collections.abc import Callable, Iterator

__all__ = ["Parts"]

_PART_S = 0.005  # processor time of one part, after which other work has its turn


class Parts:
    """Runs the steps of one iterator. New work replaces work that has not ended. `clock` measures processor time."""

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._steps: Iterator[None] = iter(())
        self._next: asyncio.Handle | None = None

    def start(self, steps: Iterator[None]) -> None:
        """Run these steps: a first part now, the others in later turns of the running event loop."""
        if self._next is not None:
            self._next.cancel()
        self._steps = steps
        self._run()

    def _run(self) -> None:
        self._next = None
        ends = self._clock() + _PART_S
        for _ in self._steps:
            if self._clock() >= ends:
                self._next = asyncio.get_running_loop().call_soon(self._run)
                return
