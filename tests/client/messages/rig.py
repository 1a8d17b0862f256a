"""Both ends of a connection for tests of blocking messages: kernel sockets, or a TunnelSocket and its target."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.client.sockets_rig import pair, relay_thread
from tunnel_client import Runtime

__all__ = ["DEADLINE_S", "Pair", "ends"]

DEADLINE_S = 30.0  # only a hanging test reaches it
Pair = tuple[socket.socket, socket.socket]


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    """Access to a relay that lives as long as the tests of one file."""
    with relay_thread() as relay:
        made = Runtime(relay.settings, linger=1.0)
        yield made
        made.close()


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
