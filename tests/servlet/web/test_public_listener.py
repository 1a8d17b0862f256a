"""Listening sockets for people without the tunnel: a connection gives its place back, however it ends."""

from __future__ import annotations

import asyncio
import socket
import struct
from ipaddress import ip_address

import pytest
import uvloop

from tests.servlet.rig import until
from tests.support.loops import run
from tunnel_servlet.access.connections import Connections, Place
from tunnel_servlet.access.grants import PublicAddress
from tunnel_servlet.web.public_listener import PublicListener, bind_public
from tunnel_servlet.web.public_sides import HttpSide, PublicSide
from tunnel_servlet.web.turns import Turns

LOOPS = [uvloop.new_event_loop, asyncio.new_event_loop]
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset


class Scene:
    """A listener on a free port, with as many places as a test connects."""

    def __init__(self, *, is_http: bool) -> None:
        self.sides: dict[PublicSide, None] = {}
        self.made: list[PublicSide] = []
        self.connections = Connections(4096, 64, 1, 1 << 20)
        self.turns = Turns()
        self._is_http = is_http
        sock = bind_public(PublicAddress(ip_address("127.0.0.1"), 0))
        self.address = sock.getsockname()
        self.listener = PublicListener(sock, self._serve, self.connections)

    def _serve(self, place: Place, client: tuple[str, int]) -> PublicSide:
        if self._is_http:
            side: PublicSide = HttpSide(place, client, self.sides, lambda side: None, lambda side: None, 30, self.turns)
        else:
            side = PublicSide(place, client, self.sides, PublicSide.resume_reading, lambda side: None)
        self.made.append(side)
        return side

    def reset(self) -> None:
        """Connect, and reset the connection before the listener has accepted it."""
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            sock.connect(self.address)


@pytest.mark.parametrize("new_loop", LOOPS)
@pytest.mark.parametrize("is_http", [False, True])
def test_a_connection_that_was_reset_before_it_was_accepted_gives_its_place_back(
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
def test_a_side_that_fails_at_once_gives_its_place_back(
    new_loop: type[asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(side: PublicSide, transport: asyncio.BaseTransport) -> None:
        raise OSError("no options can be set")

    monkeypatch.setattr("tunnel.splice.SocketSide.connection_made", fail)

    async def scenario() -> None:
        problems: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        scene = Scene(is_http=True)
        scene.reset()
        await until(lambda: scene.made and not scene.connections.total)
        scene.listener.close()

    run(scenario(), new_loop, deadline_s=10)
