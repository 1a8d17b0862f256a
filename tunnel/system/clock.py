"""The clocks of the process, and a one-shot timer of an event loop that is cheap to postpone."""

import asyncio
import time
from collections.abc import Callable

__all__ = ["LoopTimer", "age_s", "now_us", "passed_s", "slept_us", "stored_now_s"]

_STEP_US = 1_000  # uvloop timers count whole milliseconds, so delays are rounded up to them


def now_us() -> int:
    """Return the monotonic time in microseconds: the clock of the driver, of its carrier and of traces."""
    return time.monotonic_ns() // 1000


def passed_s() -> float:
    """Return the seconds since some fixed time. No step of the machine's clock changes them.

    On Linux, they also pass while the machine sleeps.
    """
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


def slept_us() -> int:
    """Return for how long the machine has slept, plus a constant; the clock of `now_us` stood still. Linux alone
    tells this; elsewhere the result does not change."""
    return round((passed_s() - time.monotonic()) * 1e6)


_STARTED_S = time.time() - passed_s()


def age_s(stored_s: float) -> float:
    """Return the seconds since something was stored, by the time that was stored beside it (`stored_now_s`).

    Never less than 0. The clock of the machine may have been set since then. If that was in this process, it makes
    nothing older than it is, but perhaps younger: take an age once, and count from there on by `passed_s`.
    """
    return max(0.0, min(time.time(), _STARTED_S + passed_s()) - stored_s)


def stored_now_s() -> float:
    """Return the seconds since the epoch, to store beside something whose age will count."""
    return max(time.time(), _STARTED_S + passed_s())


class LoopTimer:
    """A one-shot timer that may fire early. Moving the due time to a later one keeps the timer that is set, because a
    needless call of `fired` costs less than setting a new timer."""

    def __init__(self, fired: Callable[[], None]) -> None:
        self._fired = fired
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handle: asyncio.TimerHandle | None = None
        self.due_us: int | None = None  # by when it fires; None: it is not set

    def due_by(self, due_us: int, now: int) -> None:
        """Make the timer fire by `due_us`, rounded up to a whole millisecond, and after 1 ms at the earliest."""
        if self.due_us is not None and self.due_us <= due_us:
            return
        if self._handle is not None:
            self._handle.cancel()
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        delay_ms = -((now - due_us) // _STEP_US)
        self._handle = self._loop.call_later(max(1, delay_ms) / 1e3, self._fire)
        self.due_us = due_us

    def cancel(self) -> None:
        """Stop the timer; `due_by` sets it again."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = self.due_us = None

    def close(self) -> None:
        """Stop the timer for good, and forget its function: an object that holds its own timer is then no cycle."""
        self.cancel()
        self._fired = _do_nothing

    def _fire(self) -> None:
        self._handle = self.due_us = None
        self._fired()


def _do_nothing() -> None:
    """Stand in for the function of a closed timer."""
