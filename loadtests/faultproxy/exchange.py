"""The handling of one request according to its plan."""

import asyncio

import h11

from loadtests.faultproxy.answers import send_status
from loadtests.faultproxy.context import Context, Upstream
from loadtests.faultproxy.faults import ExchangePlan, Fate, FaultKind, Side
from loadtests.faultproxy.http import (
    HttpSide,
    Target,
    UpstreamError,
    body_length,
    forwarded_request,
    request_target,
    wants_upgrade,
)
from loadtests.faultproxy.mangle import Mangler
from loadtests.faultproxy.marks import mark_delay, mark_limit
from loadtests.faultproxy.responder import COLLECTED_BYTES_MAX, ConnectionOver, Responder
from loadtests.faultproxy.sources import collected
from loadtests.faultproxy.tunnel import run_tunnel
from loadtests.faultproxy.upload import Upload
from tunnel.traces.record import TraceFault

__all__ = ["Exchange"]


class Exchange:
    """Handles one request according to its plan. The head of the request has been read, its body has not."""

    def __init__(
        self, context: Context, client: HttpSide, upstream: Upstream, request: h11.Request, plan: ExchangePlan
    ) -> None:
        self._context = context
        self._client = client
        self._upstream = upstream
        self._request = request
        self._plan = plan
        self._responder = Responder(context, client, request.method, plan)

    async def run(self) -> None:
        """Handle the request. Return if the client's connection may carry another request, or if a fault keeps the
        connection open but silent.

        Raise ConnectionOver or ClientError if the connection must be closed.
        """
        if self._plan.fate is Fate.ANSWERED:
            await self._discard()
            await self._responder.replace()
        elif self._plan.fate is Fate.REQUEST_DROPPED:
            await self._discard()
            self._responder.lose(FaultKind.DROP_REQUEST, TraceFault.REQUEST_LOST)
        else:
            async with self._context.slot:
                await self._forward()

    async def _discard(self) -> None:
        # A client that waits for "100 Continue" has sent no body.
        if not self._client.h11.they_are_waiting_for_100_continue:
            await self._client.discard()

    async def _refuse(self, status: int, text: str) -> None:
        await self._discard()
        await send_status(self._client, self._request.method, status, text)

    async def _delay_request(self) -> None:
        if delay_us := self._plan.request.delay_us:
            mark_delay(self._context.recorder, delay_us, self._plan.number, Side.REQUEST)
            await asyncio.sleep(delay_us / 1e6)

    async def _forward(self) -> None:
        target, path = request_target(self._request, self._context.options.upstream)
        if target is None:
            self._context.counts.bad_requests += 1
            await self._refuse(400, "the proxy cannot tell where to forward this request")
        elif self._request.method == b"CONNECT":
            await self._connect(target)
        else:
            await self._exchange(target, path)

    async def _connect(self, target: Target) -> None:
        """Answer CONNECT, and move the bytes of its tunnel until it ends."""
        await self._client.discard()
        await self._delay_request()
        try:
            stream = await self._context.dial(target)
        except OSError:
            await self._refuse(502, "no connection upstream")
            return
        try:
            if await self._responder.is_met():
                return
            await self._responder.delay()
            await self._client.send(h11.Response(status_code=200, reason=b"Connection established", headers=[]))
            self._client.leave_http()
            await run_tunnel(self._context, self._client.stream, stream, self._plan)
        finally:
            stream.close()
        raise ConnectionOver

    async def _exchange(self, target: Target, path: bytes) -> None:
        """Forward the request upstream and the answer back to the client."""
        options, length, body = self._context.options, body_length(self._request.headers.raw_items()), None
        if options.limit_bytes is not None and length is not None and length > options.limit_bytes:
            mark_limit(self._context.recorder, length, self._plan.number)
            await self._refuse(413, "too large")
            return
        if options.buffer and length != 0:
            body = await self._collect()
            if body is None:
                return
            length = len(body)
        await self._delay_request()
        try:
            side = await self._upstream.get(target)
        except OSError:
            await self._refuse(502, "no connection upstream")
            return
        mangler = Mangler(self._plan.request, length)
        upgrade = wants_upgrade(self._request) and self._request.http_version == b"1.1" and not options.no_upgrade
        head = forwarded_request(
            self._request, target, path, length=mangler.length, upgrade=upgrade, expect=body is None
        )
        source = self._client.next_piece if body is None else collected(body)
        upload = Upload(self._context, self._client, side, target, head, source, mangler, self._plan)
        await self._converse(side, upload, upgrade)

    async def _collect(self) -> bytes | None:
        """Return the whole body, or None after answering 413 because the body was too large."""
        limit_bytes = self._context.options.limit_bytes
        if self._client.h11.they_are_waiting_for_100_continue:
            await self._client.send(h11.InformationalResponse(status_code=100, headers=[]))
        body = await self._client.collect(COLLECTED_BYTES_MAX if limit_bytes is None else limit_bytes)
        if body is None:
            if limit_bytes is not None:
                mark_limit(self._context.recorder, limit_bytes, self._plan.number)
            await self._refuse(413, "too large")
        return body

    async def _converse(self, side: HttpSide, upload: Upload, upgrade: bool) -> None:
        """Send the request and forward the answer at once, because an answer may come before the request has ended."""
        task = asyncio.ensure_future(upload.run())
        try:
            await self._responder.pass_on(side, upgrade=upgrade, request_done=lambda: upload.finish(task))
        except UpstreamError as error:
            await self._fail(side, upload, task, error)
        finally:
            self._client.stream.on_end = None
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _fail(self, side: HttpSide, upload: Upload, task: "asyncio.Future[None]", error: UpstreamError) -> None:
        """Handle the lack of a complete answer, whether the plan, the client or upstream caused it."""
        if upload.is_over:
            raise ConnectionOver from error
        self._context.counts.upstream_errors += not upload.is_too_large
        if self._responder.has_begun:
            raise ConnectionOver from error
        side.stream.close()
        await upload.finish(task)
        status, text = (413, "too large") if upload.is_too_large else (502, "upstream failed")
        await send_status(self._client, self._request.method, status, text)
