"""Damaged directories, removed messages, and a broker that refuses for a while: errors that say what to do."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.messages.broker.rig import QUICK, brokered, drain_fetches, position, until, until_position
from tests.support.loops import in_loop
from tunnel.messages import (
    Broker,
    BrokerSettings,
    DeliveredMessage,
    GroupConsumer,
    ListenerConfig,
    LogError,
    RemoteCallError,
    RetryLater,
    TopicSpec,
)
from tunnel.messages.broker.partition import Partition
from tunnel.messages.broker.protocol import STORAGE
from tunnel.messages.broker.stored_partition import StoredPartition

FAST = ListenerConfig(retry_s=0.0, commit_s=0.0)


def stored(broker: Broker, number: int = 0) -> StoredPartition:
    found = broker.topics.get("t").partition(number)
    assert isinstance(found, StoredPartition)
    return found


@pytest.mark.parametrize(
    ("file", "content", "text"),
    [
        ("topics/t/topic.json", b"{", "is not a topic: .*restore"),
        ("topics/t/topic.json", b'{"partitions": 0}', "must be positive"),
        ("topics/t/topic.json", b'{"storage": "tape"}', "choose log or memory"),
        ("topics/t/topic.json", b'{"policy": "best"}', "choose one of oldest"),
        ("topics/t/topic.json", b'{"retain_s": -1}', "must not be negative"),
        ("topics/t/other", b"", "is not a topic"),
        ("positions/positions.json", b"[]", "does not hold positions"),
        ("positions/positions.json", b'{"offset": 9, "positions": []}', "restore both from one backup"),
    ],
)
def test_a_damaged_directory_is_an_error_that_names_it(file: str, content: bytes, text: str, tmp_path: Path) -> None:
    @in_loop
    async def check() -> None:
        path = tmp_path / file
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        with pytest.raises(LogError, match=text):
            await Broker(tmp_path).start()
        path.unlink()
        path.parent.rmdir() if "topics" in file else None
        async with brokered(tmp_path) as (_, client):  # the failed start has left no lock behind
            await client.producer().send("t", b"a")

    check()


@in_loop
async def test_one_damaged_partition_does_not_stop_the_others(tmp_path: Path) -> None:
    async with brokered(tmp_path, topics={"t": TopicSpec(partitions=2)}) as (_, client):
        await client.producer().send("t", b"a", partition=0)
        await client.producer().send("t", b"b", partition=1)
    place = tmp_path / "topics" / "t" / "1"
    (place / f"{5:020d}.log").touch()  # the segment before it is missing
    async with brokered(tmp_path) as (broker, client):
        with pytest.raises(RemoteCallError, match="one is missing; restore it") as caught:
            await client.producer().send("t", b"c", partition=1)
        assert caught.value.code == STORAGE
        with pytest.raises(RemoteCallError):
            await client.consumer("t", 1).fetch()
        places = [await client.producer().send("t", b"c") for _ in range(3)]
        assert {place.partition for place in places} == {0}  # the broker chooses one that works
        (report,) = await client.topics()
        assert "one is missing" in report.partitions[1].problem
        assert report.partitions[0].problem == ""
        with pytest.raises(RemoteCallError, match="not open yet"):
            _ = stored(broker, 1).log
        assert await drain_fetches(client, "t", 4) == [b"a", b"c", b"c", b"c"]


@in_loop
async def test_a_listener_goes_on_after_messages_that_retention_removed(tmp_path: Path) -> None:
    found: list[bytes] = []
    settings = BrokerSettings(log=replace(QUICK, segment_bytes=10))
    async with brokered(tmp_path, settings=settings) as (broker, client):
        for number in range(5):
            await client.producer().send("t", b"%d" % number)
        stored(broker).log.trim(3)
        consumer = GroupConsumer(client.table, client.address, "billing", "t", config=FAST)
        async with consumer.register_message_listener(lambda each: found.append(each.payload)):
            await until_position(client, 5)
    assert found == [b"3", b"4"]


@in_loop
async def test_a_message_stays_when_the_dead_letter_topic_cannot_take_it(tmp_path: Path) -> None:
    attempts: list[int] = []

    def handle(message: DeliveredMessage) -> RetryLater:
        attempts.append(message.attempt)
        return RetryLater(0.0)

    settings = BrokerSettings(creates_topics=False)
    config = ListenerConfig(retry_s=0.0, commit_s=0.0, attempts_max=2, dead_letter_topic="dead")
    async with brokered(tmp_path, settings=settings, topics={"t": TopicSpec()}) as (broker, client):
        await client.producer().send("t", b"a")
        consumer = GroupConsumer(client.table, client.address, "billing", "t", config=config)
        async with consumer.register_message_listener(handle) as listener:
            await until(lambda: len(attempts) > 4)
            assert listener.dead_letters == 0
            assert await position(client) == 0
            await broker.topics.create("dead", TopicSpec())
            await until_position(client, 1)
            assert listener.dead_letters == 1
    assert attempts[:5] == [1, 2, 3, 4, 5]


@in_loop
async def test_a_position_that_could_not_be_stored_is_stored_later(tmp_path: Path) -> None:
    handled = asyncio.Event()
    async with brokered(tmp_path) as (broker, client):
        await client.producer().send("t", b"a")
        broker.positions._holdings.most = 0
        consumer = GroupConsumer(client.table, client.address, "billing", "t", config=FAST)
        async with consumer.register_message_listener(lambda _: handled.set()):
            await handled.wait()
            await until(lambda: broker.metrics()["refused_requests"] > 1)
            assert await position(client) == 0
            broker.positions._holdings.most = 10
            await until_position(client, 1)


@in_loop
async def test_a_replica_that_is_ahead_of_its_master_waits(tmp_path: Path) -> None:
    async with brokered(tmp_path / "a") as (_, client), brokered(tmp_path / "b") as (_other, copy):
        await client.producer().send("t", b"a")
        await copy.producer().send("t", b"a", b"b")
    async with brokered(tmp_path / "a") as (_, client):
        settings = BrokerSettings(master=client.address)
        async with brokered(tmp_path / "b", settings=settings) as (replica, copy):
            await until(lambda: stored(replica).is_ready)
            assert await drain_fetches(copy, "t", 2) == [b"a", b"b"]


@in_loop
async def test_a_partition_is_ready_unless_its_class_says_otherwise() -> None:
    partition = Partition()
    await partition.ready()
    await partition.readable()
    await partition.room()
    await partition.flush_before(1)
    partition.retain()
    await partition.close()
    assert partition.is_ready
    assert not partition.is_failed


@in_loop
async def test_the_sweep_goes_on_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunnel.messages.broker.server._SWEEP_S", 0.0)
    turns = 0

    def partitions() -> list[Partition]:
        nonlocal turns
        turns += 1
        if turns == 1:
            raise RuntimeError("dictionary changed size during iteration")
        return []

    async with brokered(tmp_path) as (broker, _):
        with monkeypatch.context() as patched:
            patched.setattr(broker.topics, "partitions", partitions)
            await until(lambda: turns >= 2)
