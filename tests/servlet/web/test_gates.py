"""Limits on how much of one user's input the relay handles in one turn of its event loop, counted and not timed."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from aiohttp.web import RequestHandler

from tests.servlet.rig import Client, attach_body, relay, settings, until
from tests.servlet.support import data
from tests.servlet.web.rig import TurnCounter, answer, close, connect, linked, request
from tests.support.loops import HANGING_S, in_loop, in_loop_within
from tests.turns.fake_meter import FakeMeter
from tunnel.system.clock import now_us
from tunnel.turns.shares import TURN_US
from tunnel.wire import Attached, Frame, decode_envelope
from tunnel_servlet.web.http.handler import RelayHandler
from tunnel_servlet.web.http.payers import REQUEST_US, UNAUTHENTICATED
from tunnel_servlet.web.running import RunningRelay

MANY = 64
PACKET_US = 5  # what a packet costs on the clock of these tests


async def answers(reader: asyncio.StreamReader) -> list[bytes]:
    """Return the bodies of all answers until the end of the connection."""
    rest, found = await reader.read(-1), list[bytes]()
    while rest:
        head, _, rest = rest.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        length = next(int(line[16:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length: "))
        found.append(rest[:length])
        rest = rest[length:]
    return found


@pytest.mark.parametrize("known", [False, True])
@in_loop
async def test_two_users_requests_that_come_at_once_are_handled_in_turns(
    known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds whether or not a token has come before on the connections of these requests."""
    async with relay() as running, Client(running) as victim:
        turns = running.relay.host.turns
        turns.meter = FakeMeter()  # only the fixed cost of a request counts
        flood = [await connect(running) for _ in range(MANY)]
        body = attach_body(7)
        if known:
            for reader, writer in flood:
                writer.write(request(body, "bob"))
                await reader.readuntil(b"\r\n\r\n")
                await asyncio.sleep(0.001)
            await until(lambda: not turns.is_stopped("bob"))
        counter, began = TurnCounter(), RelayHandler.request_began

        def note(handler: RelayHandler) -> None:
            counter.note()
            began(handler)

        monkeypatch.setattr(RelayHandler, "request_began", note)
        for _, writer in flood:
            writer.write(request(body, "bob"))
        await until(lambda: counter.counts.total() >= MANY)
        assert isinstance(await victim.attach(), Attached)
        assert counter.stop() <= 2 + TURN_US // REQUEST_US
        for _, writer in flood:
            await close(writer)


@in_loop
async def test_two_users_connections_that_come_at_once_are_accepted_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    async with relay() as running:
        counter, made = TurnCounter(), RelayHandler.connection_made

        def note(handler: RelayHandler, transport: asyncio.BaseTransport) -> None:
            counter.note()
            made(handler, transport)

        monkeypatch.setattr(RelayHandler, "connection_made", note)
        flood = await asyncio.gather(*(connect(running) for _ in range(MANY)))
        await until(lambda: counter.counts.total() >= MANY * 7 // 8)  # not all of MANY: a stray client can take a place
        assert counter.stop() <= 16
        for _, writer in flood:
            await close(writer)


@pytest.mark.interpreted
@in_loop
async def test_two_users_packets_of_all_links_of_a_user_are_handled_in_turns() -> None:
    """A user's links share the user's turn: after a batch on one of them, the other users have their turns."""
    async with relay(settings()) as running, Client(running, "bob") as attacker, Client(running) as victim:
        meter = running.relay.host.turns.meter = FakeMeter()
        switch = running.relay.host.switch
        handle, counter = switch.link_packets, TurnCounter()

        def note(link: int, frames: list[Frame], now: int) -> None:
            counter.note(len(frames))
            meter.seconds += len(frames) * PACKET_US / 1e6
            handle(link, frames, now)

        async with linked(running, attacker, "bob", 3) as one, linked(running, attacker, "bob", 4) as two:
            switch.link_packets = note  # type: ignore[method-assign]
            packets = [data(number, 1, 1, b"") for number in range(1, 1025)]
            for link in (one, two, one, two, one, two):
                link.send(*packets)
            await until(lambda: counter.counts.total() == 6 * 1024)
            assert isinstance(await victim.attach(), Attached)
        assert counter.stop() <= 1024


@in_loop
async def test_two_users_a_body_of_tiny_chunks_is_parsed_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte of a chunked body can be a chunk of its own, so that parsing a read of 256 KiB takes 50 ms."""
    async with relay() as running, Client(running) as victim:
        meter = running.relay.host.turns.meter = FakeMeter()
        counter, parse = TurnCounter(), RequestHandler.data_received

        def note(handler: RequestHandler, data: bytes) -> None:
            counter.note(len(data))
            meter.seconds += len(data) / 2e6
            parse(handler, data)

        monkeypatch.setattr(RequestHandler, "data_received", note)
        reader, writer = await connect(running)
        body = attach_body(7)
        chunks = b"".join(b"1;%s\r\n%c\r\n" % (b"x" * 3000, byte) for byte in body)
        head = request(b"", "bob").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        writer.write(head + chunks + b"0\r\n\r\n")
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
        assert isinstance(await victim.attach(), Attached)
        assert counter.stop() <= 24 << 10
        await close(writer)


@in_loop
async def test_two_users_requests_sent_ahead_wait_unparsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parsed request takes 4 KiB. A thousand connections with 32 of them each would take 128 MiB, and Python's
    collector would stop the relay for a third of a second to look at them."""
    async with relay() as running, Client(running) as victim:
        body, most = attach_body(7), 0
        one = request(body, "bob")
        parse = RequestHandler.data_received

        def note(handler: RequestHandler, data: bytes) -> None:
            nonlocal most
            parse(handler, data)
            most = max(most, len(handler._messages))

        monkeypatch.setattr(RequestHandler, "data_received", note)
        flood = [await connect(running) for _ in range(8)]
        for _, writer in flood:
            writer.write(one * 500)
        for reader, _ in flood:
            for _ in range(3):
                await answer(reader)
        assert isinstance(await victim.attach(), Attached)
        assert most <= 4  # aiohttp alone would parse 32; here each read after the first may add one
        for _, writer in flood:
            writer.transport.abort()
        await until(lambda: running.connections.total <= 1)
        assert running.connections.held_bytes == 0


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("is_split", [False, True])
@in_loop_within(HANGING_S)
async def test_a_few_requests_sent_ahead_are_answered_in_order(is_split: bool, count: int) -> None:
    """This holds also after a request whose body came later than its head: aiohttp's parser counts one request too
    many after it."""
    async with relay() as running:
        reader, writer = await connect(running)
        if is_split:
            body = attach_body(7)
            writer.write(request(body, "ann").removesuffix(body))
            await asyncio.sleep(0.02)
            writer.write(body)
            await answer(reader)
        bodies = [attach_body(number) for number in range(1, count + 1)]
        last = request(bodies[-1], "ann").replace(b"Content-Type", b"Connection: close\r\nContent-Type")
        writer.write(b"".join(request(body, "ann") for body in bodies[:-1]) + last)
        found = [decode_envelope(body) for body in await answers(reader)]
        assert all(isinstance(each, Attached) for each in found)
        assert len({each.epoch for each in found if isinstance(each, Attached)}) == 1
        assert len(found) == count
        await close(writer)


@in_loop
async def test_two_users_too_much_data_that_waits_for_a_turn_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Data that waits unparsed is charged like an unfinished body. Other users keep their room."""
    config = settings(limits={"waiting_bytes_max": 60_000}, switch={"body_bytes_max": 20_000})
    async with relay(config) as running, Client(running) as victim:
        meter = running.relay.host.turns.meter = FakeMeter()
        reader, writer = await connect(running)
        writer.write(request(attach_body(7), "bob"))
        await answer(reader)
        parse = RequestHandler.data_received

        def costly(handler: RequestHandler, data: bytes) -> None:
            meter.seconds += 10.0
            parse(handler, data)

        monkeypatch.setattr(RequestHandler, "data_received", costly)
        writer.write(request(attach_body(7), "bob") * 500)
        with contextlib.suppress(ConnectionError):
            assert len(await answers(reader)) < 20
        monkeypatch.undo()
        assert isinstance(await victim.attach(), Attached)
        assert running.connections.held_bytes == 0
        await close(writer)


def in_debt(running: RunningRelay) -> None:
    """Use up the processor time of clients without a token, as a flood of them does: their next request stops them."""
    turns = running.relay.host.turns
    for user in ("a", "b", "c"):
        turns._shares.charge(user, 1, now_us())
    turns._shares.charge(UNAUTHENTICATED, 20_000, now_us())


@pytest.mark.parametrize("pause_s", [0.0, 0.02])
@in_loop_within(HANGING_S)
async def test_two_users_a_first_request_goes_on_although_clients_without_a_token_must_wait(pause_s: float) -> None:
    """The head of the request is charged to these clients, and stops the connection; then the token in the head shows
    that the connection belongs to a user."""
    async with relay() as running:
        reader, writer = await connect(running)
        whole = request(bytes(8000), "bob")
        in_debt(running)
        writer.write(whole[:-8000])
        await asyncio.sleep(pause_s)
        writer.write(whole[-8000:])
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 400")
        writer.write(request(attach_body(7), "bob"))
        await reader.readuntil(b"HTTP/1.1 200")
        await close(writer)


@pytest.mark.interpreted
@in_loop_within(HANGING_S)
async def test_two_users_a_link_opens_although_clients_without_a_token_must_wait() -> None:
    async with relay() as running, Client(running, "bob") as client:
        in_debt(running)
        async with linked(running, client, "bob") as link:
            seen: list[int] = []
            running.relay.host.switch.link_packets = lambda link, frames, now: seen.append(len(frames))  # type: ignore[method-assign]
            link.send(data(1, 1, 1, b"x"))
            await until(lambda: seen == [1])
