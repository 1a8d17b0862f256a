"""The relay as an aiohttp application: POST {base}/exchange and GET {base}/link. Any other path is answered with 404.

`create_app` is the only way to build it, and its packet filter is the only place where packets can be lost on purpose.
Run the application with `tunnel_servlet.web.server`, because plain aiohttp has no deadline for headers.
"""

import asyncio
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from types import TracebackType

import structlog
from aiohttp import web

from tunnel.carriers.link_protocol import LINK_PROTOCOL
from tunnel.traces.record import TraceSink
from tunnel.wire import (
    TEXT_FORMATS,
    BodyFormat,
    Buffer,
    Status,
    StatusCode,
    body_bytes_max,
    encode_envelope,
    unwrap_body,
    wrap_answer,
)
from tunnel_servlet.access.grants import user_table
from tunnel_servlet.access.tokens import Identity
from tunnel_servlet.config import RelayConfig
from tunnel_servlet.switch.decisions import PacketFilter
from tunnel_servlet.web.answer_stream import AnswerStream
from tunnel_servlet.web.bodies import BodyTooLargeError, ChunkedBody, TooManyChunksError, read_whole
from tunnel_servlet.web.handler import RelayHandler
from tunnel_servlet.web.inline_exit import InlineExit
from tunnel_servlet.web.payers import UNAUTHENTICATED
from tunnel_servlet.web.relay import REVOKED, Relay
from tunnel_servlet.web.relay_link import serve_link
from tunnel_servlet.web.websocket import serve_websocket

__all__ = ["RELAY", "create_app"]

RELAY = web.AppKey("relay", Relay)
_log = structlog.get_logger("relay")

_BUSY_RETRY_S = 1
_ROLE_HEADERS = ("X-Endpoint-Role", "Tunnel-Role")  # of POST requests: "exit" or "endpoint" (7.17)
_HEADERS = {
    "Cache-Control": "no-store, no-transform",
    "X-Accel-Buffering": "no",
    "Content-Type": BodyFormat.PLAIN.value,
}
_FORMATS = {each.value: each for each in BodyFormat}  # by Content-Type
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Refusal(Exception):
    """Raised for a request that must not reach the switch; carries the answer."""

    def __init__(self, http_status: int, code: StatusCode, text: str, retry_after_s: int = 0) -> None:
        super().__init__(text)
        self.http_status = http_status
        self.status = Status(code, retry_after_s * 1000, text)


def create_app(
    config: RelayConfig, packet_filter: PacketFilter | None = None, *, trace: TraceSink | None = None
) -> web.Application:
    """Build a relay as an application; `app[RELAY]` is its `Relay`. Call it within the event loop that will run it.

    `packet_filter(frame)` is called for each packet in an accepted body or batch; if it returns False, the packet is
    dropped.
    """
    relay = Relay(config, packet_filter, trace)
    app = web.Application(middlewares=[_answer_errors], client_max_size=config.switch.body_bytes_max)
    app[RELAY] = relay
    app.router.add_post(f"{config.base}/exchange", _exchange)
    app.router.add_get(f"{config.base}/link", _link, allow_head=False)
    exit_ = InlineExit(relay) if config.exit == "inline" else None

    async def start(_: web.Application) -> None:
        if exit_ is not None:
            await exit_.start()
        relay.is_ready = True

    async def stop(_: web.Application) -> None:
        relay.is_ready = False
        await relay.public_ports.close()
        if exit_ is not None:
            await exit_.close()
        relay.host.close()

    app.on_startup.append(start)
    app.on_shutdown.append(stop)
    return app


@web.middleware
async def _answer_errors(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Turn refusals into envelopes, and answer all other errors in plain text, never in HTML."""
    try:
        return await handler(request)
    except _Refusal as refusal:
        await _turn_before_authentication(request)
        return _refused(request, refusal)
    except web.HTTPException as error:
        await _turn_before_authentication(request)
        return web.Response(status=error.status, text=error.reason, headers=_allowed(error))
    except (ConnectionError, TimeoutError):
        raise
    except Exception:
        if request.transport is None or request.transport.is_closing():
            raise ConnectionResetError("the client has gone") from None
        _log.exception("failed", address=request.remote)
        return web.Response(status=500, text="Internal Server Error")


async def _turn_before_authentication(request: web.Request) -> None:
    """Let a request wait for its turn if its connection has shown no valid token: all such connections together get the
    processor time of one user."""
    if isinstance(request.protocol, RelayHandler) and not request.protocol.counted.user:
        turns = request.app[RELAY].host.turns
        await turns.admitted(UNAUTHENTICATED)


def _allowed(error: web.HTTPException) -> dict[str, str]:
    return {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}


def _refused(request: web.Request, refusal: _Refusal) -> web.Response:
    body = b"".join(encode_envelope(refusal.status))
    kind, body = wrap_answer(_FORMATS.get(request.content_type, BodyFormat.PLAIN), body)
    headers = {**_HEADERS, "Content-Type": kind}
    if refusal.status.retry_after_ms:
        headers["Retry-After"] = str(refusal.status.retry_after_ms // 1000)
    if refusal.http_status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="relay"'
    return web.Response(status=refusal.http_status, body=body, headers=headers)


# --- POST {base}/exchange


async def _exchange(request: web.Request) -> web.StreamResponse:
    relay = request.app[RELAY]
    identity = _identify(relay, request)
    headers = request.headers
    if headers.get("Content-Encoding", "identity").lower() != "identity":
        raise _Refusal(415, StatusCode.MALFORMED, "the body must not be encoded: send no Content-Encoding but identity")
    body_format = _FORMATS.get(request.content_type)
    if body_format is None:
        text = f"the Content-Type of a body must be one of {', '.join(_FORMATS)}"
        raise _Refusal(415, StatusCode.MALFORMED, text)
    async with _WhileLive(relay, identity):
        role = next((headers[name] for name in _ROLE_HEADERS if name in headers), "")
        _attaches_as_exit(relay, identity, role)  # refuse before the body
        path = request.protocol if isinstance(request.protocol, RelayHandler) else None
        limit = body_bytes_max(body_format, relay.config.switch.body_bytes_max)
        held_bytes = _hold(request, limit)
        try:
            whole = await _read_body(request, relay, identity.user, limit)
            await relay.host.turns.admitted(identity.user)  # the only wait: the user pays for the body until its end
            body = _content(request, body_format, whole, relay, identity.user)
        finally:
            if path is not None:
                path.counted.free(held_bytes)
        is_exit = _attaches_as_exit(relay, identity, role)  # the rules may have changed since the body began
        response = await relay.host.exchange(identity.user, body, is_exit=is_exit, path=path)
        if response.goes_on and not relay.is_live(identity):
            relay.host.stream_gone(response.handle)  # the refusal leaves in its place
    if response.goes_on and body_format not in TEXT_FORMATS:
        return await _stream(request, relay, AnswerStream(relay.host, identity, response), response.handle)
    if body_format not in TEXT_FORMATS:
        return web.Response(status=response.status, body=response.body[0], headers=_HEADERS)
    relay.host.stream_gone(response.handle)  # text is not streamed: a stream ends with its first envelope
    began = relay.host.turns.meter.start()
    kind, answer = wrap_answer(body_format, bytes(response.body[0]))
    relay.host.turns.spent_since(identity.user, began)
    return web.Response(status=response.status, body=answer, headers={**_HEADERS, "Content-Type": kind})


async def _stream(request: web.Request, relay: Relay, stream: AnswerStream, number: int) -> web.StreamResponse:
    """Write a streamed answer while the token is valid."""
    relay.host.stream_begins(number, stream)
    relay.watch(stream)
    try:
        return await stream.serve(request, _HEADERS)
    finally:
        relay.unwatch(stream)


class _WhileLive:
    """Runs a block while the token is valid. Raises _Refusal as soon as it is revoked."""

    def __init__(self, relay: Relay, identity: Identity) -> None:
        self.identity = identity
        self._relay = relay
        self._deadline = asyncio.timeout(None)
        self._is_ended = False

    def end(self, text: str) -> None:
        """Cancel the block."""
        if not self._is_ended:
            self._is_ended = True
            self._deadline.reschedule(asyncio.get_running_loop().time())

    async def __aenter__(self) -> None:
        self._relay.watch(self)
        await self._deadline.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._relay.unwatch(self)
        is_revoked = self._is_ended and error is None
        try:
            await self._deadline.__aexit__(kind, error, traceback)
        except TimeoutError:
            if not self._is_ended:
                raise
            is_revoked = True
        if is_revoked:
            raise _Refusal(401, StatusCode.NOT_AUTHORISED, REVOKED) from None


def _content(request: web.Request, kind: BodyFormat, body: bytes, relay: Relay, user: str) -> Buffer:
    """Return the plain body (7.19). The user pays for the time that this takes."""
    if kind is BodyFormat.PLAIN:
        return body
    began = relay.host.turns.meter.start()
    found = unwrap_body(kind, request.headers["Content-Type"], body)
    relay.host.turns.spent_since(user, began)
    if isinstance(found, str):
        raise _Refusal(400, StatusCode.CORRUPT, found)
    return found


def _attaches_as_exit(relay: Relay, identity: Identity, role: str) -> bool:
    """Whether the endpoint attaches as an exit: the rules must allow it, and the endpoint must say so itself.

    Otherwise a plain client of that user would get a share of what all users send to targets.
    """
    user = identity.user
    is_exit = relay.grants.is_exit(user)
    if role == "exit" and not is_exit:
        table = "[everyone]" if relay.config.is_open else user_table(user)
        text = f"{user} may not be an exit: exit = true is missing under {table} in the relay's configuration"
        raise _Refusal(403, StatusCode.DENIED, text)
    if is_exit and not role and user not in relay.roleless:
        relay.roleless.add(user)
        text = (
            f"{user} may be an exit, but this endpoint does not say that it is one, so it gets no connections to "
            f"targets; if it is one, update it, or find the proxy that removes the header {_ROLE_HEADERS[0]}"
        )
        _log.warning("no_role", user=user, text=text)
    return is_exit and role == "exit"


def _hold(request: web.Request, limit: int) -> int:
    """Charge the body, of at most `limit` bytes, to its user before it is read. Return the bytes to give back when it
    has been read. Raise _Refusal if the relay holds too many bytes of the user."""
    protocol = request.protocol
    if not isinstance(protocol, RelayHandler):
        return 0
    length = request.content_length
    size = min(length if length is not None else limit if request.body_exists else 0, limit)
    if not protocol.counted.hold(size):
        protocol.close_unread()
        raise _Refusal(503, StatusCode.BUSY, "too many bodies of this user are still coming", _BUSY_RETRY_S)
    return size


async def _read_body(request: web.Request, relay: Relay, user: str, limit: int) -> bytes:
    """Return the whole body. Raise _Refusal if it has more bytes than `limit`, is damaged or late."""
    config = relay.config
    length = request.content_length
    try:
        async with asyncio.timeout(config.limits.body_seconds):
            if length is None:
                return await ChunkedBody(request.content, relay.host.turns).read_all(user, limit)
            if length > limit:
                raise BodyTooLargeError
            return await read_whole(request.content)
    except BodyTooLargeError:
        raise _Refusal(413, StatusCode.TOO_LARGE, f"the body is larger than {limit} bytes") from None
    except TimeoutError:
        text = f"the body did not arrive within {config.limits.body_seconds} s"
        raise _Refusal(408, StatusCode.BUSY, text) from None
    except web.RequestPayloadError:
        raise _Refusal(400, StatusCode.CORRUPT, "the body is damaged") from None
    except TooManyChunksError as error:
        raise _Refusal(400, StatusCode.CORRUPT, str(error)) from None


def _identify(relay: Relay, request: web.Request) -> Identity:
    """Return the user who sent the request. Raise _Refusal if the token is missing or wrong, if the user has too many
    connections, or if an open relay is addressed by a name other than localhost."""
    if relay.config.is_open and not _is_direct(request.host):
        # DNS rebinding: a web page in a browser on this machine can make its own host name resolve to this machine.
        raise _Refusal(403, StatusCode.DENIED, "an open relay must be addressed as localhost or by its IP address")
    authorization = request.headers.get("Authorization")
    identity = relay.identify(authorization)
    if identity is not None:
        if isinstance(request.protocol, RelayHandler) and not request.protocol.charge_to(identity.user):
            raise _Refusal(429, StatusCode.BUSY, f"{identity.user} has too many connections open", _BUSY_RETRY_S)
        return identity
    wait_s = relay.rejected(authorization, request.remote or "")
    if wait_s:
        raise _Refusal(429, StatusCode.BUSY, "too many wrong tokens", wait_s)
    text = "no such token" if authorization else "no token came: the request has no Authorization header"
    raise _Refusal(401, StatusCode.NOT_AUTHORISED, text)


def _is_direct(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    try:
        ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return name == "localhost"
    return True


# --- GET {base}/link


async def _link(request: web.Request) -> web.StreamResponse:
    relay = request.app[RELAY]
    identity = _identify(relay, request)
    wanted = [part.strip().lower() for part in request.headers.get("Upgrade", "").split(",")]
    if "websocket" in wanted:
        if relay.config.is_open and "Origin" in request.headers:
            # Any web page can open a websocket to this machine. A browser names the page; an endpoint names none.
            raise _Refusal(403, StatusCode.DENIED, "an open relay takes no websocket from a web page")
        return await serve_websocket(request, relay, identity)
    if LINK_PROTOCOL not in wanted or request.transport is None:
        text = f"Upgrade to {LINK_PROTOCOL} or websocket"
        return web.Response(status=426, text=text, headers={"Upgrade": LINK_PROTOCOL})
    return await serve_link(request, relay, identity)
