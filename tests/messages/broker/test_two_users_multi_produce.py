"""A request with many sets, and many requests with large sets: other clients have turns between them."""

from __future__ import annotations

import asyncio
import gc
import sys
from pathlib import Path

import pytest

from tests.messages.broker.rig import EVE, brokered, frame, open_as, produce
from tests.support.loops import in_loop
from tunnel.messages import BrokerSettings, TopicSpec
from tunnel.messages.broker import storing
from tunnel.messages.broker.partition import MemoryPartition, ProduceOptions
from tunnel.messages.broker.protocol import PRODUCE, STORAGE
from tunnel.messages.broker.stored_partition import StoredPartition
from tunnel.messages.errors import RemoteCallError
from tunnel.messages.sets.message import encode_payloads
from tunnel.messages.topics.requests import ProduceDecoder

TINY = produce(*[encode_payloads([b""])] * 20_000)
FULL = encode_payloads([b""] * 2_000)


@pytest.mark.parametrize("storage", ["memory", "log"])
@pytest.mark.parametrize(
    ("data", "sets", "most"),
    [
        pytest.param(frame(PRODUCE, 1, TINY), 20_000, 150, id="call of tiny sets"),
        pytest.param(frame(PRODUCE, 1, produce(*[FULL] * 40)), 40, 2, id="call of full sets"),
        pytest.param(TINY, 20_000, 150, id="tiny sets"),
        pytest.param(produce(FULL) * 40, 40, 2, id="requests with full sets"),
    ],
)
def test_two_users_few_sets_of_one_are_stored_between_two_turns_of_the_loop(
    data: bytes, sets: int, most: int, storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {"decoded": 0, "checked": 0, "appended": 0}

    def count(what: str, owner: object, name: str) -> None:
        original = getattr(owner, name)

        def counted(*arguments: object) -> object:
            counts[what] += 1
            return original(*arguments)

        monkeypatch.setattr(owner, name, counted)

    count("decoded", ProduceDecoder, "_group")
    count("checked", storing, "count_whole")
    count("appended", MemoryPartition if storage == "memory" else StoredPartition, "append")

    @in_loop
    async def check() -> None:
        async with brokered(tmp_path, topics={"t": TopicSpec(storage=storage)}) as (_, client):
            _, writer = await open_as(client, EVE)
            try:
                writer.write(data)
                highest, before = dict.fromkeys(counts, 0), dict(counts)
                while counts["appended"] < sets:
                    await asyncio.sleep(0)
                    highest = {what: max(highest[what], counts[what] - before[what]) for what in counts}
                    before = dict(counts)
            finally:
                writer.transport.abort()
            assert highest["checked"] <= most
            assert highest["appended"] <= most
            assert highest["decoded"] <= 3_000

    check()


MANY = produce(*[encode_payloads([b""])] * 60_000)
ONE = produce(encode_payloads([b""]))
NO_KEY = b"\xff\xff\xff\xff"
REPLICA = BrokerSettings(master="127.0.0.1:1")


class Blocks:
    """The blocks of memory that were freed between two turns of the loop, at most."""

    def __init__(self) -> None:
        self.freed = 0
        self._before = sys.getallocatedblocks()

    async def pass_turn(self) -> None:
        await asyncio.sleep(0)
        now = sys.getallocatedblocks()
        self.freed, self._before = max(self.freed, self._before - now), now


def fails_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the disk be full when nearly all sets are stored. The result of each has three objects of its own."""
    real, count = MemoryPartition.append, iter(range(59_990))

    def append(self: MemoryPartition, data: bytes, number: int, options: ProduceOptions) -> int:
        if next(count, None) is None:
            raise RemoteCallError(STORAGE, "the disk is full")
        return real(self, data, number, options) + (1 << 40)

    monkeypatch.setattr(MemoryPartition, "append", append)


@pytest.mark.parametrize(
    ("data", "fields", "settings", "full"),
    [
        pytest.param(MANY, {}, None, "", id="stored, call"),
        pytest.param(MANY, None, None, "", id="stored"),
        pytest.param(MANY[:-1] + b"\xff", {}, None, "", id="damaged, call"),
        pytest.param(MANY[:-1] + b"\xff", None, None, "", id="damaged"),
        pytest.param(MANY, {}, REPLICA, "", id="to a replica, call"),
        pytest.param(MANY, None, REPLICA, "", id="to a replica"),
        pytest.param(MANY, {"at": "5"}, None, "", id="at an offset, call"),
        pytest.param(MANY + ONE, {}, None, "", id="two requests, call"),
        pytest.param(ONE + MANY, {}, None, "", id="two requests, the small one first, call"),
        pytest.param(ONE * 120_000, {}, None, "", id="many requests, call"),
        pytest.param(MANY[:-1], {}, None, "", id="cut, call"),
        pytest.param(MANY[:-1], None, None, "", id="cut"),
        pytest.param(MANY + NO_KEY, {}, None, "", id="no request after it, call"),
        pytest.param(MANY + NO_KEY, None, None, "", id="no request after it"),
        pytest.param(MANY, {}, None, "disk", id="the disk is full, call"),
        pytest.param(MANY, None, None, "disk", id="the disk is full"),
        pytest.param(MANY, {}, None, "topic", id="the topic is full, call"),
        pytest.param(MANY, None, None, "topic", id="the topic is full"),
    ],
)
def test_two_users_the_objects_of_many_sets_are_freed_bit_by_bit(
    data: bytes,
    fields: dict[str, str] | None,
    settings: BrokerSettings | None,
    full: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each set has several objects, and to free those of 60,000 at once takes as long as two turns of a user."""
    sets, most = 60_000, 20_000
    if full == "disk":
        fails_at_the_end(monkeypatch)

    @in_loop
    async def check() -> None:
        most_kept = 1 if full == "topic" else sets
        topics = {"t": TopicSpec(storage="memory", policy="newest", messages_max=most_kept)}
        async with brokered(tmp_path, settings=settings, topics=topics) as (broker, client):
            reader, writer = await open_as(client, EVE)
            blocks = Blocks()

            def is_done() -> bool:
                found = broker.metrics()
                refused = found["refused_requests"] + found["malformed_connections"]
                return bool(refused or found["messages_stored_total"] == sets)

            gc.disable()  # a collection would free what others have left
            try:
                writer.write(data if fields is None else frame(PRODUCE, 1, data, **fields))
                if fields is None:
                    writer.write_eof()
                while not is_done():
                    await blocks.pass_turn()
                ended = asyncio.ensure_future(reader.read(1))
                for _ in range(2_000):
                    await blocks.pass_turn()
                ended.cancel()
            finally:
                gc.enable()
                writer.transport.abort()
            assert blocks.freed < most

    check()


@pytest.mark.parametrize("moment", ["decoded", "checked", "appended", "reported"])
def test_two_users_the_objects_of_a_call_that_is_cancelled_are_freed_bit_by_bit(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a connection cancels its calls."""
    owner, name = {
        "decoded": (ProduceDecoder, "_group"),
        "checked": (storing, "count_whole"),
        "appended": (MemoryPartition, "append"),
        "reported": (storing.Outcome, "_add"),
    }[moment]
    real, count = getattr(owner, name), 0
    # That the connection has ended is noticed only some thousand sets later, 20,000 on a fast machine.
    wanted = {"decoded": 20_000, "appended": 40_000}.get(moment, 1_000)

    def counted(*arguments: object) -> object:
        nonlocal count
        count += 1
        return real(*arguments)

    monkeypatch.setattr(owner, name, counted)

    @in_loop
    async def check() -> None:
        async with brokered(tmp_path, topics={"t": TopicSpec(storage="memory")}) as (_, client):
            _, writer = await open_as(client, EVE)
            blocks = Blocks()
            gc.disable()  # a collection would free what others have left
            try:
                writer.write(frame(PRODUCE, 1, MANY))
                while count < wanted:
                    await blocks.pass_turn()
                writer.transport.abort()
                for _ in range(2_000):
                    await blocks.pass_turn()
            finally:
                gc.enable()
            assert count < 60_000  # it was cancelled
            assert blocks.freed < 10_000

    check()
