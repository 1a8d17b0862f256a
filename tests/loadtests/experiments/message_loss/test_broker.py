"""The small broker and its protocol, tested with the client library of NATS and with invalid input."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import nats
import pytest
from nats.aio.msg import Msg

from loadtests.experiments.message_loss.broker import Broker, Subscription
from loadtests.experiments.message_loss.protocol import (
    Frame,
    ProtocolError,
    connect_line,
    deliver,
    info_line,
    publish,
    read_frame,
)
from tests.support.loops import in_loop


def reader_of(data: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return reader


@in_loop
async def test_encoded_frames_are_read_back() -> None:
    reader = reader_of(connect_line() + publish("a.b", 7, b"x\r\ny") + b"ping\r\n" + info_line("one"))
    assert (await read_frame(reader)) is not None
    assert await read_frame(reader) == Frame("PING", ())
    message = await read_frame(reader)
    assert message is not None
    assert (message.verb, message.words[0]) == ("HPUB", "a.b")
    assert message.payload[: message.header_size] == b"NATS/1.0\r\nMessage-Id: 7\r\n\r\n"
    assert message.payload[message.header_size :] == b"x\r\ny"
    again = await read_frame(reader_of(deliver("a.b", "3", message)))
    assert again is not None
    assert (again.verb, again.words[:2], again.payload) == ("HMSG", ("a.b", "3"), message.payload)
    assert await read_frame(reader) == Frame("PING", ())
    assert (await read_frame(reader) or Frame("", ())).verb == "INFO"
    assert await read_frame(reader) is None


@in_loop
async def test_a_truncated_frame_is_not_read() -> None:
    for size in range(1, len(publish("a", 1, b"xyz"))):
        assert await read_frame(reader_of(publish("a", 1, b"xyz")[:size])) is None


@pytest.mark.parametrize(
    "line",
    [
        b"PUB a\r\n",
        b"PUB a -1\r\n",
        b"PUB a 2000000\r\n",
        b"HPUB a 9 3\r\nabc\r\n",
        b"PUB a 1\r\nabc\r\n",
        b"x" * 200_000,
    ],
)
def test_malformed_frames_are_errors(line: bytes) -> None:
    @in_loop
    async def test() -> None:
        with pytest.raises(ProtocolError):
            await read_frame(reader_of(line))

    test()


def test_a_queue_group_shares_messages_and_plain_subscribers_get_all() -> None:
    writer: asyncio.StreamWriter = object()  # type: ignore[assignment]
    first, second, third = (
        Subscription(writer, "a", "g", "1"),
        Subscription(writer, "a", "g", "2"),
        Subscription(writer, "a", "", "3"),
    )
    broker = Broker([first, second, third, Subscription(writer, "b", "", "4")])
    seen = [broker.chosen("a") for _ in range(4)]
    assert all(third in chosen and len(chosen) == 2 for chosen in seen)
    assert [chosen[1] for chosen in seen].count(first) == 2
    assert broker.chosen("c") == []


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Broker, tuple[str, int]]]:
    """Serve connections at the yielded address, until the first one has ended."""
    broker, left = Broker(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await broker.serve("one", reader, writer)
        left.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield broker, server.sockets[0].getsockname()
        await left.wait()


@in_loop
async def test_the_nats_client_accepts_the_broker_as_a_server() -> None:
    async with serving() as (broker, address):
        client = await nats.connect("nats://{}:{}".format(*address))
        got: asyncio.Queue[Msg] = asyncio.Queue()
        subscription = await client.subscribe("a", queue="g", cb=got.put)
        plain = await client.subscribe("b", cb=got.put)
        await client.flush()
        await client.publish("a", b"one", headers={"x": "1"})
        await client.publish("b", b"two")
        first, second = await got.get(), await got.get()
        assert (first.data, first.headers, second.data) == (b"one", {"x": "1"}, b"two")
        await subscription.unsubscribe()
        await plain.unsubscribe()
        await client.flush()
        assert broker.subscriptions == []
        await client.close()


@in_loop
async def test_a_connection_with_another_protocol_is_closed_and_unsubscribed() -> None:
    async with serving() as (broker, address):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"SUB a 1\r\nGET / HTTP/1.1\r\n\r\n")
        assert (await reader.read()).startswith(b"INFO")
        writer.close()
        await writer.wait_closed()
    assert broker.subscriptions == []
