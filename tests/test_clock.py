"""The clock, and `LoopTimer`, which a driver sets for its next pump."""

import asyncio

from tests.support.loops import in_loop
from tunnel.system.clock import LoopTimer, now_us


class Pump:
    """Stands for a driver: counts how often its timer fired."""

    def __init__(self) -> None:
        self.fired = asyncio.Event()
        self.count = 0
        self.timer = LoopTimer(self._fire)

    def _fire(self) -> None:
        self.count += 1
        self.fired.set()


def test_the_clock_never_goes_back() -> None:
    times = [now_us() for _ in range(100)]
    assert times == sorted(times)


@in_loop
async def test_a_timer_fires_once_and_not_before_it_is_due() -> None:
    pump = Pump()
    due_us = now_us() + 5_000
    pump.timer.due_by(due_us, now_us())
    await pump.fired.wait()
    assert now_us() >= due_us
    assert pump.count == 1


@in_loop
async def test_a_timer_that_is_overdue_fires_at_once() -> None:
    pump = Pump()
    now = now_us()
    pump.timer.due_by(now - 1_000_000, now)
    await pump.fired.wait()
    assert pump.count == 1


@in_loop
async def test_an_earlier_deadline_replaces_a_later_one_but_not_the_reverse() -> None:
    pump = Pump()
    now = now_us()
    pump.timer.due_by(now + 3_600_000_000, now)
    pump.timer.due_by(now + 2_000, now)
    pump.timer.due_by(now + 3_600_000_000, now)
    await pump.fired.wait()
    pump.fired.clear()
    pump.timer.due_by(now_us() + 1_000, now_us())  # it can be set again
    await pump.fired.wait()
    assert pump.count == 2


@in_loop
async def test_a_cancelled_timer_does_not_fire_and_can_be_set_again() -> None:
    pump, other = Pump(), Pump()
    now = now_us()
    pump.timer.due_by(now + 1_000, now)
    pump.timer.cancel()
    pump.timer.cancel()
    other.timer.due_by(now + 5_000, now)
    await other.fired.wait()
    assert pump.count == 0
    pump.timer.due_by(now_us() + 1_000, now_us())
    await pump.fired.wait()
