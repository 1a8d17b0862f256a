"""Connections of strangers (PROTOCOL 2.11): when one ends, in whatever way, the relay no longer counts it."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest
import uvloop

from tests.servlet.rig import until
from tests.support.loops import run
from tunnel.turns.queues import Turns
from tunnel_servlet.access.connections import Connections, CountedConnection
from tunnel_servlet.web.http.acceptor import Acceptor, listen
from tunnel_servlet.web.public.sides import HttpSide, PublicSide

LOOPS = [uvloop.new_event_loop, asyncio.new_event_loop]
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset


class Scene:
    """A listener on a free port, whose limits admit all connections that a test makes."""

    def __init__(self, *, is_http: bool, bytes_max: int = 1 << 20) -> None:
        self.sides: dict[PublicSide, None] = {}
        self.made: list[PublicSide] = []
        self.connections = Connections(4096, 64, 1, bytes_max)
        self.turns = Turns()
        self._is_http = is_http
        listening = listen(socket.AF_INET, ("127.0.0.1", 0))
        self.address = listening.getsockname()
        self.listener = Acceptor(listening, self._serve, self.connections, tls=None, tls_seconds=10)

    def _serve(self, counted: CountedConnection, client: tuple[str, int]) -> PublicSide:
        if self._is_http:
            side: PublicSide = HttpSide(
                counted, client, self.sides, lambda side: None, lambda side: None, 30, self.turns
            )
        else:
            side = PublicSide(counted, client, self.sides, lambda side: side.resume_reading(), lambda side: None)
        self.made.append(side)
        return side

    def reset(self) -> None:
        """Connect, and reset the connection before the listener has accepted it."""
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            sock.connect(self.address)


@pytest.mark.parametrize("new_loop", LOOPS)
@pytest.mark.parametrize("is_http", [False, True])
def test_a_connection_that_was_reset_before_it_was_accepted_is_no_longer_counted(
    new_loop: type[asyncio.AbstractEventLoop], is_http: bool
) -> None:
    async def scenario() -> None:
        scene = Scene(is_http=is_http)
        for _ in range(40):
            scene.reset()
        await until(lambda: len(scene.made) == 40 and not scene.connections.total)
        assert not scene.sides
        assert not scene.turns.inputs
        scene.listener.close()

    run(scenario(), new_loop, deadline_s=10)


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_side_that_fails_at_once_is_no_longer_counted(
    new_loop: type[asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(side: PublicSide, transport: asyncio.BaseTransport) -> None:
        raise OSError("no options can be set")

    monkeypatch.setattr("tunnel.streams.splice.SocketSide.connection_made", fail)

    async def scenario() -> None:
        problems: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        scene = Scene(is_http=True)
        scene.reset()
        await until(lambda: scene.made and not scene.connections.total)
        scene.listener.close()

    run(scenario(), new_loop, deadline_s=10)


@pytest.mark.parametrize("new_loop", LOOPS)
@pytest.mark.parametrize("is_http", [False, True])
def test_input_that_waits_for_a_service_is_charged_to_the_address_of_the_client(
    new_loop: type[asyncio.AbstractEventLoop], is_http: bool
) -> None:
    """No service ever accepts here."""
    body = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n" + bytes(200_000)

    async def scenario() -> None:
        scene = Scene(is_http=is_http, bytes_max=1_000_000)
        writers = [(await asyncio.open_connection(*scene.address))[1] for _ in range(10)]
        await until(lambda: scene.connections.total == 10)
        for writer in writers:
            writer.write(body)
        await until(lambda: scene.connections.held_bytes and scene.connections.total < 10)
        assert scene.connections.held_bytes <= 500_000  # one address may hold half
        for side in list(scene.sides):
            side.abort_both()
        for writer in writers:
            writer.transport.abort()
        await until(lambda: not scene.connections.total)
        assert scene.connections.held_bytes == 0
        scene.listener.close()

    run(scenario(), new_loop, deadline_s=10)
