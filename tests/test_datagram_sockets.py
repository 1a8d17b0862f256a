"""The exit's UDP sockets: each has one target, and closes with its side of the tunnel."""

from __future__ import annotations

import asyncio
import socket

import pytest

from loadtests.harness.ports import hold_port
from tests.rig import Stream
from tests.support.loops import in_loop
from tunnel.streams.datagram_sockets import open_datagrams
from tunnel.streams.datagrams import frame_datagram
from tunnel.streams.splice import splice


async def until(stream: Stream, count: int) -> list[bytes]:
    while len(stream.datagrams) < count:  # noqa: ASYNC110 - a socket of the kernel has no event here
        await asyncio.sleep(0.001)
    return stream.datagrams


@in_loop
async def test_a_socket_exchanges_datagrams_only_with_its_target() -> None:
    loop = asyncio.get_running_loop()
    with (
        socket.socket(type=socket.SOCK_DGRAM) as target,
        socket.socket(type=socket.SOCK_DGRAM) as stranger,
    ):
        target.bind(("127.0.0.1", 0))
        target.setblocking(False)
        side, stream = await open_datagrams("127.0.0.1", target.getsockname()[1]), Stream()
        splice(side, stream)
        side.write(frame_datagram(b"question") + frame_datagram(b"another"))
        question, where = await loop.sock_recvfrom(target, 100)
        assert question == b"question"
        assert await loop.sock_recvfrom(target, 100) == (b"another", where)
        stranger.sendto(b"lie", where)
        target.sendto(b"answer", where)
        assert await until(stream, 1) == [b"answer"]
        side.close()
        assert stream.ends == ["closed"]
        side.write(frame_datagram(b"late"))
        assert side.dropped == 1
        await asyncio.sleep(0)  # the event loop closes the socket of `side`


@in_loop
async def test_a_closed_port_is_silence_not_an_error() -> None:
    with hold_port() as port:
        side, stream = await open_datagrams("127.0.0.1", port, idle_seconds=0.1), Stream()
        splice(side, stream)
        for _ in range(3):
            side.write(frame_datagram(b"x"))
            await asyncio.sleep(0)
        side.write(frame_datagram(bytes(65_535)))  # more than UDP carries
        while not side.is_over:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert stream.ends == ["closed"]
        await asyncio.sleep(0)


@in_loop
async def test_a_socket_that_cannot_be_created_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(socket, "socket", fail)
    with pytest.raises(OSError, match="no network"):
        await open_datagrams("127.0.0.1", 1)
