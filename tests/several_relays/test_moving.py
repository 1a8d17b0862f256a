"""Open connections move to another relay (6.11)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from tests.several_relays.rig import AWAY, Exit, at, relays, several, until_answers
from tests.support.loops import in_loop, until
from tests.support.relays import Fault, MemoryTestRelay, TestRelay, inside
from tunnel import Attachment, StreamReader, StreamWriter
from tunnel.core import Connected
from tunnel.exchange import AttachRefused
from tunnel.streams.listener import ExitRequest
from tunnel.traces.record import TraceCause, TraceEvent, TraceRecord
from tunnel.wire import Attach, Message, attachment_id


@asynccontextmanager
async def one_exit(*, same_users: bool = True) -> AsyncIterator[tuple[TestRelay, TestRelay, Attachment]]:
    """Run two relays with one exit at both, and a client of both."""
    async with relays(b"", b"") as (first, second):
        everywhere = at(first, second, user="exit", exit_handler=Exit(b"one"), same_users=same_users)
        async with everywhere, at(first, second) as client:
            await until_answers(everywhere, True, True)
            yield first, second, client


async def echo(streams: tuple[StreamReader, StreamWriter], text: bytes) -> bytes:
    reader, writer = streams
    writer.write(text)
    return await reader.readexactly(len(text))


@in_loop
async def test_6_11_an_open_connection_moves_to_the_relay_that_answers(hurry: None) -> None:
    began_s = time.time()
    async with one_exit() as (first, second, client):
        streams = await client.open_connection("db", 5432)
        assert await streams[0].readexactly(3) == b"one"
        first.fault = lambda message: AWAY
        assert await echo(streams, b"moved") == b"moved"
        stats = client.stats()
        assert [relay.connections for relay in stats.relays] == [0, 1]
        assert [*stats.relay_of.values()] == ["r1"]
        (move,) = stats.moves
        assert (move.before, move.now, move.target, move.why) == ("r0", "r1", "db:5432", "its relay did not answer")
        assert move.at_s > began_s
        first.fault = lambda message: None
        await until(lambda: not first.core.switch.stats().routes)  # LEAVE has come
        await until_answers(client, True, True)
        assert await echo(streams, b"stays") == b"stays"
        assert second.core.switch.stats().routes_bound == 1
        second.fault = lambda message: AWAY
        assert await echo(streams, b"and back") == b"and back"
        assert [relay.connections for relay in client.stats().relays] == [1, 0]
        assert [(move.before, move.now) for move in client.stats().moves] == [("r0", "r1"), ("r1", "r0")]


@in_loop
async def test_a_connection_that_has_moved_may_open_after_the_end_of_its_first_endpoint() -> None:
    """An encrypted one opens when its handshake ends. Its first relay may have refused the endpoint meanwhile."""
    async with relays(b"one") as (relay,), relay.attach("bob") as here, relay.attach("bob") as there:
        first, second = inside(here), inside(there)
        made = await first.connect("db", 5432, None)
        assert first.let_go(made.transport.connection_id) is made
        (driver,) = second.drivers
        made.move_to(driver)
        await first.end()
        made.transport._handle(Connected(made.transport.connection_id))
        assert driver._is_turn_awaited


@in_loop
async def test_6_11_an_open_connection_follows_an_exit_that_has_lost_the_relay_alone(hurry: None) -> None:
    """The initiator still reaches it, and had no reason to attach to another one."""
    async with relays(b"", b"") as (first, second):
        everywhere = at(first, second, user="exit", exit_handler=Exit(b"one"), same_users=True)
        async with everywhere, at(first, second) as client:
            await until_answers(everywhere, True, True)
            streams = await client.open_connection("db", 5432)
            assert await streams[0].readexactly(3) == b"one"
            (driver,) = several(everywhere)._places[0].endpoint.drivers
            lost = driver.endpoint.endpoint_id

            def cut(message: Message) -> Fault | None:
                identity = attachment_id(message.secret) if isinstance(message, Attach) else None
                return AWAY if lost in (identity, getattr(message, "attachment_id", None)) else None

            first.fault = cut
            assert await echo(streams, b"moved") == b"moved"
            assert [relay.attached for relay in client.stats().relays] == [True, True]
            assert [relay.connections for relay in client.stats().relays] == [0, 1]
            await until(lambda: not first.core.switch.stats().routes)  # LEAVE has come


@in_loop
async def test_6_11_open_connections_leave_a_relay_that_drains(hurry: None) -> None:
    async with one_exit() as (first, _, client):
        many = [await client.open_connection("db", 5432) for _ in range(20)]
        for _ in first.core.drain():
            pass
        await until(lambda: [relay.connections for relay in client.stats().relays] == [0, 20])
        await until(lambda: not first.core.switch.stats().routes)
        assert [await echo(streams, b"more") for streams in many] == [b"onem"] * 20
        assert first.core.switch.stats().counters.routes_moved == 20
        stats = client.stats()
        assert stats.moves_count == 20
        assert {move.why for move in stats.moves} == {"its relay was about to stop"}


@in_loop
async def test_6_11_a_move_is_traced_at_both_ends(hurry: None) -> None:
    told: list[TraceRecord] = []
    async with relays(b"", b"") as (first, second):
        everywhere = at(first, second, user="exit", exit_handler=Exit(b"one"), same_users=True, trace=told.append)
        async with everywhere, at(first, second, trace=told.append) as client:
            await until_answers(everywhere, True, True)
            streams = await client.open_connection("db", 5432)
            (number,) = client.stats().connections
            for _ in first.core.drain():
                pass
            await until(lambda: second.core.switch.stats().routes_bound == 1)
            assert await echo(streams, b"one") == b"one"
            found = [record for record in told if record.event == TraceEvent.CONNECTION_MOVED]
            streams[1].transport.abort()
        exits, initiators = sorted(found, key=lambda record: record.connection == number)
        assert (exits.connection, exits.peer) == (initiators.peer, initiators.connection)
        assert (exits.cause, initiators.cause) == (TraceCause.PEER_MOVED, TraceCause.RELAY_DRAINED)
        assert {record.text for record in found} == {"memory -> memory"}


@in_loop
async def test_6_11_a_connection_to_a_service_moves_with_its_transport(hurry: None) -> None:
    async with (
        relays(b"", b"") as (first, second),
        at(first, second, user="rita", same_users=True) as listener,
        at(first, second) as client,
    ):
        exit_ = Exit(b"one")
        await listener.start_server(exit_.serve, "reports")
        await until_answers(listener, True, True)
        streams = await client.open_connection("reports")
        assert await streams[0].readexactly(3) == b"one"
        for _ in first.core.drain():
            pass
        await until(lambda: [relay.connections for relay in client.stats().relays] == [0, 1])
        assert [relay.connections for relay in listener.stats().relays] == [0, 1]
        streams[1].write_eof()
        assert await streams[0].read() == b""
        await until(lambda: not listener.stats().connections)


@pytest.mark.parametrize("is_attached", [False, True], ids=["new", "attached"])
@in_loop
async def test_6_11_what_was_written_moves_while_the_attachment_is_closed(hurry: None, is_attached: bool) -> None:
    """Closing attaches to the other relay if need be, and ends nothing there before all bytes have arrived."""
    text = b"all of it" * 100_000  # more than can be in flight when it moves
    got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def keep(request: ExitRequest) -> None:
        reader, writer = request.accept_streams()
        got.set_result(await reader.read())
        writer.close()

    async with AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(MemoryTestRelay()) for _ in range(2)]
        everywhere = at(first, second, user="exit", exit_handler=keep, same_users=True)
        await stack.enter_async_context(everywhere)
        await until_answers(everywhere, True, True)
        client = at(first, second, linger=20)
        await client.start()
        _, writer = await client.open_connection("db", 5432)
        if is_attached:
            several(client)._seek(everywhere=True)
            await until_answers(client, True, True)
        first.fault = lambda message: AWAY
        writer.write(text)
        await client.close()
        assert await asyncio.wait_for(got, 5) == text


@in_loop
async def test_closing_waits_for_a_relay_that_is_away_with_what_cannot_move(hurry: None) -> None:
    async with one_exit(same_users=False) as (first, second, _), at(first, second, linger=20) as client:
        reader, writer = await client.open_connection("db", 5432)
        assert await reader.readexactly(3) == b"one"
        first.fault = lambda message: AWAY
        await until_answers(client, False, True)
        writer.write(b"all of it")
        closing = asyncio.ensure_future(client.close())
        await asyncio.sleep(0.1)
        assert not closing.done()
        before = first.core.switch.stats().counters.packets_streamed
        first.fault = lambda message: None
        await closing
        assert first.core.switch.stats().counters.packets_streamed > before


@in_loop
async def test_6_11_without_one_domain_of_users_a_connection_stays(hurry: None) -> None:
    async with one_exit(same_users=False) as (first, second, client):
        streams = await client.open_connection("db", 5432)
        assert await streams[0].readexactly(3) == b"one"
        for _ in first.core.drain():
            pass
        await until(lambda: several(client)._places[0].endpoint.is_draining)
        assert await echo(streams, b"stays") == b"stays"
        await until(lambda: [relay.connections for relay in client.stats().relays] == [1, 0])
        assert second.core.switch.stats().counters.connects == 0
        assert ["--same-users" in why for why in client.stats().stays.values()] == [True]


@in_loop
async def test_it_is_said_why_a_connection_cannot_leave_its_relay(hurry: None) -> None:
    """The other end has lost the connection, or both have only the relay that does not answer."""
    async with one_exit() as (first, second, client):
        streams = await client.open_connection("db", 5432)
        assert await streams[0].readexactly(3) == b"one"
        second.fault = lambda message: AWAY
        await until(lambda: [relay.attached for relay in client.stats().relays] == [True])
        assert client.stats().stays == {}
        first.fault = lambda message: AWAY
        await until(lambda: [*client.stats().stays.values()] == ["no other relay is usable"])
        (place, _) = several(client)._places
        (driver,) = place.endpoint.drivers
        (number,) = driver.endpoint.connections
        driver.endpoint.connections[number].identity.route_key = bytes(16)  # so that the exit does not know it
        second.fault = lambda message: None
        await until(lambda: "through r1, the other end did not take it: " in client.stats().stays.get(number, ""))
        streams[1].transport.abort()


@in_loop
async def test_a_relay_that_refuses_later_is_asked_again_and_takes_moved_connections(hurry: None) -> None:
    """The endpoint that has ended takes no part any more: connections move to the new one and back."""
    async with one_exit() as (first, _, client):
        streams = await client.open_connection("db", 5432)
        assert await streams[0].readexactly(3) == b"one"
        found = several(client)
        found._start_next(everywhere=True)
        await until_answers(client, True, True)
        place, ended = found._places[1], found._places[1].endpoint
        ended._refused(AttachRefused(401, 0, "revoked"))
        found._ask_again(place)
        assert place.endpoint is not ended
        await until_answers(client, True, True)
        assert len(found._siblings.members) == 2
        first.fault = lambda message: AWAY
        await until(lambda: place.endpoint.has_connections)
        assert await echo(streams, b"moved") == b"moved"
        streams[1].transport.abort()
