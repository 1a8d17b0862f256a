"""Bytes that wait on connections are charged to their user: unfinished bodies and batches, unread answers."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from aiohttp import web

from tests.servlet.rig import Client, attach_body, exchange_body, relay, settings, until
from tests.servlet.support import data
from tests.servlet.web.rig import HEAD, answer, close, connect, linked
from tests.support.loops import in_loop
from tunnel.wire import (
    Attached,
    LinkHeader,
    Packet,
    PacketType,
    StatusCode,
    decode_envelope,
    encode_link_header,
    frame_of,
)
from tunnel_servlet.web.relay_link import RelayLink

LIMITS = {"waiting_bytes_max": 3000}
SHORT = 0.05


@in_loop
async def test_two_users_unfinished_bodies_of_one_leave_room_for_the_other() -> None:
    async with relay(settings(limits=LIMITS)) as running, Client(running, "bob") as victim:
        held = [await connect(running) for _ in range(2)]
        for _, writer in held:
            writer.write(HEAD + b"Content-Length: 700\r\n\r\nTUNL")
        await until(lambda: running.connections.held_bytes == 1400)
        reader, writer = await connect(running)
        writer.write(HEAD + b"Content-Length: 700\r\n\r\nTUNL")
        status, body = await answer(reader)
        message = decode_envelope(body)
        assert (status, message.code) == (503, StatusCode.BUSY)  # type: ignore[union-attr]  # a STATUS
        assert isinstance(await victim.attach(3), Attached)
        for _, open_ in (*held, (reader, writer)):
            await close(open_)
        await until(lambda: running.connections.held_bytes == 0)


@in_loop
async def test_a_body_without_a_length_counts_as_the_largest_one() -> None:
    async with relay(settings(limits=LIMITS, switch={"body_bytes_max": 1600})) as running:
        reader, writer = await connect(running)
        writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n4\r\nTUNL\r\n")
        assert (await answer(reader))[0] == 503
        await close(writer)


@in_loop
async def test_two_users_unfinished_batches_of_one_leave_room_for_the_other() -> None:
    async with relay(settings(limits=LIMITS)) as running, Client(running) as client, Client(running, "bob") as victim:
        async with linked(running, client) as first, linked(running, client, seed=2) as second:
            first.writer.write(encode_link_header(LinkHeader(1, 0, 1400)) + b"x")
            await until(lambda: running.connections.held_bytes == 1400)
            second.writer.write(encode_link_header(LinkHeader(1, 0, 1400)) + b"x")
            await second.ended()
            assert isinstance(await victim.attach(3), Attached)
            first.writer.write(bytes(1399))
            await until(lambda: running.connections.held_bytes == 0)
            first.send(data(1, 1, 1))  # batch 1 again: a wrong number ends the link
            await first.ended()
        await until(lambda: running.connections.held_bytes == 0)


@in_loop
async def test_a_batch_that_does_not_arrive_in_time_ends_its_link() -> None:
    config = settings(limits={"body_seconds": SHORT})
    async with relay(config) as running, Client(running) as client, linked(running, client) as link:
        link.writer.write(encode_link_header(LinkHeader(1, 0, 100)) + bytes(100))
        link.writer.write(encode_link_header(LinkHeader(2, 0, 100)) + b"x")
        await link.ended()
        await until(lambda: not running.relay.host.links)


@in_loop
async def test_the_memory_of_an_unfinished_batch_is_free_when_its_link_has_ended() -> None:
    """It must not wait for Python's collector, which may not run for hours in a relay without traffic."""
    async with relay() as running, Client(running) as client:
        async with linked(running, client) as link:
            (served,) = running.relay.host.links.values()
            assert isinstance(served, RelayLink)
            link.writer.write(encode_link_header(LinkHeader(1, 0, 1 << 20)) + bytes(1 << 19))
            await until(lambda: served.state._intake.end - served.state._intake.start == 1 << 19)
        await until(lambda: served.is_over)
        assert served.state._intake.end == len(served.state._intake.view) == 0


@in_loop
async def test_two_users_an_unread_answer_beyond_the_share_ends_the_connection() -> None:
    running = relay(settings(limits=LIMITS))

    async def large(_: web.Request) -> web.Response:
        return web.Response(body=bytes(32 << 20))

    running.app.router.add_get("/large", large)
    async with running, Client(running, "bob") as victim:
        _, writer = await connect(running)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: running.connections.total == 1)
        await until(lambda: running.connections.total == 0)
        assert running.connections.held_bytes == 0
        assert (await victim.post(attach_body(3))).status == 200
        await close(writer)


@in_loop
async def test_two_users_a_lane_has_one_answer_on_its_way() -> None:
    """A repeat cuts the connection on which an earlier answer of its lane waits to be read, and no other one."""
    config = settings(switch={"body_bytes_max": 32 << 20})
    async with relay(config) as running, Client(running) as client, Client(running, "bob") as victim:
        await client.attach(1, body_bytes_max=32 << 20)
        (attachment,) = running.relay.host.switch._registry.by_id.values()
        for number in range(16):
            frame = frame_of(Packet(PacketType.REJECTED, number, 0, 0, bytes(1 << 20)))
            assert attachment.mailbox.post(("rejected", number), frame)
        ask = {"answer_bytes_max": 32 << 20, "hold_ms": 0}
        first, other, second = [await connect(running) for _ in range(3)]
        for _, writer in (first, other):
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
        for lane, number, (_, writer) in ((0, 1, first), (1, 1, other)):
            body = exchange_body(client.epoch, number, lane=lane, **ask)
            writer.write(HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
            await until(lambda: running.connections.held_bytes > 1 << 20 and not running.relay.host.waiting)
        total = running.connections.total
        body = exchange_body(client.epoch, 1, **ask)
        second[1].write(HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        status, found = await answer(second[0])
        assert (status, len(found) > 15 << 20) == (200, True)
        await until(lambda: running.connections.total == total - 1)
        assert running.connections.held_bytes == 0
        assert (await victim.post(attach_body(3))).status == 200
        for _, writer in (first, other, second):
            await close(writer)


@pytest.mark.interpreted
@in_loop
async def test_two_users_a_request_waits_one_turn_and_its_body_is_charged_until_the_switch_has_it() -> None:
    """While 30 requests of one user wait, none waits a second time behind the others, with its body charged to no
    user."""
    async with relay() as running, Client(running) as client, Client(running, "bob") as victim:
        turns, switch = running.relay.host.turns, running.relay.host.switch
        admitted, handle = turns.wait_for_turn, switch.request
        body = exchange_body(client.epoch, 1, data(1, 2, 3, bytes(5000)))
        log: list[tuple[str, int]] = []

        async def noted_admitted(user: str, cost_us: int = 0) -> None:
            await admitted(user, cost_us)
            if user == "ann":
                log.append(("admitted", running.connections.held_bytes))

        def noted_request(handle_: int, user: str, *arguments: Any, **others: Any) -> None:
            if user == "ann":
                log.append(("handled", running.connections.held_bytes))
            handle(handle_, user, *arguments, **others)

        turns.wait_for_turn, switch.request = noted_admitted, noted_request  # type: ignore[method-assign, assignment]
        turns.spend("ann", 10_000_000)
        waiting = [client.post_soon(body) for _ in range(30)]
        await until(lambda: running.connections.held_bytes == 30 * len(body))
        assert isinstance(await victim.attach(3), Attached)
        turns._queues["ann"].timer.cancel()  # type: ignore[union-attr]  # the user's debt is over
        turns._resume("ann")
        await asyncio.gather(*waiting)
        held = [left * len(body) for left in range(30, 0, -1)]
        assert log == [each for size in held for each in (("admitted", size), ("handled", size - len(body)))]
        assert running.connections.held_bytes == 0
