"""The pair of asyncio streams over a connection."""

import asyncio

import pytest

from tests.support.loops import in_loop
from tests.support.relays import MemoryTestRelay
from tunnel import ResetError, StreamReader
from tunnel.streams import StreamProtocol


@in_loop
async def test_an_end_that_nobody_asks_about_is_no_mistake_of_anybody() -> None:
    """Whatever the collector comes to first: the future is not left with an exception that was never retrieved."""
    loop = asyncio.get_running_loop()
    protocol = StreamProtocol(StreamReader(loop=loop), loop=loop)
    protocol.connection_lost(ResetError("reset by the peer"))
    closed = protocol._get_close_waiter(None)  # type: ignore[attr-defined]
    del protocol._closed  # type: ignore[attr-defined]
    del closed  # the loop hears of it at once, were it not retrieved


@in_loop
async def test_who_asks_learns_how_it_ended() -> None:
    async with MemoryTestRelay() as relay, relay.attach("ann") as service, relay.attach("bob") as client:
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def handle(reader: StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(5)
            writer.write(b"heard")
            with pytest.raises(ResetError):
                await reader.read()
            with pytest.raises(ResetError):
                await writer.wait_closed()
            ended.set_result(None)

        await service.start_server(handle, "echo")
        reader, writer = await client.open_connection("echo")
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"heard"
        writer.transport.abort()
        await ended
