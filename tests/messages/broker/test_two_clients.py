"""One client's hostile frames, unread answers, unfinished requests and topics: another client goes on beside them."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from tests.messages.broker.rig import brokered, drain_fetches, frame, produce, until
from tests.support.loops import in_loop
from tunnel.messages import BrokerClient, BrokerSettings, ChannelTable, RemoteCallError, TopicSpec, split_address
from tunnel.messages.broker.intake import FREE_BYTES, MeteredReader, is_call
from tunnel.messages.broker.protocol import FETCH, POSITIONS, PRODUCE
from tunnel.messages.broker.users import Slots, User
from tunnel.messages.errors import MalformedFrameError
from tunnel.messages.sets.message import encode_payloads
from tunnel.messages.topics.requests import ProduceDecoder, ProduceRequest


async def connect(client: BrokerClient) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect with a small buffer in the kernel, so that little is sent that the client does not read."""
    sock = socket.socket()
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    host, port = split_address(client.address)
    await asyncio.get_running_loop().sock_connect(sock, (host, port))
    return await asyncio.open_connection(sock=sock)


@pytest.mark.parametrize(
    "bytes_sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0" * 20,
        b"\xff" * 20,
        b"\0\1\0\1a\0\0\0\0\0\0\0\0",  # a fetch of Kafka 0.7
        b"\0\0\0\1a\0\0\0\0\xff\xff\xff\xff",  # a set of 4 GiB
        b"\0\0\0\x10\0\0\0\x08{\0\0\0\0\0\0\0\0\0\0\0",  # a header that is not valid JSON
        b"\1\0\0\0\0\0\0\2{}",
        b"\0\3",
    ],
)
def test_garbage_ends_its_own_connection_only(bytes_sent: bytes, tmp_path: Path) -> None:
    @in_loop
    async def check() -> None:
        async with brokered(tmp_path) as (broker, client):
            reader, writer = await connect(client)
            writer.write(bytes_sent)
            writer.write_eof()
            with pytest.raises(ConnectionError):
                await reader.read()
            writer.close()
            await client.producer().send("t", b"a")
            assert await drain_fetches(client, "t", 1) == [b"a"]
            metrics = broker.metrics()
            assert metrics["malformed_connections"] + metrics["refused_requests"] == 1

    check()


@in_loop
async def test_answers_that_are_not_read_cost_little_memory(tmp_path: Path) -> None:
    async with brokered(tmp_path) as (broker, client):
        await client.producer().send("t", os.urandom(30_000), os.urandom(30_000))
        reader, writer = await connect(client)
        for opaque in range(3_000):  # 180 MB of answers
            writer.write(frame(FETCH, opaque, topic="t", partition="0", offset="0", bytes="60020"))
            if opaque % 100 == 0:
                await asyncio.sleep(0)
        served = broker.topics.get("t").partition(0)
        before = -1
        while before != served.fetches:
            before = served.fetches
            await asyncio.sleep(0.1)
        assert served.fetches < 100  # 256 KiB of answers, and up to 4 MiB in the kernel
        async with ChannelTable() as table:
            assert len(await drain_fetches(BrokerClient(table, client.address), "t", 2)) == 2
        assert not reader.at_eof()
        writer.transport.abort()
        await until(lambda: broker.counters.connections == 1)


@in_loop
async def test_large_requests_wait_for_each_other_and_small_ones_do_not_wait(tmp_path: Path) -> None:
    settings = BrokerSettings(large_requests_max=1)
    large = produce(encode_payloads([b"x" * 900_000]))
    async with brokered(tmp_path, settings=settings) as (broker, client):
        _, hostile = await connect(client)
        hostile.write(large[:-1])
        await until(lambda: broker._slots.locked())
        reader, waiting = await connect(client)
        waiting.write(large)
        waiting.write_eof()
        await client.producer().send("t", b"small")
        assert await drain_fetches(client, "t", 1) == [b"small"]
        hostile.transport.abort()  # its slot is free, and the other request goes on
        assert await reader.read() == b""
        waiting.close()
        consumer = client.consumer("t", offset=1)
        assert len((await consumer.fetch())[0].payload) == 900_000


@in_loop
async def test_a_request_that_makes_no_progress_ends_its_connection() -> None:
    now = [0.0]
    source = asyncio.StreamReader()
    slots = Slots(1)
    reader = MeteredReader(source, b"first", slots, User("eve"), clock=lambda: now[0])
    held = [0]
    reader.held = lambda: held[0]
    assert await reader.read(10) == b"first"
    source.feed_data(b"more")
    assert await reader.read(10) == b"more"
    held[0] = FREE_BYTES + 1
    source.feed_data(b"x")
    assert await reader.read(10) == b"x"
    assert slots.locked()
    now[0] = 1e6
    with pytest.raises(MalformedFrameError, match="not arrived in time"):
        await reader.read(10)
    reader.release()
    assert not slots.locked()


@in_loop
async def test_a_large_set_of_tiny_messages_lets_others_in(tmp_path: Path) -> None:
    async with brokered(tmp_path) as (_, client):
        tiny = encode_payloads([b""] * 300_000)  # 3 MB, which take a second to check
        storing = asyncio.ensure_future(client.table.call(client.address, PRODUCE, produce(tiny)))
        async with ChannelTable() as table:
            other = BrokerClient(table, client.address)
            places = 0
            while not storing.done():
                await other.producer(durable=False).send("u", b"a")
                places += 1
        assert places > 5
        await storing


@in_loop
async def test_a_frame_over_the_limit_is_refused_and_smaller_ones_still_pass(tmp_path: Path) -> None:
    settings = BrokerSettings(request_bytes_max=100)
    async with brokered(tmp_path, settings=settings) as (_, client):
        with pytest.raises(RemoteCallError, match="over 100 bytes"):
            await client.producer().send("t", b"x" * 101)
        await client.producer().send("t", b"x")


def test_a_multi_produce_in_small_pieces_is_parsed_once() -> None:
    sets = [encode_payloads([b"%d" % number]) for number in range(50)]
    encoded = produce(*sets) + produce(sets[0]) + produce(*sets[:2])
    whole = ProduceDecoder().feed(encoded)
    decoder = ProduceDecoder()
    found: list[list[ProduceRequest]] = []
    kept: list[ProduceRequest] = []
    for index in range(len(encoded)):
        found += decoder.feed(encoded[index : index + 1])
        if not found:
            assert decoder._groups[: len(kept)] == kept
            kept = list(decoder._groups)
            assert decoder.held_bytes == index + 1
    assert [[each.messages.data for each in one] for one in found] == [
        [each.messages.data for each in one] for one in whole
    ]
    assert [len(one) for one in whole] == [50, 1, 2]
    assert decoder.is_between_requests
    with pytest.raises(MalformedFrameError, match="over 100 bytes"):
        ProduceDecoder(100).feed(produce(*sets[:10]))


def test_calls_and_produce_requests_are_distinct() -> None:
    for body in (b"", b"x" * 70_000, b"x" * (3 << 16)):
        assert is_call(frame(PRODUCE, 1, body)[:9])
    for topic in ("a", "ab", "abc", "abcd{", "a" * 200, "x" * 32_767):
        for partition in (-1, 0, 0x7B00, 0x7B):
            one = produce(encode_payloads([b""]), topic=topic, partition=partition)
            many = produce(*[encode_payloads([b""])] * 2, topic=topic, partition=partition)
            assert not is_call(one[:9])
            assert topic == "abcd{" or not is_call(many[:9])


@in_loop
async def test_a_list_of_many_positions_is_made_in_parts(tmp_path: Path) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with brokered(tmp_path, topics={"t": TopicSpec()}) as (broker, client):
        broker.positions._stored = {(f"g{-number % 3500:04}", "t", 0): (0, number) for number in range(3500)}
        counting = asyncio.ensure_future(count())
        before = turns
        parts = [part async for part in broker.positions.of_group()]
        assert [len(part) for part in parts] == [1000, 1000, 1000, 500]
        assert turns - before >= 7  # four parts are sorted, and the last of them is merged after three others
        counting.cancel()
        listed = await asyncio.gather(*(client.positions() for _ in range(5)), client.positions("g0007"))
        *whole, one = [[(each.group, each.offset) for each in found] for found in listed]
        assert whole == [[(key[0], offset) for part in parts for key, offset in part]] * 5
        assert whole[0] == sorted(whole[0])
        assert one == [("g0007", 3493)]
        assert await client.positions("nobody") == []


@in_loop
async def test_a_client_that_reads_no_list_does_not_hold_up_others(tmp_path: Path) -> None:
    async with brokered(tmp_path, topics={"t": TopicSpec()}) as (broker, client):
        broker.positions._stored = {(f"g{number}", "t", 0): (0, 0) for number in range(20_000)}
        _, writer = await connect(client)
        writer.write(b"".join(frame(POSITIONS, opaque, group="") for opaque in range(200)))
        for _ in range(3):
            assert len(await client.positions()) == 20_000
        writer.transport.abort()
