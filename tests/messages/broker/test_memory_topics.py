"""Topics in memory: the four policies, gaps that readers see, and limits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.messages.broker.rig import brokered, drain_fetches, until, until_position
from tests.support.loops import in_loop
from tunnel.messages import (
    AsyncProducer,
    Broker,
    BrokerClient,
    BrokerProducer,
    CallbackHandler,
    ChannelTable,
    DeliveredMessage,
    DiscardedError,
    GroupConsumer,
    ListenerConfig,
    MessageError,
    ProducerData,
    QueueItem,
    RemoteCallError,
    StringEncoder,
    SyncProducer,
    TopicSpec,
    split_address,
)
from tunnel.messages.broker.partition import MemoryPartition
from tunnel.messages.broker.protocol import DISCARDED, JOIN, LIMIT


def group(client: BrokerClient, name: str, **config: float) -> GroupConsumer:
    return GroupConsumer(
        client.table,
        client.address,
        name,
        "t",
        config=ListenerConfig(commit_s=0.0, **config),  # type: ignore[arg-type]
    )


def kept(broker: Broker) -> list[int]:
    """The numbers of the messages that the topic's only partition has in memory."""
    partition = broker.topics.get("t").partition(0)
    assert isinstance(partition, MemoryPartition)
    return list(partition._backlog._items)


def in_memory(policy: str = "newest", **limits: int) -> dict[str, TopicSpec]:
    return {"t": TopicSpec(storage="memory", policy=policy, **limits)}


async def everything(client: BrokerClient, topic: str) -> tuple[list[tuple[int, bytes]], int]:
    """The messages that are left in a topic, with their offsets, and the number of those that were discarded."""
    consumer = client.consumer(topic)
    found: list[tuple[int, bytes]] = []
    while messages := await consumer.fetch(wait_ms=0):
        found += [(message.offset, message.payload) for message in messages]
    return found, consumer.skipped


@pytest.mark.parametrize(
    ("policy", "left", "missed"),
    [
        ("oldest", [(2, b"c"), (3, b"d"), (4, b"e")], 2),
        ("newest", [(0, b"a"), (1, b"b"), (2, b"c")], 0),
        ("priority", [(0, b"a"), (2, b"c"), (4, b"e")], 2),
        ("expired", [(1, b"b"), (3, b"d"), (4, b"e")], 2),
    ],
)
def test_a_full_topic_discards_by_its_policy(
    policy: str, left: list[tuple[int, bytes]], missed: int, tmp_path: Path
) -> None:
    @in_loop
    async def check() -> None:
        async with brokered(tmp_path, topics={"t": TopicSpec(storage="memory", policy=policy, messages_max=3)}) as (
            broker,
            client,
        ):
            producer = client.producer()
            refused: list[bytes] = []
            for payload, priority, ttl_ms in (
                (b"a", 5, 60_000),
                (b"b", 1, 90_000),
                (b"c", 5, 60_000),
                (b"d", 2, 90_000),
                (b"e", 5, 0),
            ):
                try:
                    await producer.send_memory("t", payload, priority=priority, ttl_ms=ttl_ms)
                except DiscardedError:
                    refused.append(payload)
            assert refused == ([b"d", b"e"] if policy == "newest" else [])
            found, skipped = await everything(client, "t")
            assert found == left
            assert skipped == missed
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
        one, two = (
            group(client, name).register_message_listener(lambda each, name=name: found[name].append(each.payload))  # type: ignore[misc]
            for name in found
        )
        async with one, two:
            await until(lambda: len(found["one"]) == len(found["two"]) == 2)
        assert found == {"one": [b"a", b"b"], "two": [b"a", b"b"]}
        assert await client.consumer("t", offset=2).fetch(wait_ms=1) == []


@in_loop
async def test_a_multi_produce_with_a_message_too_large_for_its_topic_stores_nothing(tmp_path: Path) -> None:
    topics = {"t": TopicSpec(), "u": TopicSpec(storage="memory", bytes_max=100)}
    async with brokered(tmp_path, topics=topics) as (_, client):
        sets = (ProducerData("t", [b"small"], 0), ProducerData("u", [b"small"], 0), ProducerData("u", [bytes(200)], 0))
        with pytest.raises(RemoteCallError, match="sets of up to 2000 messages and 100 bytes"):
            await client.producer().send_data(*sets)
        assert await everything(client, "t") == await everything(client, "u") == ([], 0)
        assert [place.offset for place in await client.producer().send_data(*sets[:2])] == [0, 0]


@in_loop
async def test_what_every_group_has_read_is_freed(tmp_path: Path) -> None:
    """A topic whose reader keeps up never becomes full, whatever its policy."""
    found: list[bytes] = []
    async with brokered(tmp_path, topics=in_memory(messages_max=3)) as (broker, client):
        producer = client.producer()
        async with group(client, "one").register_message_listener(lambda each: found.append(each.payload)):
            for number in range(20):
                await producer.send("t", b"%d" % number)
                await until(lambda: kept(broker) == [])
        assert found == [b"%d" % number for number in range(20)]
        assert broker.metrics()["messages_discarded_total"] == 0


@in_loop
async def test_messages_are_kept_until_the_slowest_group_has_read_them(tmp_path: Path) -> None:
    async with brokered(tmp_path, topics=in_memory()) as (broker, client):
        await client.commit("slow", "t", 0, 0)
        await client.producer().send("t", *[b"x"] * 5)
        await client.commit("fast", "t", 0, 5)
        assert kept(broker) == [0, 1, 2, 3, 4]
        await client.commit("slow", "t", 0, 2)
        assert kept(broker) == [2, 3, 4]
        await client.commit("fast", "t", 0, 1, force=True)
        await client.commit("slow", "t", 0, 5)
        assert kept(broker) == [2, 3, 4]  # `fast` went back
        assert [each.offset for each in await client.consumer("t", offset=1).fetch(wait_ms=0)] == [2, 3, 4]
        await client.commit("fast", "t", 0, 5)
        assert kept(broker) == []


@in_loop
async def test_a_group_that_is_created_later_begins_with_what_is_left(tmp_path: Path) -> None:
    found: list[DeliveredMessage] = []
    async with brokered(tmp_path, topics=in_memory()) as (broker, client):
        await client.producer().send("t", *[b"x"] * 5)
        await client.commit("first", "t", 0, 3)
        async with group(client, "late").register_message_listener(found.append) as listener:
            await until_position(client, 5, "late")
            assert ([each.offset for each in found], listener.skipped) == ([3, 4], 0)
            await client.commit("first", "t", 0, 5)
            assert kept(broker) == []


@in_loop
async def test_a_member_that_has_read_nothing_yet_counts_until_it_leaves(tmp_path: Path) -> None:
    async with brokered(tmp_path, topics=in_memory()) as (broker, client), ChannelTable() as table:
        await table.call(client.address, JOIN, b"", {"group": "idle", "topic": "t", "member": "m"})
        await client.producer().send("t", b"a", b"b")
        await client.commit("busy", "t", 0, 2)
        assert kept(broker) == [0, 1]
        await table.close()
        await until(lambda: not broker.groups.members)
        await client.producer().send("t", b"c")
        await client.commit("busy", "t", 0, 3)
        assert kept(broker) == []


@in_loop
async def test_a_group_misses_no_message_that_comes_after_a_restart(tmp_path: Path) -> None:
    """Its position is that of messages that are gone; new ones must not get the offsets of those that it has read."""
    found: list[bytes] = []
    async with brokered(tmp_path, topics=in_memory()) as (_, client):
        await client.producer().send("t", *[b"old"] * 9)
        await client.commit("g", "t", 0, 7)
        await client.commit("slow", "t", 0, 0)
    async with brokered(tmp_path) as (broker, client):
        place = await client.producer().send("t", b"new")
        assert place.offset > 9
        assert await client.consumer("t", offset=9).fetch(wait_ms=0) != []  # a reader that keeps its offset itself
        async with group(client, "g").register_message_listener(lambda each: found.append(each.payload)):
            await until_position(client, place.offset + 1, "g")
        assert found == [b"new"]
        assert kept(broker) == [place.offset]  # for the other group, of which the broker knows from before
        lags = {each.group: each.lag for each in await client.positions()}
        assert lags == {"g": 0, "slow": 1}
    async with brokered(tmp_path / "other", topics=in_memory()) as (broker, _):
        partition = broker.topics.memory("t", 0)
        assert partition is not None
        partition.has_read("g", 50)  # the clock was wrong when the broker started
        assert partition.end_offset == 50


@in_loop
async def test_expired_messages_are_removed_though_nobody_reads_or_sends(tmp_path: Path) -> None:
    async with brokered(tmp_path, topics=in_memory()) as (broker, client):
        await client.producer().send_memory("t", b"a", ttl_ms=1)
        await client.producer().send("t", b"b")
        await until(lambda: kept(broker) == [1])


@in_loop
async def test_a_send_that_is_discarded_says_so(tmp_path: Path) -> None:
    async with brokered(tmp_path, topics=in_memory(messages_max=3)) as (broker, client):
        producer = client.producer()
        await producer.send("t", b"a", b"b")
        for send in (
            lambda: producer.send("t", b"c", b"d"),  # there is room for one of them: the set is discarded as a whole
            lambda: producer.send_memory("t", b"c", b"d", priority=9),
            lambda: producer.send_at(2, "t", b"c", b"d"),
            lambda: client.producer(durable=False).send("t", b"c", b"d"),
        ):
            with pytest.raises(
                DiscardedError, match=r"t is full \(2 messages.*policy, newest, it discards the 2"
            ) as caught:
                await send()
            assert (caught.value.code, caught.value.offsets) == (DISCARDED, [None])
        await producer.send_at(2, "t", b"c")  # what was discarded has taken no offset
        assert kept(broker) == [0, 1, 2]
        assert broker.metrics()["messages_discarded_total"] == 8
        with pytest.raises(RemoteCallError, match="send smaller sets") as large:
            await producer.send("t", *[b"x"] * 4)
        assert large.value.code == LIMIT


@in_loop
async def test_of_several_sets_the_sender_learns_which_were_discarded(tmp_path: Path) -> None:
    topics = {**in_memory(messages_max=3), "log": TopicSpec()}
    async with brokered(tmp_path, topics=topics) as (_, client):
        sets = ProducerData("t", [b"a", b"b"]), ProducerData("t", [b"c", b"d"]), ProducerData("log", [b"e"])
        with pytest.raises(DiscardedError, match="1 of 3 sets were discarded: t is full") as caught:
            await client.producer().send_data(*sets)
        assert caught.value.offsets == [0, None, 0]
        assert await everything(client, "t") == ([(0, b"a"), (1, b"b")], 0)
        assert await everything(client, "log") == ([(0, b"e")], 0)


class Results(CallbackHandler):
    """The values that were sent, and those that were not."""

    def __init__(self) -> None:
        self.found: dict[bool, list[str | bytes]] = {True: [], False: []}

    def result(self, items: Sequence[QueueItem], error: Exception | None) -> None:
        self.found[error is None] += [item.value for item in items]


@in_loop
async def test_an_asynchronous_producer_reports_the_items_that_were_discarded(tmp_path: Path) -> None:
    topics = {**in_memory(messages_max=1), "log": TopicSpec()}
    results = Results()
    async with brokered(tmp_path, topics=topics) as (_, client):
        await client.producer().send("t", b"full")
        producer = BrokerProducer(client.table, client.address, encoder=StringEncoder())
        sender = AsyncProducer(producer, callback_handler=results)
        for topic, value in (("t", "a"), ("log", "b"), ("t", b"no text"), ("log", "c")):
            assert sender.offer(topic, value)
        sender.start()
        with pytest.raises(MessageError, match="2 messages so far could not be sent"):
            await sender.close()
        assert results.found == {True: ["b", "c"], False: [b"no text", "a"]}


@in_loop
async def test_a_producer_without_answers_is_reset_when_a_message_is_discarded(tmp_path: Path) -> None:
    topics = {**in_memory(messages_max=1), "log": TopicSpec()}
    async with brokered(tmp_path, topics=topics) as (broker, client):
        reader, writer = await asyncio.open_connection(*split_address(client.address))
        producer = SyncProducer(writer)
        await producer.send("t", b"a")
        await producer.send_data(ProducerData("t", [b"lost"]), ProducerData("log", [b"kept"]))
        writer.write_eof()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        assert await drain_fetches(client, "log", 1) == [b"kept"]
        assert broker.metrics()["refused_requests"] == 1


@in_loop
async def test_two_users_a_group_that_never_reads_is_named_to_those_whose_messages_it_displaces(
    tmp_path: Path,
) -> None:
    """It holds no more than the limit of the topic, and nothing is lost without a word."""
    found: list[bytes] = []
    async with brokered(tmp_path, topics=in_memory(messages_max=3)) as (broker, client):
        await client.commit("hostile", "t", 0, 0)
        async with group(client, "mine").register_message_listener(lambda each: found.append(each.payload)):
            for number in range(3):
                await client.producer().send("t", b"%d" % number)
            with pytest.raises(DiscardedError, match="it keeps messages for the group hostile, whose position is 0"):
                await client.producer().send("t", b"3")
            await until(lambda: found == [b"0", b"1", b"2"])
            await client.commit("hostile", "t", 0, 3)  # the way out that the documents name
            await until_position(client, 3, "mine")
            await client.producer().send("t", b"3")
            await until(lambda: found[3:] == [b"3"])
    async with brokered(tmp_path / "b", topics=in_memory("oldest", messages_max=3)) as (broker, client):
        for name in ("hostile", "mine"):
            await client.commit(name, "t", 0, 0)
        listener = group(client, "mine").register_message_listener(lambda each: found.append(each.payload))
        await client.producer().send("t", b"a", b"b", b"c")
        await client.producer().send("t", b"d", b"e")  # `mine` has not read the first two yet
        async with listener:
            await until(lambda: found[4:] == [b"c", b"d", b"e"])
            assert listener.skipped == 2
        assert kept(broker) == [2, 3, 4]
