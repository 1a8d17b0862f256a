"""A request with many sets, and many requests with large sets: other clients have turns between them."""

from __future__ import annotations

import asyncio
import gc
import sys
from pathlib import Path

import pytest

from tests.messages.broker.rig import EVE, brokered, frame, open_as, produce
from tests.support.loops import in_loop
from tunnel.messages import TopicSpec
from tunnel.messages.broker import storing
from tunnel.messages.broker.partition import MemoryPartition, StoredPartition
from tunnel.messages.broker.protocol import PRODUCE
from tunnel.messages.message import encode_payloads
from tunnel.messages.requests import ProduceDecoder

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


@pytest.mark.parametrize("is_damaged", [False, True])
@pytest.mark.parametrize("is_call", [False, True])
def test_two_users_the_objects_of_many_sets_are_freed_bit_by_bit(
    is_call: bool, is_damaged: bool, tmp_path: Path
) -> None:
    """Each set has several objects, and to free those of 60,000 at once takes as long as two turns of a user."""
    sets, most = 60_000, 20_000
    data = produce(*[encode_payloads([b""])] * sets)
    data = data[:-1] + b"\xff" if is_damaged else data

    @in_loop
    async def check() -> None:
        async with brokered(tmp_path, topics={"t": TopicSpec(storage="memory")}) as (broker, client):
            metrics = broker.metrics
            reader, writer = await open_as(client, EVE)
            gc.disable()  # a collection would free what others have left
            try:
                writer.write(frame(PRODUCE, 1, data) if is_call else data)
                before, freed = sys.getallocatedblocks(), 0
                while metrics()["messages_stored_total"] + metrics()["refused_requests"] * sets < sets:
                    await asyncio.sleep(0)
                    now = sys.getallocatedblocks()
                    freed, before = max(freed, before - now), now
                ended = asyncio.ensure_future(reader.read(1))
                for _ in range(2_000):
                    await asyncio.sleep(0)
                    now = sys.getallocatedblocks()
                    freed, before = max(freed, before - now), now
                ended.cancel()
            finally:
                gc.enable()
                writer.transport.abort()
            assert freed < most

    check()
