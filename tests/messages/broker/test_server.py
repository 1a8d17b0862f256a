"""A broker over loopback: producers with and without answers, fetches, limits, restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.messages.broker.rig import brokered, drain_fetches
from tests.messages.streams import served
from tests.support.loops import in_loop
from tunnel.messages import (
    AsyncProducer,
    AsyncProducerConfig,
    Broker,
    BrokerProducer,
    ChannelTable,
    Codec,
    LogError,
    ProducerData,
    RemoteCallError,
    StringEncoder,
    SyncProducer,
    TopicSpec,
    split_address,
)
from tunnel.messages.broker.protocol import CONFLICT, CORRUPT, MALFORMED, OUT_OF_RANGE, PRODUCE, UNKNOWN
from tunnel.messages.sets.message import encode_payloads
from tunnel.messages.sets.sets import ByteBufferMessageSet
from tunnel.messages.topics.producers import encode_requests
from tunnel.messages.topics.requests import ProduceRequest


async def sync_send(address: str, *data: ProducerData) -> bytes:
    """Send with a plain SyncProducer; return what the broker sends before it closes: nothing if all was stored."""
    reader, writer = await asyncio.open_connection(*split_address(address))
    try:
        await SyncProducer(writer).send_data(*data)
        writer.write_eof()
        return await reader.read()
    finally:
        writer.close()


@in_loop
async def test_a_plain_sync_producer_works(tmp_path: Path) -> None:
    async with brokered(tmp_path) as (_, client):
        assert await sync_send(client.address, ProducerData("orders", [b"a", b"b"])) == b""
        assert await sync_send(client.address, ProducerData("orders", [b"c"]), ProducerData("bills", [b"d"], -1)) == b""
        assert await drain_fetches(client, "orders", 3) == [b"a", b"b", b"c"]
        assert await drain_fetches(client, "bills", 1) == [b"d"]


@in_loop
async def test_a_refused_send_without_answers_resets_the_connection(tmp_path: Path) -> None:
    async with brokered(tmp_path) as (broker, client):
        for data in (ProducerData("../etc", [b"a"]), ProducerData("orders", [b"a"], 7)):
            with pytest.raises(ConnectionError):
                await sync_send(client.address, data)
        assert broker.metrics()["refused_requests"] == 2
        assert broker.metrics()["messages_stored_total"] == 0


@in_loop
async def test_an_answered_send_has_a_place_or_an_error(tmp_path: Path) -> None:
    topics = {"orders": TopicSpec(partitions=3)}
    async with brokered(tmp_path, topics=topics) as (_, client):
        producer = client.producer(encoder=StringEncoder(), codec=Codec.GZIP)
        places = [await producer.send("orders", "a", "b") for _ in range(3)]
        assert sorted((place.partition, place.offset) for place in places) == [(0, 0), (1, 0), (2, 0)]
        assert (await producer.send("orders", "c", partition=1)).offset == 1
        many = await producer.send_data(ProducerData("orders", ["d"], 2), ProducerData("other", ["e"], 0))
        assert [(place.partition, place.offset) for place in many] == [(2, 1), (0, 0)]
        for topic, partition, code in (("orders", 3, UNKNOWN), ("a/b", 0, MALFORMED), (".hidden", 0, MALFORMED)):
            with pytest.raises(RemoteCallError) as caught:
                await producer.send(topic, "x", partition=partition)
            assert caught.value.code == code
        found = await drain_fetches(client, "orders", 2, 0)
        assert found == [b"a", b"b"]


@in_loop
async def test_a_produce_request_to_something_else_than_a_broker_is_an_error() -> None:
    async with served({}) as address, ChannelTable() as table:
        with pytest.raises(RemoteCallError, match="no handler"):
            await BrokerProducer(table, address).send("orders", b"a")
        with pytest.raises(ConnectionError):
            await sync_send(address, ProducerData("orders", [b"a"] * 1000))


@in_loop
async def test_an_async_producer_sends_through_a_broker(tmp_path: Path) -> None:
    async with brokered(tmp_path) as (_, client):
        config = AsyncProducerConfig(batch_max=10, enqueue_timeout_ms=-1)
        async with AsyncProducer(client.producer(), config) as producer:
            for number in range(100):
                await producer.send("orders", b"%d" % number)
        assert await drain_fetches(client, "orders", 100) == [b"%d" % number for number in range(100)]
        async with AsyncProducer(client.producer(), config) as producer:
            producer.offer("not/a/name", b"a")
            with pytest.raises(Exception, match="is no name"):
                await producer.flush()


@in_loop
async def test_a_set_at_the_wrong_offset_is_not_stored(tmp_path: Path) -> None:
    async with brokered(tmp_path) as (_, client):
        producer = client.producer()
        await producer.send_at(0, "orders", b"a", b"b")
        for offset in (0, 1, 3):
            with pytest.raises(RemoteCallError) as caught:
                await producer.send_at(offset, "orders", b"x")
            assert caught.value.code == CONFLICT
        await producer.send_at(2, "orders", b"c")
        assert await drain_fetches(client, "orders", 3) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("force", [False, True])
@in_loop
async def test_a_position_after_the_end_is_refused_so_that_no_later_message_is_skipped(
    tmp_path: Path, *, force: bool
) -> None:
    async with brokered(tmp_path) as (_, client):
        await client.producer().send("orders", b"a", b"b")
        with pytest.raises(RemoteCallError, match=r"the position 3 is after the end 2 of orders/0") as caught:
            await client.commit("reports", "orders", 0, 3, force=force)
        assert caught.value.code == OUT_OF_RANGE
        assert await client.commit("reports", "orders", 0, 2, force=force) == 2
        assert [one.offset for one in await client.positions("reports")] == [2]


@in_loop
async def test_damaged_sets_are_refused_whole(tmp_path: Path) -> None:
    good = encode_payloads([b"a", b"b"])
    async with brokered(tmp_path) as (broker, client):
        for bad in (good[:-1], good[:-1] + b"x", good[:5], b"\0" * 30, good + b"\0\0"):
            body = encode_requests(
                [ProduceRequest("t", 0, ByteBufferMessageSet(good)), ProduceRequest("t", 0, ByteBufferMessageSet(bad))]
            )
            with pytest.raises(RemoteCallError) as caught:
                await client.table.call(client.address, PRODUCE, body)
            assert caught.value.code == CORRUPT
        for body in (b"", good, encode_requests([ProduceRequest("t", 0, ByteBufferMessageSet(good))])[:-1]):
            with pytest.raises(RemoteCallError) as malformed:
                await client.table.call(client.address, PRODUCE, body)
            assert malformed.value.code == MALFORMED
        assert broker.metrics()["messages_stored_total"] == 0


@in_loop
async def test_topics_positions_and_messages_survive_a_restart(tmp_path: Path) -> None:
    async with brokered(tmp_path, topics={"orders": TopicSpec(partitions=2)}) as (_, client):
        await client.producer().send("orders", b"a", b"b", partition=1)
        assert await client.commit("billing", "orders", 1, 1) == 1
    async with brokered(tmp_path) as (_, client):
        (report,) = await client.topics()
        assert [(each.partition, each.first, each.end) for each in report.partitions] == [(0, 0, 0), (1, 0, 2)]
        (position,) = await client.positions("billing")
        assert (position.offset, position.end, position.lag) == (1, 2, 1)
        assert await drain_fetches(client, "orders", 2, 1) == [b"a", b"b"]


@in_loop
async def test_one_process_at_a_time_has_a_directory(tmp_path: Path) -> None:
    async with brokered(tmp_path):
        with pytest.raises(LogError, match="open in another process"):
            await Broker(tmp_path).start()
