"""Waiting for conditions in tests: what lasts for one turn is seen, and the loop rests meanwhile."""

import asyncio
import threading
import time
from collections.abc import Callable

import pytest
import uvloop

from tests.support.loops import in_loop, run, until


@in_loop
async def test_what_holds_for_one_turn_of_the_loop_is_seen() -> None:
    states: list[bool] = []

    async def blink() -> None:
        await asyncio.sleep(0.02)
        for state in (True, False):
            states.append(state)
            await asyncio.sleep(0)

    blinking = asyncio.create_task(blink())
    await until(lambda: states and states[-1])
    assert states == [True]  # and nothing else has run since
    await blinking


@in_loop
async def test_the_loop_rests_while_nothing_happens() -> None:
    looks = 0

    def is_over() -> bool:
        nonlocal looks
        looks += 1
        return over.done()

    over = asyncio.create_task(asyncio.sleep(0.1))
    await until(is_over)
    assert looks < 200  # a loop that turns all the time looks some thousand times


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_what_a_thread_does_without_a_notice_is_seen(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    done: list[int] = []

    def work() -> None:
        time.sleep(0.02)
        done.append(1)

    async def main() -> None:
        thread = threading.Thread(target=work)
        thread.start()
        await asyncio.gather(until(lambda: done), until(lambda: len(done) == 1))
        thread.join()

    run(main(), new_loop)


@in_loop
async def test_the_error_of_a_condition_ends_the_wait() -> None:
    states: list[int] = []
    asyncio.get_running_loop().call_later(0.02, states.append, 0)
    with pytest.raises(ZeroDivisionError):
        await until(lambda: states and 1 / states[0])
