"""Connections to targets: the kernel's receive buffers grow for downloads, but not for as many as one user likes."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest

from tests.support.buffers import is_kept
from tests.support.loops import HANGING_S, in_loop_within, until
from tests.support.targets import target
from tunnel.streams.splice import Side, splice
from tunnel.streams.target_side import LargeBuffers, TargetSide

SMALL_BYTES = 256 * 1024

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux can keep the size of a receive buffer")


def test_two_users_one_gets_half_of_the_large_buffers_and_another_half_of_the_rest() -> None:
    buffers = LargeBuffers(8)
    assert [buffers.take("ann") for _ in range(5)] == [True] * 4 + [False]
    assert [buffers.take("bob") for _ in range(3)] == [True] * 2 + [False]


def test_a_large_buffer_that_is_given_back_can_be_taken_again() -> None:
    buffers = LargeBuffers(2)
    assert buffers.take("ann")
    assert not buffers.take("ann")
    buffers.give_back("ann")
    assert buffers.take("ann")


class Received(Side):
    """The other side of a splice, which counts what it gets."""

    size_bytes = 0
    is_over = False

    def write(self, data: bytes) -> bool:
        self.size_bytes += len(data)
        return True

    def resume_reading(self) -> None:
        """There is nothing to read."""

    def other_ended(self, other: Side, *, clean: bool) -> None:
        """Stay open."""


class Target:
    """A target that sends as many bytes as it is told, and connections to it."""

    def __init__(self, buffers: LargeBuffers) -> None:
        self.port = 0
        self._buffers = buffers
        self.made: list[Download] = []
        self._writers: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.put_nowait(writer)
        with suppress(ConnectionResetError):
            await reader.read()

    async def connect(self, user: str) -> "Download":
        made = partial(TargetSide, user, self._buffers)
        transport, side = await asyncio.get_running_loop().create_connection(made, "127.0.0.1", self.port)
        received = Received()
        splice(side, received)
        self.made.append(Download(side, transport.get_extra_info("socket"), received, await self._writers.get()))
        return self.made[-1]


class Download:
    """A connection to a target, both ends of it."""

    def __init__(self, side: TargetSide, sock: socket.socket, received: Received, writer: asyncio.StreamWriter) -> None:
        self._side = side
        self._sock = sock
        self._received = received
        self._writer = writer

    @property
    def may_grow(self) -> bool:
        return not is_kept(self._sock)

    async def move(self, size_bytes: int) -> None:
        wanted = self._received.size_bytes + size_bytes
        self._writer.write(bytes(size_bytes))
        await until(lambda: self._received.size_bytes == wanted)

    async def end(self) -> None:
        self._side.abort()
        await asyncio.sleep(0)  # connection_lost is called


@asynccontextmanager
async def downloads(large_max: int) -> AsyncIterator[Target]:
    found = Target(LargeBuffers(large_max))
    async with target(found.serve) as found.port:
        try:
            yield found
        finally:
            for each in found.made:
                await each.end()


@in_loop_within(HANGING_S)
async def test_the_buffer_may_grow_once_the_target_has_sent_what_a_download_begins_with() -> None:
    async with downloads(2) as found:
        one = await found.connect("ann")
        assert not one.may_grow
        await one.move(SMALL_BYTES - 1)
        assert not one.may_grow
        await one.move(1)
        assert one.may_grow


@in_loop_within(HANGING_S)
async def test_two_users_many_downloads_of_one_leave_large_buffers_to_the_other() -> None:
    async with downloads(2) as found:
        first, second, others = [await found.connect(user) for user in ("ann", "ann", "bob")]
        for each in (first, second, others):
            await each.move(SMALL_BYTES)
        assert [each.may_grow for each in (first, second, others)] == [True, False, True]
        await second.end()  # it has no large buffer to give back
        third = await found.connect("ann")
        await third.move(SMALL_BYTES)
        assert not third.may_grow
        await first.end()
        await third.move(SMALL_BYTES - 1)
        assert not third.may_grow
        await third.move(1)
        assert third.may_grow


@in_loop_within(HANGING_S)
async def test_a_connection_that_goes_on_asks_for_a_large_buffer_only_once() -> None:
    async with downloads(4) as found:
        one = await found.connect("ann")
        await one.move(2 * SMALL_BYTES)
        await one.move(SMALL_BYTES)
        await one.end()
        for _ in range(2):
            other = await found.connect("ann")
            await other.move(SMALL_BYTES)
            assert other.may_grow
