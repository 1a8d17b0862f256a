"""The life of an attachment, and errors of the application that uses it."""

import asyncio
import threading
from typing import Any

import pytest

import tunnel
from tests.carriers.harness import echo, end, say_and_hear
from tests.support.loops import in_loop
from tests.support.relays import LOSE_REQUEST, Fault, MemoryTestRelay, inside
from tunnel import ExitRequest, LostError, RefusedError, UnreachableError
from tunnel.attached_endpoint import AttachedEndpoint
from tunnel.carriers.base import Carrier
from tunnel.carriers.exchanging import ExchangingCarrier
from tunnel.core import EndpointConfig
from tunnel.encryption.transport import EncryptedTransport
from tunnel.exchange import AttachRefused, Recovered
from tunnel.streams.rate_limit import RateLimit
from tunnel.streams.transport import Transport
from tunnel.wire import Attach, Message, Packet, PacketType, RejectReason

PUBLIC = """
add_connection_listener add_error_listener add_wait_listener check close create_connection create_server is_attached
leave open_connection rate_limit refusal renew_secrets set_pull_interval set_statistics_collector start start_server
stats
"""

OF_A_SERVER = "close get_loop is_serving name refusal refused serve_forever sockets start_serving wait_closed"
# Beside the methods of asyncio's transports: what a transport says of its connection, its rate, and `flush`.
OF_A_TRANSPORT = "connection_id encryption flush limit_rate set_extra_info stats target write_error"


def test_the_public_names_of_an_attachment_are_for_its_users() -> None:
    assert sorted(name for name in dir(tunnel.Attachment) if not name.startswith("_")) == PUBLIC.split()
    attachment = MemoryTestRelay().attach("ann")
    assert sorted(name for name in dir(attachment) if not name.startswith("_")) == PUBLIC.split()
    asyncio.run(attachment.close())


@in_loop
async def test_the_public_names_of_servers_and_transports_are_for_their_users() -> None:
    def names(thing: object) -> set[str]:
        return {name for name in dir(thing) if not name.startswith("_")}

    async with MemoryTestRelay() as relay, relay.attach("ann") as service, relay.attach("bob") as client:
        server = await service.create_server(asyncio.Protocol, "reports")
        transport, _ = await client.create_connection(asyncio.Protocol, "reports")
        assert names(server) == set(OF_A_SERVER.split())
        for made in (transport, EncryptedTransport):
            assert names(made) - names(asyncio.Transport) <= set(OF_A_TRANSPORT.split())
        assert names(asyncio.Transport) <= names(transport)


def test_an_attachment_that_is_dropped_before_its_start_warns() -> None:
    with pytest.warns(RuntimeWarning, match=r"write `async with tunnel.attach\(\.\.\.\) as t:`") as caught:
        tunnel.attach("http://127.0.0.1:1")
    assert [warning.filename for warning in caught] == [__file__]


def test_an_attachment_with_wrong_arguments_only_raises() -> None:
    with pytest.raises(ValueError, match="http"):  # a warning would fail the test: pytest turns it into an error
        tunnel.attach("ftp://127.0.0.1:1")


@in_loop
async def test_a_caller_that_asks_while_the_imports_run_gets_the_endpoint_that_is_started() -> None:
    asked = threading.Event()

    def make() -> AttachedEndpoint:
        if threading.current_thread() is not threading.main_thread():
            assert asked.wait(60)
        return AttachedEndpoint(carrier, EndpointConfig(), rate_limit=RateLimit.parse("1 MiB/s"))

    async with MemoryTestRelay() as relay:
        other = relay.attach("ann")
        carrier = inside(other)._make_carrier
        await other.close()
        attachment = tunnel.Attachment(make, later=True)
        starting = asyncio.get_running_loop().create_task(attachment.start())
        await asyncio.sleep(0)
        limit = attachment.rate_limit
        asked.set()
        await starting
        assert attachment.rate_limit is limit is not None
        await attachment.close()


@in_loop
async def test_an_attachment_starts_once_and_ends_once() -> None:
    async with MemoryTestRelay() as relay:
        attachment = relay.attach("ann")
        with pytest.raises(RuntimeError, match="async with"):
            attachment.stats()
        await attachment.close()
        async with attachment:
            with pytest.raises(RuntimeError, match="only once"):
                await attachment.start()
        await attachment.close()
        with pytest.raises(RuntimeError, match="not open"):
            attachment.stats()


class Asking:
    """A collector that asks for the state of the attachment whenever something leaves."""

    def __init__(self, attachment: tunnel.Attachment) -> None:
        self._attachment = attachment
        self.asked = 0

    def increment_out_bytes(self, size_bytes: int) -> None:
        self._attachment.stats()
        self.asked += 1

    def register_write(self, size_bytes: int) -> None:
        self.increment_out_bytes(size_bytes)


@in_loop
async def test_a_listener_may_ask_while_the_attachment_says_that_it_leaves() -> None:
    async with MemoryTestRelay() as relay, relay.attach("ann") as attachment:
        asking = Asking(attachment)
        attachment.set_statistics_collector(asking)
        before = asking.asked
        await attachment.close()
        assert asking.asked > before


@in_loop
async def test_an_error_within_the_context_closes_without_lingering() -> None:
    async with MemoryTestRelay() as relay, relay.attach("ann") as service:
        await service.start_server(echo, "echo")
        writers = []

        async def fail() -> None:
            async with relay.attach("bob", linger=50) as client:
                writers.append((await say_and_hear(client))[1])
                raise LookupError

        with pytest.raises(LookupError):
            await fail()
        assert writers[0].is_closing()


@in_loop
async def test_an_error_within_the_context_resets_connections_at_the_peer() -> None:
    async with MemoryTestRelay() as relay, relay.attach("ann") as service:
        ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

        async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await reader.readexactly(2)
                await reader.read()
                ended.set_result(None)
            except OSError as error:
                ended.set_result(error)

        async def half() -> None:
            async with relay.attach("bob") as client:
                _, writer = await client.open_connection("half")
                writer.write(b"ha")
                await writer.flush()
                raise LookupError

        await service.start_server(read, "half")
        with pytest.raises(LookupError):
            await half()
        assert isinstance(await ended, ConnectionResetError)


@in_loop
async def test_a_relay_that_never_answers_is_unreachable() -> None:
    async with MemoryTestRelay() as relay:
        relay.fault = lambda message: LOSE_REQUEST
        with pytest.raises(UnreachableError, match=r"memory within 0\.01 s \(no answer\)"):
            async with asyncio.timeout(10):
                await relay.attach("ann", attach_timeout=0.01).start()


@in_loop
async def test_listeners_learn_of_a_disconnection_and_of_the_next_answer() -> None:
    told: list[str] = []

    class Listener:
        def disconnected(self, reason: str) -> None:
            told.append(reason)

        def reconnected(self) -> None:
            told.append("reconnected")

    async with MemoryTestRelay() as relay, relay.attach("ann") as service, relay.attach("bob") as client:
        await service.start_server(echo, "echo")
        client.add_connection_listener(Listener())
        relay.fault = lambda message: None if told or isinstance(message, Attach) else Fault(500, b"<html>down")
        _, writer = await say_and_hear(client)
        await end(writer)
        assert client.is_attached
    reason, *more = told
    assert "500" in reason
    assert more == ["reconnected"]


@in_loop
async def test_4_15_the_user_timeout_ends_a_stream_whose_relay_is_gone() -> None:
    async with (
        MemoryTestRelay() as relay,
        relay.attach("ann", linger=0.01) as service,
        relay.attach("bob", user_timeout=1.0, linger=0.01) as client,
    ):
        await service.start_server(echo, "echo")
        reader, writer = await say_and_hear(client)
        relay.fault = lambda message: LOSE_REQUEST
        writer.write(b"is anybody there?")
        with pytest.raises(LostError, match="no answer within the user timeout"):
            await reader.read()
        writer.close()


@in_loop
async def test_a_connection_to_a_service_that_has_just_closed_is_ended() -> None:
    async with MemoryTestRelay() as relay, relay.attach("ann") as service, relay.attach("bob") as client:
        server = await service.start_server(echo, "echo")
        inside(service)._servers.clear()  # as if it had closed between the acceptance and the first packet
        reader, writer = await client.open_connection("echo")
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        server.close()


@in_loop
async def test_packets_for_an_unknown_connection_are_counted() -> None:
    async with MemoryTestRelay() as relay, relay.attach("ann") as client:
        inside(client)._ready().endpoint.receive_packets(
            [Packet(PacketType.PONG, 0, 0, 0)], inside(client)._ready().now()
        )
        assert client.stats().packets_discarded == 1


def test_the_package_has_the_names_that_it_exports() -> None:
    assert set(tunnel.__all__) <= set(dir(tunnel))
    assert tunnel.RejectReason is RejectReason
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tunnel.nothing


@in_loop
async def test_a_waiting_flush_can_be_cancelled() -> None:
    async with MemoryTestRelay() as relay, relay.attach("ann") as service, relay.attach("bob") as client:
        await service.start_server(echo, "echo")
        _, writer = await say_and_hear(client)
        relay.fault = lambda message: LOSE_REQUEST
        writer.write(b"x")
        flushing = asyncio.create_task(writer.flush())
        await asyncio.sleep(0)
        flushing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await flushing
        relay.fault = lambda message: None
        await writer.flush()
        await end(writer)


@in_loop
async def test_recovery_after_closing_is_no_error() -> None:
    async with MemoryTestRelay() as relay:
        attachment = relay.attach("ann")
        await attachment.start()
        await attachment.close()
        inside(attachment).status(Recovered())  # from an answer that was still in flight
        assert attachment.refusal is None


@in_loop
async def test_connecting_after_the_relay_has_refused_raises_its_refusal_at_once() -> None:
    async with MemoryTestRelay() as relay, relay.attach("bob", linger=0.01) as client:
        inside(client).status(AttachRefused(0, 0, "the relay has had enough"))
        asking = asyncio.ensure_future(client.open_connection("reports"))
        await asyncio.sleep(0)
        assert asking.done()
        with pytest.raises(UnreachableError, match="had enough"):
            await asking


@in_loop
async def test_an_exit_that_leaves_dials_no_target_that_reaches_it_nevertheless() -> None:
    async def dial(request: ExitRequest) -> None:
        raise AssertionError("it leaves")

    async with MemoryTestRelay() as relay, relay.attach("exit", exit_handler=dial) as exit_, relay.attach() as client:
        inside(exit_)._leaving = True  # and the relay has not heard it yet
        with pytest.raises(RefusedError, match="the exit is shutting down") as refused:
            await client.open_connection("db.internal", 5432)
    assert refused.value.reason is RejectReason.SHUTTING_DOWN


@in_loop
async def test_2_7_the_pull_interval_can_be_changed_and_is_asked_for_again_after_a_restart() -> None:
    async with (
        MemoryTestRelay(pull_interval_us_max=50_000) as relay,
        relay.attach("ann") as service,
        relay.attach("bob") as client,
    ):
        await service.start_server(echo, "echo")
        assert client.stats().pull_interval == 0
        assert await client.set_pull_interval(0.02) == 0.02
        assert await client.set_pull_interval(7) == 0.05  # the relay's bound
        asked: list[int] = []

        def note(message: Message) -> None:
            if isinstance(message, Attach):
                asked.append(message.pull_interval_ms)

        relay.fault = note
        relay.restart()
        _, writer = await say_and_hear(client)
        await end(writer)
        assert 7000 in asked
        assert client.stats().pull_interval == 0.05
        assert service.stats().pull_interval == 0
        with pytest.raises(ValueError, match="the pull interval must be 0, or from"):
            await client.set_pull_interval(-1)


@in_loop
async def test_a_pull_interval_is_not_awaited_once_the_relay_has_refused() -> None:
    async with MemoryTestRelay() as relay, relay.attach("bob", linger=0.01) as client:
        relay.fault = lambda message: LOSE_REQUEST
        asking = asyncio.ensure_future(client.set_pull_interval(0.02))
        await asyncio.sleep(0)
        inside(client).status(AttachRefused(0, 0, "the relay has had enough"))
        inside(client)._ready()._wake_waiters()
        with pytest.raises(UnreachableError, match="had enough"):
            await asking


@pytest.mark.parametrize("seconds", [None, 60.0])
@in_loop
async def test_a_timeout_of_something_within_a_connect_is_passed_on_as_it_is(
    seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def late(transport: Transport) -> None:
        raise TimeoutError("the key store did not answer")

    monkeypatch.setattr(Transport, "_wait_for_opening", late)
    async with MemoryTestRelay() as relay, relay.attach("ann") as attachment:
        with pytest.raises(TimeoutError, match=r"^the key store did not answer$"):
            await attachment.open_connection("reports", timeout=seconds)


@pytest.mark.interpreted  # it replaces a method of a compiled class
@pytest.mark.parametrize("seconds", [None, 60.0])
@in_loop
async def test_a_timeout_of_something_within_an_attach_is_passed_on_as_it_is(
    seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def late(carrier: Carrier) -> None:
        raise TimeoutError("the key store did not answer")

    async with MemoryTestRelay() as relay:
        attachment = relay.attach("ann", attach_timeout=seconds)
        monkeypatch.setattr(ExchangingCarrier, "until_ready", late)
        with pytest.raises(TimeoutError, match=r"^the key store did not answer$"):
            await attachment.start()


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("db", "5432", "the port is an int, not '5432'"),
        ("db", 5432.0, "the port is an int, not 5432.0"),
        (None, 5432, "the host, or the name of a service, is a str, not None"),
        (("db", 5432), None, r"is a str, not \('db', 5432\)"),
        (b"db", 5432, "is a str, not b'db'"),
    ],
)
@in_loop
async def test_a_target_of_a_wrong_type_is_named(host: str, port: int, message: str) -> None:
    async with MemoryTestRelay() as relay, relay.attach("ann") as attachment:
        for connecting in (
            attachment.open_connection(host, port),
            attachment.create_connection(asyncio.Protocol, host, port),
            attachment.check(host, port),
        ):
            with pytest.raises(TypeError, match=message):
                await connecting


@in_loop
async def test_a_service_has_its_handler_first() -> None:
    def handler(*_: object) -> None:
        raise AssertionError

    swapped: tuple[Any, Any] = ("reports", handler)
    async with MemoryTestRelay() as relay, relay.attach("ann") as attachment:
        for serving in (attachment.start_server(*swapped), attachment.create_server(*swapped)):
            with pytest.raises(
                TypeError, match="first comes what serves the connections, then the name of the service"
            ):
                await serving
