"""The relay as an aiohttp application: POST {base}/exchange and GET {base}/link. Any other path is answered with 404.

`create_app` is the only way to build it, and its packet filter is the only place where packets can be lost on purpose.
Run the application with `tunnel_servlet.web.http.server`, because plain aiohttp has no deadline for headers.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from ipaddress import ip_address
from types import TracebackType

import structlog
from aiohttp import web

from tunnel.carriers.halves.link_protocol import LINK_PROTOCOL
from tunnel.ground.printable import printable
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
from tunnel_servlet.access.grants import is_of_provider, user_table
from tunnel_servlet.access.proxies import UNIX
from tunnel_servlet.access.sso import SsoError
from tunnel_servlet.access.tokens import Identity, read_bearer
from tunnel_servlet.config import RelayConfig
from tunnel_servlet.switch.decisions import PacketFilter
from tunnel_servlet.switch.witness import NOWHERE, Origin
from tunnel_servlet.web.answer_stream import AnswerStream
from tunnel_servlet.web.http.answers import AnswerHead, WholeAnswer
from tunnel_servlet.web.http.bodies import BodyTooLargeError, ChunkedBody, TooManyChunksError, read_whole
from tunnel_servlet.web.http.handler import RelayHandler
from tunnel_servlet.web.http.payers import UNAUTHENTICATED
from tunnel_servlet.web.http.server import DIRECT, DirectRoute
from tunnel_servlet.web.inline_exit import InlineExit
from tunnel_servlet.web.relay import Relay
from tunnel_servlet.web.relay_link import serve_link
from tunnel_servlet.web.tokens.provider import ProviderError
from tunnel_servlet.web.tokens.uses import NotStoredError
from tunnel_servlet.web.websocket import serve_websocket

__all__ = ["RELAY", "create_app"]

RELAY = web.AppKey("relay", Relay)
_log = structlog.get_logger("relay")

_BUSY_RETRY_S = 1
_PROVIDER_RETRY_S = 10
_JWT_DOTS = 2
_NAMES_LETTERS_MAX = 300  # of the names in a certificate that a refusal lists
_ROLE_HEADERS = ("X-Endpoint-Role", "Tunnel-Role")  # of POST requests: "exit" or "endpoint" (7.17)
_HEADERS = {
    "Cache-Control": "no-store, no-transform",
    "X-Accel-Buffering": "no",
    "Content-Type": BodyFormat.PLAIN.value,
}
_FORMATS = {each.value: each for each in BodyFormat}  # by Content-Type
_FORWARDED = "X-Forwarded-For"
_HEAD = AnswerHead(_HEADERS)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_Answering = Callable[[web.Request, Relay], Awaitable[web.StreamResponse]]


class _Refusal(Exception):
    """Raised for a request that must not reach the switch; carries the answer."""

    def __init__(self, http_status: int, code: StatusCode, text: str, retry_after_s: int = 0) -> None:
        super().__init__(text)
        self.http_status = http_status
        self.status = Status(code, retry_after_s * 1000, text)
        self.is_identified = True  # whether the request has proved to be of a user


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

    async def exchange(request: web.Request) -> web.StreamResponse:
        return await _exchange(request, relay)

    async def link(request: web.Request) -> web.StreamResponse:
        return await _link(request, relay)

    path = f"{config.base}/exchange"
    app[DIRECT] = DirectRoute(path, lambda request: _answered(request, relay, _exchange))
    app.router.add_post(path, exchange)
    app.router.add_get(f"{config.base}/link", link, allow_head=False)
    exit_ = InlineExit(relay) if config.exit == "inline" else None

    async def start(_: web.Application) -> None:
        if exit_ is not None:
            await exit_.start()
        relay.start()
        relay.is_ready = True

    async def stop(_: web.Application) -> None:
        relay.is_ready = False
        await relay.public_ports.close()
        if exit_ is not None:
            await exit_.close()
        await relay.close()
        relay.host.close()

    app.on_startup.append(start)
    app.on_shutdown.append(stop)
    return app


@web.middleware
async def _answer_errors(request: web.Request, handler: _Handler) -> web.StreamResponse:
    return await _answered(request, request.app[RELAY], lambda request, relay: handler(request))


async def _answered(request: web.Request, relay: Relay, handler: _Answering) -> web.StreamResponse:
    """Turn refusals into envelopes, and answer all other errors in plain text, never in HTML."""
    try:
        return await handler(request, relay)
    except _Refusal as refusal:
        refusals, code = relay.refusals, StatusCode(refusal.status.code)
        refusals[code] = refusals.get(code, 0) + 1
        answer = _refused(request, relay, refusal)
        return answer if refusal.is_identified else await _unidentified(request, relay, answer)
    except web.HTTPException as error:
        answer = web.Response(status=error.status, text=error.reason, headers=_allowed(error))
        return await _unidentified(request, relay, answer)
    except (ConnectionError, TimeoutError):
        raise
    except Exception:
        if request.transport is None or request.transport.is_closing():
            raise ConnectionResetError("the client has gone") from None
        _log.exception("failed", address=request.remote)
        return web.Response(status=500, text="Internal Server Error")


async def _unidentified(request: web.Request, relay: Relay, answer: web.Response) -> web.Response:
    """Return the answer to a request of no user when it is its turn: all such requests together get the processor time
    of one user. Then the connection ends: a proxy may have used it for a user, who must not pay for what others send.
    """
    if isinstance(request.protocol, RelayHandler):
        await relay.host.turns.wait_for_turn(UNAUTHENTICATED)
        answer.force_close()
    return answer


def _allowed(error: web.HTTPException) -> dict[str, str]:
    return {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}


def _refused(request: web.Request, relay: Relay, refusal: _Refusal) -> web.Response:
    body = b"".join(encode_envelope(refusal.status))
    kind, body = wrap_answer(_FORMATS.get(request.content_type, BodyFormat.PLAIN), body)
    headers = {**_HEADERS, "Content-Type": kind}
    if refusal.status.retry_after_ms:
        headers["Retry-After"] = str(refusal.status.retry_after_ms // 1000)
    if refusal.http_status == 401:
        sso = relay.config.sso
        headers["WWW-Authenticate"] = f'Bearer realm="relay"{sso.challenge if sso else ""}'
    return web.Response(status=refusal.http_status, body=body, headers=headers)


# --- POST {base}/exchange


async def _exchange(request: web.Request, relay: Relay) -> web.StreamResponse:
    identity = await _identify(relay, request)
    headers = request.headers
    if headers.get("Content-Encoding", "identity").lower() != "identity":
        raise _Refusal(415, StatusCode.MALFORMED, "the body must not be encoded: send no Content-Encoding but identity")
    body_format = _FORMATS.get(request.content_type)
    if body_format is None:
        text = f"the Content-Type of a body must be one of {', '.join(_FORMATS)}"
        raise _Refusal(415, StatusCode.MALFORMED, text)
    role = _role(headers)
    with _WhileLive(relay, identity):
        is_exit = _attaches_as_exit(relay, identity, role)  # refuse before the body
        limit = body_bytes_max(body_format, relay.config.switch.body_bytes_max)
        if _has_come(request, limit) and not _has_to_wait(relay, identity):
            body = _content(request, body_format, request.content.read_nowait(), relay, identity.user)
        else:
            body = await _receive(request, relay, identity.user, body_format, limit)
            await _use_once(relay, request, identity, body)
            is_exit = _attaches_as_exit(relay, identity, role)  # the rules may have changed since the body began
        protocol = request.protocol
        response = await relay.host.exchange(
            identity.user,
            body,
            is_exit=is_exit,
            credential=relay.credential(identity),
            path=protocol.answer if isinstance(protocol, RelayHandler) else None,
            origin=_origin(request, relay, identity),
        )
        if response.goes_on and relay.why_ended(identity):
            relay.host.stream_gone(response.handle)  # the refusal leaves in its place
    if response.goes_on and body_format not in TEXT_FORMATS:
        return await _stream(request, relay, AnswerStream(relay.host, identity, response), response.handle)
    if body_format not in TEXT_FORMATS:
        data = bytes(response.body[0])
        if response.status == 200:
            return WholeAnswer(_HEAD, data)
        return web.Response(status=response.status, body=data, headers=_HEADERS)
    relay.host.stream_gone(response.handle)  # text is not streamed: a stream ends with its first envelope
    began = relay.host.turns.meter.start()
    kind, answer = wrap_answer(body_format, bytes(response.body[0]))
    relay.host.turns.spent_since(identity.user, began)
    return web.Response(status=response.status, body=answer, headers={**_HEADERS, "Content-Type": kind})


async def _stream(request: web.Request, relay: Relay, stream: AnswerStream, handle: int) -> web.StreamResponse:
    """Write a streamed answer while the token is valid."""
    relay.host.stream_begins(handle, stream)
    relay.watch(stream)
    try:
        return await stream.serve(request, _HEADERS)
    finally:
        relay.unwatch(stream)


class _WhileLive:
    """Runs a block of the present task while the token is valid. Raises _Refusal as soon as it expires or is revoked.

    It is `asyncio.timeout` without a time, and costs a third of it.
    """

    def __init__(self, relay: Relay, identity: Identity) -> None:
        self.identity = identity
        self._relay = relay
        self._why = ""
        self._ending: asyncio.Handle | None = None
        self._is_cancelled = False

    def end(self, text: str) -> None:
        """Cancel the block."""
        if not self._why:
            self._why = text
            self._ending = asyncio.get_running_loop().call_soon(self._cancel)

    def _cancel(self) -> None:
        self._is_cancelled = True
        self._task.cancel()

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._relay.watch(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._relay.unwatch(self)
        if not self._why:
            return
        if self._ending is not None:
            self._ending.cancel()
        is_ended = error is None
        if self._is_cancelled and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            is_ended = True
        if is_ended:
            raise _Refusal(401, StatusCode.NOT_AUTHORISED, self._why) from None


def _role(headers: Mapping[str, str]) -> str:
    """Return as what the endpoint attaches, as it says itself; empty if it does not."""
    for name in _ROLE_HEADERS:
        if (found := headers.get(name)) is not None:
            return found
    return ""


def _has_come(request: web.Request, limit: int) -> bool:
    """Whether the whole body has come with the head, undamaged and not too large."""
    content, length = request.content, request.content_length
    return length is not None and length <= limit and content.is_eof() and content.exception() is None


def _has_to_wait(relay: Relay, identity: Identity) -> bool:
    """Whether a request of this token cannot be passed on at once, even if its whole body has come."""
    return relay.host.turns.has_to_wait(identity.user) or relay.uses.is_for_single_use(identity)


async def _receive(request: web.Request, relay: Relay, user: str, body_format: BodyFormat, limit: int) -> Buffer:
    """Return the plain body when it has come, and it is the user's turn. The user is charged for it until then."""
    held_bytes = _hold(request, limit)
    try:
        whole = await _read_body(request, relay, user, limit)
        await relay.host.turns.wait_for_turn(user)  # the only wait: the user pays for the body until its end
        return _content(request, body_format, whole, relay, user)
    finally:
        if isinstance(request.protocol, RelayHandler):
            request.protocol.counted.free(held_bytes)


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
        why = f"exit = true is missing under {table} in the relay's configuration"
        if is_of_provider(user):
            why = "users of the identity provider may not: use a token of the relay"
        text = f"{user} may not be an exit: {why}"
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


async def _identify(relay: Relay, request: web.Request) -> Identity:
    """Return the user who sent the request. Raise _Refusal if the token is missing or wrong, if the user has too many
    connections, or if an open relay is addressed by a name other than localhost."""
    try:
        return await _find_user(relay, request)
    except _Refusal as refusal:
        refusal.is_identified = False
        raise


async def _find_user(relay: Relay, request: web.Request) -> Identity:
    if relay.config.is_open and not _is_direct(request.host):
        # DNS rebinding: a web page in a browser on this machine can make its own host name resolve to this machine.
        raise _Refusal(403, StatusCode.DENIED, "an open relay must be addressed as localhost or by its IP address")
    authorization = request.headers.get("Authorization")
    identity = relay.identify(authorization)
    if identity is None and relay.provider is not None and read_bearer(authorization).count(".") == _JWT_DOTS:
        identity = await _member(relay, request, read_bearer(authorization))
    if relay.grants.certificates and not relay.config.is_open:
        identity = _with_certificate(relay, request, identity, has_token=bool(read_bearer(authorization)))
    if identity is not None:
        why = relay.why_ended(identity)
        if why:
            relay.failures.expired += 1
            address = _note_refused(relay, request, "expired", identity.user, identity.key_id, why)
            _log.warning("expired_token", user=identity.user, key=identity.key_id, address=address)
            raise _Refusal(401, StatusCode.NOT_AUTHORISED, why)
        protocol = request.protocol
        if isinstance(protocol, RelayHandler) and not protocol.turns.charge_to(identity.user):
            raise _Refusal(429, StatusCode.BUSY, f"{identity.user} has too many connections open", _BUSY_RETRY_S)
        relay.note_use(identity)
        return identity
    wait_s = _count_rejection(relay, request)
    if wait_s:
        raise _Refusal(429, StatusCode.BUSY, "too many wrong tokens", wait_s)
    text = "no such token" if authorization else "no token came: the request has no Authorization header"
    raise _Refusal(401, StatusCode.NOT_AUTHORISED, text)


def _origin(request: web.Request, relay: Relay, identity: Identity) -> Origin:
    """Return where the request came from, for the audit. It is made once for a connection and a token."""
    protocol = request.protocol
    if not isinstance(protocol, RelayHandler):
        return Origin(identity.key_id, *_source(request, relay))
    found = protocol.origin
    if found is NOWHERE or found.key_id != identity.key_id or _FORWARDED in request.headers:
        found = protocol.origin = Origin(identity.key_id, *_source(request, relay))
    return found


def _source(request: web.Request, relay: Relay) -> tuple[str, str]:
    """Return the address from which the connection comes, and the client's address that a trusted proxy has named."""
    source = request.remote or UNIX
    protocol = request.protocol
    named = protocol.client if isinstance(protocol, RelayHandler) else ""
    proxies = relay.config.proxies
    forwarded = proxies.client_of(named or source, request.headers.getall(_FORWARDED, []))
    return source, forwarded or (named if named != source else "")


def _count_rejection(relay: Relay, request: web.Request, reason: str = "wrong", text: str = "") -> int:
    """Count a wrong token, if one came. Return the seconds for which to refuse the client's address."""
    source, forwarded = _source(request, relay)
    authorization = request.headers.get("Authorization")
    proxy = source if forwarded else ""
    return relay.count_rejection(authorization, forwarded or source, proxy, reason=reason, text=text)


def _note_refused(relay: Relay, request: web.Request, reason: str, user: str, key_id: str, text: str) -> str:
    """Note in the audit that the token or certificate of a request was refused. Return the client's address."""
    source, forwarded = _source(request, relay)
    relay.audit.note_refused_token(source, reason, forwarded, user=user, key_id=key_id, text=text)
    return forwarded or source


async def _member(relay: Relay, request: web.Request, token: str) -> Identity:
    """Return the user of an identity provider's token. Raise _Refusal if the token is refused or cannot be checked."""
    try:
        return await relay.identify_member(token)
    except ProviderError as error:
        raise _Refusal(503, StatusCode.BUSY, str(error), _PROVIDER_RETRY_S) from None
    except SsoError as error:
        why = str(error)
    wait_s = _count_rejection(relay, request, "sso", why)
    if wait_s:
        raise _Refusal(429, StatusCode.BUSY, "too many wrong tokens", wait_s)
    raise _Refusal(401, StatusCode.NOT_AUTHORISED, why)


def _with_certificate(
    relay: Relay, request: web.Request, identity: Identity | None, *, has_token: bool
) -> Identity | None:
    """Return the user of the token, if one came, or else of the client's certificate. Raise _Refusal if the certificate
    is of no user, of several, or of another than the token."""
    shown = relay.certificates.shown(request)
    if shown is None:
        return identity
    users = relay.grants.certificates.users_of(shown.names)
    names = printable(", ".join(shown.names)[:_NAMES_LETTERS_MAX])
    if identity is not None and users in ([], [identity.user]):
        return identity
    why = ""
    if identity is not None:
        why = f"the token is of {identity.user}, and the certificate of {', '.join(users)}: use one of them"
    elif has_token:
        return None  # a wrong token is refused as such, with any certificate
    elif not users:
        why = f"no user has a certificate with one of the names {names}, and no token came; ask the operator"
    elif len(users) > 1:
        why = f"the names {names} of the certificate are of several users; ask the operator to correct the rules"
    elif "Origin" in request.headers:
        # A browser shows the certificate with the requests of any web page, and names the page.
        why = "a web page may not use the certificate of its browser"
    if not why:
        return Identity(users[0], shown.key_id, shown.names, shown.expires_s)
    relay.failures.certificates += 1
    user, key_id = ("", shown.key_id) if identity is None else (identity.user, identity.key_id)
    address = _note_refused(relay, request, "certificate", user, key_id, why)
    _log.warning("wrong_certificate", names=shown.names, text=why, address=address)
    code = StatusCode.DENIED if users else StatusCode.NOT_AUTHORISED
    raise _Refusal(403 if users else 401, code, why)


async def _use_once(relay: Relay, request: web.Request, identity: Identity, body: Buffer) -> None:
    """Raise _Refusal if the token is for a single use and another endpoint has used it."""
    try:
        why = await relay.uses.why_not(identity, body)
    except NotStoredError as error:
        raise _Refusal(503, StatusCode.BUSY, str(error), _BUSY_RETRY_S) from None
    if why:
        relay.failures.used += 1
        address = _note_refused(relay, request, "used", identity.user, identity.key_id, why)
        _log.warning("used_token", user=identity.user, key=identity.key_id, address=address)
        raise _Refusal(401, StatusCode.NOT_AUTHORISED, why)


def _is_direct(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    try:
        ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return name == "localhost"
    return True


# --- GET {base}/link


async def _link(request: web.Request, relay: Relay) -> web.StreamResponse:
    identity = await _identify(relay, request)
    wanted = [part.strip().lower() for part in request.headers.get("Upgrade", "").split(",")]
    if "websocket" in wanted:
        if relay.config.is_open and "Origin" in request.headers:
            # Any web page can open a websocket to this machine. A browser names the page; an endpoint names none.
            raise _Refusal(403, StatusCode.DENIED, "an open relay takes no websocket from a web page")
        return await serve_websocket(request, relay, identity, _origin(request, relay, identity))
    if LINK_PROTOCOL not in wanted or request.transport is None:
        text = f"Upgrade to {LINK_PROTOCOL} or websocket"
        return web.Response(status=426, text=text, headers={"Upgrade": LINK_PROTOCOL})
    return await serve_link(request, relay, identity, _origin(request, relay, identity))
