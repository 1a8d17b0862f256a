"""Listening sockets of the relay: whenever one stops accepting, a new connection is closed and no longer counted."""

import asyncio
import contextlib
import gc
import socket
import ssl
from typing import cast

import pytest
import uvloop

from tests.servlet.rig import until
from tests.support.loops import run
from tunnel_servlet.access.connections import Connections, CountedConnection
from tunnel_servlet.web.http.acceptor import Acceptor, bind

LOOPS = [uvloop.new_event_loop, asyncio.new_event_loop]


class Side(asyncio.Protocol):
    """Stands for a protocol of the relay: it calls `CountedConnection.leave` when its connection ends."""

    def __init__(self, counted: CountedConnection, open_sides: set["Side"]) -> None:
        self.transport: asyncio.BaseTransport | None = None
        self._counted = counted
        self._open_sides = open_sides

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._open_sides.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._open_sides.discard(self)
        self._counted.leave()


@pytest.mark.parametrize("new_loop", LOOPS)
@pytest.mark.parametrize("turns", range(8))
@pytest.mark.parametrize("encrypted", [False, True])
def test_a_connection_that_comes_just_before_the_end_is_closed(
    new_loop: type[asyncio.AbstractEventLoop], turns: int, encrypted: bool
) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if encrypted else None  # the client never begins its handshake

    async def scenario() -> None:
        sides: set[Side] = set()
        connections = Connections(64, 64, 1, 1 << 20)
        [listening] = await bind("127.0.0.1", 0)
        acceptor = Acceptor(listening, lambda counted, _: Side(counted, sides), connections, tls=tls, tls_seconds=10)
        await asyncio.sleep(0)
        with socket.create_connection(listening.getsockname()) as client:
            for _ in range(turns):
                await asyncio.sleep(0)
            acceptor.close()
            for side in [*sides]:
                cast("asyncio.Transport", side.transport).abort()
            await until(lambda: not connections.total)
            client.settimeout(5)
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.to_thread(client.recv, 1) == b""
        assert not sides
        gc.collect()  # a socket that was never closed is an error of this test

    run(scenario(), new_loop, deadline_s=20)
