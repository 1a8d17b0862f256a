"""Serves a link on a websocket (PROTOCOL 8.5): aiohttp's frames, and everything else as on a link."""

import asyncio

from aiohttp import web

from tunnel.carriers.websocket_transport import CLOSE_S, WebSocketTransport
from tunnel.wire import LINK_HEADER_SIZE
from tunnel_servlet.access.tokens import Identity
from tunnel_servlet.web.handler import RelayHandler
from tunnel_servlet.web.relay import Relay
from tunnel_servlet.web.relay_link import RelayLink
from tunnel_servlet.web.websocket_guard import FrameGuard

__all__ = ["MESSAGE_US", "serve_websocket"]

# Processor time charged for aiohttp's part of one message: its parser took 0.8 us for 30 bytes (aiohttp 3.14.5),
# and the rest is a bound for the task that a message wakes.
MESSAGE_US = 30


async def serve_websocket(request: web.Request, relay: Relay, identity: Identity) -> web.StreamResponse:
    """Answer 101 and serve the link; return when it has ended. Answer 400 if the request asks for no websocket."""
    limits = relay.config.limits
    message_bytes_max = limits.link_batch_bytes_max + LINK_HEADER_SIZE
    websocket: web.WebSocketResponse[bool] = web.WebSocketResponse(
        compress=False,
        autoping=False,
        max_msg_size=message_bytes_max + 1,  # aiohttp refuses a message of exactly this size
        timeout=CLOSE_S,
    )
    if not websocket.can_prepare(request):
        return web.Response(status=400, text="not a valid request for a websocket of version 13")
    counted = request.protocol.counted if isinstance(request.protocol, RelayHandler) else None
    transport: WebSocketTransport | None = None
    failures: list[tuple[int, str]] = []  # those that came before there was a transport

    def fail(code: int, text: str) -> None:
        if transport is None:
            failures.append((code, text))
        else:
            transport.close_with(code, text, at_once=True)

    def taken(size: int) -> None:
        guard.taken(size)
        relay.host.turns.spend(identity.user, MESSAGE_US)

    guard = FrameGuard(counted, message_bytes_max, limits.body_seconds, fail)
    if isinstance(request.protocol, RelayHandler):
        request.protocol.watch_frames(guard)
    await websocket.prepare(request)
    transport = WebSocketTransport(websocket, taken)
    RelayLink(relay, identity, transport, counted).start()
    for code, text in failures:
        transport.close_with(code, text, at_once=True)
    try:
        await asyncio.shield(transport.ended)
    finally:
        transport.abort()
        guard.close()
    return websocket
