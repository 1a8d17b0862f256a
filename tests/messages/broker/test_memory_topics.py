"""Topics in memory: the four policies, gaps that readers see, and limits."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.messages.broker.rig import brokered, until
from tests.support.loops import in_loop
from tunnel.messages import BrokerClient, GroupConsumer, ProducerData, RemoteCallError, TopicSpec
from tunnel.messages.broker.partition import MemoryPartition, ProduceOptions
from tunnel.messages.broker.protocol import CONFLICT, LIMIT
from tunnel.messages.message import encode_payloads


async def everything(client: BrokerClient, topic: str) -> tuple[list[tuple[int, bytes]], int]:
    """The messages that are left in a topic, with their offsets, and the number of those that were discarded."""
    consumer = client.consumer(topic)
    found: list[tuple[int, bytes]] = []
    while messages := await consumer.fetch(wait_ms=0):
        found += [(message.offset, message.payload) for message in messages]
    return found, consumer.skipped


@pytest.mark.parametrize(
    ("policy", "left"),
    [
        ("oldest", [(2, b"c"), (3, b"d"), (4, b"e")]),
        ("newest", [(0, b"a"), (1, b"b"), (2, b"c")]),
        ("priority", [(0, b"a"), (2, b"c"), (4, b"e")]),
        ("expired", [(1, b"b"), (3, b"d"), (4, b"e")]),
    ],
)
def test_a_full_topic_discards_by_its_policy(policy: str, left: list[tuple[int, bytes]], tmp_path: Path) -> None:
    @in_loop
    async def check() -> None:
        async with brokered(tmp_path, topics={"t": TopicSpec(storage="memory", policy=policy, messages_max=3)}) as (
            broker,
            client,
        ):
            producer = client.producer()
            for payload, priority, ttl_ms in (
                (b"a", 5, 60_000),
                (b"b", 1, 90_000),
                (b"c", 5, 60_000),
                (b"d", 2, 90_000),
                (b"e", 5, 0),
            ):
                await producer.send_memory("t", payload, priority=priority, ttl_ms=ttl_ms)
            found, skipped = await everything(client, "t")
            assert found == left
            assert skipped == 2
            assert broker.metrics()["messages_discarded_total"] == 2

    check()


@in_loop
async def test_a_reader_waits_and_groups_read_the_same_messages(tmp_path: Path) -> None:
    async with brokered(tmp_path, topics={"t": TopicSpec(storage="memory")}) as (_, client):
        waiting = asyncio.ensure_future(client.consumer("t").fetch(wait_ms=60_000))
        await asyncio.sleep(0)
        await client.producer().send("t", b"a", b"b")
        assert [message.payload for message in await waiting] == [b"a", b"b"]
        found: dict[str, list[bytes]] = {"one": [], "two": []}
        for name in found:
            consumer = GroupConsumer(client.table, client.address, name, "t")
            async with consumer.register_message_listener(lambda each, name=name: found[name].append(each.payload)):  # type: ignore[misc]
                await until(lambda name=name: len(found[name]) == 2)
        assert found == {"one": [b"a", b"b"], "two": [b"a", b"b"]}
        assert await client.consumer("t", offset=2).fetch(wait_ms=1) == []


@in_loop
async def test_expired_messages_are_never_read(tmp_path: Path) -> None:
    async with brokered(tmp_path, topics={"t": TopicSpec(storage="memory")}) as (_, client):
        await client.producer().send_memory("t", b"a", ttl_ms=1)
        await client.producer().send("t", b"b")
        await asyncio.sleep(0.01)
        assert await everything(client, "t") == ([(1, b"b")], 1)


@in_loop
async def test_a_multi_produce_with_a_message_too_large_for_its_topic_stores_nothing(tmp_path: Path) -> None:
    topics = {"t": TopicSpec(), "u": TopicSpec(storage="memory", bytes_max=100)}
    async with brokered(tmp_path, topics=topics) as (_, client):
        sets = (ProducerData("t", [b"small"], 0), ProducerData("u", [b"small"], 0), ProducerData("u", [bytes(200)], 0))
        with pytest.raises(RemoteCallError, match="a message is larger than the topic"):
            await client.producer().send_data(*sets)
        assert await everything(client, "t") == await everything(client, "u") == ([], 0)
        assert [place.offset for place in await client.producer().send_data(*sets[:2])] == [0, 0]


@in_loop
async def test_memory_is_limited(tmp_path: Path) -> None:
    async with brokered(tmp_path, topics={"t": TopicSpec(storage="memory", bytes_max=100)}) as (_, client):
        with pytest.raises(RemoteCallError) as caught:
            await client.producer().send("t", b"x" * 91)
        assert caught.value.code == LIMIT
        with pytest.raises(RemoteCallError, match="would hold"):
            await client.create_topic("u", TopicSpec(storage="memory", bytes_max=1 << 40))
        with pytest.raises(RemoteCallError, match="choose one of oldest"):
            await client.table.call(client.address, 128, b'{"policy": "best"}', {"topic": "u"})


def test_a_set_that_names_its_offset_is_appended_only_at_the_end() -> None:
    partition = MemoryPartition(TopicSpec(storage="memory"))
    data = encode_payloads([b"a"])
    assert partition.append(data, 1, ProduceOptions(at=0)) == 0
    with pytest.raises(RemoteCallError) as caught:
        partition.append(data, 1, ProduceOptions(at=0))
    assert caught.value.code == CONFLICT
    assert (partition.first_offset, partition.end_offset) == (0, 1)
