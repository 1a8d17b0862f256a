"""Lookups of names: shared, kept for a stated time, and answered from what was found before while no server answers."""

from __future__ import annotations

import asyncio
import os
import socket
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from tests.servlet.rig import until
from tests.support.loops import in_loop
from tests.support.name_server import NameServer
from tunnel.system.lookups import KEPT_S, Lookups

NAME = "relay.example"
HERE, THERE = "127.0.0.1", "127.0.0.2"


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    found = NameServer(NAME)
    monkeypatch.setattr(socket, "getaddrinfo", found.getaddrinfo)
    yield found
    found.answers.set()


async def address(lookups: Lookups, port: int = 80) -> Any:
    return (await lookups.look_up(NAME, port, type=socket.SOCK_STREAM))[0][4][0]


@in_loop
async def test_what_was_found_is_kept_for_a_stated_time(server: NameServer) -> None:
    lookups = Lookups(clock := Clock())
    assert [await address(lookups) for _ in range(3)] == [HERE] * 3
    clock.now_s += KEPT_S - 0.1
    server.address = THERE
    assert await address(lookups) == HERE
    assert server.asked == 1
    clock.now_s += 0.1
    assert await address(lookups) == THERE
    assert server.asked == 2


@in_loop
async def test_overlapping_lookups_of_several_loops_are_one(server: NameServer) -> None:
    lookups = Lookups(Clock())
    server.answers.clear()
    here = [asyncio.ensure_future(address(lookups)) for _ in range(3)]
    there = asyncio.get_running_loop().run_in_executor(None, asyncio.run, address(lookups))
    await asyncio.sleep(0)
    here[0].cancel()
    await until(lambda: sum(len(waiting) for _, waiting in lookups._pending.values()) == 4)
    server.answers.set()
    assert [await here[1], await here[2], await there] == [HERE] * 3
    assert server.asked == 1


@pytest.mark.parametrize("is_silent", [False, True])
@in_loop
async def test_the_last_good_address_serves_while_no_server_answers(server: NameServer, *, is_silent: bool) -> None:
    lookups = Lookups(clock := Clock())
    assert await address(lookups) == HERE
    clock.now_s += 100_000
    server.is_away, server.address = True, THERE
    if is_silent:
        server.answers.clear()
    assert [await address(lookups) for _ in range(5)] == [HERE] * 5
    assert server.asked == 2  # only the first of them asked
    server.is_away = False
    server.answers.set()
    clock.now_s += 10
    while await address(lookups) != THERE:
        clock.now_s += 10


@in_loop
async def test_a_failure_is_the_answer_for_a_second(server: NameServer) -> None:
    lookups = Lookups(clock := Clock())
    server.is_away = True
    for _ in range(3):
        with pytest.raises(socket.gaierror, match="Temporary"):
            await address(lookups)
    assert server.asked == 1
    server.is_away = False
    clock.now_s += 1
    assert await address(lookups) == HERE


@in_loop
async def test_a_failure_that_is_kept_keeps_nothing_of_those_who_ask(server: NameServer) -> None:
    lookups, server.is_away = Lookups(Clock()), True
    found: list[BaseException] = []
    for _ in range(20):
        with pytest.raises(socket.gaierror) as raised:
            await address(lookups)
        found.append(raised.value)
    assert found[1:] == found[:1] * 19
    assert len(traceback.extract_tb(found[0].__traceback__)) < 10


@in_loop
async def test_addresses_that_cannot_be_reached_are_looked_up_again_soon(server: NameServer) -> None:
    lookups = Lookups(clock := Clock())
    assert await address(lookups) == HERE
    server.address = THERE
    lookups.doubt("other.example")
    clock.now_s += 1
    assert await address(lookups) == HERE
    lookups.doubt(NAME)
    assert await address(lookups) == THERE
    for _ in range(3):
        lookups.doubt(NAME)
        assert await address(lookups) == THERE
    assert server.asked == 2


@in_loop
async def test_the_wait_for_a_first_address_is_told(server: NameServer) -> None:
    lookups = Lookups(clock := Clock())
    assert lookups.waiting_s(NAME) is None
    server.answers.clear()
    asking = asyncio.ensure_future(address(lookups))
    await asyncio.sleep(0)
    clock.now_s += 4
    assert (lookups.waiting_s(NAME), lookups.waiting_s("other.example")) == (4, None)
    server.answers.set()
    await asking
    assert lookups.waiting_s(NAME) is None
    clock.now_s += KEPT_S
    server.answers.clear()
    assert await address(lookups) == HERE
    assert lookups.waiting_s(NAME) is None  # an older address serves


@in_loop
async def test_asking_again_takes_nothing_from_before(server: NameServer) -> None:
    lookups = Lookups(Clock())
    assert await address(lookups) == HERE
    server.address = THERE
    found = await lookups.ask(NAME, 80, type=socket.SOCK_STREAM)
    assert (found[0][4][0], server.asked) == (THERE, 2)


@in_loop
async def test_few_names_are_kept(server: NameServer) -> None:
    lookups = Lookups(Clock())
    for port in range(300):
        assert await address(lookups, port) == HERE
    assert len(lookups._known) <= 256


def test_a_child_process_does_not_wait_for_a_thread_that_it_does_not_have(server: NameServer) -> None:
    async def first() -> None:
        asking = asyncio.ensure_future(address(lookups))
        await asyncio.sleep(0)
        asking.cancel()

    lookups = Lookups()
    server.answers.clear()
    asyncio.run(first())
    assert lookups._pending
    child = os.fork()
    if not child:
        os._exit(len(lookups._pending))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert lookups._pending
