"""Streamed answers of a real relay: when they are written, which user pays for unread bytes, and how they end.

Clause 7.20 of docs/PROTOCOL.md.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import aiohttp
import pytest
from aiohttp.http_writer import StreamWriter
from aiohttp.test_utils import make_mocked_request

from tests.servlet.rig import KEYS, Client, attach_body, exchange_body, relay, settings, until
from tests.servlet.web.rig import HEAD, STREAM, close, connect, request
from tests.support.loops import in_loop
from tunnel.exchange.envelope_stream import EnvelopeStream
from tunnel.wire import Answer, Message, Packet, PacketType, Status, StatusCode, decode_envelope, frame_of
from tunnel_servlet.access.tokens import Identity, TokenTable
from tunnel_servlet.switch.responses import RelayResponse
from tunnel_servlet.web.answer_stream import AnswerStream
from tunnel_servlet.web.running import RunningRelay


class Streamed:
    """The client's side of a streamed answer."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self._body = EnvelopeStream(1 << 21)
        self._found: list[Message] = []

    async def next(self) -> Message | None:
        """Return the next envelope, or None at the end of the body."""
        while not self._found:
            piece = await self.response.content.readany()
            if not piece:
                return None
            for whole in self._body.feed(piece):
                message = decode_envelope(whole)
                assert isinstance(message, Answer | Status)
                self._found.append(message)
        return self._found.pop(0)

    async def answer(self) -> Answer:
        message = await self.next()
        assert isinstance(message, Answer)
        return message


@asynccontextmanager
async def streamed(client: Client, number: int = 1, **changes: Any) -> AsyncIterator[Streamed]:
    """Ask for a stream on lane 0, and read its first envelope."""
    headers = {"Authorization": f"Bearer {client.token}", "Content-Type": "application/octet-stream"}
    body = exchange_body(client.epoch, number, **{**STREAM, **changes})
    async with client.session.post(client.url + "/exchange", data=body, headers=headers) as response:
        assert response.status == 200
        assert response.headers["X-Accel-Buffering"] == "no"
        found = Streamed(response)
        first = await found.answer()
        assert (first.number, first.goes_on, len(first.data)) == (number, True, 0)
        yield found


async def confirm(client: Client, number: int, serial: int, seed: int = 1) -> Answer:
    """Confirm the envelopes of lane 0 up to this serial, by a push on lane 1."""
    body = exchange_body(client.epoch, number, lane=1, confirms=(0, serial), hold_ms=0, seed=seed)
    answer = (await client.post(body)).message
    assert isinstance(answer, Answer)
    return answer


def fill(running: RunningRelay, user: str, count: int, size: int = 1 << 16) -> None:
    """Let packets wait for the user's attachment."""
    for attachment in running.relay.host.switch._registry.by_id.values():
        if attachment.account.user == user:
            for number in range(count):
                frame = frame_of(Packet(PacketType.REJECTED, number, 0, 0, bytes(size)))
                assert attachment.mailbox.post(("rejected", number), frame)
    running.relay.host.switch._serve_awake(0)
    running.relay.host.pump()


@in_loop
async def test_packets_come_on_the_stream_once_it_is_proven_and_pushes_are_answered_empty() -> None:
    async with relay() as running, Client(running) as client:
        await client.attach()
        async with streamed(client) as stream:
            assert (await confirm(client, 1, 1)).more is False
            fill(running, "ann", 3, 100)
            answer = await stream.answer()
            assert (answer.serial, len(answer.data) > 300) == (2, True)
            assert len((await confirm(client, 2, 2)).data) == 0
            assert running.relay.host.switch.stats().bytes_held == 0


@in_loop
async def test_a_stream_ends_with_the_hold_and_is_forgotten() -> None:
    async with relay() as running, Client(running) as client:
        await client.attach()
        async with streamed(client, hold_ms=1) as stream:
            await confirm(client, 1, 1)
            # The next empty envelope would be due in 1 s. The last envelope comes earlier, as the hold is over.
            last = await stream.answer()
            assert last.goes_on is False
            assert await stream.next() is None
        assert running.relay.host.streams == {}


@in_loop
async def test_a_revoked_token_ends_its_stream_with_a_status() -> None:
    config = settings()
    async with relay(config) as running, Client(running) as client:
        await client.attach()
        async with streamed(client) as stream:
            running.relay.reload(replace(config, tokens=TokenTable({"bob": KEYS["bob"]})))
            message = await stream.next()
            assert isinstance(message, Status)
            assert message.code in (StatusCode.NOT_AUTHORISED, StatusCode.UNKNOWN)
            assert await stream.next() is None


@pytest.mark.interpreted
@in_loop
async def test_a_token_that_is_revoked_as_a_stream_begins_leaves_no_stream_behind() -> None:
    async with relay() as running:
        gone: list[int] = []

        async def exchange(*_: Any, **__: Any) -> RelayResponse:
            running.relay.reload(settings(tokens=TokenTable({"ann": KEYS["ann"]})))
            return RelayResponse(5, 200, [b""], goes_on=True)

        running.relay.host.exchange = exchange  # type: ignore[method-assign]
        running.relay.host.stream_gone = gone.append  # type: ignore[method-assign,assignment]
        reader, writer = await connect(running)
        writer.write(request(attach_body(7), "bob"))
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 401")
        assert gone == [5]
        await close(writer)


@in_loop
async def test_an_envelope_is_asked_for_when_the_one_before_has_left_the_process() -> None:
    """`write` alone would keep 64 KiB of each unread stream in this process."""
    happened: list[str] = []
    answers = [RelayResponse(5, 200, [b"a"], goes_on=True), RelayResponse(5, 200, [b"b"], goes_on=False)]

    class Written(StreamWriter):
        async def write(self, chunk: Any, **_: Any) -> None:
            happened.append(f"write {bytes(chunk).decode()}")

        async def drain(self) -> None:
            happened.append("drain")

        async def write_headers(self, *_: Any) -> None:
            """Write nothing: only the body counts."""

        async def write_eof(self, chunk: bytes = b"") -> None:
            assert not chunk

    def poll(number: int, now: int) -> RelayResponse:
        happened.append("ask")
        return answers.pop(0)

    async def admitted(user: str) -> None:
        return

    meter = SimpleNamespace(start=lambda: 0)
    turns = SimpleNamespace(wait_for_turn=admitted, meter=meter, spent_since=lambda user, began: 0.0)
    switch = SimpleNamespace(poll_stream=poll)
    host: Any = SimpleNamespace(
        turns=turns, switch=switch, pump=lambda: None, stream_gone=lambda number: happened.append("gone")
    )
    writer = Written(Mock(), asyncio.get_running_loop())
    stream = AnswerStream(host, Identity("ann", ""), RelayResponse(5, 200, [b"first"], goes_on=True))
    stream.wake()
    await stream.serve(make_mocked_request("POST", "/exchange", writer=writer), {})
    assert happened == ["write first", "ask", "write a", "drain", "ask", "write b", "drain", "gone"]


@in_loop
async def test_the_kernel_takes_only_what_it_can_send_soon() -> None:
    """The rest waits in the mailbox, where a small packet of another connection goes first."""
    host: Any = SimpleNamespace(turns=AsyncMock(), stream_gone=lambda number: None)
    writer = AsyncMock(StreamWriter)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as sock:
        transport = Mock(get_extra_info=lambda name: sock if name == "socket" else None)
        stream = AnswerStream(host, Identity("ann", ""), RelayResponse(5, 200, [b"first"], goes_on=True))
        stream.finish(b"")
        await stream.serve(make_mocked_request("POST", "/exchange", writer=writer, transport=transport), {})
        assert sock.getsockopt(socket.IPPROTO_TCP, 25) == 128 * 1024  # TCP_NOTSENT_LOWAT


@in_loop
async def test_a_relay_that_stops_ends_its_streams() -> None:
    running = relay()
    async with running, Client(running) as client:
        await client.attach()
        async with streamed(client) as stream:
            running.relay.host.close()
            message = await stream.next()
            assert isinstance(message, Status)
            assert message.code == StatusCode.BUSY
            assert await stream.next() is None


@in_loop
async def test_a_lost_connection_is_forgotten_and_its_packets_leave_by_another_way() -> None:
    async with relay() as running, Client(running) as client:
        await client.attach()
        switch = running.relay.host.switch
        async with streamed(client) as stream:
            await confirm(client, 1, 1)
            fill(running, "ann", 1, 100)
            await stream.answer()
            stream.response.close()
            await until(lambda: switch.stats().streams == 0)
        assert running.relay.host.streams == {}
        reply = await client.post(exchange_body(client.epoch, 2, serial_received=1, hold_ms=0))
        assert len(reply.message.data) > 100
        switch.check_invariants()


@in_loop
async def test_a_request_with_the_next_number_of_the_lane_ends_the_stream() -> None:
    async with relay() as running, Client(running) as client:
        await client.attach()
        async with streamed(client) as stream:
            reply = await client.post(exchange_body(client.epoch, 2, serial_received=1, hold_ms=0))
            assert reply.message.number == 2
            assert await stream.next() is None


@in_loop
async def test_a_confirmation_of_what_was_never_sent_is_refused() -> None:
    async with relay() as running, Client(running) as client:
        await client.attach()
        async with streamed(client):
            for confirms in ((0, 99), (5, 1)):
                body = exchange_body(client.epoch, 1, lane=1, confirms=confirms, hold_ms=0)
                assert (await client.post(body)).message.code == StatusCode.UNKNOWN


@in_loop
async def test_two_users_an_unread_stream_is_charged_to_its_user_and_cut() -> None:
    """While a client reads nothing, the bytes on its connection and its unconfirmed packets are bounded."""
    config = settings(limits={"answer_seconds": 0.3})
    async with relay(config) as running, Client(running) as client, Client(running, "bob") as victim:
        await client.attach()
        host = running.relay.host
        _, writer = await connect(running)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        body = exchange_body(client.epoch, 1, **STREAM)
        writer.write(HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await until(lambda: host.streams)
        await confirm(client, 1, 1)
        (attachment,) = host.switch._registry.by_id.values()
        attachment.streams.window.window_bytes = 8 << 20  # more than the buffers of a socket hold
        fill(running, "ann", 600)
        await until(lambda: running.connections.held_bytes > 0)
        window = attachment.streams.window.window_bytes + attachment.streams.window.part_bytes + (1 << 17)
        while host.streams:
            assert attachment.mailbox.budget.outstanding <= window
            assert running.connections.held_bytes <= 2 << 20
            # The other user is served meanwhile, and pays for nothing.
            assert (await victim.post(attach_body(3))).status == 200
            await asyncio.sleep(0)
        await until(lambda: running.connections.held_bytes == 0)
        assert [
            account.budget.held for account in host.switch._registry.accounts.values() if account.user == "bob"
        ] == [0]
        await close(writer)


@in_loop
async def test_two_users_a_stream_of_one_does_not_delay_the_other() -> None:
    async with relay() as running, Client(running) as client, Client(running, "bob") as victim:
        await client.attach()
        async with streamed(client) as stream:
            await confirm(client, 1, 1)
            fill(running, "ann", 400)
            taken, number = 0, 1
            while taken < 400 * (1 << 16):
                answer = await stream.answer()
                taken += len(answer.data)
                number += 1
                await confirm(client, number, answer.serial)
                if number % 8 == 0:
                    assert (await victim.post(attach_body(3))).status == 200
        assert running.relay.host.turns.peak_us < 200_000
