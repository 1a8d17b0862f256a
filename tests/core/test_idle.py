"""Ten thousand idle connections add no work to a step; work is counted in calls, not in seconds."""

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from tests.core.solo import MS, TARGET, Solo
from tunnel.core import Connection
from tunnel.core.constants import SECOND_US
from tunnel.wire import PacketType

FEW, MANY = 10, 10_000


def endpoint_with(count: int) -> tuple[Solo, Connection]:
    """Return an endpoint with `count` idle connections, and one more connection that is busy."""
    solo = Solo()
    for _ in range(count):
        solo.connect(TARGET)
        solo.answer()
    solo.out()
    solo.events()
    busy = solo.opened(TARGET).connection
    solo.wait(MS)
    return solo, busy


def calls(action: Callable[[], object]) -> int:
    """Count the functions that an action calls, including those in C."""
    count = 0

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    gc.collect()
    gc.disable()  # a garbage collection would add calls of finalizers
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(before)
        gc.enable()
    return count


def echo(solo: Solo, busy: Connection) -> None:
    """Send a request and receive its answer, with every call that a driver makes meanwhile."""
    endpoint = solo.endpoint
    busy.write(b"request", solo.now)
    solo.out()
    endpoint.next_timeout()
    solo.ack()
    solo.data(busy.receiver.window.next_sequence - (2**32 + 2**32 - 1), b"answer")
    assert busy.read(100, solo.now) == b"answer"
    solo.now += 25 * MS
    endpoint.handle_timeout(solo.now)
    assert PacketType.ACK in solo.types()
    solo.events()


def test_a_step_costs_the_same_with_ten_and_with_ten_thousand_idle_connections() -> None:
    costs = []
    for count in (FEW, MANY):
        solo, busy = endpoint_with(count)
        echo(solo, busy)
        costs.append([calls(lambda: echo(solo, busy)) for _ in range(3)])  # noqa: B023
        costs[-1].append(calls(lambda: solo.endpoint.handle_timeout(solo.now)))  # noqa: B023
        costs[-1].append(calls(solo.endpoint.wants_batch))
    assert costs[0] == costs[1]


def test_an_idle_connection_needs_few_timeouts_in_an_hour() -> None:
    """It needs a PING a minute, and a check of the user timeout every five minutes."""
    solo = Solo().opened(TARGET)
    wakes = 0
    end = solo.now + 3600 * SECOND_US
    while (due := solo.endpoint.next_timeout() or end) < end:
        solo.now = due
        solo.endpoint.handle_timeout(solo.now)
        wakes += 1
        if solo.types():
            solo.say(PacketType.PONG)
    assert wakes <= 3600 // 60 * 2 + 3600 // 300 + 2
