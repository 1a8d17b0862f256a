"""Long work goes on in parts, between which the event loop does other things."""

import asyncio
from collections.abc import Iterator

from tests.support.loops import in_loop
from tunnel_servlet.web.parts import Parts


class Work:
    """Steps that take a millisecond each, by a clock of their own."""

    def __init__(self, steps: int) -> None:
        self.seconds = 0.0
        self.done = 0
        self._steps = steps

    def clock(self) -> float:
        return self.seconds

    def __iter__(self) -> Iterator[None]:
        for _ in range(self._steps):
            self.seconds += 0.001
            self.done += 1
            yield


@in_loop
async def test_little_work_is_done_at_once() -> None:
    work = Work(3)
    Parts(work.clock).start(iter(work))
    assert work.done == 3


@in_loop
async def test_much_work_leaves_turns_to_others() -> None:
    work = Work(23)
    Parts(work.clock).start(iter(work))
    seen = []
    while work.done < 23:
        seen.append(work.done)
        await asyncio.sleep(0)
    assert seen == [5, 10, 15, 20]


@in_loop
async def test_newer_work_replaces_the_older() -> None:
    older, newer = Work(100), Work(6)
    parts = Parts(lambda: older.seconds + newer.seconds)
    parts.start(iter(older))
    parts.start(iter(newer))
    for _ in range(5):
        await asyncio.sleep(0)
    assert (older.done, newer.done) == (5, 6)
