"""KeptTasks keeps references to tasks while they run."""

import asyncio

from tests.support.loops import in_loop
from tunnel.system.tasks import KeptTasks


@in_loop
async def test_done_waits_for_all_tasks_whether_they_fail_or_start_others() -> None:
    tasks, ended = KeptTasks(), []

    async def fails() -> None:
        raise ValueError("one of them")

    async def begins_another() -> None:
        tasks.keep(asyncio.create_task(ends()))

    async def ends() -> None:
        await asyncio.sleep(0)
        ended.append("the other")

    tasks.keep(asyncio.create_task(fails()))
    tasks.keep(asyncio.create_task(begins_another()))
    await tasks.done()
    assert ended == ["the other"]


@in_loop
async def test_done_waits_for_cancelled_tasks() -> None:
    tasks, ended = KeptTasks(), []

    async def stands_still() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("cancelled")

    tasks.keep(asyncio.create_task(stands_still()))
    await asyncio.sleep(0)
    tasks.cancel()
    await tasks.done()
    assert ended == ["cancelled"]
    await tasks.done()  # no task is left, so that this returns at once


@in_loop
async def test_tasks_that_start_while_others_are_stopped_are_cancelled_too() -> None:
    tasks, ended = KeptTasks(), []

    async def stands_still(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)
            if name == "first":
                tasks.keep(asyncio.create_task(stands_still("second")))

    tasks.keep(asyncio.create_task(stands_still("first")))
    await asyncio.sleep(0)
    await tasks.stop()
    assert ended[0] == "first"
    await tasks.done()
