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
