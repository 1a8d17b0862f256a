"""A connection as an asyncio transport: what protocols may expect of it, including third-party protocols and TLS."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from tests.carriers.harness import MIB, Counting, ask, echo, end, noise, say_and_hear, write_until_paused
from tests.rig import contexts
from tests.support.loops import in_loop, run
from tests.support.relays import MemoryTestRelay, inside
from tunnel import Attachment, IntegrityError, LostError, ResetError, StreamReader, StreamWriter, Transport
from tunnel.core import LostReason, PeerClosed
from tunnel.ground.rates import Flow
from tunnel.streams.asyncio_compat import fill
from tunnel.streams.rate_limit import RateTurns
from tunnel.wire import AbortReason


@asynccontextmanager
async def two() -> AsyncIterator[tuple[Attachment, Attachment]]:
    """Yield a service side and a client side, attached to one relay."""
    async with MemoryTestRelay() as relay, relay.attach("ann") as service, relay.attach("bob") as client:
        yield service, client


class Buffered(asyncio.BufferedProtocol):
    """A BufferedProtocol whose own buffers hold a few bytes."""

    def __init__(self) -> None:
        self.buffer = bytearray(7)
        self.received = bytearray()
        self.ended: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def get_buffer(self, sizehint: int) -> bytearray:
        assert sizehint > 0
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self.buffer[:nbytes]

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: BaseException | None) -> None:
        self.ended.set_result(bytes(self.received))


@in_loop
async def test_a_buffered_protocol_receives_the_whole_stream() -> None:
    async with two() as (service, client):
        peer: asyncio.Future[Buffered] = asyncio.get_running_loop().create_future()

        def accept() -> Buffered:
            peer.set_result(Buffered())
            return peer.result()

        await service.create_server(accept, "buffered")
        transport, _ = await client.create_connection(Counting, "buffered")
        data = noise(1000)
        transport.write(memoryview(data))
        transport.write_eof()
        transport.write_eof()
        assert await (await peer).ended == data
        transport.close()


@in_loop
async def test_write_takes_any_bytes_like_object_until_write_eof() -> None:
    async with two() as (service, client):
        await service.start_server(echo, "echo")
        transport, protocol = await client.create_connection(Counting, "echo")
        with pytest.raises(TypeError, match="bytes-like"):
            transport.write("text")  # type: ignore[arg-type]
        transport.write(b"")
        transport.write(memoryview(b""))
        transport.write(memoryview(bytearray(8)).cast("I"))
        reused = bytearray(b"first")
        transport.write(reused)
        reused[:] = b"again"
        transport.write_eof()
        with pytest.raises(RuntimeError, match="after write_eof"):
            transport.write(b"more")
        assert await protocol.lost is None
        assert protocol.size == 13
        assert transport.is_closing()
        assert "closed" in repr(transport)
        transport.close()
        transport.abort()
        transport.write_eof()
        transport.resume_reading()
        await transport.flush()


@in_loop
async def test_write_buffer_limits_and_extra_info_are_those_of_asyncio() -> None:
    async with two() as (service, client):
        await service.start_server(echo, "echo")
        transport, protocol = await client.create_connection(Counting, "echo")
        assert transport.get_write_buffer_limits() == (16 * 1024, 64 * 1024)
        transport.set_write_buffer_limits(low=100)
        assert transport.get_write_buffer_limits() == (100, 400)
        transport.set_write_buffer_limits(high=1000)
        assert transport.get_write_buffer_limits() == (250, 1000)
        transport.set_write_buffer_limits()
        with pytest.raises(ValueError, match="high"):
            transport.set_write_buffer_limits(high=1, low=2)
        assert transport.get_write_buffer_size() == 0
        assert transport.get_protocol() is protocol
        assert transport.get_extra_info("tunnel_target").host == "echo"
        assert transport.get_extra_info("nothing", 7) == 7
        assert "echo" in repr(transport)
        transport.abort()
        assert await protocol.lost is None


@in_loop
async def test_a_paused_reader_gets_nothing_until_it_resumes() -> None:
    async with two() as (service, client):
        await service.start_server(echo, "echo")
        transport, protocol = await client.create_connection(Counting, "echo")
        transport.pause_reading()
        assert not transport.is_reading()
        transport.write(b"12345")
        _, writer = await say_and_hear(client)
        await end(writer)
        assert protocol.size == 0
        transport.resume_reading()
        transport.write_eof()
        assert await protocol.lost is None
        assert protocol.size == 5


def test_a_protocol_that_raises_is_reported_and_its_connection_aborted() -> None:
    class Clumsy(Counting):
        def data_received(self, data: bytes) -> None:
            raise LookupError("clumsy")

    told: list[object] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
        async with two() as (service, client):
            await service.start_server(echo, "echo")
            transport, protocol = await client.create_connection(Clumsy, "echo")
            transport.write(b"hello")
            assert await protocol.lost is None
            assert transport.is_closing()

    asyncio.run(main())
    assert [type(error) for error in told] == [LookupError]


@in_loop
async def test_an_empty_buffer_of_the_protocol_is_an_error() -> None:
    class Empty(Buffered):
        def get_buffer(self, sizehint: int) -> bytearray:
            return bytearray()

    with pytest.raises(RuntimeError, match="empty buffer"):
        fill(Empty(), memoryview(b"1"))


@in_loop
async def test_opening_a_connection_times_out_and_can_be_cancelled() -> None:
    async with MemoryTestRelay(settle_us=60_000_000) as relay, relay.attach("ann") as client:
        with pytest.raises(TimeoutError, match=r"nobody: no answer within 0\.01 s"):
            await client.open_connection("nobody", timeout=0.01)
        waiting = asyncio.create_task(client.open_connection("nobody"))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(ValueError, match="port must be between"):
            await client.open_connection("host", 0)
        assert client.stats().connections == {}


@in_loop
async def test_closing_the_attachment_ends_a_connection_that_is_not_answered() -> None:
    async with MemoryTestRelay(settle_us=60_000_000) as relay:
        client = relay.attach("ann", linger=0.01)
        await client.start()
        waiting = asyncio.create_task(client.open_connection("nobody"))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(LostError):
            await waiting


@in_loop
async def test_an_integrity_error_is_raised_on_both_sides() -> None:
    failed: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        try:
            await reader.read()
        except ConnectionError as error:
            failed.set_result(error)

    async with two() as (service, client):
        await service.start_server(serve, "service")
        transport, protocol = await client.create_connection(Counting, "service")
        connection = transport.get_extra_info("tunnel_connection")
        transport.write(b"x")
        await transport.flush()
        connection.fail(LostReason.INTEGRITY, AbortReason.INTEGRITY, inside(client)._ready().now())
        inside(client)._ready().wake()
        assert isinstance(await protocol.lost, IntegrityError)
        with pytest.raises(IntegrityError):
            await transport.flush()
        assert isinstance(await failed, IntegrityError)


class Sink(Counting):
    """Pauses reading as soon as it is connected."""

    made: asyncio.Future["Sink"]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.pause_reading()
        self.made.set_result(self)


async def connected(service: Attachment, client: Attachment) -> tuple[Counting, Sink]:
    """Return a protocol that counts bytes, and its peer, which does not read."""

    class Fresh(Sink):
        made: asyncio.Future[Sink] = asyncio.get_running_loop().create_future()

    await service.create_server(Fresh, "sink")
    _, protocol = await client.create_connection(Counting, "sink")
    return protocol, await Fresh.made


@pytest.mark.parametrize("ending", ["close", "abort"])
def test_writing_fails_when_the_peer_ends_without_reading(ending: str) -> None:
    @in_loop
    async def scenario() -> None:
        async with two() as (service, client):
            protocol, peer = await connected(service, client)
            transport = protocol.transport
            await write_until_paused(protocol)
            for size in (1, 2):
                transport.write(bytes(size))
            flushing = asyncio.create_task(transport.flush())
            await asyncio.sleep(0)
            sender = transport.get_extra_info("tunnel_connection").sender
            waiting = transport.get_write_buffer_size()
            assert waiting
            assert sender.flush_offset == sender.window.written_bytes + waiting  # flush includes the buffer
            getattr(peer.transport, ending)()
            assert isinstance(await protocol.lost, ConnectionResetError)
            with pytest.raises(ConnectionResetError):
                await flushing
            with pytest.raises(ConnectionResetError):
                await transport.flush()
            assert transport.get_write_buffer_size() == 0

    scenario()


@in_loop
async def test_bytes_that_never_reached_the_endpoint_when_the_peer_closed_are_an_error() -> None:
    """The event says that the peer threw no received bytes away; bytes that still waited here are lost."""
    async with two() as (service, client):
        protocol, peer = await connected(service, client)
        transport = protocol.transport
        transport.write(bytes(32 * MIB))  # more than the endpoint takes at once
        assert transport.get_write_buffer_size()
        transport._handle(PeerClosed(transport.connection_id, junked_bytes=0))
        assert isinstance(transport.write_error, ResetError)
        assert transport.get_write_buffer_size() == 0
        with pytest.raises(ResetError, match="will not read further data"):
            await transport.flush()
        transport.abort()
        peer.transport.abort()


class Line:
    """One direction of a rate limit that gives turns only when the test does."""

    def __init__(self) -> None:
        self.flows: list[Flow[RateTurns]] = []

    def join(self, flow: Flow[RateTurns]) -> None:
        self.flows.append(flow)


@pytest.mark.interpreted
@in_loop
async def test_bytes_that_leave_at_a_turn_of_a_rate_limit_wake_the_driver() -> None:
    """Otherwise they would leave with the next timeout of the driver, half a second later."""
    async with two() as (service, client):
        protocol, peer = await connected(service, client)
        transport, line = protocol.transport, Line()
        limit: Any = SimpleNamespace(up=line, down=Line())
        transport.limit_rate(limit)
        transport.write(bytes(100))
        assert transport.get_write_buffer_size() == 100
        woken: list[None] = []
        wake = transport._state.driver.wake
        transport._state.driver.wake = lambda: woken.append(wake())  # type: ignore[method-assign]
        assert line.flows[-1].owner.take(1000) == 100
        assert woken
        transport.abort()
        peer.transport.abort()


@in_loop
async def test_a_writer_is_paused_at_once_and_resumed_when_the_peer_reads() -> None:
    async with two() as (service, client):
        protocol, peer = await connected(service, client)
        protocol.transport.write(bytes(32 * MIB))
        assert protocol.paused.is_set()
        assert not protocol.resumed.is_set()
        peer.transport.resume_reading()
        async with asyncio.timeout(10):
            await protocol.resumed.wait()
        protocol.transport.abort()


@in_loop
async def test_buffered_data_is_sent_before_the_end_of_file() -> None:
    async with two() as (service, client):
        protocol, peer = await connected(service, client)
        size = await write_until_paused(protocol)
        protocol.transport.write_eof()
        peer.transport.resume_reading()
        assert await peer.lost is None
        assert await protocol.lost is None
        assert peer.size == size


@in_loop
async def test_writing_to_a_peer_that_has_closed_is_an_error() -> None:
    class Answering(Counting):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.transport.write(b"wait!")

    def leave(reader: StreamReader, writer: StreamWriter) -> None:
        writer.write(b"good bye")
        writer.close()

    async with two() as (service, client):
        await service.start_server(leave, "leaver")
        _, protocol = await client.create_connection(Answering, "leaver")
        assert isinstance(await protocol.lost, ConnectionResetError)
        assert protocol.size == 8


@in_loop
async def test_data_of_a_closed_peer_can_be_read_although_writing_fails() -> None:
    async with two() as (service, client):
        protocol, peer = await connected(service, client)
        transport = protocol.transport
        transport.pause_reading()
        peer.transport.write(b"good bye")
        peer.transport.close()
        while not transport._writing.is_peer_closed:  # noqa: ASYNC110 - nothing signals this
            await asyncio.sleep(0)
        transport.write(b"are you there?")
        transport.resume_reading()
        assert isinstance(await protocol.lost, ConnectionResetError)
        assert protocol.size == 8


LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop, uvloop.new_event_loop]


@pytest.mark.parametrize("new_loop", LOOPS)
def test_tls_runs_inside_the_stream(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    server_context, client_context = contexts()

    async def secure_echo(reader: StreamReader, writer: StreamWriter) -> None:
        assert await reader.readexactly(8) == b"STARTTLS"
        writer.write(b"OK")
        await writer.start_tls(server_context)
        await echo(reader, writer)

    async def main() -> None:
        async with two() as (service, client):
            await service.start_server(secure_echo, "secure")
            reader, writer = await client.open_connection("secure")
            writer.write(b"STARTTLS")
            assert await reader.readexactly(2) == b"OK"
            await writer.start_tls(client_context, server_hostname="localhost")
            assert writer.get_extra_info("ssl_object").version() is not None
            await ask(reader, writer, noise(MIB))
            await writer.flush()
            await end(writer)

    run(main(), new_loop)


@pytest.mark.parametrize("new_loop", LOOPS)
def test_tls_may_begin_late_at_one_end(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """What the peer has sent of its handshake meanwhile belongs to TLS."""
    server_context, client_context = contexts()

    async def secure_echo(reader: StreamReader, writer: StreamWriter) -> None:
        while not reader._buffer:  # type: ignore[attr-defined]  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await writer.start_tls(server_context)
        await echo(reader, writer)

    async def main() -> None:
        async with two() as (service, client):
            await service.start_server(secure_echo, "secure", limit=16)
            reader, writer = await client.open_connection("secure")
            await writer.start_tls(client_context, server_hostname="localhost")
            await ask(reader, writer, noise(MIB))
            await end(writer)

    run(main(), new_loop)


@in_loop
async def test_no_clear_text_before_tls_is_read_as_a_part_of_it() -> None:
    """A third party between the applications could otherwise put commands before those of the client."""
    server_context, client_context = contexts()
    refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def secure_echo(reader: StreamReader, writer: StreamWriter) -> None:
        assert await reader.readline() == b"STARTTLS\n"
        with pytest.raises(ssl.SSLError):
            await writer.start_tls(server_context)
        refused.set_result(None)

    async with two() as (service, client):
        await service.start_server(secure_echo, "secure")
        _, writer = await client.open_connection("secure")
        writer.write(b"STARTTLS\nDELETE\n")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await writer.start_tls(client_context, server_hostname="localhost")
        await refused


@in_loop
async def test_asyncio_start_tls_accepts_the_transport() -> None:
    server_context, client_context = contexts()

    async def secure_echo(reader: StreamReader, writer: StreamWriter) -> None:
        await writer.start_tls(server_context)
        await echo(reader, writer)

    async with two() as (service, client):
        await service.start_server(secure_echo, "secure")
        transport, protocol = await client.create_connection(Counting, "secure")
        loop = asyncio.get_running_loop()
        secured = await loop.start_tls(transport, protocol, client_context, server_hostname="localhost")
        assert secured is not None
        secured.write(b"12345")
        await protocol.heard.wait()
        secured.close()
        assert await protocol.lost is None


@in_loop
async def test_tls_with_an_untrusted_peer_fails_and_ends_the_connection() -> None:
    server_context, client_context = contexts()

    async def secure_echo(reader: StreamReader, writer: StreamWriter) -> None:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await writer.start_tls(server_context)

    async with two() as (service, client):
        await service.start_server(secure_echo, "secure")
        _, writer = await client.open_connection("secure")
        with pytest.raises(ssl.SSLCertVerificationError):
            await writer.start_tls(client_context, server_hostname="elsewhere.example")
        assert isinstance(writer.transport, Transport)
        assert writer.is_closing()
