"""The endpoint's websocket: opened, lost, silent, refused, and where its token must not go (PROTOCOL 8.5)."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable
from typing import Any

import pytest
import uvloop
from aiohttp import web

from tests.carriers.harness import MIB, ask, echo, end, noise, say_and_hear
from tests.carriers.origin import Origin, answer
from tests.carriers.rig import Talker, moved_by, until
from tests.support.certificates import TLS
from tests.support.http_relay import WebSocketTestRelay
from tests.support.loops import in_loop, run
from tests.support.proxies import UpstreamProxy
from tunnel.carriers.dialing.dialing import Dialing
from tunnel.carriers.halves.link_protocol import LINK_LANE
from tunnel.carriers.links.dialed_link import DialedLink, hello
from tunnel.carriers.links.upgrade import UpgradeRefusedError
from tunnel.carriers.links.websocket_dial import open_websocket
from tunnel.exchange import LinkInput
from tunnel.wire import Answer, encode_envelope

ACCEPTED = b"".join(encode_envelope(Answer(LINK_LANE, 0, 0)))


class Owner:
    """Records the events of one link."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def link_open(self, link: DialedLink) -> None:
        self.log.append("open")

    def link_input(self, link: DialedLink, found: LinkInput) -> None:
        self.log.append("input")

    def link_writable(self, link: DialedLink) -> None:
        self.log.append("writable")

    def link_lost(self, link: DialedLink, reason: str) -> None:
        self.lost.set_result(reason)


def binary(payload: bytes) -> bytes:
    assert len(payload) < 126
    return bytes([0x82, len(payload)]) + payload


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_websocket_works_over_tls_through_a_proxy(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(TLS / "server.pem")

    async def main() -> None:
        ca = str(TLS / "ca.pem")
        async with (
            WebSocketTestRelay(tls=context) as relay,
            UpstreamProxy(user="ann:secret") as proxy,
            relay.attach("ann", ca=ca) as service,
            relay.attach("bob", ca=ca, proxy=f"http://ann:secret@127.0.0.1:{proxy.port}") as client,
        ):
            assert (moved_by(service), moved_by(client)) == ("websocket", "websocket")
            await service.start_server(echo, "echo")
            reader, writer = await say_and_hear(client)
            before = relay.requests
            await ask(reader, writer, noise(2 * MIB))
            assert relay.requests <= before + 2  # pulls that the relay held when the websocket opened
            await end(writer)
            assert not any(b"tnl_" in head for head in proxy.heads)

    run(main(), new_loop)


@in_loop
async def test_the_token_follows_no_redirect_of_a_websocket() -> None:
    async with Origin(answer("200 OK")) as other, Origin(b"") as relay:
        for status in ("301 Moved", "302 Found", "303 See Other", "307 Temporary Redirect", "308 Permanent Redirect"):
            relay.response = answer(status, Location=f"{other.url}/link")
            with pytest.raises(UpgradeRefusedError, match=f"HTTP {status[:3]}"):
                await open_websocket(Dialing(relay.url, token="tnl_x", proxy=None))
        assert other.heads == []
        assert "Authorization: Bearer tnl_x" in relay.heads[0]
        assert "GET /link HTTP/1.1" in relay.heads[0]


@in_loop
async def test_a_refused_websocket_leaves_no_connection_open() -> None:
    async with Origin(answer("404 Not Found", b"no link here")) as relay:
        with pytest.raises(UpgradeRefusedError, match="HTTP 404 instead of an upgrade: no link here"):
            await open_websocket(Dialing(relay.url, proxy=None))
        async with asyncio.timeout(10):
            assert await relay.ended.get() == relay.ports[0]


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (binary(b"<html>hello"), "not a relay's answer to a link"),
        (binary(ACCEPTED + b"x"), "not a relay's answer to a link"),
        (b"\x81\x05hello", "a text message"),
        (b"\x88\x02\x03\xe9", r"the websocket was closed \(code 1001\)"),
        (b"\x88\x06\x0f\xa1gone", r"the websocket was closed \(code 4001: gone\)"),
        (b"\xff\xff\xff", "the websocket failed"),
        (b"\x82\x7f" + (1 << 40).to_bytes(8, "big"), "the websocket failed"),
        (binary(ACCEPTED) + binary(bytes(24)), "a header is damaged"),
    ],
)
@in_loop
async def test_wrong_frames_and_close_frames_after_a_101_end_the_websocket(after: bytes, reason: str) -> None:
    async with Talker(after) as relay:
        opened = await open_websocket(Dialing(relay.url, proxy=None))
        owner, ends = Owner(), list[Any]()
        link = DialedLink(owner, lambda: 0, ends.append)
        link.begin(opened.transport, hello(bytes(16), 1, 1), opened.early)
        assert re.search(reason, await owner.lost) or reason == "a text message"
        assert ("open" in owner.log) == after.startswith(binary(ACCEPTED) + b"\x82")
        await opened.close()
        assert len(ends) == 1


@in_loop
async def test_a_ping_of_the_relay_is_answered_before_the_link_is_open() -> None:
    heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    class Pinging(Talker):
        async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
            await self.respond(writer)
            while (head := await reader.readexactly(2))[0] != 0x8A:
                await reader.readexactly(4 + (head[1] & 0x7F))
            heard.set_result(head)
            writer.close()

    async with Pinging(b"\x89\x02hi") as relay:
        opened = await open_websocket(Dialing(relay.url, proxy=None))
        owner = Owner()
        link = DialedLink(owner, lambda: 0, lambda error: None)
        link.begin(opened.transport, hello(bytes(16), 1, 1), opened.early)
        assert await heard == b"\x8a\x82"
        assert await owner.lost == "the connection was closed"
        await opened.close()


@in_loop
async def test_an_attachment_that_ends_while_its_websocket_opens_leaves_no_link_at_the_relay() -> None:
    requested: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    class Slow(WebSocketTestRelay):
        async def _link(self, request: web.Request) -> web.StreamResponse:
            if not requested.done():
                requested.set_result(None)
            return await super()._link(request)

    async with Slow() as relay:
        attachment = relay.attach("ann")
        starting = asyncio.create_task(attachment.start())
        await requested
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await until(lambda: not relay.host.links)
