"""An attachment that leaves: it accepts nothing new, the relay learns of it, and open connections go on (6.10)."""

import asyncio

import pytest

from tests.support.loops import in_loop
from tests.support.relays import MemoryTestRelay, inside
from tunnel import ExitRequest, RefusedError, RejectReason, StreamReader, StreamWriter


class Greeter:
    """An exit handler and a service that greets with its own text, and then echoes."""

    def __init__(self, text: bytes) -> None:
        self.text = text

    async def __call__(self, request: ExitRequest) -> None:
        await self.serve(*request.accept_streams())

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        writer.write(self.text)
        while data := await reader.read(100):
            writer.write(data)
        writer.close()


@in_loop
async def test_an_exit_that_leaves_keeps_its_connections_and_another_one_gets_the_new_ones() -> None:
    async with (
        MemoryTestRelay() as relay,
        relay.attach("exit", exit_handler=Greeter(b"one"), name="one", linger=0.1) as leaving,
        relay.attach("bob", linger=0.1) as client,
    ):
        reader, writer = await client.open_connection("db", 5432)
        assert await reader.readexactly(3) == b"one"
        async with relay.attach("exit", exit_handler=Greeter(b"two"), name="two", linger=0.1):
            leaving.leave()
            for _ in range(3):
                other, greeted = await client.open_connection("db", 5432)
                assert await other.readexactly(3) == b"two"
                greeted.transport.abort()
            writer.write(b"still here")
            assert await reader.readexactly(10) == b"still here"


@in_loop
async def test_an_exit_that_is_closed_has_told_the_relay() -> None:
    async with MemoryTestRelay() as relay, relay.attach("bob") as client:
        async with relay.attach("exit", exit_handler=Greeter(b"x"), linger=0.1):
            assert relay.core.switch.stats().exits == 1
        assert relay.core.switch.stats().exits == 0
        with pytest.raises(RefusedError, match="no exit is attached") as refused:
            await client.open_connection("db", 5432)
        assert refused.value.reason is RejectReason.NO_EXIT


@in_loop
async def test_a_client_that_is_closed_has_told_the_relay() -> None:
    """So it takes no place at the relay for minutes: a user may run any number of commands, one after the other."""
    async with MemoryTestRelay() as relay:
        async with relay.attach("bob", linger=0.1):
            (bob,) = relay.core.switch.operator.attachments()
            assert not bob.is_leaving
        assert bob.is_leaving


@in_loop
async def test_a_relay_that_was_restarted_is_told_again() -> None:
    async with (
        MemoryTestRelay() as relay,
        relay.attach("exit", exit_handler=Greeter(b"x"), linger=0.1) as leaving,
        relay.attach("bob", linger=0.1) as client,
    ):
        reader, writer = await client.open_connection("db", 5432)
        leaving.leave()
        relay.restart()
        writer.write(b"y")
        assert await reader.readexactly(2) == b"xy"  # the connection was resumed
        while relay.core.switch.stats().exits:  # noqa: ASYNC110 - nothing tells when it has arrived
            await asyncio.sleep(0)


@in_loop
async def test_an_attachment_that_leaves_offers_no_service_any_more() -> None:
    async with (
        MemoryTestRelay() as relay,
        relay.attach("ann", linger=0.1) as leaving,
        relay.attach("bob", linger=0.1) as client,
    ):
        server = await leaving.start_server(Greeter(b"hello").serve, "greeter")
        reader, writer = await client.open_connection("greeter")
        assert await reader.readexactly(5) == b"hello"
        leaving.leave()
        assert not server.is_serving()
        with pytest.raises(RefusedError) as refused:
            await client.open_connection("greeter")
        assert refused.value.reason is RejectReason.NO_SUCH_SERVICE
        writer.write(b"on")
        assert await reader.readexactly(2) == b"on"
        with pytest.raises(RuntimeError, match="accepts no connections any more"):
            await leaving.start_server(Greeter(b"again").serve, "greeter")


@in_loop
async def test_an_exit_that_the_relay_has_refused_tells_it_nothing() -> None:
    """Otherwise its end would wait for an answer that cannot come."""
    async with MemoryTestRelay() as relay:
        attachment = relay.attach("exit", exit_handler=Greeter(b"x"), linger=0.1)
        await attachment.start()
        endpoint = inside(attachment)
        assert endpoint._driver is not None
        endpoint._refusal = RefusedError("", RejectReason.DENIED)
        endpoint.leave()
        assert endpoint._driver.endpoint.attachment_options.is_answered
        await attachment.close()
