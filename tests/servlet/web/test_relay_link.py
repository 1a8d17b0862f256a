"""The relay's end of a link: the upgrade, the first message, batches both ways, and how it ends (section 8)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import uvloop

from tests.servlet.rig import KEYS, Client, exchange_body, relay, settings, until
from tests.servlet.support import accepted, connect, data, kinds
from tests.servlet.web.rig import METADATA, Link, linked, opening
from tests.support.loops import in_loop, run
from tunnel.wire import (
    LINK_HEADER_SIZE,
    Answer,
    Attached,
    Frame,
    LinkHeader,
    Status,
    StatusCode,
    encode_link_header,
    encode_packets,
    parse_packets,
)
from tunnel_servlet.access.tokens import TokenTable
from tunnel_servlet.switch.switch import Switch

LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop, uvloop.new_event_loop]


@pytest.mark.parametrize("new_loop", LOOPS)
def test_batches_go_both_ways_and_are_receipted(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def test() -> None:
        async with (
            relay() as running,
            Client(running) as ann,
            Client(running, "exits") as exit_,
            linked(running, ann) as up,
            linked(running, exit_, "exits", 2) as down,
        ):
            up.send(connect(11))
            header, _ = await up.batch()
            assert (header.number, header.received, up.state.tokens_unreceipted) == (0, 1, [])
            assert kinds(await down.packets()) == ["CONNECT"]
            down.send(accepted(11, 22))
            assert kinds(await up.packets()) == ["ACCEPTED"]
            payload = Random(1).randbytes(200_000)
            up.send(data(11, 22, 101, payload))
            packets = await down.packets()
            assert b"".join(bytes(packet.payload) for packet in packets) == payload
            down.send_receipt()
            up.send_receipt()
            await until(lambda: not running.relay.host.switch.stats().bytes_held)
            assert running.relay.host.switch.stats().links == 2

    run(test(), new_loop)


@in_loop
async def test_the_first_message_may_come_in_portions_with_batches_after_it() -> None:
    async with relay() as running, Client(running) as client:
        await client.attach()
        first = opening(client)
        link = await Link.connect(running)
        batch = b"".join(link.state.send(list(encode_packets([connect(11, target=METADATA)])), 1))
        for portion in (first[:5], first[5:-1]):
            link.writer.write(portion)
            await asyncio.sleep(0)
        link.writer.write(first[-1:] + batch)
        assert isinstance(await link.message(), Answer)
        assert kinds(await link.packets()) == ["REJECTED"]
        await link.close()


@pytest.mark.parametrize("user", ["ann", "bob"])
@in_loop
async def test_a_link_of_an_unknown_attachment_is_refused(user: str) -> None:
    async with relay() as running, Client(running) as client:
        await client.attach()
        link = await Link.connect(running, user)
        link.writer.write(opening(client, seed=9 if user == "ann" else 1))
        message = await link.message()
        assert isinstance(message, Status)
        assert message.code is StatusCode.UNKNOWN
        assert await link.ended() == b""
        await link.close()


@pytest.mark.parametrize(
    "changes", [{"lane": 1}, {"number": 1}, None, {"payload": bytes(5000)}], ids=["lane", "number", "kind", "size"]
)
@in_loop
async def test_a_wrong_first_message_is_refused(changes: dict[str, Any] | None) -> None:
    async with relay() as running, Client(running) as client:
        await client.attach()
        link = await Link.connect(running)
        link.writer.write(bytes(200) if changes is None else opening(client, **changes))
        message = await link.message()
        assert isinstance(message, Status)
        assert message.code is StatusCode.MALFORMED
        await link.ended()
        await link.close()


@in_loop
async def test_a_link_without_a_first_message_times_out() -> None:
    async with relay(settings(limits={"link_opening_seconds": 0.01})) as running:
        link = await Link.connect(running)
        assert await link.ended() == b""
        await link.close()


@in_loop
async def test_a_damaged_header_ends_only_the_link() -> None:
    async with relay() as running, Client(running) as client:
        async with linked(running, client) as link:
            link.writer.write(bytes(LINK_HEADER_SIZE))
            await link.ended()
            await until(lambda: not client.switch.stats().links)
        assert client.switch.stats().attachments == 1
        assert (await client.post(exchange_body(client.epoch, 1))).status == 200


@in_loop
async def test_a_batch_above_the_limit_ends_the_link() -> None:
    config = settings(limits={"link_batch_bytes_max": 1000})
    async with relay(config) as running, Client(running) as client, linked(running, client) as link:
        link.writer.write(encode_link_header(LinkHeader(1, 0, 1001)))
        await link.ended()


@in_loop
async def test_packets_without_a_receipt_leave_elsewhere() -> None:
    async with relay() as running, Client(running) as ann, Client(running, "exits") as exit_:
        await ann.attach()
        async with linked(running, exit_, "exits", 2) as link:
            await ann.post(exchange_body(ann.epoch, 1, connect(11)))
            assert kinds(await link.packets()) == ["CONNECT"]
        await until(lambda: not ann.switch.stats().links)
        reply = await exit_.post(exchange_body(exit_.epoch, 1, seed=2))
        assert kinds(parse_packets(reply.message.data)[0]) == ["CONNECT"]


@in_loop
async def test_a_new_generation_ends_the_links_of_the_older_one() -> None:
    async with relay() as running, Client(running) as client, linked(running, client) as link:
        await client.attach(generation=2)
        assert await link.ended() == b""


@in_loop
async def test_a_revoked_token_ends_only_its_own_links() -> None:
    async with (
        relay() as running,
        Client(running) as ann,
        Client(running, "exits") as exit_,
        linked(running, ann) as link,
        linked(running, exit_, "exits", 2),
    ):
        running.relay.reload(settings(tokens=TokenTable({"exits": KEYS["exits"]})))
        assert await link.ended() == b""
        await until(lambda: running.relay.host.switch.stats().links == 1)
        assert (await ann.post(exchange_body(ann.epoch, 1))).status == 401


@in_loop
async def test_the_relay_ends_its_links_when_it_stops() -> None:
    async with relay() as running, Client(running) as client:
        async with linked(running, client) as link:
            await running.close()
            assert await link.ended() == b""
        assert running.relay.host.links == {}


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_link_that_is_not_read_is_not_filled(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def test() -> None:
        small = socket.socket()
        small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        async with relay() as running, Client(running) as ann, Client(running, "exits") as exit_:
            small.setblocking(False)
            await asyncio.get_running_loop().sock_connect(small, ("127.0.0.1", running.addresses[0].port))
            await ann.attach()
            await exit_.attach(seed=2)
            await ann.post(exchange_body(ann.epoch, 1, connect(11)))
            await exit_.post(exchange_body(exit_.epoch, 1, accepted(11, 22), seed=2))
            link = await Link.connect(running, "exits", sock=small, limit=4096)
            link.writer.write(opening(exit_, seed=2))
            assert isinstance(await link.message(), Answer)
            payload = Random(1).randbytes(100_000)
            switch = running.relay.host.switch
            for number in range(2, 32):
                await ann.post(exchange_body(ann.epoch, number, data(11, 22, 99 + number, payload)))
            host_link = next(iter(running.relay.host.links.values()))
            assert host_link.is_paused  # type: ignore[attr-defined]
            left = switch.stats().counters.packets_sent
            received = 0
            while received < 30:
                received += kinds(await link.packets()).count("DATA")
                link.send_receipt()
            assert switch.stats().counters.packets_sent > left
            await link.close()

    run(test(), new_loop)


def noted_parts(switch: Switch) -> list[int]:
    """Return a list to which the number of packets of each part is added that the switch handles from now on."""
    sizes: list[int] = []
    handle = switch.link_packets

    def note(link: int, frames: list[Frame], now: int) -> None:
        sizes.append(len(frames))
        handle(link, frames, now)

    switch.link_packets = note  # type: ignore[method-assign]
    return sizes


@pytest.mark.interpreted
@pytest.mark.parametrize("new_loop", LOOPS)
def test_two_users_a_batch_of_tiny_packets_is_handled_in_parts(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def test() -> None:
        async with (
            relay() as running,
            Client(running, "bob") as attacker,
            Client(running) as victim,
            linked(running, attacker, "bob", 3) as flood,
        ):
            switch = running.relay.host.switch
            sizes = noted_parts(switch)
            for number in range(3):
                flood.send(*[data(number * 5000 + each, 1, 1, b"") for each in range(1, 3001)])
            assert isinstance(await victim.attach(), Attached)
            await until(lambda: sum(sizes) == 9000)
            assert sizes == ([64] * 46 + [56]) * 3
            assert switch.stats().counters.packets_without_route == 9000

    run(test(), new_loop)


@pytest.mark.interpreted
@in_loop
async def test_two_users_packets_that_change_routes_make_short_parts() -> None:
    async with (
        relay() as running,
        Client(running, "bob") as attacker,
        linked(running, attacker, "bob", 3) as flood,
    ):
        sizes = noted_parts(running.relay.host.switch)
        orders = [connect(number) for number in range(1, 41)]
        flood.send(*orders, *[data(number, 1, 1, b"") for number in range(1000, 1100)])
        await until(lambda: sum(sizes) == 140)
        assert sizes == [16, 16, 64, 44]


@in_loop
async def test_two_users_an_empty_batch_ends_the_link() -> None:
    async with relay() as running, Client(running) as client, linked(running, client) as link:
        link.writer.write(encode_link_header(LinkHeader(1, 0, 0)))
        await link.ended()
        await until(lambda: not running.relay.host.links)


@in_loop
async def test_a_link_has_the_keepalive_of_tcp_and_is_watched_until_it_ends() -> None:
    async with relay() as running:
        async with Client(running) as client, linked(running, client):
            (served,) = running.relay.host.links.values()
            assert [id(each) for each in running.relay.token_bound] == [id(served)]
            sock = served._transport.get_extra_info("socket")  # type: ignore[attr-defined]
            names = ("TCP_NODELAY", "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
            found = [sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names]
            assert found == [1, 30, 10, 3, 60_000]
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        await until(lambda: not running.relay.host.links)
        assert not running.relay.token_bound
        await until(lambda: not running.relay.host.turns.inputs)
