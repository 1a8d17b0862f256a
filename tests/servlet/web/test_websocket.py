"""The relay's end of a websocket: the frames that it takes, what it charges for them, and how it ends.

Clause 8.5 of docs/PROTOCOL.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from tests.servlet.rig import KEYS, TOKENS, Client, relay, settings, until
from tests.servlet.support import accepted, connect, data, kinds
from tests.servlet.web.rig import BINARY, CONTINUATION, METADATA, PING, TEXT, TurnCounter, close, frame, opening, raw
from tests.servlet.web.rig import connect as raw_connect
from tests.support.loops import in_loop
from tests.turns.fake_meter import FakeMeter
from tunnel.exchange import LinkState
from tunnel.turns.shares import TURN_US
from tunnel.wire import (
    LINK_HEADER_SIZE,
    Answer,
    Attached,
    LinkHeader,
    Packet,
    Status,
    StatusCode,
    decode_envelope,
    decode_link_header,
    encode_link_header,
    encode_packets,
    parse_packets,
)
from tunnel_servlet.access.tokens import TokenTable
from tunnel_servlet.web.relay_link import RelayLink
from tunnel_servlet.web.websocket import MESSAGE_US

SHORT = 0.05


class Socket:
    """The endpoint's side, as aiohttp's client."""

    def __init__(self, websocket: aiohttp.ClientWebSocketResponse[Any]) -> None:
        self.websocket = websocket
        self.state = LinkState()
        self.tokens = 0

    async def message(self) -> Any:
        return decode_envelope(await self.websocket.receive_bytes())

    async def send(self, *packets: Packet) -> None:
        self.tokens += 1
        parts = self.state.send(list(encode_packets(packets)), self.tokens)
        await self.websocket.send_bytes(b"".join(map(bytes, parts)))

    async def packets(self) -> list[Packet]:
        """Receive up to the next batch with packets; return them."""
        while True:
            whole = await self.websocket.receive_bytes()
            assert decode_link_header(whole) is not None
            found = self.state.message(whole, 0)
            assert self.state.closed == ""
            if found.batches:
                return parse_packets(found.batches[0])[0]

    async def ended(self) -> tuple[int | None, str]:
        """Receive up to the end; return close code and reason."""
        reason = ""
        while not self.websocket.closed:
            message = await self.websocket.receive()
            if message.type is aiohttp.WSMsgType.CLOSE:
                reason = str(message.extra)
        return self.websocket.close_code, reason


@asynccontextmanager
async def opened(client: Client, **headers: str) -> AsyncIterator[Socket]:
    """Open a websocket, and send no first message."""
    usual = {"Authorization": f"Bearer {client.token}"}
    async with client.session.ws_connect(f"{client.url}/link", headers={**usual, **headers}) as websocket:
        yield Socket(websocket)


@asynccontextmanager
async def linked(client: Client, seed: int = 1) -> AsyncIterator[Socket]:
    """Attach, and open a websocket with its first message."""
    await client.attach(seed=seed)
    async with opened(client) as found:
        await found.websocket.send_bytes(opening(client, seed))
        assert isinstance(await found.message(), Answer)
        yield found


async def close_code(reader: asyncio.StreamReader) -> int:
    """Read frames up to the one that closes the websocket."""
    while True:
        first, size = await reader.readexactly(2)
        if size == 126:
            size = int.from_bytes(await reader.readexactly(2), "big")
        payload = await reader.readexactly(size)
        if first == 0x88:
            return int.from_bytes(payload[:2], "big")


@in_loop
async def test_batches_go_both_ways_and_are_receipted() -> None:
    async with (
        relay() as running,
        Client(running) as ann,
        Client(running, "exits") as exit_,
        linked(ann) as up,
        linked(exit_, 2) as down,
    ):
        await up.send(connect(11))
        assert kinds(await down.packets()) == ["CONNECT"]
        await down.send(accepted(11, 22))
        assert kinds(await up.packets()) == ["ACCEPTED"]
        assert up.state.tokens_unreceipted == []
        payload = Random(1).randbytes(200_000)
        await up.send(data(11, 22, 101, payload))
        packets = await down.packets()
        assert b"".join(bytes(packet.payload) for packet in packets) == payload
        assert running.relay.host.switch.stats().links == 2
        assert running.connections.held_bytes == 0  # what was charged for the frames was given back


@pytest.mark.parametrize("changes", [{"lane": 1}, {"number": 1}, None])
@in_loop
async def test_a_wrong_first_message_is_refused_with_its_code(changes: dict[str, Any] | None) -> None:
    async with relay() as running, Client(running) as client:
        await client.attach()
        async with opened(client) as found:
            await found.websocket.send_bytes(opening(client, **(changes or {})) + bytes(not changes))
            message = await found.message()
            assert isinstance(message, Status)
            assert (message.code, (await found.ended())[0]) == (StatusCode.MALFORMED, 4008)


@in_loop
async def test_a_websocket_of_an_unknown_attachment_is_refused_with_its_code() -> None:
    async with relay() as running, Client(running) as client, opened(client) as found:
        await found.websocket.send_bytes(opening(client, 9))
        message = await found.message()
        assert isinstance(message, Status)
        assert (message.code, (await found.ended())[0]) == (StatusCode.UNKNOWN, 4001)


@in_loop
async def test_a_websocket_without_a_first_message_times_out() -> None:
    config = settings(limits={"link_opening_seconds": 0.01})
    async with relay(config) as running, Client(running) as client, opened(client) as found:
        assert await found.ended() == (1001, "no first message")
        await until(lambda: not running.connections.held_bytes)


@in_loop
async def test_requests_that_ask_for_no_websocket_are_refused() -> None:
    async with relay() as running, Client(running) as client:
        wrong = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "12"}
        assert (await client.ask("GET", "/link", **wrong)).status == 401
        reply = await client.ask("GET", "/link", Authorization=f"Bearer {client.token}", **wrong)
        assert reply.status == 400


@pytest.mark.parametrize("wrong", ["Connection", "Upgrade", "Sec-WebSocket-Version", "Sec-WebSocket-Key"])
@in_loop
async def test_a_field_that_is_no_text_is_refused_without_an_error(wrong: str) -> None:
    fields = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    fields["Sec-WebSocket-Key"] = "MDEyMzQ1Njc4OWFiY2RlZg=="
    lines = [f"GET /link HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKENS['ann']}\r\n".encode()]
    lines += [f"{name}: {value}".encode() + b"\xd9" * (name == wrong) + b"\r\n" for name, value in fields.items()]
    with capture_logs() as logs:
        async with relay(settings()) as running:
            reader, writer = await raw_connect(running)
            writer.write(b"".join(lines) + b"\r\n")
            assert (await reader.readuntil(b"\r\n")).startswith((b"HTTP/1.1 400", b"HTTP/1.1 426"))
            await close(writer)
    assert [line for line in logs if line["event"] == "failed"] == []


@in_loop
async def test_an_open_relay_takes_no_websocket_from_a_web_page() -> None:
    async with relay(settings(is_open=True)) as running, Client(running) as client:
        async with opened(client):
            pass
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            async with opened(client, Origin="https://evil.example"):
                pass


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(TEXT, b"hello"), 1003),
        (frame(BINARY, b"TUNL", last=False), 1002),
        (frame(CONTINUATION, b"TUNL"), 1002),
        (frame(PING, b"", last=False), 1002),
        (frame(0x3, b""), 1002),
        (frame(BINARY, b"TUNL", mask=False), 1002),
        (frame(BINARY, size=(4 << 20) + LINK_HEADER_SIZE + 1), 1009),
        (frame(BINARY, size=1 << 63), 1009),
        (frame(BINARY, bytes(LINK_HEADER_SIZE)), 4008),
    ],
)
@pytest.mark.parametrize("split", [False, True])
@in_loop
async def test_a_wrong_frame_ends_the_websocket(sent: bytes, code: int, split: bool) -> None:
    async with relay() as running, raw(running, "ann") as (reader, writer):
        for part in [sent[i : i + 1] for i in range(len(sent))] if split else [sent]:
            writer.write(part)
            await asyncio.sleep(0)
        assert await close_code(reader) == code
        await until(lambda: not running.connections.held_bytes)


@in_loop
async def test_a_wrong_frame_before_the_101_ends_the_websocket() -> None:
    async with relay() as running, raw(running, "ann", early=frame(TEXT, b"early")) as (reader, _):
        assert await close_code(reader) == 1003
        await until(lambda: not running.relay.host.turns.inputs)


@pytest.mark.parametrize("change", [-1, 1])
@in_loop
async def test_a_message_holds_one_batch_and_nothing_else(change: int) -> None:
    async with relay() as running, Client(running) as client, linked(client) as found:
        batch = b"".join(found.state.send(list(encode_packets([connect(11, target=METADATA)])), 1))
        await found.websocket.send_bytes(batch[:change] if change < 0 else batch + bytes(change))
        code, reason = await found.ended()
        assert code == 1001
        assert "its header announces a batch of" in reason
        assert client.switch.stats().attachments == 1


@in_loop
async def test_a_ping_is_answered() -> None:
    async with relay() as running, raw(running, "ann") as (reader, writer):
        writer.write(frame(PING, b"hi") + frame(0xA, b"unasked"))
        assert await reader.readexactly(4) == b"\x8a\x02hi"
        await until(lambda: not running.connections.held_bytes)


@in_loop
async def test_packets_without_a_receipt_leave_elsewhere() -> None:
    async with relay() as running, Client(running) as ann, Client(running, "exits") as exit_, linked(ann) as up:
        async with linked(exit_, 2) as down:
            await up.send(connect(11))
            assert kinds(await down.packets()) == ["CONNECT"]
        async with linked(exit_, 3), opened(exit_) as down:
            await down.websocket.send_bytes(opening(exit_, 2))
            await down.message()
            assert kinds(await down.packets()) == ["CONNECT"]


@in_loop
async def test_a_revoked_token_ends_its_websockets_with_its_code() -> None:
    async with (
        relay() as running,
        Client(running) as ann,
        Client(running, "exits") as exit_,
        linked(ann) as found,
        linked(exit_, 2),
    ):
        running.relay.reload(settings(tokens=TokenTable({"exits": KEYS["exits"]})))
        assert (await found.ended())[0] == 4006
        await until(lambda: running.relay.host.switch.stats().links == 1)


@in_loop
async def test_the_relay_ends_its_websockets_when_it_stops() -> None:
    async with relay() as running, Client(running) as client, linked(client) as found:
        closing = asyncio.create_task(running.close())
        assert await found.ended() == (1001, "the relay is shutting down")
        await closing
        assert running.relay.host.links == {}


@in_loop
async def test_a_connection_that_is_cut_is_no_longer_charged_or_watched() -> None:
    async with relay() as running, Client(running) as client:
        async with raw(running, "ann") as (_, writer):
            await until(lambda: running.relay.host.turns.inputs == 2)
            writer.write(frame(BINARY, b"x", size=1000))
            await until(lambda: running.connections.held_bytes > 1000)
            writer.transport.abort()
            await until(lambda: not running.connections.total)
        assert (running.connections.held_bytes, running.relay.host.turns.inputs) == (0, 0)
        assert running.relay.token_bound == []
        assert isinstance(await client.attach(), Attached)


# --- two users


@in_loop
async def test_two_users_unfinished_messages_of_one_leave_room_for_the_other() -> None:
    config = settings(limits={"waiting_bytes_max": 3000})
    async with relay(config) as running, Client(running, "bob") as victim:
        async with raw(running, "ann") as (_, first), raw(running, "ann") as (reader, second):
            first.write(frame(BINARY, b"x", size=1300))
            await until(lambda: running.connections.held_bytes == 1428)
            second.write(frame(BINARY, b"x", size=1300))
            assert await close_code(reader) == 4005
            assert isinstance(await victim.attach(3), Attached)
        await until(lambda: running.connections.held_bytes == 0)


@pytest.mark.parametrize("part", [frame(BINARY, bytes(99), size=100), frame(BINARY, size=70_000)[:5], b"\x82"])
@in_loop
async def test_two_users_a_message_that_does_not_arrive_in_time_ends_the_websocket(part: bytes) -> None:
    async with relay(settings(limits={"body_seconds": SHORT})) as running, raw(running, "ann") as (reader, writer):
        writer.write(part)
        assert await close_code(reader) == 4005


@in_loop
async def test_two_users_a_flood_of_pings_is_charged_and_handled_in_turns() -> None:
    async with relay() as running, Client(running, "bob") as victim:
        turns = running.relay.host.turns
        turns.meter = FakeMeter()  # only the fixed cost of a message counts
        counter = TurnCounter()
        spend, answered = turns.spend, asyncio.Event()

        def note(user: str, spent_us: float) -> None:
            if user == "ann" and spent_us == MESSAGE_US:
                counter.note()
                if counter.counts.total() == 20_000:
                    answered.set()
            spend(user, spent_us)

        turns.spend = note  # type: ignore[method-assign]
        async with raw(running, "ann") as (reader, writer):
            writer.write(frame(PING) * 20_000)
            assert isinstance(await victim.attach(3), Attached)
            await reader.readexactly(2 * 20_000)
            await answered.wait()
        assert counter.stop() <= 2 + TURN_US // MESSAGE_US


@in_loop
async def test_two_users_pongs_that_are_not_read_are_bounded_and_end_the_connection() -> None:
    """The relay keeps a bounded number of frames, and cuts the connection after the deadline of answers."""
    config = settings(limits={"answer_seconds": 0.3})
    async with relay(config) as running, Client(running, "bob") as victim, raw(running, "ann") as (_, writer):
        writer.transport.pause_reading()
        highest = 0
        flood = frame(PING, bytes(125)) * 1000
        while running.connections.total:
            writer.write(flood) if writer.transport.get_write_buffer_size() < 1 << 20 else None
            highest = max(highest, running.connections.held_bytes)
            await asyncio.sleep(0)
        assert highest < 2 << 20
        assert isinstance(await victim.attach(3), Attached)


@in_loop
async def test_two_users_a_websocket_that_is_not_read_is_not_filled() -> None:
    async with relay() as running, Client(running) as ann, Client(running, "exits") as exit_:
        await exit_.attach(seed=2)
        async with linked(ann) as up, raw(running, "exits") as (_, writer):
            writer.write(frame(BINARY, opening(exit_, 2)))
            await until(lambda: len(running.relay.host.links) == 2)
            *_, served = running.relay.host.links.values()
            assert isinstance(served, RelayLink)
            writer.transport.pause_reading()
            await up.send(connect(11))
            writer.write(frame(BINARY, b"".join(LinkState().send(list(encode_packets([accepted(11, 22)])), 1))))
            assert kinds(await up.packets()) == ["ACCEPTED"]
            number = 100
            while not served.is_paused:
                number += 1
                await up.send(data(11, 22, number, bytes(100_000)))
                await asyncio.sleep(0)
            assert running.relay.host.switch.stats().bytes_held > 0


@in_loop
async def test_two_users_an_empty_batch_ends_the_websocket() -> None:
    async with relay() as running, Client(running) as client, linked(client) as found:
        await found.websocket.send_bytes(encode_link_header(LinkHeader(1, 0, 0)))
        assert await found.ended() == (1001, "an empty batch")
