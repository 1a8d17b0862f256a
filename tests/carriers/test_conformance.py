"""The behaviour that users may expect of every carrier, however it moves batches."""

import asyncio

import pytest

from tests.carriers.harness import MIB, Counting, ask, echo, end, noise, on_every_carrier, say_and_hear
from tests.support.relays import TestRelay
from tunnel import (
    DeniedError,
    ExitRequest,
    LostError,
    RefusedError,
    RejectReason,
    ResetError,
    Server,
    StreamReader,
    StreamWriter,
)

BOUND_BYTES = 24 * MIB  # the most that windows, send buffer and mailbox of one stream hold


# opening


@on_every_carrier
async def test_a_service_echoes(relay: TestRelay) -> None:
    async with relay.attach("ann") as service, relay.attach("bob") as client:
        assert service.is_attached
        await service.start_server(echo, "echo")
        reader, writer = await say_and_hear(client)
        assert writer.get_extra_info("peername") == ("echo", 0)
        assert writer.get_extra_info("socket") is None
        writer.write_eof()
        assert await reader.read() == b""
        await end(writer)
        assert client.stats().attached
        assert client.stats().trouble == ""


@on_every_carrier
async def test_connecting_to_a_service_without_a_listener_is_refused(relay: TestRelay) -> None:
    async with relay.attach("ann") as client:
        with pytest.raises(RefusedError, match="start the service, or check its name") as caught:
            await client.open_connection("nothing")
        assert caught.value.reason is RejectReason.NO_SUCH_SERVICE
        assert isinstance(caught.value, ConnectionRefusedError)


@on_every_carrier
async def test_targets_and_names_that_no_rule_allows_are_denied(relay: TestRelay) -> None:
    async with relay.attach("ann") as client:
        with pytest.raises(DeniedError, match="not for you"):
            await client.open_connection("secret")
        with pytest.raises(DeniedError, match="forbidden"):
            await client.start_server(echo, "forbidden")
        server = await client.start_server(echo, "allowed")
        assert server.is_serving()


@on_every_carrier
async def test_a_closed_server_accepts_no_more_and_keeps_its_connections(relay: TestRelay) -> None:
    async with relay.attach("ann") as service, relay.attach("bob") as client:
        server = await service.start_server(echo, "echo")
        reader, writer = await say_and_hear(client)
        server.close()
        await asyncio.sleep(0)
        with pytest.raises(RefusedError):
            await client.open_connection("echo")
        await ask(reader, writer, b"still here")
        await end(writer)
        await server.wait_closed()


@on_every_carrier
async def test_the_server_may_speak_first(relay: TestRelay) -> None:
    async def greet(reader: StreamReader, writer: StreamWriter) -> None:
        writer.write(b"220 welcome\r\n")
        assert await reader.read() == b""
        writer.close()

    async with relay.attach("ann") as service, relay.attach("bob") as client:
        await service.start_server(greet, "greeter")
        reader, writer = await client.open_connection("greeter")
        assert await reader.readline() == b"220 welcome\r\n"
        await end(writer)


@on_every_carrier
async def test_an_exit_dials_or_refuses(relay: TestRelay) -> None:
    async def dial(request: ExitRequest) -> None:
        assert request.user == "ann"
        if request.target.host == "closed":
            raise ConnectionRefusedError("nothing listens there")
        if request.target.host == "unknown":
            request.refuse(RejectReason.NAME_NOT_RESOLVED)
        if request.target.host == "db":
            await echo(*request.accept_streams())

    async with relay.attach("exit", exit_handler=dial), relay.attach("ann") as client:
        reader, writer = await client.open_connection("db", 5432)
        await ask(reader, writer, b"select 1")
        await end(writer)
        for host, reason in (
            ("closed", RejectReason.REFUSED),
            ("unknown", RejectReason.NAME_NOT_RESOLVED),
            ("ignored", RejectReason.UNREACHABLE),
        ):
            with pytest.raises(RefusedError) as caught:
                await client.open_connection(host, 1)
            assert caught.value.reason is reason


# moving bytes


@on_every_carrier
async def test_bulk_flows_both_ways_at_once(relay: TestRelay) -> None:
    up, down = noise(5 * MIB, 1), noise(4 * MIB, 2)
    received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def swap(reader: StreamReader, writer: StreamWriter) -> None:
        writer.write(down)
        writer.write_eof()
        received.set_result(await reader.read())
        await end(writer)

    async with relay.attach("ann") as service, relay.attach("bob") as client:
        await service.start_server(swap, "swap")
        reader, writer = await client.open_connection("swap")
        writer.write(bytearray(up))
        writer.write_eof()
        assert await reader.read() == down
        await end(writer)
        assert await received == up  # acknowledged bytes may still be unread


@on_every_carrier
async def test_one_direction_may_end_before_the_other(relay: TestRelay) -> None:
    async def count(reader: StreamReader, writer: StreamWriter) -> None:
        size = len(await reader.read())
        writer.write(b"%d" % size)
        await end(writer)

    async with relay.attach("ann") as service, relay.attach("bob") as client:
        await service.start_server(count, "count")
        reader, writer = await client.open_connection("count")
        writer.writelines([b"a" * 1000, b"", b"b" * 234])
        assert writer.can_write_eof()
        writer.write_eof()
        assert await reader.read() == b"1234"
        await end(writer)


@on_every_carrier
async def test_flush_waits_for_acknowledgement_and_close_delivers_all_data(relay: TestRelay) -> None:
    received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def collect(reader: StreamReader, writer: StreamWriter) -> None:
        received.set_result(await reader.read())
        writer.close()

    async with relay.attach("ann") as service, relay.attach("bob") as client:
        await service.start_server(collect, "collect")
        _, writer = await client.open_connection("collect")
        data = noise(3 * MIB)
        writer.write(data)
        await writer.flush()
        (stats,) = client.stats().connections.values()
        assert stats.bytes_acknowledged == stats.bytes_written == len(data)
        await writer.flush()  # returns at once: everything is acknowledged
        writer.write(b"the end")
        await end(writer)
        assert await received == data + b"the end"


@on_every_carrier
async def test_many_streams_share_an_attachment(relay: TestRelay) -> None:
    async with relay.attach("ann") as service, relay.attach("bob") as client:
        await service.start_server(echo, "echo")

        async def talk(number: int) -> None:
            reader, writer = await say_and_hear(client)
            data = noise(10_000 + number, number)
            await ask(reader, writer, data)
            await end(writer)

        await asyncio.gather(*(talk(number) for number in range(30)))


@on_every_carrier
async def test_a_slow_reader_causes_back_pressure_and_disturbs_no_other_stream(relay: TestRelay) -> None:
    slow: asyncio.Future[Counting] = asyncio.get_running_loop().create_future()

    def accept() -> asyncio.Protocol:
        class Slow(Counting):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                self.transport.pause_reading()
                slow.set_result(self)

        return Slow()

    async with relay.attach("ann") as service, relay.attach("bob") as client:
        await service.create_server(accept, "slow")
        await service.start_server(echo, "echo")
        transport, protocol = await client.create_connection(Counting, "slow")
        chunk = noise(MIB // 2)
        written = 0
        while not protocol.paused.is_set():
            transport.write(chunk)
            written += len(chunk)
            await asyncio.sleep(0)
            assert written <= BOUND_BYTES
        _, writer = await say_and_hear(client)
        await end(writer)
        peer = await slow
        assert peer.size == 0
        assert not peer.transport.is_reading()
        peer.transport.resume_reading()
        await protocol.resumed.wait()
        transport.close()
        assert await protocol.lost is None
        assert await peer.lost is None
        assert peer.size == written


# ends


@on_every_carrier
async def test_abort_is_an_error_to_the_peer(relay: TestRelay) -> None:
    failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def read(reader: StreamReader, writer: StreamWriter) -> None:
        writer.write(await reader.readexactly(5))
        try:
            await reader.read()
        except ConnectionError as error:
            failed.set_result(error)
        with pytest.raises(LostError):
            await writer.flush()

    async with relay.attach("ann") as service, relay.attach("bob") as client:
        await service.start_server(read, "echo")
        reader, writer = await say_and_hear(client)
        writer.transport.abort()
        assert isinstance(await failed, ResetError)
        assert await reader.read() == b""  # the aborting side itself sees a plain end
        await writer.wait_closed()


@on_every_carrier
async def test_writing_to_a_closed_peer_fails(relay: TestRelay) -> None:
    async def leave(reader: StreamReader, writer: StreamWriter) -> None:
        writer.write(b"good bye")
        await end(writer)

    async with relay.attach("ann") as service, relay.attach("bob") as client:
        await service.start_server(leave, "leaver")
        reader, writer = await client.open_connection("leaver")
        assert await reader.read() == b"good bye"
        writer.write(b"are you there?")
        for call in (writer.drain, writer.flush):
            with pytest.raises(ConnectionResetError):
                await call()
        writer.close()


@on_every_carrier
async def test_closing_an_attachment_delivers_all_written_data(relay: TestRelay) -> None:
    data = noise(MIB)
    received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def collect(reader: StreamReader, writer: StreamWriter) -> None:
        received.set_result(await reader.read())
        writer.close()

    async with relay.attach("ann") as service:
        server: Server = await service.start_server(collect, "collect")
        async with relay.attach("bob") as client:
            _, writer = await client.open_connection("collect")
            writer.write(data)
        assert await received == data
        assert server.is_serving()
        with pytest.raises(RuntimeError, match="not open"):
            await client.open_connection("collect")
