"""`loop.sendfile` on our transports, and what is built on it: the static files of aiohttp (on both event loops)."""

import asyncio
import contextlib
import io
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import BinaryIO

import pytest
import uvloop
from aiohttp import web

from tests.carriers.harness import MIB, Counting, noise
from tests.rig import contexts
from tests.support.loops import in_loop, run
from tests.support.relays import MemoryTestRelay
from tunnel import Attachment, StreamReader, StreamWriter, Transport
from tunnel.streams.asyncio_compat import start_tls

LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop, uvloop.new_event_loop]
DATA = noise(6 * MIB)  # more than the send buffer and the windows take at once


@contextlib.asynccontextmanager
async def two() -> AsyncIterator[tuple[Attachment, Attachment]]:
    async with MemoryTestRelay() as relay, relay.attach("ann") as service, relay.attach("bob") as client:
        yield service, client


class Gathering(Counting):
    """Keeps what it receives."""

    def __init__(self) -> None:
        super().__init__()
        self.data = bytearray()

    def data_received(self, data: bytes) -> None:
        self.data += data
        super().data_received(data)


async def connected(service: Attachment, client: Attachment) -> tuple[Counting, Gathering]:
    """Return our protocol, and the protocol at the other end."""
    accepted: list[Gathering] = []

    def accept() -> Gathering:
        accepted.append(Gathering())
        return accepted[0]

    await service.create_server(accept, "files")
    _, ours = await client.create_connection(Counting, "files")
    ours.transport.write(b"hello")
    while not accepted:  # noqa: ASYNC110 - nothing signals this
        await asyncio.sleep(0)
    await accepted[0].heard.wait()
    accepted[0].data.clear()
    return ours, accepted[0]


async def send_file(transport: asyncio.Transport, file: BinaryIO, offset: int = 0, count: int | None = None) -> int:
    return await asyncio.get_running_loop().sendfile(transport, file, offset, count)


@pytest.mark.parametrize(("offset", "count"), [(0, None), (5, 100_000), (len(DATA) - 3, None), (0, 1)])
@in_loop
async def test_a_file_arrives_whole_or_the_part_that_was_asked_for(offset: int, count: int | None) -> None:
    async with two() as (service, client):
        ours, theirs = await connected(service, client)
        wanted = DATA[offset:] if count is None else DATA[offset : offset + count]
        assert await send_file(ours.transport, io.BytesIO(DATA), offset, count) == len(wanted)
        ours.transport.write(b"!")
        ours.transport.close()
        assert await ours.lost is None
        assert theirs.data == wanted + b"!"


@in_loop
async def test_a_file_follows_earlier_bytes_although_the_writer_was_paused() -> None:
    async with two() as (service, client):
        ours, theirs = await connected(service, client)
        theirs.transport.pause_reading()
        ours.transport.write(bytes(8 * MIB))
        assert ours.paused.is_set()
        sending = asyncio.get_running_loop().create_task(send_file(ours.transport, io.BytesIO(DATA)))
        await asyncio.sleep(0)
        theirs.transport.resume_reading()
        assert await sending == len(DATA)
        assert ours.resumed.is_set()
        ours.transport.close()
        assert await ours.lost is None
        assert theirs.data == bytes(8 * MIB) + DATA


@in_loop
async def test_a_reader_that_ends_its_direction_during_the_file_gets_all_of_it() -> None:
    """A client may send its request, end its direction, and read the answer."""
    async with two() as (service, client):
        ours, theirs = await connected(service, client)
        ended: list[bool] = []
        ours.eof_received = lambda: ended.append(True)  # type: ignore[method-assign]
        theirs.transport.pause_reading()
        sending = asyncio.get_running_loop().create_task(send_file(ours.transport, io.BytesIO(DATA)))
        theirs.transport.write(b"the rest")
        theirs.transport.write_eof()
        await theirs.transport.flush()
        theirs.transport.resume_reading()
        assert await sending == len(DATA)
        assert await ours.lost is None  # eof_received returned None, so the transport closed itself
        assert ended == [True]
        assert ours.size == len(b"the rest")
        assert theirs.data == DATA


@pytest.mark.parametrize("ending", ["close", "abort"])
def test_a_reader_that_leaves_ends_the_sending(ending: str) -> None:
    """The file is not read to its end for a peer that will not take it."""

    class Endless(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: object) -> int:
            return len(memoryview(buffer))  # type: ignore[arg-type]

    async def main() -> None:
        async with two() as (service, client):
            ours, theirs = await connected(service, client)
            theirs.transport.pause_reading()
            sending = asyncio.get_running_loop().create_task(send_file(ours.transport, Endless()))  # type: ignore[arg-type]
            await theirs.transport.flush()
            getattr(theirs.transport, ending)()
            with pytest.raises(ConnectionError):
                await sending
            ours.transport.abort()

    run(main())


@in_loop
async def test_without_a_fallback_the_error_of_asyncio_says_why() -> None:
    async with two() as (service, client):
        ours, _ = await connected(service, client)
        with pytest.raises(RuntimeError, match="fallback is disabled"):
            await asyncio.get_running_loop().sendfile(ours.transport, io.BytesIO(DATA), fallback=False)
        ours.transport.abort()


@in_loop
async def test_a_file_is_sent_within_tls() -> None:
    server_context, client_context = contexts()
    async with two() as (service, client):

        async def receive(reader: StreamReader, writer: StreamWriter) -> None:
            await writer.start_tls(server_context)
            writer.write(b"ready")
            received.set_result(await reader.readexactly(len(DATA)))
            writer.close()

        received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        await service.start_server(receive, "secure")
        transport, protocol = await client.create_connection(Counting, "secure")
        secured = await start_tls(transport, protocol, client_context, server_hostname="localhost")
        await protocol.heard.wait()
        assert await send_file(secured, io.BytesIO(DATA)) == len(DATA)
        assert await received == DATA
        assert isinstance(secured.get_extra_info("ssl_object"), ssl.SSLObject)
        secured.close()
        assert await protocol.lost is None


@pytest.mark.parametrize("new_loop", LOOPS)
def test_aiohttp_serves_static_files(new_loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(DATA)
    (tmp_path / "empty").write_bytes(b"")

    async def fetch(client: Attachment, path: str, field: str = "") -> tuple[bytes, bytes]:
        reader, writer = await client.open_connection("web")
        writer.write(f"GET {path} HTTP/1.1\r\nHost: web\r\nConnection: close\r\n{field}\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.read(-1)
        writer.close()
        await writer.wait_closed()
        return head.partition(b"\r\n")[0], body

    async def main() -> None:
        app = web.Application()
        app.router.add_static("/", tmp_path)
        runner = web.AppRunner(app)
        await runner.setup()
        assert runner.server is not None
        async with two() as (service, client):
            await service.create_server(runner.server, "web")
            assert await fetch(client, "/large") == (b"HTTP/1.1 200 OK", DATA)
            part = await fetch(client, "/large", "Range: bytes=100-70000\r\n")
            assert part == (b"HTTP/1.1 206 Partial Content", DATA[100:70001])
            assert await fetch(client, "/empty") == (b"HTTP/1.1 200 OK", b"")
            found = await asyncio.gather(*(fetch(client, "/large") for _ in range(4)))
            assert found == [(b"HTTP/1.1 200 OK", DATA)] * 4
        await runner.cleanup()

    run(main(), new_loop)


def test_uvloop_says_that_it_has_no_sendfile() -> None:
    """Servers then copy the file themselves, as aiohttp does."""

    async def main() -> None:
        async with two() as (service, client):
            ours, _ = await connected(service, client)
            assert isinstance(ours.transport, Transport)
            with pytest.raises(NotImplementedError):
                await send_file(ours.transport, io.BytesIO(DATA))
            ours.transport.abort()

    run(main(), uvloop.new_event_loop)
