"""A client's connection to the local proxy while its target is dialled.

tests/client/cli/commands/test_proxy.py has real clients and targets.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, cast

from tests.support.loops import in_loop
from tunnel.streams.splice import Side, TunnelSide
from tunnel_client.proxy.front import ProxyFront
from tunnel_client.proxy.socks import Socks5Request

CONNECT = b"CONNECT db.internal:5432 HTTP/1.1\r\n\r\n"


class Wire(asyncio.Transport):
    """A transport that records what it is asked to do."""

    family = socket.AF_INET

    def __init__(self) -> None:
        super().__init__({"socket": self, "sockname": ("127.0.0.1", 1080), "peername": ("127.0.0.1", 1)})
        self.asked: list[str] = []
        self.written = bytearray()
        self.aborted = asyncio.Event()

    def setsockopt(self, *arguments: Any) -> None:
        """Do nothing: the transport is its own socket, and has no options."""

    def is_closing(self) -> bool:
        return "close" in self.asked or self.aborted.is_set()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.asked.append("close")

    def abort(self) -> None:
        self.asked.append("abort")
        self.aborted.set()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.asked.append("eof")

    def pause_reading(self) -> None:
        self.asked.append("pause")

    def resume_reading(self) -> None:
        self.asked.append("resume")


class Beyond:
    """Stands for the command around the front. The test sets the result of `dialled`: the connection through the
    tunnel."""

    def __init__(self, request_seconds: float = 30.0) -> None:
        self.request_seconds = request_seconds
        self.dialling = asyncio.Event()
        self.dialled: asyncio.Future[TunnelSide] = asyncio.get_running_loop().create_future()
        self.gone: list[ProxyFront] = []

    async def connect(
        self, host: str, port: int, ended: Callable[[Side, Exception | None], None], source: str
    ) -> TunnelSide:
        self.dialling.set()
        return await self.dialled

    async def associate(self, request: Socks5Request, front: ProxyFront) -> bytes:
        raise AssertionError("no client asks for datagrams here")

    def register(self, front: ProxyFront) -> bool:
        return True

    def forget(self, front: ProxyFront) -> None:
        self.gone.append(front)


def far_side() -> tuple[TunnelSide, Wire]:
    """A connection through the tunnel, and its transport."""
    far, wire = TunnelSide(), Wire()
    far.connection_made(cast(asyncio.Transport, wire))
    return far, wire


@in_loop
async def test_bytes_that_follow_a_request_are_bounded_until_the_target_answers() -> None:
    beyond, near = Beyond(), Wire()
    front = ProxyFront(beyond)
    front.connection_made(near)
    front.data_received(CONNECT + bytes(64 * 1024))
    assert near.asked == []
    front.data_received(b"x")
    assert near.asked == ["pause"]
    await beyond.dialling.wait()
    far, wire = far_side()
    beyond.dialled.set_result(far)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert wire.written == bytes(64 * 1024) + b"x"
    assert near.asked[-1] == "resume"


@in_loop
async def test_an_end_that_comes_before_the_target_has_answered_reaches_the_target() -> None:
    beyond, near = Beyond(), Wire()
    front = ProxyFront(beyond)
    front.connection_made(near)
    front.data_received(CONNECT + b"all")
    assert front.eof_received()  # the client still waits for an answer
    await beyond.dialling.wait()
    far, wire = far_side()
    beyond.dialled.set_result(far)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert wire.written == b"all"
    assert "eof" in wire.asked


@in_loop
async def test_a_connection_to_a_target_is_aborted_if_the_client_has_left_meanwhile() -> None:
    beyond, near = Beyond(), Wire()
    front = ProxyFront(beyond)
    front.connection_made(near)
    front.data_received(CONNECT)
    await beyond.dialling.wait()
    far, wire = far_side()
    near.abort()  # the loop will call connection_lost after the target has answered
    beyond.dialled.set_result(far)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert wire.asked == ["pause", "abort"]
    assert near.written == b""


@in_loop
async def test_dialling_stops_when_the_client_leaves() -> None:
    beyond, near = Beyond(), Wire()
    front = ProxyFront(beyond)
    front.connection_made(near)
    front.data_received(CONNECT)
    await beyond.dialling.wait()
    front.connection_lost(None)
    await asyncio.sleep(0)
    assert beyond.dialled.cancelled()
    assert beyond.gone == [front]


@in_loop
async def test_a_client_has_limited_time_for_its_request_but_not_for_the_answer() -> None:
    slow, whole = Wire(), Wire()
    fronts = [ProxyFront(Beyond(request_seconds=0.01)) for _ in range(2)]
    for front, wire, data in zip(fronts, (whole, slow), (CONNECT, CONNECT[:-1]), strict=True):
        front.connection_made(wire)
        front.data_received(data)
    async with asyncio.timeout(10):
        await slow.aborted.wait()  # its deadline was the later one
    assert slow.asked == ["abort"]
    assert whole.asked == []
    for front in fronts:
        front.connection_lost(None)
    await asyncio.sleep(0)
