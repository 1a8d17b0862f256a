"""Compressed sets of a hostile producer: the consumers of others take them in parts, or skip them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.messages.broker.rig import brokered, until
from tests.support.loops import in_loop
from tunnel.messages import (
    BrokerClient,
    Codec,
    Consumer,
    DeliveredMessage,
    GroupConsumer,
    ListenerConfig,
    TopicSpec,
)
from tunnel.messages.broker.protocol import FETCH, PRODUCE
from tunnel.messages.errors import DecompressError
from tunnel.messages.sets.codec import compress
from tunnel.messages.sets.message import SET_MESSAGES_MAX, UNPACKED_BYTES_MAX, Message, encode_message, encode_payloads
from tunnel.messages.sets.sets import ByteBufferMessageSet
from tunnel.messages.topics.producers import encode_requests
from tunnel.messages.topics.requests import ProduceRequest

_LARGE = bytes(900_000)
_MANY = encode_payloads([b""] * (SET_MESSAGES_MAX + 1))


def packed(data: bytes, codec: Codec = Codec.ZSTD) -> bytes:
    return encode_message(Message(compress(data, codec), codec))


async def send(client: BrokerClient, data: bytes, topic: str = "t", partition: int = 0) -> None:
    """Send a set as it is: a producer of this package would divide it."""
    body = encode_requests([ProduceRequest(topic, partition, ByteBufferMessageSet(data))])
    await client.table.call(client.address, PRODUCE, body)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_two_users_small_sets_that_unpack_to_much_come_in_several_fetches(codec: Codec, tmp_path: Path) -> None:
    @in_loop
    async def check() -> None:
        async with brokered(tmp_path) as (_, client):
            await send(client, packed(encode_payloads([_LARGE] * 25), codec) * 5)  # 112 MB
            await client.producer().send("t", b"of the victim")
            consumer, sizes = client.consumer("t"), []
            while consumer.offset < 6:
                found = await consumer.fetch()
                sizes.append(sum(len(each.payload) for each in found))
            assert max(sizes) <= UNPACKED_BYTES_MAX
            assert sum(sizes) == 125 * len(_LARGE) + len(b"of the victim")
            assert found[-1].payload == b"of the victim"

    check()


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_two_users_a_small_set_of_millions_of_messages_is_skipped(codec: Codec, tmp_path: Path) -> None:
    """A consumer gets an error for it; a group counts it, and goes on after it."""

    @in_loop
    async def check() -> None:
        got: list[bytes] = []
        async with brokered(tmp_path, topics={"t": TopicSpec()}) as (_, client):
            await send(client, packed(_MANY, codec))
            await client.producer().send("t", b"of the victim")
            consumer = client.consumer("t")
            with pytest.raises(DecompressError, match=f"more than {SET_MESSAGES_MAX} messages"):
                await consumer.fetch()
            assert consumer.offset == 0
            group = GroupConsumer(client.table, client.address, "g", "t")
            async with group.register_message_listener(lambda each: got.append(each.payload)) as listener:
                await until(lambda: got == [b"of the victim"])
                assert listener.unreadable == 1

    check()


@in_loop
async def test_two_users_nested_sets_count_as_one(tmp_path: Path) -> None:
    """Neither the messages nor the bytes of sets within a set can be hidden from its limits."""
    half = packed(encode_payloads([b""] * (SET_MESSAGES_MAX // 2 + 1)))
    wide = packed(encode_payloads([_LARGE] * 40))
    async with brokered(tmp_path) as (_, client):
        await send(client, packed(half * 2))
        await send(client, packed(wide * 2))
        consumer = client.consumer("t")
        for _ in range(2):
            with pytest.raises(DecompressError):
                await consumer.fetch()
            consumer.offset += 1


@in_loop
async def test_two_users_a_consumer_lets_other_tasks_run_while_it_unpacks(tmp_path: Path) -> None:
    """Neither one large set, nor many small ones, nor many tiny messages stop the program of the victim."""
    large = packed(encode_payloads([b""] * SET_MESSAGES_MAX))
    small = packed(encode_payloads([b""] * 1000)) * 100
    plain = encode_payloads([b""] * 100_000)
    async with brokered(tmp_path, topics={"t": TopicSpec(partitions=3)}) as (_, client):
        for number, data in enumerate((large, small, plain)):
            await send(client, data, partition=number)
            consumer = client.consumer("t", number)
            fields = {"topic": "t", "partition": str(number), "offset": "0", "bytes": str(1 << 22)}
            answer = asyncio.ensure_future(client.table.call(client.address, FETCH, b"", fields))
            await answer  # from here on, the fetch waits for nothing but its own work
            consumer._ahead = 0, client.address, answer
            steps = 0
            work = asyncio.ensure_future(consumer.fetch())
            while not work.done():
                steps += 1
                await asyncio.sleep(0)
            assert len(await work) == 100_000
            assert steps > 10


@in_loop
async def test_two_users_fetches_end_after_a_number_of_messages(tmp_path: Path) -> None:
    """Sets that are within their limit, but many."""
    async with brokered(tmp_path) as (_, client):
        await send(client, packed(encode_payloads([b""] * 60_000)) * 5)
        consumer, sizes = client.consumer("t"), []
        while consumer.offset < 5:
            found = await consumer.fetch()
            sizes.append(len(found))
            assert [each.offset for each in found] == sorted(each.offset for each in found)
        assert sum(sizes) == 300_000
        assert max(sizes) <= 2 * SET_MESSAGES_MAX


@in_loop
async def test_two_users_large_sets_of_many_partitions_are_unpacked_in_turn(tmp_path: Path) -> None:
    """A listener has as many partitions as it likes, but the memory for few large sets. Small messages go on."""
    holding, go_on = set[int](), asyncio.Event()
    small: list[int] = []

    async def handle(message: DeliveredMessage) -> None:
        if message.payload == b"small":
            small.append(message.partition)
            return
        holding.add(message.partition)
        await go_on.wait()

    async with brokered(tmp_path, topics={"t": TopicSpec(partitions=5)}) as (_, client):
        for number in range(4):
            await send(client, packed(encode_payloads([_LARGE] * 10)), partition=number)
        group = GroupConsumer(client.table, client.address, "g", "t", config=ListenerConfig(commit_s=0.01))
        async with group.register_message_listener(handle):
            await until(lambda: len(holding) == 2)
            await client.producer().send("t", b"small", partition=4)
            await until(lambda: small == [4])
            await asyncio.sleep(0.2)  # whatever else would be unpacked has been by now
            assert len(holding) == 2
            go_on.set()
            await until(lambda: len(holding) == 4)


@in_loop
async def test_two_users_what_a_producer_packs_is_never_too_much_for_a_consumer(tmp_path: Path) -> None:
    async with brokered(tmp_path) as (_, client):
        await client.producer(codec=Codec.ZSTD).send("t", *[b""] * (SET_MESSAGES_MAX + 2))
        consumer: Consumer = client.consumer("t")
        count = 0
        while consumer.offset < 2:
            count += len(await consumer.fetch())
        assert count == SET_MESSAGES_MAX + 2
