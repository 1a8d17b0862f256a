"""A task whose user pays for its steps."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.loops import in_loop
from tests.turns.fake_meter import FakeMeter
from tunnel.turns.charging import Charged
from tunnel.turns.queues import Turns


@in_loop
async def test_two_users_each_pays_for_the_steps_of_its_own_task() -> None:
    meter = FakeMeter()
    turns = Turns(meter=meter)
    spent: dict[str, list[float]] = {"eve": [], "ann": []}

    def spend(user: str, spent_us: float) -> None:
        spent[user].append(round(spent_us))

    turns.spend = spend  # type: ignore[method-assign]

    async def work(seconds: float) -> str:
        for _ in range(2):
            meter.seconds += seconds
            await asyncio.sleep(0)
        return "done"

    tasks = [asyncio.ensure_future(Charged(turns, user, work(cost))) for user, cost in (("eve", 0.5), ("ann", 0.001))]
    assert [await each for each in tasks] == ["done"] * 2
    assert spent == {"eve": [500_000, 500_000, 0], "ann": [1_000, 1_000, 0]}


@in_loop
async def test_errors_and_cancellations_pass_in_both_directions() -> None:
    turns, seen = Turns(meter=FakeMeter()), list[str]()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise ValueError("from within") from None

    task = asyncio.ensure_future(Charged(turns, "eve", work()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(ValueError, match="from within"):
        await task
    assert seen == ["cancelled"]


@in_loop
async def test_a_task_that_never_began_leaves_no_coroutine_behind() -> None:
    async def work() -> None:
        raise AssertionError("never runs")

    task = asyncio.ensure_future(Charged(Turns(meter=FakeMeter()), "eve", work()))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
