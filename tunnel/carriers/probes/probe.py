"""Single exchanges with a relay, with which `tunnel doctor` finds out how the path treats them.

A prober attaches as an endpoint does, then sends exchanges that carry only padding, or questions that every relay
answers without effect.
"""

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
import msgspec

from tunnel.carriers.dialing.dialing import Dialing, retry_after_us
from tunnel.carriers.dialing.failures import Failure, explain
from tunnel.carriers.http.codings import undone
from tunnel.carriers.probes.probe_link import LinkTrial, ask_link
from tunnel.exchange import quoted, title_of
from tunnel.ground.printable import counted
from tunnel.wire import (
    ENVELOPE_BYTES,
    EXCHANGE_BYTES,
    HEADER_SIZE,
    MAGIC,
    SECRET_SIZE,
    TEXT_FORMATS,
    Answer,
    Attach,
    Attached,
    BodyFormat,
    EnvelopeError,
    Exchange,
    ListenState,
    ListenStatus,
    Message,
    Option,
    Options,
    Packet,
    PacketType,
    Status,
    attachment_id,
    decode_envelope,
    encode_envelope,
    encode_listen_state,
    encode_option,
    encode_packets,
    unwrap_answer,
    whole_packet,
    wrap_body,
)

__all__ = ["PLAIN_TYPE", "TEXT_TYPES", "CountedSession", "ProbeError", "Prober", "Reply"]

PLAIN_TYPE = BodyFormat.PLAIN.value  # the types of bodies (7.19)
TEXT_TYPES = tuple(each.value for each in TEXT_FORMATS)

_READ_BYTES_MAX = 2 << 20
_QUOTE_LETTERS = 100
_PAGE_BYTES = 4096  # bytes kept of a foreign answer: enough of every error page that identifies a product
_ONE_ANSWER_BYTES = 512  # room for the answer to one question in one piece: pieces would need further requests
_NAME_BYTES = 200  # length of the service names in questions
_QUESTION_BYTES = HEADER_SIZE + 8 + _NAME_BYTES  # type, version, state and backlog of LISTEN_STATE, and the name
_PACKETS_MAX = 1024  # packets in a body, if the relay does not announce its limit (PROTOCOL 4.13)
_TEXT = b"tunnel doctor sends this text to find out whether bodies must look like text. "
_LINK_PARTS, _LINK_PART_BYTES = 8, 32 << 10  # what a link is tried with: 256 KiB towards the relay
_LINK_QUESTIONS = 128  # and the answers to these, about 28 KiB
_FAREWELL = whole_packet(Packet(PacketType.OPTION, 0, 0, 0, encode_option(Option(1, Options(leaving=True)))))
_BIG_HEAD_BYTES = 100_000  # more than nginx, Apache, haproxy, lighttpd and Squid accept for all headers together


class ProbeError(Exception):
    """No answer arrived; `failure` says why. For the kind proxy-password, its text also says what to do."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class Reply(msgspec.Struct):
    """An answer. `kind`: "attached", "answer" or "status", from a relay; "stale", a relay's answer to another request;
    "damaged"; or "foreign", from something else. A caller of the prober may make a Reply of the kind "lost", for an
    answer that did not come.

    The names in `headers` are in lower case. `page` is the beginning of a foreign body. `epoch` is that of the relay,
    in an ATTACHED; `bytes` is the size of the body. `coding`: how a hop compressed a relay's answer.
    """

    kind: str
    status: int
    text: str
    seconds: float
    headers: dict[str, str]
    serial: int = 0
    wait_ms: int = 0
    page: str = ""
    http: str = "1.1"
    epoch: int = 0
    bytes: int = 0
    coding: str = ""


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
        self.answer_bytes = 64 << 10  # the answer limit of exchanges that ask for nothing
        self.format = BodyFormat.PLAIN  # of each body
        self.is_fresh = False  # open a new connection for each request, on a path where none can be used again
        self.moved_bytes = 0  # of bodies, both ways
        self.has_left = False
        self._secret = secrets.token_bytes(SECRET_SIZE)
        self._numbers: dict[int, int] = {}
        self._serials: dict[int, int] = {}
        self._abandoned: list[tuple[bytes, dict[int, int], dict[int, int]]] = []  # the same, before each `attach_anew`
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> "Prober":
        self._session = self.dialing.session()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._session.close()

    async def reconnect(self) -> None:
        """Close all connections that no request uses, so that none of them uses up a hop's limit of connections."""
        before, self._session = self._session, self.dialing.session()
        await before.close()

    # attaching

    async def attach(self) -> Reply:
        """Attach, and return what answered. If a relay accepted the attachment, exchanges are possible afterwards."""
        reply, found = await self._post(self._greeting(), self._session)
        self._accept(reply, found)
        return reply

    def _accept(self, reply: Reply, found: Message | EnvelopeError) -> bool:
        """Keep the answer to an ATTACH; return whether it is one."""
        if isinstance(found, Attached) and found.attachment_id == attachment_id(self._secret):
            self.attached = found
            return True
        if isinstance(found, Attached | Answer):
            _mark_stale(reply)
        return False

    async def attach_anew(self) -> Reply:
        """Attach with another secret, and abandon the old attachment with all that waits for it at the relay.

        If no relay accepts the new attachment, the old one is kept.
        """
        before = self._secret, self._numbers, self._serials
        self._secret, self._numbers, self._serials = secrets.token_bytes(SECRET_SIZE), {}, {}
        reply: Reply | None = None
        try:
            reply = await self.attach()
        finally:
            if reply is None or reply.kind != "attached":
                self._secret, self._numbers, self._serials = before
            else:
                self._abandoned.append(before)
        return reply

    async def leave(self) -> Reply:
        """Tell the relay that the newest attachment, and then each that was abandoned, comes no more (6.10).

        The relay would keep each for minutes, with what waits for it. Call this again until `has_left`.
        """
        self._numbers[0] = self._numbers.get(0, 0) + 1
        try:
            return await self._send(_FAREWELL, 0, self._session, answer_bytes=_ONE_ANSWER_BYTES)
        finally:
            self.has_left = not self._abandoned
            if self._abandoned:
                self._secret, self._numbers, self._serials = self._abandoned.pop()

    async def attach_elsewhere(self) -> Reply:
        """Attach again on a new connection, and return only the reply: it shows the epoch of the relay that answers."""
        async with self.own_connection() as own:
            reply, _ = await self._post(self._greeting(), own.session)
            return reply

    async def attach_as(self, content_type: str) -> Reply:
        """Send ATTACH in a body of this type. Any relay answers, even one that does not understand the type.

        If it is the type of a format (7.19) that the relay understands, all later exchanges are sent in this format.
        """
        if content_type not in {each.value for each in BodyFormat}:
            return (await self._post(self._greeting(), self._session, {"Content-Type": content_type}))[0]
        before, self.format = self.format, BodyFormat(content_type)
        reply, found = await self._post(self._greeting(), self._session)
        if not self._accept(reply, found):
            self.format = before
        return reply

    def _greeting(self) -> bytes:
        message = Attach(self._secret, generation=1, pull_interval_ms=0, body_bytes_max=1 << 20)
        return b"".join(encode_envelope(message))

    # exchanges

    async def exchange(
        self,
        size: int = 0,
        *,
        hold_s: float = 0,
        lane: int = 0,
        own: CountedSession | None = None,
        is_text: bool = False,
    ) -> Reply:
        """Send an exchange with a body of about `size` bytes, which the relay may hold for `hold_s` seconds.

        The body is noise, as encrypted data is, or looks like text.
        """
        self._numbers[lane] = self._numbers.get(lane, 0) + 1
        return await self.repeat(size, hold_s=hold_s, lane=lane, own=own, is_text=is_text)

    async def repeat(
        self,
        size: int = 0,
        *,
        hold_s: float = 0,
        lane: int = 0,
        own: CountedSession | None = None,
        is_text: bool = False,
    ) -> Reply:
        """Repeat the newest exchange of the lane. A relay answers with another serial, a cache with the same one."""
        padding = _padding(self._plain_bytes(size), is_text=is_text)
        return await self._send(padding, lane, own.session if own else self._session, hold_s=hold_s)

    @property
    def _packets_max(self) -> int:
        """Largest number of packets in a body (7.11)."""
        return (self.attached.packets_max if self.attached is not None else 0) or _PACKETS_MAX

    @property
    def ask_bytes_max(self) -> int:
        """Size of the largest body of questions."""
        return EXCHANGE_BYTES + self._packets_max * _QUESTION_BYTES

    async def ask(self, size: int, *, lane: int = 0, most: int = 0) -> Reply:
        """Send a body of about `size` bytes full of questions, or of `most` and padding. The answers wait at the relay,
        which sends few of them.

        A question takes down a service that this endpoint has never had, so it changes nothing. It works at all
        relays.
        """
        self._numbers[lane] = self._numbers.get(lane, 0) + 1
        room = self._plain_bytes(size) - EXCHANGE_BYTES
        questions = [_question() for _ in range(max(1, min(room // _QUESTION_BYTES, most or self._packets_max)))]
        payload = b"".join(encode_packets(questions))
        if most:
            payload += _padding(self._plain_bytes(size) - len(payload), is_text=False)
        return await self._send(payload, lane, self._session, answer_bytes=_ONE_ANSWER_BYTES)

    def _plain_bytes(self, size: int) -> int:
        """Return how many bytes a plain body may have, to have about `size` bytes in the present format."""
        if self.format in TEXT_FORMATS:
            return (size - _TEXT_BYTES) * 3 // 4
        return size - (_FORM_BYTES if self.format is BodyFormat.FORM else 0)

    async def fetch(self, answer_bytes: int, *, lane: int = 0, is_repeat: bool = False) -> Reply:
        """Ask for what waits at the relay, in an answer of at most `answer_bytes`. A repeat may ask for less."""
        if not is_repeat:
            self._numbers[lane] = self._numbers.get(lane, 0) + 1
        return await self._send(b"", lane, self._session, answer_bytes=answer_bytes)

    async def claim_exit(self) -> Reply:
        """Send an exchange whose header claims that this is an exit.

        If the header arrives, the relay refuses the exchange, unless its rules allow this user to be an exit.
        """
        self._numbers[0] = self._numbers.get(0, 0) + 1
        return await self._send(b"", 0, self._session, headers={"Tunnel-Role": "exit"})

    async def _send(
        self,
        payload: bytes,
        lane: int,
        session: aiohttp.ClientSession,
        *,
        hold_s: float = 0,
        answer_bytes: int = 0,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        assert self.attached is not None, "attach first"
        number = self._numbers[lane]  # another question may follow on this lane before the answer comes
        exchange = Exchange(
            attachment_id(self._secret),
            self.attached.epoch,
            self.attached.generation,
            lane,
            number,
            self._serials.get(lane, 0),
            round(hold_s * 1000),
            answer_bytes or self.answer_bytes,
            pull=hold_s > 0,
            payload=payload,
        )
        reply, found = await self._post(b"".join(encode_envelope(exchange)), session, headers)
        if isinstance(found, Answer) and (found.lane, found.number) == (lane, number):
            reply.serial = found.serial
            self._serials[lane] = found.serial
        elif isinstance(found, Answer | Attached):
            _mark_stale(reply)
        return reply

    async def send_unfinished(self, seconds: float) -> tuple[bool, Reply]:
        """Send a request whose end waits for the answer, but at most `seconds`.

        Return whether the answer came before the end, and the answer. The relay refuses the content type before it
        reads the body. So an early answer shows that the beginning of the request has reached the relay.
        """
        finish = asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            yield b"x" * 1024
            await finish.wait()
            yield b"x" * 1024

        headers = {"Content-Type": "application/x-www-form-urlencoded", "Content-Length": "2048"}
        asking = asyncio.ensure_future(self._post(body(), self._session, headers))
        try:
            done, _ = await asyncio.wait([asking], timeout=seconds)
            finish.set()
            reply, found = await asking
            if isinstance(found, Answer | Attached):
                _mark_stale(reply)
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

    async def link(self, seconds: float, *, stay_s: float = 0, is_websocket: bool = False) -> str:
        """Open a link, or a websocket, and move data each way. Return the reason why that failed; empty if it worked.

        It must then stay open for `stay_s` seconds, while little is sent.
        """
        assert self.attached is not None, "attach first"
        noise = [Packet(PacketType.NOOP, 0, 0, 0, os.urandom(_LINK_PART_BYTES)) for _ in range(_LINK_PARTS)]
        asked = [_question() for _ in range(_LINK_QUESTIONS)]
        identity = (attachment_id(self._secret), self.attached.epoch, self.attached.generation)
        parts = [list(encode_packets([each])) for each in noise] + [list(encode_packets(asked))]
        trial = LinkTrial(parts, _LINK_QUESTIONS * _QUESTION_BYTES, stay_s)
        return await ask_link(self.dialing, identity, trial, seconds, is_websocket=is_websocket)

    # requests that hops answer themselves

    async def page(self) -> Reply:
        """Ask for the relay's resource as a browser would, without the token."""
        return await self._get({})

    async def big_head(self) -> Reply:
        """Send a header that is too large for most servers, without the token. The first hop to refuse it answers."""
        return await self._get({"X-Padding": "x" * _BIG_HEAD_BYTES})

    async def odd_expectation(self) -> Reply:
        """Send an `Expect` that no server can meet, without the token. Some hops answer it themselves."""
        return await self._get({"Expect": "tunnel-doctor"})

    async def _get(self, headers: Mapping[str, str]) -> Reply:
        asked = {"Accept-Encoding": "identity", **self.dialing.gateway_headers, **headers}
        reply, _ = await self._ask("GET", None, self._session, asked)
        return reply

    async def _post(
        self,
        body: bytes | AsyncIterator[bytes],
        session: aiohttp.ClientSession,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[Reply, Message | EnvelopeError]:
        kind = BodyFormat.PLAIN.value
        if isinstance(body, bytes):
            kind, body = wrap_body(self.format, [body], secrets.token_hex)
        return await self._ask("POST", body, session, {**self.dialing.headers, "Content-Type": kind, **(headers or {})})

    async def _ask(
        self,
        method: str,
        body: bytes | AsyncIterator[bytes] | None,
        session: aiohttp.ClientSession,
        headers: Mapping[str, str],
    ) -> tuple[Reply, Message | EnvelopeError]:
        if self.is_fresh and session is self._session:
            async with self.dialing.session() as fresh:
                return await self._ask(method, body, fresh, headers)
        began = time.monotonic()
        try:
            async with session.request(
                method,
                self.dialing.url("exchange"),
                headers=headers,
                data=body,
                allow_redirects=False,
                proxy=self.dialing.proxy,
                proxy_headers=self.dialing.proxy_headers or None,
            ) as response:
                data = await response.content.read(_READ_BYTES_MAX)
                while len(data) < _READ_BYTES_MAX and (more := await response.content.readany()):
                    data += more
        except (aiohttp.ClientError, OSError, EOFError, ValueError) as error:
            raise ProbeError(_failure(error, self.dialing)) from error
        encoding = response.headers.get("Content-Encoding", "identity")
        plain = undone(data, encoding, _READ_BYTES_MAX)
        self.moved_bytes += len(data) + (len(body) if isinstance(body, bytes) else 0)
        answer = unwrap_answer(data if plain is None else plain)
        found = decode_envelope(answer)
        reply = Reply("", response.status, "", time.monotonic() - began, _headers(response), bytes=len(data))
        reply.wait_ms = retry_after_us(response.headers) // 1000
        if response.version is not None:
            reply.http = f"{response.version.major}.{response.version.minor}"
        if plain is not None and not isinstance(found, EnvelopeError):
            reply.coding = encoding
        _explain(reply, found, answer)
        return reply, found


def _failure(error: Exception, dialing: Dialing) -> Failure:
    """Return the explanation of an error; a connection that ended is one kind, wherever aiohttp noticed it."""
    is_cut = isinstance(error, aiohttp.ClientOSError | aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError)
    failure = explain(error, dialing.base)
    if is_cut and failure.kind in ("cut", "other") and not isinstance(error, aiohttp.ClientConnectorError):
        return Failure("cut", "the connection was closed before the answer was complete")
    return failure


def _headers(response: aiohttp.ClientResponse) -> dict[str, str]:
    """Return the headers by their names in lower case; a header that came several times has all its values."""
    found: dict[str, str] = {}
    for name, value in response.headers.items():
        key = name.lower()
        found[key] = f"{found[key]}, {value}" if key in found else value
    return found


def _padding(size: int, *, is_text: bool) -> bytes:
    """Return a packet that the relay drops: random bytes, which no device on the path can compress, or plain text."""
    room = size - EXCHANGE_BYTES - HEADER_SIZE
    if room < 0:
        return b""
    content = (_TEXT * (room // len(_TEXT) + 1))[:room] if is_text else os.urandom(room)
    return b"".join(encode_packets([Packet(PacketType.NOOP, 0, 0, 0, content)]))


def _question() -> Packet:
    """Return a packet that the relay answers with one of the same size: it takes down a service that was never up."""
    name = secrets.token_hex(_NAME_BYTES // 2)
    return Packet(PacketType.LISTEN_STATE, 0, 0, 0, encode_listen_state(ListenState(1, ListenStatus.DOWN, 0, name)))


_TEXT_BYTES = len(wrap_body(BodyFormat.TEXT, [b""], secrets.token_hex)[1])
_FORM_BYTES = len(wrap_body(BodyFormat.FORM, [b""], secrets.token_hex)[1])


def _explain(reply: Reply, found: Message | EnvelopeError, data: bytes) -> None:
    match found:
        case Attached():
            reply.kind, reply.epoch = "attached", found.epoch
        case Answer():
            reply.kind = "answer"
        case Status():
            reply.kind, reply.text = "status", found.text
            reply.wait_ms = max(reply.wait_ms, found.retry_after_ms)
        case EnvelopeError.NOT_OURS if (offset := data.find(MAGIC)) > 0 and _is_whole(data[offset:]):
            reply.kind, reply.text = (
                "damaged",
                f"a hop put {counted(offset, 'byte')} in front of the relay's answer",
            )
        case EnvelopeError.NOT_OURS:
            reply.kind, reply.text = "foreign", _quote(data)
            reply.page = data[:_PAGE_BYTES].decode("utf-8", "replace")
        case EnvelopeError.CORRUPT if _is_whole(data):
            extra = len(data) - ENVELOPE_BYTES - int.from_bytes(data[8:12], "big")
            reply.kind, reply.text = (
                "damaged",
                f"a hop added {counted(extra, 'byte')} to the relay's answer",
            )
        case EnvelopeError():
            reply.kind, reply.text = "damaged", found.value
        case _:
            reply.kind, reply.text = "foreign", "our own request came back"


def _mark_stale(reply: Reply) -> None:
    reply.kind, reply.text = "stale", "the answer to another request"


def _is_whole(data: bytes) -> bool:
    """Whether a whole message stands at the beginning, whatever follows it."""
    size = ENVELOPE_BYTES + int.from_bytes(data[8:12], "big")
    return not isinstance(decode_envelope(data[:size]), EnvelopeError)


def _quote(data: bytes) -> str:
    """Return the title of a page, else its beginning."""
    text = " ".join(title_of(data).decode("utf-8", "replace").split())
    return f"a page titled {text!r}" if text else quoted(data, _QUOTE_LETTERS)
