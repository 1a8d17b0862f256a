"""Serves a link on a websocket (PROTOCOL 8.5): aiohttp's frames, and everything else as on a link."""

import asyncio

from aiohttp import web

from tunnel.carriers.halves.websocket_transport import CLOSE_S, WebSocketTransport
from tunnel.wire import LINK_HEADER_SIZE
from tunnel_servlet.access.tokens import Identity
from tunnel_servlet.switch.witness import NOWHERE, Origin
from tunnel_servlet.web.http.handler import RelayHandler
from tunnel_servlet.web.http.websocket_guard import FrameGuard
from tunnel_servlet.web.relay import Relay
from tunnel_servlet.web.relay_link import RelayLink

__all__ = ["MESSAGE_US", "serve_websocket"]

# Processor time charged for aiohttp's part of one message: its parser took 0.8 us for 30 bytes (aiohttp 3.14.5),
# and the rest is a bound for the task that a message wakes.
MESSAGE_US = 30


async def serve_websocket(
    request: web.Request, relay: Relay, identity: Identity, origin: Origin = NOWHERE
) -> web.StreamResponse:
    """Answer 101 and serve the link; return when it has ended. Answer 400 if the request asks for no websocket."""
    limits = relay.config.limits
    message_bytes_max = limits.link_batch_bytes_max + LINK_HEADER_SIZE
    websocket: web.WebSocketResponse[bool] = web.WebSocketResponse(
        compress=False,
        autoping=False,
        max_msg_size=message_bytes_max + 1,  # aiohttp refuses a message of exactly this size
        timeout=CLOSE_S,
    )
    try:
        is_websocket = bool(websocket.can_prepare(request))
    except ValueError:  # aiohttp quotes and decodes fields, which may hold any bytes
        is_websocket = False
    if not is_websocket:
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
        request.protocol.pieces.guard = guard
    await websocket.prepare(request)
    transport = WebSocketTransport(websocket, taken)
    RelayLink(relay, identity, transport, counted, origin=origin).start()
    for code, text in failures:
        transport.close_with(code, text, at_once=True)
    try:
        await asyncio.shield(transport.ended)
    finally:
        transport.abort()
        guard.close()
    return websocket
