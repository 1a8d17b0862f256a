"""Sends numbered exchanges as POST requests (section 7), which pass through anything that lets HTTP pass."""

import asyncio
import contextlib
import functools
import socket
from collections import deque
from collections.abc import Callable
from secrets import token_hex

import aiohttp
from aiohttp.abc import AbstractStreamWriter

from tunnel.carriers.dialing.dial_secrets import DialSecrets
from tunnel.carriers.dialing.dialing import Dialing, retry_after_us, server_of
from tunnel.carriers.dialing.failures import explain, is_cut, is_refused
from tunnel.carriers.dialing.redirects import is_to_https
from tunnel.carriers.exchanging import Outcomes
from tunnel.carriers.http.codings import undone
from tunnel.carriers.http.connections import PAUSE_S, Connection, Connections
from tunnel.carriers.http.patience import Patience
from tunnel.carriers.http.resending import RawAnswer
from tunnel.exchange import THE_PROXY, TO_HTTPS, LaneConfig, Request
from tunnel.system.tasks import KeptTasks
from tunnel.wire import MAGIC, Buffer, body_bytes_max, unwrap_answer, wrap_body

__all__ = ["HttpExchanger"]

_STALLED = 3  # repeats whose request still waits for a connection, without any answer: those it waits for bring none
_MOVES_MAX = 4  # how often one request may wait for another connection
_REFUSED = (403, 429, 503)  # statuses with which intermediaries refuse a connection beyond their limit
_TAIL_S = 2.0  # longest time from the last envelope of a streamed answer to the end of its body
# The part of a large body that is sent first where a refusal is likely. Squid reads 512 KiB of a body that it refuses.
_FIRST_BYTES = 256 * 1024
_REFUSED_S = 0.1  # a proxy that refuses a request because of its head has answered by then
_ANSWER_SLACK_BYTES = 64 * 1024  # room for envelope and evidence beyond the answer limit


class HttpExchanger:
    """Sends each request in a task of its own. Connections are reused while `Reuse` allows it, except for a repeat."""

    def __init__(self, dialing: Dialing, config: LaneConfig) -> None:
        self.description = f"poll {dialing.description}"
        self._dialing = dialing
        self._url = dialing.url("exchange")
        self._answer_bytes_max = config.answer_bytes_max + _ANSWER_SLACK_BYTES
        self._patience = Patience(dialing.base, config)
        self._waiting: deque[Request] = deque()  # requests that wait for a connection
        self._moves: dict[int, int] = {}  # by request id: how often a waiting request was moved
        self._sent: dict[int, _Sent] = {}  # by request id
        self._ending = KeptTasks()
        self._connections = Connections(dialing)
        self._finding: asyncio.Task[None] | None = None  # looks up the host; no request leaves meanwhile
        self._stalled = 0  # repeats that found their earlier attempt still waiting, since a request last ended
        self.is_ready = True
        self._outcomes: Outcomes

    @property
    def waits_for(self) -> str:
        return self._dialing.lookup if self._finding is not None else ""

    def start(self, outcomes: Outcomes) -> None:
        self._outcomes = outcomes
        self._find_host()

    def _find_host(self) -> None:
        """Let requests wait until the host's name is looked up: how long that takes is no failure of an exchange."""
        if self._finding is None and self._dialing.has_name:
            self._finding = asyncio.get_running_loop().create_task(self._find())
            self.is_ready = False

    async def _find(self) -> None:
        with contextlib.suppress(OSError, UnicodeError):  # the next request gets the same error, and reports it
            await self._dialing.find_name()
        self._finding = None
        self.is_ready = True
        self._outcomes.ready()

    def send(self, request: Request) -> None:
        if request.repeat:
            now_s = asyncio.get_running_loop().time()
            if self._still_waits(request):
                self._stalled += 1
                if self._stalled >= _STALLED:
                    self._connections.lift_limit(now_s)
            elif not self._drop_surplus(request):
                # The old connections may be broken, so this request and all later ones get new ones.
                self._connections.retire(now_s)
        self._waiting.append(request)
        self._start_waiting()

    def abandon(self, request_id: int) -> None:
        self._waiting = deque(request for request in self._waiting if request.id != request_id)
        self._moves.pop(request_id, None)
        sent = self._sent.pop(request_id, None)
        if sent is not None:
            sent.connection.is_retired = True
            sent.task.cancel()
            self._ending.keep(sent.task)

    async def close(self) -> None:
        if self._finding is not None:
            self._finding.cancel()
        self._waiting.clear()  # a timer of a moved request then finds nothing to start
        for request_id in list(self._sent):
            self.abandon(request_id)
        await self._ending.done()
        await self._connections.close()

    # which request uses which connection

    def _start_waiting(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            connection = self._connections.take(loop.time())
            if connection is None:
                if self._connections.new_from_s > loop.time():
                    loop.call_at(self._connections.new_from_s, self._start_waiting)
                return
            request = self._waiting.popleft()
            sent = _Sent(request, connection, self._moves.pop(request.id, 0), self._dialing.secrets)
            self._sent[request.id] = sent
            sent.task = loop.create_task(self._exchange(sent))
            # The callback runs even if the task is cancelled before it starts.
            sent.task.add_done_callback(functools.partial(self._ended, sent))

    def _release(self, sent: "_Sent") -> None:
        if sent.holds:
            sent.holds = False
            self._connections.give_back(sent.connection)

    def _ended(self, sent: "_Sent", task: asyncio.Task[None]) -> None:
        if sent.holds:
            self._release(sent)
        if self._waiting:
            self._start_waiting()

    def _still_waits(self, repeat: Request) -> bool:
        """Whether an earlier attempt still waits for a connection. The repeat takes its place."""
        earlier = [request for request in self._waiting if _is_same(request, repeat)]
        for request in earlier:
            self._waiting.remove(request)
            self._moves.pop(request.id, None)
        return bool(earlier)

    def _drop_surplus(self, repeat: Request) -> bool:
        """If the path carries no further connection, close that of an earlier attempt. Return whether it did so."""
        now_s = asyncio.get_running_loop().time()
        for request_id, sent in list(self._sent.items()):
            if not _is_same(sent.request, repeat):
                continue
            sizes = sent.body_bytes, sent.request.answer_bytes_max
            if self._connections.is_one_too_many(sent.connection, now_s, *sizes):
                sent.connection.reset_on_close()
                self.abandon(request_id)
                text = "the path carries fewer TCP connections at once: the request waits for one that works"
                asyncio.get_running_loop().call_soon(self._outcomes.on_failed, request_id, text)
                return True
        return False

    # one exchange

    async def _exchange(self, sent: "_Sent") -> None:
        request, connection = sent.request, sent.connection
        body: Buffer
        failure, final, by_relay, by = "", False, False, ""
        try:
            status, body, wait_us, by = await self._post(sent)
        except aiohttp.ClientHttpProxyError as error:
            # A proxy's answer to CONNECT counts as an answer like any other (7.9).
            said = f"{THE_PROXY} {error.message}" if error.status == 407 else f"the proxy: {error.message}"
            if error.status == 200:
                said = explain(error, self._dialing.base).text
            status, body = error.status, said.encode()
            wait_us = retry_after_us(error.headers or {})
        except Exception as error:
            status, body, wait_us = 0, b"", 0
            failure, final = self._patience.on_failed(error, asyncio.get_running_loop().time())
            if isinstance(error, aiohttp.ClientConnectorError):
                self._dialing.doubt_name()
                if isinstance(error.os_error, socket.gaierror):
                    self._find_host()
                if is_refused(error.os_error):
                    self._connections.on_refused(connection)
            if is_cut(error) and not sent.is_streamed:
                size = sum(map(len, request.body))
                self._connections.on_died(connection, asyncio.get_running_loop().time(), size)
        else:
            self._patience.on_answered()
            self._stalled = 0
            if sent.is_streamed:
                if self._sent.pop(request.id, None) is not None:
                    self._release(sent)
                    self._outcomes.on_ended(request.id)
                return
            by_relay = body[:4] == MAGIC
            now_s = asyncio.get_running_loop().time()
            self._connections.on_answered(
                connection,
                now_s,
                by_relay=by_relay,
                is_held=request.pull,
                body_bytes=sent.body_bytes,
                answer_bytes=len(body),
            )
        if self._sent.pop(request.id, None) is None:
            return
        if status and self._dialing.on_answered(sent.secrets, status, by_relay=by_relay):
            self._release(sent)
            self._outcomes.on_failed(request.id, f"HTTP {status}: the request is sent again with other secrets")
            return
        if not by_relay and status in _REFUSED and self._move(sent):
            return
        if sent.moves:
            self._connections.on_waited(asyncio.get_running_loop().time(), by_relay=by_relay)
        self._release(sent)  # the outcome may lead to the next request at once
        if failure:
            self._outcomes.on_failed(request.id, failure, final=final)
        else:
            self._outcomes.on_answered(request.id, status, body, wait_us, by)

    def _move(self, sent: "_Sent") -> bool:
        """Let a request wait for a connection that works, if too many may be open. Return whether it waits."""
        loop = asyncio.get_running_loop()
        if sent.moves >= _MOVES_MAX or not self._connections.may_be_one_too_many(sent.connection, loop.time()):
            return False
        self._moves[sent.request.id] = sent.moves + 1
        self._waiting.appendleft(sent.request)
        loop.call_later(PAUSE_S, self._start_waiting)
        return True

    async def _post(self, sent: "_Sent") -> tuple[int, Buffer, int, str]:
        request, connection = sent.request, sent.connection
        kind, content = wrap_body(request.format, request.body, token_hex)
        sent.body_bytes = len(content)
        resending = connection.resending
        response: aiohttp.ClientResponse | RawAnswer
        if resending is not None and resending.fits(kind, content, sent.secrets):  # the usual request
            response = await resending.send(content, request.id, self._outcomes)
        else:
            response = await self._ask(sent, kind, content)
        headers, status = response.headers, response.status
        if status >= 400:
            connection.reset_on_close()
            # Who has refused a large body may not read the rest of it, nor anything that comes after it.
            connection.is_retired |= len(content) > _FIRST_BYTES
        complete = False
        coding = headers.get("Content-Encoding", "identity")
        is_coded = coding.lower() != "identity"
        try:
            if request.stream and status == 200:
                if is_coded:  # 7.20: a device that compresses may pass the answer on only when the stream is over
                    return status, f"a device on the path compresses answers ({coding:.20})".encode(), 0, ""
                complete = await self._pass_on(sent, response.content)
                return status, b"", 0, ""
            limit = body_bytes_max(request.format, self._answer_bytes_max)
            body = await self._read(response.content, limit)
            complete = response.content.at_eof()
            if status == 200 and not is_coded and body[:4] == MAGIC:
                return status, body, 0, ""  # the usual answer
            plain = undone(body, coding, limit) if is_coded else body
            body = unwrap_answer(body if plain is None else plain)
            if plain is None and body[:4] != MAGIC:
                body = f"a device on the path compresses answers ({coding:.20}) although they say no-transform".encode()
            elif 300 <= status < 400 and "Location" in headers:  # no relay redirects
                to_https = is_to_https(self._url, headers["Location"])
                body = (TO_HTTPS if to_https else f"it leads to {headers['Location']}").encode("utf-8", "replace")
            return status, body, retry_after_us(headers), server_of(headers)
        finally:
            if complete:
                response.release()
            else:
                response.close()

    async def _ask(self, sent: "_Sent", kind: str, body: bytes) -> aiohttp.ClientResponse:
        """Send the request with a head of its own, and return the answer when its head has arrived."""
        request, connection = sent.request, sent.connection
        connection.resending = None
        response = await connection.session.post(
            self._url,
            headers=sent.secrets.headers,
            data=_Body(
                kind, body, request.id, self._outcomes, functools.partial(self._connections.is_unproven, connection)
            ),
            allow_redirects=False,
            proxy=self._dialing.proxy,
            proxy_headers=self._dialing.proxy_headers or None,
        )
        if response.status == 200:
            connection.keep_head(sent.secrets)
        return response

    async def _pass_on(self, sent: "_Sent", content: aiohttp.StreamReader) -> bool:
        """Pass the body on piece by piece. Return whether it has ended, so that the connection can be used again."""
        sent.is_streamed = True
        is_first, is_expected = True, True
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as deadline:
                while piece := await content.readany():
                    if is_first:
                        by_relay = piece[:4] == MAGIC
                        self._connections.on_answered(sent.connection, loop.time(), by_relay=by_relay)
                        self._dialing.on_answered(sent.secrets, 200, by_relay=by_relay)
                        is_first = False
                    if is_expected and not self._outcomes.on_received(sent.request.id, piece):
                        is_expected = False
                        deadline.reschedule(loop.time() + _TAIL_S)
        except TimeoutError:
            return False
        return content.at_eof()

    async def _read(self, content: aiohttp.StreamReader, limit: int) -> bytes:
        """Return the body, or the beginning of a body with more bytes than `limit`, which no relay sends."""
        first = await content.readany()
        if content.at_eof():
            return first
        chunks = [first]
        size = len(first)
        while size <= limit and (chunk := await content.readany()):
            chunks.append(chunk)
            size += len(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)


class _Sent:
    """A request that is under way."""

    def __init__(self, request: Request, connection: Connection, moves: int, secrets: DialSecrets) -> None:
        self.request = request
        self.secrets = secrets
        self.connection = connection
        self.moves = moves  # how often it was refused because too many connections may have been open
        self.holds = True  # it has not given its connection back
        self.body_bytes = 0  # as it leaves, in its format
        self.is_streamed = False  # the answer is passed on piece by piece
        self.task: asyncio.Task[None]


def _is_same(request: Request, other: Request) -> bool:
    """Whether two requests are attempts of the same exchange."""
    return (request.lane, request.number) == (other.lane, other.number)


class _Body(aiohttp.BytesPayload):
    """A request body that reports its size once it has been handed to the connection.

    While the connection is unproven, a large body pauses after its first part, in case it is refused.
    """

    def __init__(
        self, kind: str, data: bytes, request_id: int, outcomes: Outcomes, is_unproven: Callable[[float], bool]
    ) -> None:
        super().__init__(data, content_type=kind)
        self._id = request_id
        self._outcomes = outcomes
        self._is_unproven = is_unproven

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        self._outcomes.on_opened(self._id)
        if len(self._value) > _FIRST_BYTES and self._is_unproven(asyncio.get_running_loop().time()):
            body = memoryview(self._value)
            await writer.write(body[:_FIRST_BYTES])
            await asyncio.sleep(_REFUSED_S)
            await writer.write(body[_FIRST_BYTES:])
        else:
            await super().write_with_length(writer, content_length)
        self._outcomes.on_sent(len(self._value))
