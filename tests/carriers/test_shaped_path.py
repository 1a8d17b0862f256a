"""A path that shapes each connection: auto leaves the link for requests, which use several, and returns to it."""

from __future__ import annotations

import asyncio

import pytest

from tests.carriers.harness import echo, end, noise, say_and_hear
from tests.carriers.rig import CountingRelay, moved_by, until
from tests.field.rig import serving
from tests.field.scripted import Behaviour, ScriptedProxy
from tests.support.http_relay import token_of
from tests.support.loops import in_loop
from tunnel import StreamReader, StreamWriter, attach

RATE = 128 * 1024  # bytes/s of each connection, each way


class Flow:
    """Bytes without an end, until `is_wanted` is false."""

    def __init__(self) -> None:
        self.is_wanted = True
        self.written = bytearray()
        self.read = bytearray()

    async def write(self, reader: StreamReader, writer: StreamWriter) -> None:
        while self.is_wanted:
            piece = noise(16 * 1024, len(self.written) % 7)
            self.written += piece
            writer.write(piece)
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def take(self, reader: StreamReader, writer: StreamWriter) -> None:
        while piece := await reader.read(64 * 1024):
            self.read += piece
        writer.close()


@pytest.mark.parametrize("is_download", [True, False])
@in_loop
async def test_a_flow_leaves_the_shaped_link_and_its_end_brings_the_link_back(is_download: bool) -> None:
    flow = Flow()
    near, far = (flow.take, flow.write) if is_download else (flow.write, flow.take)
    async with CountingRelay() as relay, relay.attach("ann", carrier="poll") as service:
        await service.start_server(far, "flow")
        await service.start_server(echo, "echo")
        async with (
            serving(ScriptedProxy(Behaviour(bytes_per_s=RATE), relay.port).serve) as port,
            attach(f"http://127.0.0.1:{port}/prefix", token=token_of("bob"), proxy=None, carrier="auto") as client,
        ):
            await until(lambda: moved_by(client) == "link")
            flowing = asyncio.create_task(near(*await client.open_connection("flow")))
            await until(lambda: moved_by(client) != "link")
            link = client.stats().roads[0]
            assert link.state == "resting"
            assert "separate requests may carry more" in link.why
            await until(lambda: not relay.host.links)
            flow.is_wanted = False
            await until(lambda: moved_by(client) == "link")
            await flowing
            _, writer = await say_and_hear(client)
            await end(writer)
            assert flow.read == flow.written
