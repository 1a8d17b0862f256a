"""The forwarder that cuts connections: it resets those of a certain age on both sides; younger ones end cleanly."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

import pytest

from loadtests.bench.peers.cutter import serve
from tests.support.loops import HANGING_S, in_loop_within

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def through_the_cutter(age_s: float) -> AsyncIterator[tuple[Streams, Streams]]:
    """The streams of a client and of a server, with the cutter between them."""
    arrived: asyncio.Future[Streams] = asyncio.get_running_loop().create_future()
    upstream = await asyncio.start_server(lambda *streams: arrived.set_result(streams), "127.0.0.1", 0)
    cutter = await serve(upstream.sockets[0].getsockname()[1], age_s)
    async with upstream, cutter:
        near = await asyncio.open_connection("127.0.0.1", cutter.sockets[0].getsockname()[1])
        far = await arrived
        with closing(near[1]), closing(far[1]):
            yield near, far


@in_loop_within(HANGING_S)
async def test_a_connection_of_that_age_is_reset_on_both_sides() -> None:
    """Programs could take an end of stream for the end of all data."""
    async with through_the_cutter(0.2) as ((near, near_writer), (far, _)):
        near_writer.write(b"there")
        assert await far.readexactly(5) == b"there"
        for reader in (near, far):
            with pytest.raises(ConnectionResetError):
                await reader.read()


@in_loop_within(HANGING_S)
async def test_a_younger_connection_ends_when_both_sides_have_ended_it() -> None:
    async with through_the_cutter(600) as ((near, near_writer), (far, far_writer)):
        near_writer.write(bytes(3_000_000))
        near_writer.write_eof()
        assert len(await far.read()) == 3_000_000
        far_writer.write(bytes(3_000_000))
        far_writer.write_eof()
        assert len(await near.read()) == 3_000_000


@in_loop_within(HANGING_S)
async def test_without_an_upstream_the_client_is_reset() -> None:
    gone = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = gone.sockets[0].getsockname()[1]
    gone.close()
    await gone.wait_closed()
    cutter = await serve(port, 600)
    async with cutter:
        reader, writer = await asyncio.open_connection("127.0.0.1", cutter.sockets[0].getsockname()[1])
        with closing(writer), pytest.raises(ConnectionResetError):
            await reader.read()
