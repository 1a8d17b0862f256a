"""Single exchanges with a relay, made to find out what the path does to them. For `tunnel doctor`.

A prober attaches as an endpoint would, and then sends exchanges that carry nothing but padding: the relay checks and
drops it.
"""

import asyncio
import os
import re
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from tunnel.carriers.dialing import Dialing, describe_failure
from tunnel.carriers.upgrade import UpgradeRefusedError, upgrade
from tunnel.wire import (
    EXCHANGE_BYTES,
    HEADER_SIZE,
    SECRET_SIZE,
    Answer,
    Attach,
    Attached,
    EnvelopeError,
    Exchange,
    Message,
    Packet,
    PacketType,
    Status,
    attachment_id,
    decode_envelope,
    encode_envelope,
    encode_packets,
)

__all__ = ["OwnConnection", "ProbeError", "Prober", "Reply", "issuer_of"]

_CONTENT_TYPE = "application/octet-stream"
_READ_BYTES_MAX = 2 << 20
_QUOTE_LETTERS = 100
_TITLE = re.compile(rb"<title[^>]*>([^<]{1,200})", re.IGNORECASE)


class ProbeError(Exception):
    """Nothing was answered. `kind`: proxy-password, proxy, certificate, tls, name, refused, cut, timeout or other.

    The text of proxy-password says what the proxy asks for, and how to give it.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Reply(msgspec.Struct):
    """An answer. `kind`: attached, answer, status (of a relay), damaged, or foreign: of something else."""

    kind: str
    status: int
    text: str
    seconds: float
    headers: dict[str, str]
    serial: int = 0
    wait_ms: int = 0


class OwnConnection:
    """`opened`: how many connections it took so far; one, if the first is still good."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session
        self.opened = 0

    def watch(self) -> aiohttp.TraceConfig:
        """Counts them."""
        config = aiohttp.TraceConfig()

        async def opened(*event: object) -> None:
            self.opened += 1

        config.on_connection_create_end.append(opened)
        config.freeze()
        return config


class Prober:
    """One attachment, in the HTTP of the carriers. `async with` it; `lane`s are independent of each other."""

    def __init__(self, dialing: Dialing) -> None:
        self.dialing = dialing
        self.attached: Attached | None = None
        self._secret = secrets.token_bytes(SECRET_SIZE)
        self._numbers: dict[int, int] = {}
        self._serials: dict[int, int] = {}
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> "Prober":
        self._session = self.dialing.session()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._session.close()

    # exchanges

    async def attach(self) -> Reply:
        """What answers there? Afterwards, if it is a relay that knows us, exchanges are possible."""
        message = Attach(self._secret, generation=1, pull_interval_ms=0, body_bytes_max=1 << 20)
        reply, found = await self._post(b"".join(encode_envelope(message)), self._session)
        if isinstance(found, Attached):
            self.attached = found
        return reply

    async def exchange(
        self, size: int = 0, *, hold_s: float = 0, lane: int = 0, own: OwnConnection | None = None
    ) -> Reply:
        """One exchange with a body of about so many bytes, held by the relay for so long."""
        self._numbers[lane] = self._numbers.get(lane, 0) + 1
        return await self.repeat(size, hold_s=hold_s, lane=lane, own=own)

    async def repeat(
        self, size: int = 0, *, hold_s: float = 0, lane: int = 0, own: OwnConnection | None = None
    ) -> Reply:
        """The newest exchange of the lane again: the relay gives it another serial, a cache does not."""
        assert self.attached is not None, "attach first"
        exchange = Exchange(
            attachment_id(self._secret),
            self.attached.epoch,
            self.attached.generation,
            lane,
            self._numbers[lane],
            self._serials.get(lane, 0),
            round(hold_s * 1000),
            64 << 10,
            pull=hold_s > 0,
            payload=_padding(size),
        )
        reply, found = await self._post(b"".join(encode_envelope(exchange)), own.session if own else self._session)
        if isinstance(found, Answer):
            reply.serial = found.serial
            self._serials[lane] = found.serial
        return reply

    async def unfinished(self, seconds: float) -> tuple[bool, Reply]:
        """Whether the relay saw the beginning of a request whose end was withheld for so long; and what it answered.

        The body has a type that the relay refuses before it reads it.
        """
        finish = asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            yield b"x" * 1024
            await finish.wait()
            yield b"x" * 1024

        headers = {"Content-Type": "text/plain", "Content-Length": "2048"}
        asking = asyncio.ensure_future(self._post(body(), self._session, headers))
        try:
            done, _ = await asyncio.wait([asking], timeout=seconds)
            finish.set()
            reply, _ = await asking
        finally:
            asking.cancel()
        return bool(done), reply

    @asynccontextmanager
    async def own_connection(self) -> AsyncIterator["OwnConnection"]:
        """Connections that nobody else uses."""
        async with self.dialing.session() as session:
            own = OwnConnection(session)
            session.trace_configs.append(own.watch())
            yield own

    async def upgrade(self) -> str:
        """Why no link leads through here; empty: one does."""
        try:
            upgraded = await upgrade(self.dialing)
        except UpgradeRefusedError as error:
            return str(error)
        except Exception as error:
            return describe_failure(error)
        upgraded.transport.abort()
        upgraded.lost(None)
        await upgraded.close()
        return ""

    async def _post(
        self,
        body: bytes | AsyncIterator[bytes],
        session: aiohttp.ClientSession,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[Reply, Message | EnvelopeError]:
        began = time.monotonic()
        try:
            async with session.post(
                self.dialing.url("exchange"),
                headers={**self.dialing.headers, "Content-Type": _CONTENT_TYPE, **(headers or {})},
                data=body,
                allow_redirects=False,
                proxy=self.dialing.proxy,
                proxy_headers=self.dialing.proxy_headers or None,
            ) as response:
                data = await response.content.read(_READ_BYTES_MAX)
                while len(data) < _READ_BYTES_MAX and (more := await response.content.readany()):
                    data += more
        except (aiohttp.ClientError, OSError) as error:
            raise _failure(error) from error
        found = decode_envelope(data)
        reply = Reply("", response.status, "", time.monotonic() - began, dict(response.headers))
        _explain(reply, found, data)
        return reply, found


def _padding(size: int) -> bytes:
    """A packet that is dropped, of random bytes: nothing on the way makes it smaller."""
    room = size - EXCHANGE_BYTES - HEADER_SIZE
    if room < 0:
        return b""
    return b"".join(encode_packets([Packet(PacketType.NOOP, 0, 0, 0, os.urandom(room))]))


def _explain(reply: Reply, found: Message | EnvelopeError, data: bytes) -> None:
    match found:
        case Attached():
            reply.kind = "attached"
        case Answer():
            reply.kind = "answer"
        case Status():
            reply.kind, reply.text, reply.wait_ms = "status", found.text, found.retry_after_ms
        case EnvelopeError.NOT_OURS:
            reply.kind, reply.text = "foreign", _quote(data)
        case EnvelopeError():
            reply.kind, reply.text = "damaged", found.value
        case _:
            reply.kind, reply.text = "foreign", "our own request"


def _quote(data: bytes) -> str:
    """A page's title, else its beginning."""
    title = _TITLE.search(data)
    text = (title[1] if title else data[: 4 * _QUOTE_LETTERS]).decode("utf-8", "replace")
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return f"a page titled {text!r}" if title else text[:_QUOTE_LETTERS]


# --- what goes wrong


def _failure(error: Exception) -> ProbeError:
    text = describe_failure(error)
    match error:
        case aiohttp.ClientHttpProxyError(status=407):
            return ProbeError("proxy-password", error.message)
        case aiohttp.ClientHttpProxyError():
            return ProbeError("proxy", f"HTTP {error.status} {error.message}")
        case aiohttp.ClientConnectorCertificateError():
            return ProbeError("certificate", str(error.certificate_error))
        case aiohttp.ClientSSLError():
            return ProbeError("tls", text)
        case aiohttp.ClientProxyConnectionError():
            return ProbeError("proxy", str(error.os_error))
        case aiohttp.ClientConnectorDNSError():
            return ProbeError("name", str(error.os_error))
        case aiohttp.ClientConnectorError():
            kind = "refused" if isinstance(error.os_error, ConnectionRefusedError) else "other"
            return ProbeError(kind, error.os_error.strerror or text)
        case TimeoutError():
            return ProbeError("timeout", "no answer in time")
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientPayloadError() | ConnectionError():
            return ProbeError("cut", text)
    return ProbeError("other", text)


# --- certificates


async def issuer_of(dialing: Dialing) -> str:
    """Who vouches for the certificate that is shown to us, whether we trust that or not. ProbeError where none is."""
    trusting = _context()
    trusting.verify_mode = ssl.CERT_NONE
    raw = (await _shown(dialing, trusting)).getpeercert(binary_form=True) or b""
    # OpenSSL tells what a certificate says only to those who trust it: this one, for itself.
    anchored = _context()
    anchored.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        anchored.load_verify_locations(cadata=raw)
        certificate = (await _shown(dialing, anchored)).getpeercert() or {}
    except (ProbeError, ssl.SSLError):
        return "somebody unknown"
    parts: Any = certificate.get("issuer", ())
    issuer = {key: value for part in parts for key, value in part}
    names = [issuer[key] for key in ("commonName", "organizationName") if issuer.get(key)]
    return ", ".join(dict.fromkeys(names)) or "somebody without a name"


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    return context


async def _shown(dialing: Dialing, context: ssl.SSLContext) -> ssl.SSLObject:
    """The TLS of a connection to the relay's address, after its handshake."""
    seen: list[ssl.SSLObject] = []

    class Seen(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            seen.append(self)

    context.sslobject_class = Seen
    kept, dialing.tls = dialing.tls, context
    try:
        async with (
            dialing.session() as session,
            session.get(
                dialing.url("link"),
                headers={"Accept-Encoding": "identity"},  # no token: who answers may be anybody
                allow_redirects=False,
                proxy=dialing.proxy,
                proxy_headers=dialing.proxy_headers or None,
            ),
        ):
            pass
    except (aiohttp.ClientError, OSError) as error:
        if not seen:
            raise _failure(error) from error
    finally:
        dialing.tls = kept
    if not seen:
        raise ProbeError("tls", "no TLS was spoken")
    return seen[-1]
