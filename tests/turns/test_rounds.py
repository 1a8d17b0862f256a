"""Turns by rounds of the event loop: users take turns, and little begins in one round."""

import asyncio
from collections import Counter

from tests.support.loops import in_loop
from tunnel.turns.rounds import RoundTurns


@in_loop
async def test_two_users_a_burst_of_one_delays_the_other_by_one_round() -> None:
    turns, begun = RoundTurns(4), list[str]()
    for _ in range(100):
        turns.ask("bob", lambda: begun.append("bob"))
    assert begun == ["bob"] * 4
    turns.ask("ann", lambda: begun.append("ann"))
    await asyncio.sleep(0)
    assert len(begun) == 2 * 4
    assert begun.index("ann") <= 4 + 1
    while len(begun) < 101:  # noqa: ASYNC110 - counts the turns of the event loop
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    turns.ask("ann", lambda: begun.append("ann"))  # no other user waits, so there is no delay
    assert Counter(begun) == {"bob": 100, "ann": 2}


@in_loop
async def test_work_may_ask_again() -> None:
    turns, begun = RoundTurns(4), list[int]()

    def begin() -> None:
        begun.append(len(begun))
        if len(begun) < 20:
            turns.ask("bob", begin)

    turns.ask("bob", begin)
    while len(begun) < 20:  # noqa: ASYNC110 - counts the turns of the event loop
        await asyncio.sleep(0)


@in_loop
async def test_a_caller_who_is_cancelled_takes_no_turn_away() -> None:
    turns, begun = RoundTurns(1), list[str]()
    for _ in range(3):
        turns.ask("ann", lambda: begun.append("ann"))
    waiting = asyncio.ensure_future(turns.wait("bob"))
    await asyncio.sleep(0)
    waiting.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert begun == ["ann"] * 3
    assert waiting.cancelled()
