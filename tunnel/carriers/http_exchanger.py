"""Sends numbered exchanges as POST requests (section 7), which pass through anything that lets HTTP pass."""

import asyncio
from secrets import token_hex

import aiohttp
from aiohttp.abc import AbstractStreamWriter

from tunnel.carriers.dialing import Dialing, retry_after_us
from tunnel.carriers.exchanging import Outcomes
from tunnel.carriers.failures import describe_failure, is_cut, is_final
from tunnel.carriers.form_data import wrap_form
from tunnel.carriers.reuse import Reuse
from tunnel.exchange import Request
from tunnel.tasks import KeptTasks
from tunnel.wire import Buffer

__all__ = ["HttpExchanger"]

_ANSWER_SLACK_BYTES = 64 * 1024  # room for envelope and evidence beyond the answer limit


class HttpExchanger:
    """Sends each request in a task of its own. Connections are reused, except for a repeat."""

    def __init__(self, dialing: Dialing, answer_bytes_max: int) -> None:
        self.description = f"poll {dialing.description}"
        self._dialing = dialing
        self._url = dialing.url("exchange")
        self._answer_bytes_max = answer_bytes_max + _ANSWER_SLACK_BYTES
        self._has_answer = False
        self._reuse = Reuse()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._closing = KeptTasks()
        self._pool: _Pool
        self._outcomes: Outcomes

    def start(self, outcomes: Outcomes) -> None:
        self._outcomes = outcomes
        self._pool = _Pool(self._dialing, reuse=True)

    def send(self, request: Request) -> None:
        loop = asyncio.get_running_loop()
        reuse = self._reuse.is_wise(loop.time())
        if request.repeat or reuse is not self._pool.reuse:
            # The old connections may be broken, so this request and all later ones get new ones.
            self._leave(self._pool, retire=True)
            self._pool = _Pool(self._dialing, reuse=reuse)
        pool = self._pool
        pool.users += 1
        task = loop.create_task(self._exchange(request, pool))
        task.add_done_callback(lambda done: self._leave(pool))  # also for a task cancelled before it starts
        self._tasks[request.id] = task

    def abandon(self, request_id: int) -> None:
        task = self._tasks.pop(request_id, None)
        if task is not None:
            task.cancel()
            self._closing.keep(task)

    async def close(self) -> None:
        for request_id in list(self._tasks):
            self.abandon(request_id)
        await self._closing.done()
        await self._pool.session.close()

    # one exchange

    async def _exchange(self, request: Request, pool: "_Pool") -> None:
        body: Buffer
        failure, final = "", False
        # A pool that has brought an answer nearly always has a connection that is free.
        reused = pool.reuse and pool.has_answer
        try:
            status, body, wait_us = await self._post(request, pool.session)
        except aiohttp.ClientHttpProxyError as error:
            # A proxy's answer to CONNECT counts as an answer like any other (7.9).
            status, body, wait_us = error.status, f"the proxy: {error.message}".encode(), 0
        except Exception as error:
            status, body, wait_us = 0, b"", 0
            base = self._dialing.base
            failure, final = describe_failure(error, base, is_first=not self._has_answer), is_final(error, base)
            if is_cut(error):
                self._reuse.died(asyncio.get_running_loop().time(), reused=reused)
        else:
            self._has_answer = pool.has_answer = True
        if self._tasks.pop(request.id, None) is None:
            return
        if failure:
            self._outcomes.failed(request.id, failure, final=final)
        else:
            self._outcomes.answered(request.id, status, body, wait_us)

    async def _post(self, request: Request, session: aiohttp.ClientSession) -> tuple[int, Buffer, int]:
        response = await session.post(
            self._url,
            headers=self._dialing.headers,
            data=_Body(request, self._outcomes),
            allow_redirects=False,
            proxy=self._dialing.proxy,
            proxy_headers=self._dialing.proxy_headers or None,
        )
        complete = False
        try:
            body = await self._read(response.content)
            complete = response.content.at_eof()
            coding = response.headers.get("Content-Encoding", "identity")
            if coding.lower() != "identity":
                body = f"a device on the path compresses answers ({coding:.20}) although they say no-transform".encode()
            return response.status, body, retry_after_us(response.headers)
        finally:
            if complete:
                response.release()
            else:
                response.close()

    async def _read(self, content: aiohttp.StreamReader) -> bytes:
        """Return the body, or the beginning of a body that is too long to be from a relay."""
        chunks = []
        size = 0
        while size <= self._answer_bytes_max and (chunk := await content.readany()):
            chunks.append(chunk)
            size += len(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    # sessions

    def _leave(self, pool: "_Pool", *, retire: bool = False) -> None:
        if retire:
            pool.is_retired = True
        else:
            pool.users -= 1
        if pool.is_retired and not pool.users:
            self._closing.keep(asyncio.get_running_loop().create_task(pool.session.close()))


class _Pool:
    """Connections that are reused until a repeat retires them all, or that are used once each."""

    def __init__(self, dialing: Dialing, *, reuse: bool) -> None:
        self.session = dialing.session(reuse=reuse)
        self.reuse = reuse
        self.has_answer = False
        self.users = 0
        self.is_retired = False


class _Body(aiohttp.BytesPayload):
    """A request body that reports its size once it has been handed to the connection."""

    def __init__(self, request: Request, outcomes: Outcomes) -> None:
        if request.as_form:
            kind, data = wrap_form(request.body, token_hex)
        else:
            kind, data = "application/octet-stream", b"".join(request.body)
        super().__init__(data, content_type=kind)
        self._outcomes = outcomes

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        await super().write_with_length(writer, content_length)
        self._outcomes.sent(len(self._value))
