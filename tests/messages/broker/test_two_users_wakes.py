"""Requests of one user that wait for the same thing go on together: no more of them than the user may have at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.messages.broker.rig import ANN, EVE, brokered, frame, from_address, open_as, produce, until
from tests.support.loops import HANGING_S, in_loop, in_loop_within
from tests.turns.fake_meter import FakeMeter
from tunnel.messages import Broker, TopicSpec
from tunnel.messages.broker.groups import Group
from tunnel.messages.broker.protocol import FETCH, JOIN, PRODUCE
from tunnel.messages.broker.storing import Storing
from tunnel.messages.calls.calls import CallChannel
from tunnel.messages.kept.backlog import MemoryBacklog
from tunnel.messages.kept.log import Log
from tunnel.messages.sets.message import encode_payloads

USER = f"address {EVE}"
REQUESTS = 20


class Costly:
    """Makes each call of a method but the first cost its user a whole turn, and counts the calls that began when a turn
    was used up."""

    def __init__(self, patch: pytest.MonkeyPatch, broker: Broker, owner: type, name: str) -> None:
        self.calls = 0
        self.early = 0
        original: Callable[..., Any] = getattr(owner, name)
        turns = broker.users.turns
        turns.meter = FakeMeter()

        def costly(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            self.early += turns.is_stopped(USER)
            if self.calls > 1:
                turns.spend(USER, 6_000)
            return original(*arguments, **options)

        patch.setattr(owner, name, costly)


LONG = produce(encode_payloads([b""] * 4_000))  # it is checked in two steps, so that others of the connection wait
SHORT = produce(encode_payloads([b""]))
PRODUCES = [frame(PRODUCE, each, SHORT if each else LONG) for each in range(REQUESTS)]
FETCHES = [frame(FETCH, each, topic="t", partition="0", offset="0", wait_ms="60000") for each in range(REQUESTS)]


@pytest.mark.parametrize(
    ("owner", "name", "storage", "requests"),
    [
        (Storing, "store", "log", PRODUCES),
        (MemoryBacklog, "peek", "memory", FETCHES),
        (Log, "read", "log", FETCHES),
    ],
)
def test_two_users_requests_of_one_that_wait_go_on_in_its_turns(
    owner: type, name: str, storage: str, requests: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @in_loop
    async def check() -> None:
        async with brokered(tmp_path, topics={"t": TopicSpec(storage=storage)}) as (broker, client):
            costly = Costly(monkeypatch, broker, owner, name)
            _, writer = await open_as(client, EVE)
            try:
                writer.write(b"".join(requests))
                if owner is not Storing:
                    await until(lambda: broker.counters.fetch_requests == REQUESTS)
                    await client.producer().send("t", b"a")
                await until(lambda: costly.calls >= REQUESTS)
                assert costly.early == 0
            finally:
                writer.transport.abort()

    check()


@in_loop
async def test_two_users_the_members_of_one_that_wait_go_on_in_its_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokered(tmp_path, topics={"t": TopicSpec()}) as (broker, client):
        _, writer = await open_as(client, EVE)
        try:
            place = {"topic": "t", "group": "g", "member": "m"}
            writer.write(frame(JOIN, 0, b"", **place))
            await until(lambda: broker.groups.members)
            group = broker.groups._groups["g", "t"]
            place |= {"generation": str(group.generation), "wait_ms": "60000"}
            writer.write(b"".join(frame(JOIN, each, b"", **place) for each in range(1, REQUESTS + 1)))
            await until(lambda: len(group._waiters) == REQUESTS)
            costly = Costly(monkeypatch, broker, Group, "partitions_of")
            broker.groups.rewound("g", "t")
            await until(lambda: costly.calls >= REQUESTS)
            assert costly.early == 0
        finally:
            writer.transport.abort()


@in_loop
async def test_two_users_fetches_of_one_that_wait_for_room_go_on_in_its_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokered(tmp_path, topics={"t": TopicSpec(storage="memory")}) as (broker, client):
        await client.producer().send("t", b"a")
        has_room = asyncio.Event()

        async def room(channel: CallChannel, size_max: int) -> None:
            await has_room.wait()

        monkeypatch.setattr(CallChannel, "room", room)
        costly = Costly(monkeypatch, broker, MemoryBacklog, "peek")
        _, writer = await open_as(client, EVE)
        try:
            writer.write(b"".join(FETCHES))
            await until(lambda: broker.counters.fetch_requests == REQUESTS)
            has_room.set()
            await until(lambda: costly.calls >= REQUESTS)
            assert costly.early == 0
        finally:
            writer.transport.abort()


@in_loop_within(HANGING_S)
async def test_two_users_two_reads_of_one_from_the_disk_go_on_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes one of the few threads in which all users wait for the disk."""
    found: list[int] = []
    goes_on, real = threading.Event(), Log.read

    def read(log: Log, offset: int, size_max: int = 0) -> Any:
        found.append(offset)
        assert goes_on.wait(HANGING_S)
        return real(log, offset, size_max)

    async with (
        brokered(tmp_path) as (broker, client),
        from_address(client, EVE) as eve,
        from_address(client, ANN) as ann,
    ):
        await client.producer().send("t", b"a", b"b")
        monkeypatch.setattr(Log, "is_cached", lambda *_: False)
        monkeypatch.setattr(Log, "read", read)
        fetches = [asyncio.ensure_future(eve.consumer("t").fetch()) for _ in range(5)]
        try:
            await until(lambda: broker.counters.fetch_requests == 5)
            fetches.append(asyncio.ensure_future(ann.consumer("t", offset=1).fetch()))
            await until(lambda: 1 in found)
            assert found.count(0) == 2
        finally:
            goes_on.set()
        assert [len(each) for each in await asyncio.gather(*fetches)] == [2] * 5 + [1]
