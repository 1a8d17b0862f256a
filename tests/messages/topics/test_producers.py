"""The producer that sends before it returns."""

import pytest

from tests.messages.streams import stream_pair
from tests.support.loops import in_loop
from tests.support.relays import MemoryTestRelay
from tunnel import StreamReader, StreamWriter
from tunnel.messages.errors import ChannelClosedError, MessageTooLargeError
from tunnel.messages.sets.codec import Codec
from tunnel.messages.topics.producers import JsonEncoder, ProducerData, StringEncoder, SyncProducer
from tunnel.messages.topics.requests import ProduceRequest, read_requests

Seen = tuple[str, int, list[bytes]]


def seen(request: ProduceRequest) -> Seen:
    return request.topic, request.partition, list(request.messages.payloads())


@in_loop
async def test_messages_arrive_as_they_were_encoded() -> None:
    async with stream_pair() as (near, far):
        await SyncProducer(near[1]).send("raw", b"a", b"b", partition=3)
        await SyncProducer(near[1], encoder=StringEncoder()).send("text", "ä")
        await SyncProducer(near[1], encoder=JsonEncoder(), codec=Codec.ZSTD).send("json", {"a": 1}, [2])
        producer = SyncProducer(near[1])
        await producer.send_data(ProducerData("one", [b"1"]), ProducerData("two", [b"2"], -1))
        await producer.send_data()
        near[1].close()
        assert [seen(request) async for request in read_requests(far[0])] == [
            ("raw", 3, [b"a", b"b"]),
            ("text", 0, ["ä".encode()]),
            ("json", 0, [b'{"a":1}', b"[2]"]),
            ("one", 0, [b"1"]),
            ("two", -1, [b"2"]),
        ]


@in_loop
async def test_invalid_messages_are_refused_before_anything_is_written() -> None:
    async with stream_pair() as (near, far):
        producer = SyncProducer(near[1], message_bytes_max=10)
        with pytest.raises(MessageTooLargeError):
            await producer.send("topic", b"good", bytes(11))
        for topic in ("", "x" * 32_768):
            with pytest.raises(ValueError, match="a topic has"):
                await producer.send(topic, b"x")
        near[1].close()
        assert await far[0].read() == b""
        with pytest.raises(ValueError, match="use one of a tunnel"):
            SyncProducer(near[1], acknowledged=True)


@in_loop
async def test_a_producer_over_a_tunnel_can_wait_for_acknowledgements() -> None:
    requests: list[Seen] = []

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        requests.extend([seen(request) async for request in read_requests(reader)])
        writer.close()

    async with MemoryTestRelay() as relay, relay.attach("bob") as bob, relay.attach("ann") as ann:
        await bob.start_server(serve, "broker")
        _, writer = await ann.open_connection("broker", timeout=30)
        await SyncProducer(writer, acknowledged=True).send("topic", b"x")
        writer.close()
        await writer.wait_closed()
    assert requests == [("topic", 0, [b"x"])]


@in_loop
async def test_a_send_on_a_connection_that_has_ended_is_an_error() -> None:
    async with stream_pair() as (near, _):
        near[1].transport.abort()
        with pytest.raises(ChannelClosedError, match="open a new one"):
            await SyncProducer(near[1]).send("t", b"a")
