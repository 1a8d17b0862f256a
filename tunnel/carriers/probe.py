"""Single exchanges with a relay, with which `tunnel doctor` finds out how the path treats them.

A prober attaches as an endpoint does, then sends exchanges that carry only padding. The relay checks the padding and
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

from tunnel.carriers.dialing import Dialing
from tunnel.carriers.failures import Failure, describe_failure, explain
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

__all__ = ["CountedSession", "ProbeError", "Prober", "Reply", "issuer_of"]

_CONTENT_TYPE = "application/octet-stream"
_READ_BYTES_MAX = 2 << 20
_QUOTE_LETTERS = 100
_TITLE = re.compile(rb"<title[^>]*>([^<]{1,200})", re.IGNORECASE)


class ProbeError(Exception):
    """No answer arrived; `failure` says why. For the kind proxy-password, its text also says what to do."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class Reply(msgspec.Struct):
    """An answer. `kind`: attached, answer or status, from a relay; damaged; or foreign, from something else."""

    kind: str
    status: int
    text: str
    seconds: float
    headers: dict[str, str]
    serial: int = 0
    wait_ms: int = 0


class CountedSession:
    """A session that counts the connections it opens. `opened` stays 1 while the first one still works."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session
        self.opened = 0

    def watch(self) -> aiohttp.TraceConfig:
        """Return a trace configuration that counts the connections."""
        config = aiohttp.TraceConfig()

        async def opened(*event: object) -> None:
            self.opened += 1

        config.on_connection_create_end.append(opened)
        config.freeze()
        return config


class Prober:
    """An attachment that sends single exchanges, with the carriers' HTTP settings. Use it with `async with`."""

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
        """Attach, and return what answered. If a relay accepted the attachment, exchanges are possible afterwards."""
        message = Attach(self._secret, generation=1, pull_interval_ms=0, body_bytes_max=1 << 20)
        reply, found = await self._post(b"".join(encode_envelope(message)), self._session)
        if isinstance(found, Attached):
            self.attached = found
        return reply

    async def exchange(
        self, size: int = 0, *, hold_s: float = 0, lane: int = 0, own: CountedSession | None = None
    ) -> Reply:
        """Send an exchange with a body of about `size` bytes, which the relay may hold for `hold_s` seconds."""
        self._numbers[lane] = self._numbers.get(lane, 0) + 1
        return await self.repeat(size, hold_s=hold_s, lane=lane, own=own)

    async def repeat(
        self, size: int = 0, *, hold_s: float = 0, lane: int = 0, own: CountedSession | None = None
    ) -> Reply:
        """Repeat the newest exchange of the lane. A relay answers with another serial, a cache with the same one."""
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
        """Send a request, but withhold its end for up to `seconds`. Return (the answer came first, the answer).

        The relay refuses the content type before it reads the body, so an early answer shows that it saw the beginning.
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
    async def own_connection(self) -> AsyncIterator["CountedSession"]:
        """Yield a session whose connections no other exchange uses."""
        async with self.dialing.session() as session:
            own = CountedSession(session)
            session.trace_configs.append(own.watch())
            yield own

    async def upgrade(self) -> str:
        """Try to open a link. Return the reason why it failed; empty if it worked."""
        try:
            upgraded = await upgrade(self.dialing)
        except UpgradeRefusedError as error:
            return str(error)
        except Exception as error:
            return describe_failure(error, self.dialing.base)
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
            raise ProbeError(explain(error, self.dialing.base)) from error
        found = decode_envelope(data)
        reply = Reply("", response.status, "", time.monotonic() - began, dict(response.headers))
        _explain(reply, found, data)
        return reply, found


def _padding(size: int) -> bytes:
    """Return a packet of random bytes, which the relay drops and no device on the path can compress."""
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
            reply.kind, reply.text = "foreign", "our own request came back"


def _quote(data: bytes) -> str:
    """Return the title of a page, else its beginning."""
    title = _TITLE.search(data)
    text = (title[1] if title else data[: 4 * _QUOTE_LETTERS]).decode("utf-8", "replace")
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return f"a page titled {text!r}" if title else text[:_QUOTE_LETTERS]


# --- certificates


async def issuer_of(dialing: Dialing) -> str:
    """Return the issuer of the server's certificate, trusted or not. Raise ProbeError if there is no certificate."""
    trusting = _context()
    trusting.verify_mode = ssl.CERT_NONE
    raw = (await _shown(dialing, trusting)).getpeercert(binary_form=True) or b""
    # OpenSSL decodes only a certificate that it trusts, so the second connection trusts this very certificate.
    anchored = _context()
    anchored.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        anchored.load_verify_locations(cadata=raw)
        certificate = (await _shown(dialing, anchored)).getpeercert() or {}
    except (ProbeError, ssl.SSLError):
        return "an unknown issuer"
    parts: Any = certificate.get("issuer", ())
    issuer = {key: value for part in parts for key, value in part}
    names = [issuer[key] for key in ("commonName", "organizationName") if issuer.get(key)]
    return ", ".join(dict.fromkeys(names)) or "an issuer without a name"


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    return context


async def _shown(dialing: Dialing, context: ssl.SSLContext) -> ssl.SSLObject:
    """Connect to the relay's address and return the TLS object after the handshake."""
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
                headers={"Accept-Encoding": "identity"},  # no token: the server is not authenticated
                allow_redirects=False,
                proxy=dialing.proxy,
                proxy_headers=dialing.proxy_headers or None,
            ),
        ):
            pass
    except (aiohttp.ClientError, OSError) as error:
        if not seen:
            raise ProbeError(explain(error, dialing.base)) from error
    finally:
        dialing.tls = kept
    if not seen:
        raise ProbeError(Failure("tls", "no TLS handshake took place", "check that the URL starts with https://"))
    return seen[-1]
