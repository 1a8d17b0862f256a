"""The transport of a websocket below one half of a link: pauses, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import uvloop
from aiohttp import web

from tests.carriers.harness import noise
from tests.carriers.rig import Talker, until
from tests.support.loops import in_loop, run
from tunnel.carriers.dialing.dialing import Dialing
from tunnel.carriers.halves.link_protocol import LinkProtocol
from tunnel.carriers.halves.websocket_transport import WebSocketTransport
from tunnel.carriers.links.websocket_dial import open_websocket
from tunnel.exchange import LinkInput

pytestmark = pytest.mark.interpreted  # Half inherits from LinkProtocol


class Half(LinkProtocol):
    """Records the calls."""

    def __init__(self) -> None:
        super().__init__(lambda: 0, 1 << 20, 1000)
        self.log: list[Any] = []
        self.ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def opened_by(self, message: object) -> bool:
        self.is_open = True
        return True

    def on_input(self, found: LinkInput) -> None:
        self.log += [bytes(batch) for batch in found.batches]

    def writable(self) -> None:
        self.log.append("writable")

    def on_refused(self) -> None:
        self.log.append("refused")

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(exc)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_writing_pauses_while_the_other_side_does_not_read(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def main() -> None:
        app = web.Application()
        sizes: list[int] = []
        go_on = asyncio.Event()

        async def serve(request: web.Request) -> web.StreamResponse:
            websocket = web.WebSocketResponse(max_msg_size=1 << 24)
            await websocket.prepare(request)
            assert request.transport is not None
            request.transport.pause_reading()
            await go_on.wait()
            request.transport.resume_reading()
            async for message in websocket:
                sizes.append(len(message.data))
            return websocket

        app.router.add_get("/link", serve)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        opened = await open_websocket(Dialing(f"http://127.0.0.1:{runner.addresses[0][1]}", proxy=None))
        half = Half()
        half.take_over(opened.transport, {})
        sent = 0
        while not half.is_paused:
            half.write([noise(1 << 20), b"x"])
            sent += 1
            await asyncio.sleep(0)
        assert sent < 64
        go_on.set()
        await until(lambda: not half.is_paused)
        half.write([b"last"])
        opened.transport.close()
        assert await half.ended is None
        await opened.close()
        await until(lambda: len(sizes) == sent + 1)
        assert sizes == [(1 << 20) + 1] * sent + [4]
        half.write([b"too late"])
        await runner.cleanup()

    run(main(), new_loop)


@in_loop
async def test_a_transport_is_closed_once_and_writes_nothing_afterwards() -> None:
    async with Talker(b"") as relay:
        opened = await open_websocket(Dialing(relay.url, proxy=None))
        transport, half = opened.transport, Half()
        assert isinstance(transport, WebSocketTransport)
        half.take_over(transport, {})
        assert not transport.is_closing()
        transport.abort()
        transport.abort()
        transport.write(b"too late")
        assert transport.is_closing()
        assert await half.ended is None
        await opened.close()
        assert transport.get_extra_info("socket", "none") == "none"
