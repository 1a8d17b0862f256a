"""Servers, exit requests and the tasks that handle connections."""

import asyncio
import socket
from collections.abc import Awaitable

import pytest

from tests.carriers.harness import ask, echo, end, say_and_hear
from tests.support.loops import in_loop
from tests.support.relays import MemoryTestRelay
from tunnel import DeniedError, ExitRequest, RefusedError, RejectReason, ResetError, Server, StreamReader, StreamWriter
from tunnel.streams.listener import dial_failure
from tunnel.wire import Frame, PacketType


@in_loop
async def test_a_server_behaves_like_asyncio_server() -> None:
    async with MemoryTestRelay() as relay, relay.attach("ann") as service:
        server = await service.start_server(echo, "echo")
        assert isinstance(server, asyncio.AbstractServer)
        assert server.sockets == ()
        assert server.get_loop() is asyncio.get_running_loop()
        await server.start_serving()
        with pytest.raises(ValueError, match="already"):
            await service.start_server(echo, "echo")
        serving = asyncio.create_task(server.serve_forever())
        await asyncio.sleep(0)
        assert "serving" in repr(server)
        server.close()
        server.close()
        await serving
        assert "closed" in repr(server)
        async with await service.start_server(echo, "echo") as again:
            assert again.is_serving()
        cancelled = asyncio.create_task((await service.start_server(echo, "third")).serve_forever())
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled


@in_loop
async def test_a_handler_that_is_cancelled_before_it_begins_resets_its_connection_and_leaves_no_warning() -> None:
    async def unbegun() -> None:
        raise AssertionError

    def handle(reader: StreamReader, writer: StreamWriter) -> Awaitable[None]:
        others = asyncio.all_tasks()

        def cancel() -> None:
            (task,) = asyncio.all_tasks() - others
            task.cancel()

        asyncio.get_running_loop().call_soon(cancel)
        return unbegun()

    async with MemoryTestRelay() as relay, relay.attach("ann") as service, relay.attach("bob") as client:
        await service.start_server(handle, "echo")
        reader, _ = await client.open_connection("echo")
        with pytest.raises(ResetError):
            await reader.read()


def relay_losing_one_announcement() -> MemoryTestRelay:
    """Return a relay that loses the first LISTEN_STATE, as one does that received a damaged packet."""
    announced = 0

    def keep(frame: Frame) -> bool:
        nonlocal announced
        announced += frame.type == PacketType.LISTEN_STATE
        return frame.type != PacketType.LISTEN_STATE or announced > 1

    return MemoryTestRelay(keep)


@in_loop
async def test_start_server_returns_a_reachable_server_after_a_lost_packet() -> None:
    async with relay_losing_one_announcement() as relay, relay.attach("ann") as service, relay.attach("bob") as client:
        await service.start_server(echo, "echo")
        _, writer = await say_and_hear(client)
        await end(writer)


@in_loop
async def test_start_server_raises_a_refusal_after_a_lost_packet() -> None:
    async with relay_losing_one_announcement() as relay, relay.attach("ann") as service:
        with pytest.raises(DeniedError, match="ask its operator"):
            await service.start_server(echo, "forbidden")


@in_loop
async def test_a_handler_may_be_a_plain_function() -> None:
    served: list[asyncio.Task[None]] = []

    def handle(reader: StreamReader, writer: StreamWriter) -> None:
        served.append(asyncio.create_task(echo(reader, writer)))

    async with MemoryTestRelay() as relay, relay.attach("ann") as service, relay.attach("bob") as client:
        await service.start_server(handle, "echo")
        reader, writer = await say_and_hear(client)
        await ask(reader, writer, b"once more")
        await end(writer)
        await served[0]


def test_a_handler_that_raises_is_reported_to_the_loop_and_its_connection_closed() -> None:
    told: list[str] = []

    async def clumsy(reader: StreamReader, writer: StreamWriter) -> None:
        raise LookupError

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["message"]))
        async with MemoryTestRelay() as relay, relay.attach("ann") as service, relay.attach("bob") as client:
            await service.start_server(clumsy, "clumsy")
            reader, writer = await client.open_connection("clumsy")
            assert await reader.read() == b""
            await end(writer)

    asyncio.run(main())
    assert told == ["unhandled exception in a stream handler"]


@in_loop
async def test_the_connection_of_a_cancelled_handler_is_reset_so_that_its_peer_sees_no_clean_end() -> None:
    async def cancelled(reader: StreamReader, writer: StreamWriter) -> None:
        writer.write(b"half")
        await writer.flush()
        raise asyncio.CancelledError

    async with MemoryTestRelay() as relay, relay.attach("ann") as service, relay.attach("bob") as client:
        await service.start_server(cancelled, "cancelled")
        reader, writer = await client.open_connection("cancelled")
        assert await reader.readexactly(4) == b"half"
        with pytest.raises(ResetError):
            await reader.read()
        writer.transport.abort()


def test_an_exit_handler_that_raises_is_reported_to_the_loop_and_its_request_refused() -> None:
    told: list[str] = []

    async def clumsy(request: ExitRequest) -> None:
        raise LookupError

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["message"]))
        async with MemoryTestRelay() as relay, relay.attach("exit", exit_handler=clumsy), relay.attach("bob") as client:
            with pytest.raises(RefusedError):
                await client.open_connection("db", 5432)

    asyncio.run(main())
    assert told == ["unhandled exception in an exit handler"]


@in_loop
async def test_an_exit_request_is_answered_only_once() -> None:
    async def twice(request: ExitRequest) -> None:
        request.refuse(RejectReason.BUSY, "full")
        request.refuse(RejectReason.DENIED)
        with pytest.raises(RuntimeError, match="answered"):
            request.accept_streams()

    class Answer(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            transport.write(b"220 welcome\n")
            transport.close()

    async def greet(request: ExitRequest) -> None:
        request.accept(Answer)

    async with MemoryTestRelay() as relay, relay.attach("bob") as client:
        async with relay.attach("exit", exit_handler=twice, name="exit"):
            with pytest.raises(RefusedError, match="full"):
                await client.open_connection("db", 5432)
        async with relay.attach("exit", exit_handler=greet, name="exit"):
            reader, writer = await client.open_connection("db", 5432)
            assert await reader.readline() == b"220 welcome\n"
            await end(writer)


@in_loop
async def test_closing_the_attachment_cancels_its_handlers() -> None:
    cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def stubborn(reader: StreamReader, writer: StreamWriter) -> None:
        writer.write(b"1")
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cancelled.set_result(None)

    async with MemoryTestRelay() as relay, relay.attach("bob") as client:
        async with relay.attach("ann", linger=0.01) as service:
            server: Server = await service.start_server(stubborn, "stubborn")
            reader, writer = await client.open_connection("stubborn")
            assert await reader.readexactly(1) == b"1"
        await cancelled
        assert not server.is_serving()
        assert await reader.read() == b""  # closed, as the kernel closes the sockets of a process that ends
        writer.transport.abort()


@in_loop
async def test_closing_the_attachment_ends_connections_that_await_the_application() -> None:
    async def never(request: ExitRequest) -> None:
        asked.set_result(None)
        await asyncio.get_running_loop().create_future()

    asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    async with MemoryTestRelay() as relay, relay.attach("bob") as client:
        async with relay.attach("exit", exit_handler=never, linger=0.01):
            waiting = asyncio.create_task(client.open_connection("db", 5432))
            await asked
        with pytest.raises(RefusedError) as caught:
            await waiting
        assert caught.value.reason is RejectReason.SHUTTING_DOWN
        async with relay.attach("ann", linger=0.01) as service:
            await service.start_server(echo, "echo")
            reader, writer = await client.open_connection("echo")
        with pytest.raises(ResetError):
            await reader.read()
        writer.transport.abort()


def test_an_error_of_dialling_becomes_a_reject_reason() -> None:
    reasons = {
        RejectReason.REFUSED: ConnectionRefusedError(),
        RejectReason.TIMED_OUT: TimeoutError(),
        RejectReason.NAME_NOT_RESOLVED: socket.gaierror(),
        RejectReason.UNREACHABLE: OSError(),
    }
    assert {dial_failure(error): error for error in reasons.values()} == reasons


class Batches:
    """Counts the batches that leave."""

    def __init__(self) -> None:
        self.count = 0

    def increment_out_bytes(self, size_bytes: int) -> None:
        self.count += 1

    def register_write(self, size_bytes: int) -> None:
        """Do nothing: repeats count, too."""


@in_loop
async def test_what_is_written_to_a_new_connection_leaves_with_the_ack_of_its_opening() -> None:
    heard: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def hear(request: ExitRequest) -> None:
        reader, writer = request.accept_streams()
        await reader.readexactly(5)
        heard.set_result(batches.count)
        writer.transport.abort()

    async with MemoryTestRelay() as relay, relay.attach("exit", exit_handler=hear), relay.attach("bob") as client:
        client.set_statistics_collector(batches := Batches())
        _, writer = await client.open_connection("db", 5432)
        assert batches.count == 1  # CONNECT
        writer.write(b"early")
        assert await heard == 2
        writer.transport.abort()
