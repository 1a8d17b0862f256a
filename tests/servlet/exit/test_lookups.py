"""Name lookups at an exit: two of each user at a time, whatever happens to their callers."""

import asyncio

import pytest

from tests.servlet.rig import until
from tests.support.loops import in_loop
from tunnel_servlet.exit.lookups import Lookups


@in_loop
async def test_two_users_have_two_lookups_each() -> None:
    lookups, running, gate = Lookups(), list[str](), asyncio.Event()

    async def lookup(name: str) -> str:
        running.append(name)
        await gate.wait()
        return name

    names = ("ann1", "ann2", "ann3", "bob1")
    tasks = [asyncio.ensure_future(lookups.run(name[:3], lambda name=name: lookup(name))) for name in names]  # type: ignore[misc]
    await until(lambda: len(running) == 3)
    assert running == ["ann1", "ann2", "bob1"]
    gate.set()
    assert await asyncio.gather(*tasks) == list(names)
    assert len(lookups) == 0


@in_loop
async def test_the_lookup_of_a_cancelled_caller_counts_until_it_ends() -> None:
    lookups, gate = Lookups(), asyncio.Event()

    async def fail() -> None:
        await gate.wait()
        raise OSError("no such name")

    tasks = [asyncio.ensure_future(lookups.run("ann", fail)) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    tasks[2].cancel()
    await asyncio.gather(tasks[0], tasks[2], return_exceptions=True)
    late = asyncio.ensure_future(lookups.run("ann", fail))
    await asyncio.sleep(0)
    assert not late.done()
    gate.set()
    for task in (tasks[1], late):
        with pytest.raises(OSError, match="no such name"):
            await task
    assert len(lookups) == 0


@in_loop
async def test_an_aborted_lookup_makes_no_room_for_one_that_waits() -> None:
    """An exit that ends would otherwise leave lookups behind that nobody waits for."""
    lookups, begun = Lookups(), list[int]()

    async def hang(number: int) -> None:
        begun.append(number)
        await asyncio.Event().wait()

    tasks = [asyncio.ensure_future(lookups.run("ann", lambda n=number: hang(n))) for number in range(5)]  # type: ignore[misc]
    await until(lambda: len(begun) == 2)
    lookups.abort()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert begun == [0, 1]
    assert all(task.cancelled() for task in tasks)
    assert len(lookups) == 0
