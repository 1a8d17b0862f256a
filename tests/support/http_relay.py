"""The switch behind a minimal aiohttp server, for the tests of carriers."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, cast

from aiohttp import web

from tests.support.relays import TestRelay, authorise, may_listen
from tunnel import Attachment, attach
from tunnel.wire import BodyFormat, unwrap_body, wrap_answer
from tunnel_servlet.access.tokens import Identity
from tunnel_servlet.config import RelayConfig
from tunnel_servlet.switch.config import SwitchConfig
from tunnel_servlet.switch.responses import RelayResponse
from tunnel_servlet.web.answer_stream import AnswerStream
from tunnel_servlet.web.host import SwitchHost
from tunnel_servlet.web.relay_link import serve_link
from tunnel_servlet.web.websocket import serve_websocket

__all__ = ["TOKENS", "HttpTestRelay", "LinkTestRelay", "StreamTestRelay", "WebSocketTestRelay", "token_of"]

TOKENS = {"tnl_00000001_ann": "ann", "tnl_00000002_bob": "bob", "tnl_00000003_exit": "exit"}


def token_of(user: str) -> str:
    return next(token for token, name in TOKENS.items() if name == user)


class HttpTestRelay(TestRelay):
    """`seen`: the client's port and the headers of each POST."""

    kind = "poll"

    def __init__(self, *, tls: ssl.SSLContext | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.tls = tls
        self.url = ""
        self.seen: list[tuple[int, dict[str, str]]] = []
        self.config = RelayConfig()
        self.links = 0  # links that were requested
        self.refuse_links = False
        self._open: dict[asyncio.Future[tuple[int, bytes]], web.Request] = {}

    async def __aenter__(self) -> HttpTestRelay:
        app = web.Application(client_max_size=1 << 24)
        app.router.add_post("/prefix/exchange", self._exchange)
        app.router.add_get("/prefix/link", self._link, allow_head=False)
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=0.1, handler_cancellation=True
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self.tls)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self.url = f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}/prefix"
        return self

    async def __aexit__(self, *exception: object) -> None:
        await super().__aexit__(*exception)
        self._cut()
        await self._runner.cleanup()

    def make_core(self, config: SwitchConfig) -> SwitchHost:
        self.host = SwitchHost(config, authorise, may_listen=may_listen, packet_filter=self.packet_filter)
        return self.host

    def attach(self, user: str = "ann", **options: Any) -> Attachment:
        return attach(self.url, **{"token": token_of(user), "proxy": None, "carrier": self.kind, **options})

    def restart(self) -> None:
        self._cut()
        super().restart()

    # the interface that tunnel_servlet.web.relay_link needs

    def why_ended(self, identity: Identity) -> str:
        """Return an empty text: tokens are not revoked here."""
        return ""

    def may_link(self, identity: Identity, endpoint: bytes) -> bool:
        """Return True: tokens are for any endpoint here."""
        return True

    def watch(self, watched: object) -> None:
        """Do nothing: tokens are not revoked here."""

    def unwatch(self, watched: object) -> None:
        """Do nothing: `watch` keeps nothing."""

    def _cut(self) -> None:
        """Cut all connections, as the death of the process would."""
        for link in list(self.host.links.values()):
            link.end("kill -9")
        for future, request in list(self._open.items()):
            future.cancel()
            abort(request)

    def user(self, request: web.Request) -> str | None:
        return TOKENS.get(request.headers.get("Authorization", "").removeprefix("Bearer "))

    async def _exchange(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        self.seen.append((request.transport.get_extra_info("peername")[1], dict(request.headers)))
        kind = BodyFormat(request.content_type)
        found = unwrap_body(kind, request.headers["Content-Type"], await request.read())
        body = found.encode() if isinstance(found, str) else bytes(found)
        user = self.user(request)
        if user is None:
            return web.Response(status=401, text="who are you?")
        fault = self.judge(body)
        if fault is not None and not fault.applies:
            if not fault.status:
                abort(request)
            return web.Response(status=fault.status or 500, body=fault.body, headers=fault.headers)
        future: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()

        def answered(status: int, answer: bytes) -> None:
            if not future.done():
                future.set_result((status, answer))

        self._open[future] = request
        number = self.core.post(user, body, answered, is_exit=user == "exit")
        core = self.core
        try:
            status, answer = await future
            if fault is not None:
                abort(request)
            kept, answer = wrap_answer(kind, answer)
            headers = {"Cache-Control": "no-store, no-transform", "Content-Type": kept}
            if number not in core.streams:
                return web.Response(status=status, body=answer, headers=headers)
            stream = AnswerStream(core, Identity(user), RelayResponse(number, status, [answer], goes_on=True))
            core.stream_begins(number, stream)
            return await stream.serve(request, headers)
        finally:
            del self._open[future]
            core.stream_gone(number)
            core.on_gone(number)

    async def _link(self, request: web.Request) -> web.StreamResponse:
        user = self.user(request)
        self.links += 1
        if user is None or self.refuse_links:
            return web.Response(status=401 if user is None else 404, text="no link here")
        if type(self).take_link is HttpTestRelay.take_link:
            is_websocket = request.headers["Upgrade"] == "websocket"
            serve = serve_websocket if is_websocket else serve_link
            return await serve(request, cast(Any, self), Identity(user))
        response = web.StreamResponse(status=101, headers={"Connection": "Upgrade", "Upgrade": "tunnel-link/1"})
        response.force_close()
        await response.prepare(request)
        assert request.transport is not None
        await self.take_link(request, request.transport)
        return response

    async def take_link(self, request: web.Request, transport: asyncio.Transport) -> None:
        """Use the connection after the 101 in place of the relay's link. Called only if a subclass overrides it."""


def abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


class LinkTestRelay(HttpTestRelay):
    """A relay whose attachments try to open a link."""

    kind = "link"


class StreamTestRelay(HttpTestRelay):
    """A relay whose attachments ask for streamed answers."""

    kind = "stream"


class WebSocketTestRelay(HttpTestRelay):
    """A relay whose attachments try to open a websocket."""

    kind = "websocket"
