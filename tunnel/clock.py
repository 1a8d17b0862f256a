"""The clock of a process, and the one timer that a pump needs on its event loop."""

import asyncio
import time
from collections.abc import Callable

__all__ = ["LoopTimer", "now_us"]

_STEP_US = 1_000  # timers are set to whole milliseconds, later rather than earlier: uvloop has no finer ones


def now_us() -> int:
    """Microseconds, never going back. Every part of a process has this clock, and so have traces."""
    return time.monotonic_ns() // 1000


class LoopTimer:
    """A one-shot timer that may fire early: one that was set too early is kept, because an idle call costs less than
    setting it anew."""

    def __init__(self, fired: Callable[[], None]) -> None:
        self._fired = fired
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._due_us = 0

    def due_by(self, due_us: int, now: int) -> None:
        """Make sure that it fires by then, rounded up to a whole millisecond, and after 1 ms at the earliest."""
        if self._handle is not None:
            if self._due_us <= due_us:
                return
            self._handle.cancel()
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        delay_ms = -((now - due_us) // _STEP_US)
        self._handle = self._loop.call_later(max(1, delay_ms) / 1e3, self._fire)
        self._due_us = due_us

    def cancel(self) -> None:
        """It does not fire any more, unless it is set again."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        self._fired()
