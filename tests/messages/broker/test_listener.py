"""Listeners: order, concurrency, retries, dead letters, positions, and members that come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.messages.broker.rig import brokered, position, until, until_position
from tests.support.loops import in_loop
from tunnel.messages import (
    BrokerClient,
    BrokerSettings,
    ChannelTable,
    Codec,
    DeliveredMessage,
    GroupConsumer,
    ListenerConfig,
    RetryLater,
    TopicSpec,
)
from tunnel.messages.sets.message import Message, encode_message
from tunnel.messages.sets.sets import ByteBufferMessageSet
from tunnel.messages.topics.producers import encode_requests
from tunnel.messages.topics.requests import ProduceRequest

QUICK = ListenerConfig(retry_s=0.0, commit_s=0.0)


def group(
    client: BrokerClient, name: str = "billing", config: ListenerConfig = QUICK, topic: str = "t"
) -> GroupConsumer:
    return GroupConsumer(client.table, client.address, name, topic, config=config)


@in_loop
async def test_an_ordered_listener_gets_every_message_with_its_place(tmp_path: Path) -> None:
    found: list[DeliveredMessage] = []
    async with brokered(tmp_path, topics={"t": TopicSpec(partitions=2)}) as (_, client):
        await client.producer().send("t", b"a", b"b", b"c", partition=1)
        async with group(client).register_message_listener(found.append) as listener:
            await until(lambda: len(found) == 3)
            assert listener.partitions == [("t", 0), ("t", 1)]
            await client.producer().send("t", b"d", partition=0)
            await until(lambda: len(found) == 4)
            await until_position(client, 3, partition=1)
    assert [(each.topic, each.partition, each.offset, each.payload) for each in found] == [
        ("t", 1, 0, b"a"),
        ("t", 1, 1, b"b"),
        ("t", 1, 2, b"c"),
        ("t", 0, 0, b"d"),
    ]
    assert [each.max_offset for each in found] == [3, 3, 3, 1]
    assert [each.lag for each in found] == [3, 2, 1, 1]


@in_loop
async def test_a_message_tried_again_later_holds_back_an_ordered_partition(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []

    async def handle(message: DeliveredMessage) -> RetryLater | None:
        calls.append((message.offset, message.attempt))
        if message.offset == 1 and message.attempt == 1:
            return RetryLater(0.0)
        if message.offset == 1 and message.attempt == 2:
            raise OSError("the database is away")
        return None

    async with brokered(tmp_path) as (_, client):
        await client.producer().send("t", b"a", b"b", b"c")
        async with group(client).register_message_listener(handle) as listener:
            await until_position(client, 3)
            assert (listener.handled, listener.failures) == (3, 2)
    assert calls == [(0, 1), (1, 1), (1, 2), (1, 3), (2, 1)]


@in_loop
async def test_concurrent_handlers_move_the_position_only_over_handled_messages(tmp_path: Path) -> None:
    let = [asyncio.Event() for _ in range(6)]
    running: set[int] = set()

    async def handle(message: DeliveredMessage) -> None:
        running.add(message.offset)
        await let[message.offset].wait()
        running.discard(message.offset)

    async with brokered(tmp_path) as (_, client):
        await client.producer().send("t", *(b"%d" % number for number in range(6)))
        async with group(client).register_message_listener(handle, concurrency=3) as listener:
            await until(lambda: running == {0, 1, 2})
            let[1].set()
            let[2].set()
            await until(lambda: running == {0, 3, 4})
            let[3].set()
            let[4].set()
            await until(lambda: running == {0, 5})
            assert listener.handled == 4
            assert await position(client) == 0
            let[0].set()
            await until_position(client, 5)
        assert await position(client) == 5  # the handler of 5 was cancelled, so another member gets that message
        found: list[DeliveredMessage] = []
        async with group(client).register_message_listener(found.append):
            await until(lambda: len(found) == 1)
        assert found[0].offset == 5


@in_loop
async def test_a_message_that_keeps_failing_goes_to_the_dead_letter_topic(tmp_path: Path) -> None:
    attempts: list[int] = []

    def handle(message: DeliveredMessage) -> RetryLater | None:
        if message.payload != b"bad":
            return None
        attempts.append(message.attempt)
        return RetryLater(0.0)

    config = ListenerConfig(retry_s=0.0, commit_s=0.0, attempts_max=3, dead_letter_topic="t.dead")
    async with brokered(tmp_path) as (_, client):
        await client.producer().send("t", b"good", b"bad", b"good")
        for concurrency, name in ((1, "one"), (4, "two")):
            async with group(client, name, config).register_message_listener(
                handle, concurrency=concurrency
            ) as listener:
                await until_position(client, 3, name)
                assert listener.dead_letters == 1
        assert attempts == [1, 2, 3, 1, 2, 3]
        dead = await client.consumer("t.dead").fetch()
        assert [message.payload for message in dead] == [b"bad", b"bad"]


@in_loop
async def test_members_share_partitions_and_every_group_gets_all(tmp_path: Path) -> None:
    async with brokered(tmp_path, topics={"t": TopicSpec(partitions=4)}) as (_, client):
        seen: dict[str, list[bytes]] = {"a1": [], "a2": [], "b": []}
        async with ChannelTable() as second:
            other = BrokerClient(second, client.address)
            one = group(client, "a").register_message_listener(lambda each: seen["a1"].append(each.payload))
            two = group(other, "a").register_message_listener(lambda each: seen["a2"].append(each.payload))
            three = group(client, "b").register_message_listener(lambda each: seen["b"].append(each.payload))
            async with one, three:
                await until(lambda: len(one.partitions) == len(three.partitions) == 4)
                async with two:
                    await until(lambda: len(one.partitions) == len(two.partitions) == 2)
                    for partition in range(4):
                        await client.producer().send("t", b"%d" % partition, partition=partition)
                    await until(lambda: len(seen["a1"]) == len(seen["a2"]) == 2 and len(seen["b"]) == 4)
                    assert sorted(seen["a1"] + seen["a2"]) == sorted(seen["b"]) == [b"0", b"1", b"2", b"3"]
                await until(lambda: len(one.partitions) == 4)  # `two` has left and given its partitions back


@in_loop
async def test_a_silent_member_loses_its_partitions(tmp_path: Path) -> None:
    settings = BrokerSettings(session_s=0.3)
    found: list[DeliveredMessage] = []
    async with brokered(tmp_path, settings=settings) as (_, client):
        await client.producer().send("t", b"a")
        fields = {"group": "billing", "topic": "t", "member": "silent"}
        await client.table.call(client.address, 125, b"", fields)
        async with group(client).register_message_listener(found.append):
            await until(lambda: len(found) == 1)


@in_loop
async def test_a_position_never_goes_back_unless_asked(tmp_path: Path) -> None:
    found: list[int] = []
    async with brokered(tmp_path) as (_, client):
        await client.producer().send("t", b"a", b"b", b"c")
        async with group(client).register_message_listener(lambda each: found.append(each.offset)):
            await until_position(client, 3)
            assert await client.commit("billing", "t", 0, 1) == 3
            assert await client.commit("billing", "t", 0, 1, force=True) == 1
            await until(lambda: len(found) == 5)  # the listener goes back, too
            await until_position(client, 3)
        with pytest.raises(Exception, match="after the end 3"):
            await client.commit("billing", "t", 0, 4)
        with pytest.raises(Exception, match="no longer belongs to stranger"):
            await client.commit("billing", "t", 0, 3, member="stranger")
    assert found == [0, 1, 2, 1, 2]


@in_loop
async def test_a_set_that_cannot_be_unpacked_does_not_stop_a_group(tmp_path: Path) -> None:
    bad = encode_message(Message(b"not compressed at all", Codec.GZIP))
    found: list[bytes] = []
    async with brokered(tmp_path) as (_, client):
        producer = client.producer(codec=Codec.ZSTD)
        await producer.send("t", b"a", b"b")
        body = encode_requests([ProduceRequest("t", 0, ByteBufferMessageSet(bad))])
        await client.table.call(client.address, 122, body)
        await producer.send("t", b"c")
        async with group(client).register_message_listener(lambda each: found.append(each.payload)) as listener:
            await until_position(client, 3)
            assert listener.unreadable == 1
    assert found == [b"a", b"b", b"c"]


@in_loop
async def test_a_listener_outlives_its_broker(tmp_path: Path) -> None:
    found: list[bytes] = []
    async with ChannelTable() as table:
        async with brokered(tmp_path) as (_, client):
            await client.producer().send("t", b"a")
            address = client.address
            host, _, port = address.rpartition(":")
            listener = GroupConsumer(table, address, "billing", "t", config=QUICK).register_message_listener(
                lambda each: found.append(each.payload)
            )
            listener.start()
            await until_position(client, 1)
        async with brokered(tmp_path) as (broker, client):
            await broker.listen(host, int(port))
            await client.producer().send("t", b"b")
            await until(lambda: len(found) == 2)
            await listener.close()
            assert await position(client) == 2
    assert found == [b"a", b"b"]


def test_a_listener_needs_a_sensible_configuration() -> None:
    with pytest.raises(ValueError, match="concurrency is 0"):
        GroupConsumer(None, "x:1", "g", "t").register_message_listener(print, concurrency=0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must be positive"):
        ListenerConfig(attempts_max=0)
    assert [ListenerConfig(retry_s=1, retry_max_s=3).delay(attempt) for attempt in (1, 2, 3, 99)] == [1, 2, 3, 3]


@in_loop
async def test_a_listener_may_take_lists(tmp_path: Path) -> None:
    found: list[list[int]] = []
    async with brokered(tmp_path, topics={"t": TopicSpec(partitions=2)}) as (_, client):
        await client.producer().send("t", *[b"x"] * 7, partition=0)
        await client.producer().send("t", b"y", partition=1)

        async def handle(messages: Sequence[DeliveredMessage]) -> None:
            assert len({each.partition for each in messages}) == 1
            found.append([each.offset for each in messages if each.partition == 0])

        async with group(client).register_list_listener(handle, list_max=3) as listener:
            await until_position(client, 7)
            await until_position(client, 1, partition=1)
        assert listener.handled == 8
    assert [each for each in found if each] == [[0, 1, 2], [3, 4, 5], [6]]


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_list_is_handled_again_as_a_whole_and_its_messages_go_to_the_dead_letter_topic(
    concurrency: int, tmp_path: Path
) -> None:
    attempts: list[tuple[list[bytes], set[int]]] = []

    def handle(messages: Sequence[DeliveredMessage]) -> RetryLater | None:
        if b"bad" not in [each.payload for each in messages]:
            return None
        attempts.append(([each.payload for each in messages], {each.attempt for each in messages}))
        if len(attempts) == 1:
            raise OSError("the database is away")
        return RetryLater(0.0)

    @in_loop
    async def check() -> None:
        config = ListenerConfig(retry_s=0.0, commit_s=0.0, attempts_max=3, dead_letter_topic="t.dead")
        async with brokered(tmp_path) as (_, client):
            await client.producer().send("t", b"a", b"b", b"bad", b"c", b"d")
            lists = group(client, config=config).register_list_listener(handle, concurrency=concurrency, list_max=2)
            async with lists as listener:
                await until_position(client, 5)
                assert (listener.handled, listener.failures, listener.dead_letters) == (3, 3, 2)
            dead = await client.consumer("t.dead").fetch()
            assert [message.payload for message in dead] == [b"bad", b"c"]

    check()
    assert attempts == [([b"bad", b"c"], {number}) for number in (1, 2, 3)]


@in_loop
async def test_a_full_dead_letter_topic_loses_no_message_of_a_list(tmp_path: Path) -> None:
    topics = {"t": TopicSpec(), "dead": TopicSpec(storage="memory", policy="newest", messages_max=1)}
    config = ListenerConfig(retry_s=0.0, commit_s=0.0, attempts_max=1, dead_letter_topic="dead")
    async with brokered(tmp_path, topics=topics) as (_, client):
        await client.producer().send("t", b"a", b"b")
        async with group(client, config=config).register_list_listener(lambda messages: RetryLater(0.01)) as listener:
            await until(lambda: listener.failures > 2)
            assert (listener.dead_letters, await position(client)) == (1, 0)
            await client.commit("reader", "dead", 0, 1)
            await until_position(client, 2)
        assert [each.payload for each in await client.consumer("dead").fetch()] == [b"b"]


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_handler_sees_a_backlog_that_grew_after_its_message_was_fetched(concurrency: int, tmp_path: Path) -> None:
    """A test such as that of the reference document, max_offset - offset > 10000, would otherwise not fire for long."""
    lags: dict[int, int] = {}
    goes_on = asyncio.Event()

    async def handle(message: DeliveredMessage) -> None:
        lags.setdefault(message.offset, message.lag)
        if message.offset < 2:
            await goes_on.wait()

    @in_loop
    async def check() -> None:
        async with brokered(tmp_path) as (_, client):
            await client.producer().send("t", b"a", b"b", b"c", b"d")
            async with group(client).register_message_listener(handle, concurrency=concurrency) as listener:
                await until(lambda: 0 in lags)
                await client.producer().send("t", *[b""] * 10_010)
                worker = listener._workers["t", 0]
                await until(lambda: worker.end == 10_014)  # though nothing is fetched meanwhile
                goes_on.set()
                await until(lambda: 3 in lags)

    check()
    assert lags[0] == 4
    assert lags[3] == 10_011


def test_a_list_has_a_message() -> None:
    with pytest.raises(ValueError, match="list_max is 0"):
        GroupConsumer(None, "x:1", "g", "t").register_list_listener(print, list_max=0)  # type: ignore[arg-type]
