"""The targets `relay_websocket` and `client_websocket`: any frames at both sides of a websocket (8.5).

The first byte of an input chooses the portions in which the frames arrive. Promises: without a token there is no
websocket; frames that keep to the rules are answered and receipted, and do not close it; frames that break the rules
close it where 8.5 demands that; our own frames keep to the rules, and none follows a close frame; nothing is left, and
nothing is charged, afterwards.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import Iterator
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

from tests.fuzz.checksums import repair_envelope
from tests.fuzz.client_targets import Owner
from tests.fuzz.draw import Draw
from tests.fuzz.http_world import HELD_BYTES_MAX, TOKEN, HttpWorld
from tests.fuzz.target import Target
from tests.fuzz.websocket_frames import BINARY, CLOSE, PONG, Script, frame, frames_in, script_of, scripted
from tests.fuzz.wire_end import MemoryTransport, portions, run_in_loop, settle
from tunnel.carriers.dialing.dialing import Dialing
from tunnel.carriers.halves.link_protocol import LINK_LANE
from tunnel.carriers.links.dialed_link import DialedLink, hello
from tunnel.carriers.links.websocket_dial import OpenedWebSocket, open_websocket
from tunnel.wire import (
    Answer,
    Status,
    StatusCode,
    decode_envelope,
    decode_link_header,
    encode_envelope,
)

__all__ = ["CLIENT_WEBSOCKET_TARGET", "RELAY_WEBSOCKET_TARGET"]

_UPGRADE = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
_KEY = "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
_RIGHT = b"".join(encode_envelope(Answer(LINK_LANE, 0, 0)))
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


# --- the relay's side


def _relay_websocket(data: bytes) -> None:
    """Play a websocket: with the right first message, with another one, with none, or without a token."""
    draw = Draw(data)
    choice, kind = draw.byte(), draw.below(4)

    async def serve() -> None:
        async with HttpWorld() as world:
            if kind == 3:
                await _without_a_token(world, draw, choice)
            else:
                await _with_a_token(world, draw, choice, kind)
        world.check_end()

    run_in_loop(serve)


async def _without_a_token(world: HttpWorld, draw: Draw, choice: int) -> None:
    token = draw.pick(("", "Authorization: Bearer tnl_00000000_wrong\r\n", "Authorization: \xff\r\n"))
    head = f"GET /link HTTP/1.1\r\nHost: x\r\n{token}{_UPGRADE}{_KEY}\r\n".encode("latin-1")
    await world.send(head + scripted(draw, masked=True).sent, choice)
    answers, rest = world.check()
    assert [status for status, _, _ in answers] == [401]
    assert not rest


async def _with_a_token(world: HttpWorld, draw: Draw, choice: int, kind: int) -> None:
    attached = await world.attach()
    first = hello(attached.attachment_id, world.relay.host.switch.epoch, attached.generation)
    opening = b""
    if kind == 0:
        opening = frame(BINARY, first, masked=True)
    elif kind == 1:
        opening = frame(BINARY, repair_envelope(draw.raw(draw.below(200))), masked=True)
    upgrade = f"GET /link HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n{_UPGRADE}{_KEY}\r\n".encode()
    script = scripted(draw, masked=True)
    early = choice & 8  # the frames arrive with the request, before there is a websocket
    await world.send(upgrade + opening + script.sent if early else upgrade, choice if early else 0)
    if not early:
        await world.send(opening + script.sent, choice)
    _check_kept(world, is_whole=not kind and not script.is_over)
    answers, rest = world.check()
    assert [status for status, _, _ in answers] == [200, 101]
    _check_relay(list(frames_in(rest, masked=False)), script, kind)
    if choice & 16:
        world.transport.end()
        await settle()


def _check_kept(world: HttpWorld, *, is_whole: bool) -> None:
    """Check that an incomplete message keeps at most a largest batch and a header, and that nothing else is charged."""
    limits = world.relay.config.limits
    held = world.handler.counted.held_bytes
    assert held <= HELD_BYTES_MAX, f"{held} bytes are held"
    guard: Any = world.handler.pieces.guard
    assert not is_whole or not held, f"{held} bytes are held after whole messages"
    assert not guard._is_over or not guard._held_bytes, "bytes are held after the end"
    assert guard._is_over or guard.coming_bytes <= limits.link_batch_bytes_max + 24 + 4, (
        f"{guard.coming_bytes} bytes are coming"
    )


def _check_relay(found: list[tuple[int, bytes]], script: Script, kind: int) -> None:
    is_closed = bool(found) and found[-1][0] == CLOSE
    messages = [payload for opcode, payload in found if opcode == BINARY]
    if kind:
        assert len(messages) <= 1, "something follows the refusal of a first message"
        assert not messages or isinstance(decode_envelope(messages[0]), Status)
        return
    assert script.is_over == is_closed or script.wrong, f"closed: {is_closed}, sent: {script}"
    assert is_closed or not script.must_close, f"not closed after {script.wrong}"
    if not is_closed:
        assert isinstance(decode_envelope(messages[0]), Answer)
        assert [payload for opcode, payload in found if opcode == PONG][: len(script.pings)] == script.pings
        headers = [decode_link_header(message) for message in messages[1:]]
        assert all(header is not None for header in headers)


# --- the endpoint's side


class _Connector(aiohttp.TCPConnector):
    """Connects to nothing: it answers the request itself, with 101 and the bytes `early` after that."""

    def __init__(self, early: bytes) -> None:
        super().__init__()
        self._early = early
        self.transport: MemoryTransport

    async def _create_connection(self, *_: object) -> ResponseHandler:
        handler: ResponseHandler = self._factory()
        self.transport = MemoryTransport(handler)
        handler.connection_made(self.transport)
        asyncio.get_running_loop().call_soon(self._answer)
        return handler

    def _answer(self) -> None:
        found = re.search(rb"Sec-WebSocket-Key: (\S+)", bytes(self.transport.sent))
        if found is None:
            asyncio.get_running_loop().call_soon(self._answer)
            return
        self.transport.sent.clear()
        accept = base64.b64encode(hashlib.sha1(found[1] + _GUID, usedforsecurity=False).digest())
        head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        self.transport.arrive(head + b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n" + self._early)


class _Dialing(Dialing):
    """Dials through `connector`."""

    connector: _Connector

    def session(self, **options: Any) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(connector=self.connector, middlewares=options["middlewares"])


def _client_websocket(data: bytes) -> None:
    """The relay's first message is right, repaired, a refusal or missing; then come any frames."""
    draw = Draw(data)
    choice, kind, early = draw.byte(), draw.below(4), draw.byte()
    refusal = b"".join(encode_envelope(Status(StatusCode.UNKNOWN, 0, "gone")))
    first = (_RIGHT, b"", refusal, b"")[kind]
    if kind == 1:
        first = repair_envelope(draw.raw(draw.below(200)))
    script = scripted(draw, masked=False)
    coming = (frame(BINARY, first, masked=False) if kind < 3 else b"") + bytes(script.sent)

    async def serve() -> None:
        dialing = _Dialing("http://relay.test", proxy=None)
        dialing.connector = _Connector(coming[:early])
        opened = await open_websocket(dialing)
        await _use(opened, dialing.connector.transport, coming[early:], choice, script, kind)
        await opened.close()

    run_in_loop(serve)


async def _use(
    opened: OpenedWebSocket, transport: MemoryTransport, coming: bytes, choice: int, script: Script, kind: int
) -> None:
    owner = Owner()
    ends: list[Exception | None] = []
    link = DialedLink(owner, lambda: 0, ends.append)
    link.begin(opened.transport, hello(bytes(16), 1, 1), opened.early)
    await settle()
    for portion in portions(coming, choice):
        transport.arrive(portion)
        await settle()
    assert owner.opened <= 1
    assert kind > 1 or kind == 1 or owner.opened or script.wrong, "a right answer opened nothing"
    assert kind != 2 or not owner.opened
    if owner.opened and not script.is_over and not kind:
        assert not owner.lost, owner.lost
        assert owner.batches == script.batches
    transport.end()
    transport.lose()
    await settle()
    found = list(frames_in(bytes(transport.sent), masked=True))
    assert found[0] == (BINARY, hello(bytes(16), 1, 1)), "the first message is not the first frame"
    if owner.opened and not script.is_over and not kind:
        assert [payload for opcode, payload in found if opcode == PONG] == script.pings
    await opened.transport.ended
    await settle()
    assert (len(owner.lost), len(ends)) == (1, 1)


# --- seeds


def _frame_seeds() -> Iterator[tuple[str, bytes]]:
    yield "batches", script_of("batch", 1, "batch", 3, "receipt", "batch", 0)
    yield "pings", script_of("ping", 2, 65, 66, "batch", 0, "pong", 0, "ping", 125)
    yield "close", script_of("batch", 1, "close", 2, 0, "batch", 1)
    yield "odd_close", script_of("close", 0, 1, 7)
    yield "text", script_of("batch", 1, "text", 5) + b"hello" + script_of("batch", 1)
    yield "pieces", script_of("pieces", 3) + b"abc" + script_of(2, 1, 65, 1, 66, 1, 0, 1, 0)
    yield "mask", script_of("other_mask", 0, 4) + b"abcd" + script_of("batch", 0)
    yield "odd", script_of("odd", 1, 1, 65, "odd", 5, 0)
    for number in range(12):
        yield f"size_{number}", script_of("batch", 0, "size", number, number % 3, 0, 3, 1, 2, 3, "batch", 0)
    yield "lie", script_of("batch", 0, "lie", 2, 0, 10, 10) + bytes(10)
    yield "noise", script_of("noise", 40) + bytes(40) + script_of("raw", 3, 1, 2, 3)


def _relay_seeds() -> Iterator[tuple[str, bytes]]:
    for number, (name, raw) in enumerate(_frame_seeds()):
        yield name, bytes([number % 32, 0]) + raw
    yield "other_first", bytes([1, 1, 60]) + hello(bytes(16), 7, 1) + script_of("batch", 1)
    yield "no_first", bytes([2, 2]) + script_of("batch", 1, "ping", 0)
    yield "no_token", bytes([8, 3, 0]) + script_of("batch", 1)
    yield "wrong_token", bytes([0, 3, 1]) + script_of("batch", 1)


def _client_seeds() -> Iterator[tuple[str, bytes]]:
    for number, (name, raw) in enumerate(_frame_seeds()):
        yield name, bytes([number % 8, 0, (number % 3) * 30]) + raw
    yield "repaired", bytes([1, 1, 0, 60]) + _RIGHT + script_of("batch", 1)
    yield "refused", bytes([2, 2, 0]) + script_of("batch", 1)
    yield "no_first", bytes([3, 3, 5]) + script_of("noise", 10) + b"<html>page"


RELAY_WEBSOCKET_TARGET = Target("relay_websocket", _relay_websocket, _relay_seeds, 1024)
CLIENT_WEBSOCKET_TARGET = Target("client_websocket", _client_websocket, _client_seeds, 1024)
