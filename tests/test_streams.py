"""The pair of asyncio streams over a connection."""

import asyncio
from pathlib import Path

import pytest

from tests.support.loops import in_loop
from tests.support.relays import MemoryTestRelay
from tunnel import ResetError, StreamReader
from tunnel.streams.asyncio_compat import QuietProtocol, start_server
from tunnel.streams.streams import StreamProtocol


@pytest.mark.parametrize("kind", [QuietProtocol, StreamProtocol])
@in_loop
async def test_an_error_that_the_application_does_not_retrieve_is_not_logged(kind: type[QuietProtocol]) -> None:
    """Whichever object is collected first, no future is left with an exception that was never retrieved."""
    loop = asyncio.get_running_loop()
    protocol = kind(StreamReader(loop=loop), loop=loop)
    protocol.connection_lost(ResetError("reset by the peer"))
    closed = protocol._get_close_waiter(None)  # type: ignore[attr-defined]
    del protocol._closed  # type: ignore[attr-defined]
    del closed  # the loop would report an exception that was not retrieved here


@in_loop
async def test_a_server_of_streams_is_quiet_about_clients_that_reset() -> None:
    """It is the server of the broker and of the metrics: a stranger must not write into their logs."""
    used: asyncio.Future[asyncio.BaseProtocol] = asyncio.get_running_loop().create_future()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read() == b"hello"
        used.set_result(writer.transport.get_protocol())
        writer.close()

    async with await start_server(handle, "127.0.0.1", 0) as server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"hello")
        writer.write_eof()
        assert isinstance(await used, QuietProtocol)
        writer.close()


@pytest.mark.parametrize("folder", ["tunnel", "client", "servlet"])
def test_no_product_listens_at_tcp_with_the_server_of_asyncio(folder: str) -> None:
    root = Path(__file__).parent.parent
    assert not [path for path in (root / folder).rglob("*.py") if "asyncio.start_server(" in path.read_text()]


@in_loop
async def test_drain_raises_once_the_peer_reads_no_more() -> None:
    """Otherwise a sender that never reads would go on writing although its bytes are dropped."""
    closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def leave(reader: StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(5)
        writer.close()
        closed.set_result(None)

    async with MemoryTestRelay() as relay, relay.attach("ann") as service, relay.attach("bob") as client:
        await service.start_server(leave, "leaver")
        reader, writer = await client.open_connection("leaver")
        writer.write(b"hello")
        assert await reader.read() == b""
        await closed
        writer.write(b"more")
        with pytest.raises(ResetError, match="will not read further data"):
            await writer.drain()
        writer.transport.abort()


@in_loop
async def test_reader_and_writer_raise_the_reset() -> None:
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
