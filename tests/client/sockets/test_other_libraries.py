"""TunnelSockets in libraries with sockets or loops of their own: the ways that docs/LIBRARY.md describes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest
import trio
import uvloop

from tests.client.sockets_rig import DEADLINE_S
from tests.support.loops import run
from tunnel_client import Runtime, create_connection

DATA = bytes(range(256)) * 4096


@pytest.fixture
def plain(runtime: Runtime) -> Iterator[socket.socket]:
    """A connection to an echo service as a plain socket, made from a TunnelSocket's descriptor."""
    connected = create_connection("reports", DEADLINE_S, runtime=runtime)
    with socket.socket(fileno=connected.detach()) as sock:
        assert type(sock) is socket.socket
        yield sock


async def echo_in_trio(sock: socket.socket) -> bytes:
    received = bytearray()
    async with trio.SocketStream(trio.socket.from_stdlib_socket(sock)) as stream, trio.open_nursery() as nursery:
        nursery.start_soon(send_in_trio, stream)
        async for data in stream:
            received += data
    return bytes(received)


async def send_in_trio(stream: trio.SocketStream) -> None:
    await stream.send_all(DATA)
    await stream.send_eof()


def test_trio_takes_a_plain_socket_made_from_the_descriptor(plain: socket.socket) -> None:
    assert trio.run(echo_in_trio, plain) == DATA


def test_trio_refuses_a_tunnel_socket_since_it_is_a_subclass(runtime: Runtime) -> None:
    async def wrap(sock: socket.socket) -> None:
        trio.socket.from_stdlib_socket(sock)

    with (
        create_connection("reports", DEADLINE_S, runtime=runtime) as sock,
        pytest.raises(TypeError, match=r"socket.socket.* not 'TunnelSocket'"),
    ):
        trio.run(wrap, sock)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("kind", ["tunnel", "plain"])
def test_asyncio_takes_a_tunnel_socket_and_a_plain_socket_made_from_one(
    runtime: Runtime, new_loop: type[asyncio.AbstractEventLoop], kind: str
) -> None:
    async def main() -> None:
        sock: socket.socket = create_connection("reports", DEADLINE_S, runtime=runtime)
        if kind == "plain":
            sock = socket.socket(fileno=sock.detach())
        reader, writer = await asyncio.open_connection(sock=sock)
        writer.write(DATA)
        writer.write_eof()
        assert await reader.read(-1) == DATA
        writer.close()
        await writer.wait_closed()

    run(main(), new_loop)
