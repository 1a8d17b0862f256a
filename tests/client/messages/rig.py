"""Both ends of a connection for tests of blocking messages: kernel sockets, or a TunnelSocket and its target."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TypeVar

import pytest

from tests.client.sockets_rig import beside, pair
from tunnel_client import Runtime, create_connection
from tunnel_client.messages import BlockingTable

__all__ = ["DEADLINE_S", "Pair", "ends", "serving", "table"]

DEADLINE_S = 30.0  # only a hanging test reaches it
Pair = tuple[socket.socket, socket.socket]
T = TypeVar("T")


@contextmanager
def connected(kind: str, runtime: Runtime) -> Iterator[Pair]:
    """Connect two sockets, and close both at the end; if the test has closed one, this is harmless."""
    with pair(kind, runtime) as (near, far):
        far.settimeout(DEADLINE_S)
        yield near, far


@pytest.fixture(params=["plain", "tunnel"])
def ends(request: pytest.FixtureRequest, runtime: Runtime) -> Iterator[Pair]:
    """Our end and the peer's: kernel sockets, or ours is a TunnelSocket."""
    with connected(request.param, runtime) as found:
        yield found


@contextmanager
def table(runtime: Runtime) -> Iterator[BlockingTable]:
    """A table of channels through the relay."""

    def connect(address: str) -> socket.socket:
        host, _, port = address.partition(":")
        return create_connection((host, int(port)), DEADLINE_S, runtime=runtime)

    with BlockingTable(connect, connect_timeout=DEADLINE_S) as found:
        yield found


@contextmanager
def serving(broker: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Run a broker in a loop of another thread."""
    ready, done = threading.Event(), threading.Event()
    found: list[T] = []

    async def serve() -> None:
        async with broker as made:
            found.append(made)
            ready.set()
            await asyncio.to_thread(done.wait, DEADLINE_S)

    with beside(lambda: asyncio.run(serve())):
        assert ready.wait(DEADLINE_S)
        try:
            yield found[0]
        finally:
            done.set()
