"""Forwards a request upstream with its body, up to the size limit, and sends the duplicates that are planned."""

import asyncio
import contextlib

import h11

from loadtests.faultproxy.context import Context
from loadtests.faultproxy.duplicates import Duplicator
from loadtests.faultproxy.faults import ExchangePlan, Side
from loadtests.faultproxy.http import ClientError, HttpSide, Target, UpstreamError
from loadtests.faultproxy.mangle import Mangler
from loadtests.faultproxy.marks import mark_flips, mark_limit, mark_truncation
from loadtests.faultproxy.sources import DelayLine, Source

__all__ = ["Upload"]


class Upload:
    """Moves one request upstream. If upstream stops taking it, the rest is still read from the client and discarded."""

    def __init__(
        self,
        context: Context,
        client: HttpSide,
        side: HttpSide,
        target: Target,
        head: h11.Request,
        source: Source,
        mangler: Mangler,
        plan: ExchangePlan,
    ) -> None:
        self._context = context
        self._client = client
        self._side = side
        self._head = head
        self._source = source
        self._mangler = mangler
        self._plan = plan
        self._limit_bytes = context.options.limit_bytes
        self._is_deaf = False  # whether upstream takes no more of the request
        self._duplicator = Duplicator(context, target, head, plan)
        self.is_over = False  # the client left, or the plan broke the connection: send no answer
        self.is_too_large = False  # found while the body arrived

    async def run(self) -> None:
        """Move the whole request. Raise ClientError if the client breaks off before its end."""
        try:
            await self._send(self._head)
            if self._mangler.length is None and self._plan.request.delay_us:
                async with DelayLine(self._source, self._plan.request.delay_us) as source:
                    await self._move(source)
            else:
                await self._move(self._source)
        except ClientError:
            self._leave()
            raise
        if not self.is_over:
            self._client.stream.when_ended(self._leave)

    async def finish(self, task: "asyncio.Future[None]") -> None:
        """Discard the rest of the request, and wait for its end unless the client waits for "100 Continue"."""
        self._is_deaf = True
        if not self._client.h11.they_are_waiting_for_100_continue:
            await task

    def _leave(self) -> None:
        # close(), not abort(): bytes that the client sent before it left must still reach upstream.
        self.is_over = True
        self._side.stream.close()

    async def _send(self, event: h11.Event) -> None:
        if not self._is_deaf:
            with contextlib.suppress(UpstreamError):  # upstream's answer, if there is one, tells more than this error
                await self._side.send(event)
                return
            self._is_deaf = True

    async def _move(self, source: Source) -> None:
        size, is_short = 0, self._truncated()
        while not self.is_over and (piece := await source()) is not None:
            size += len(piece)
            self._context.counts.request_bytes += len(piece)
            if self._limit_bytes is not None and size > self._limit_bytes:
                self._exceed(size)
            elif not is_short:
                if not self._mangler.is_harmless:
                    piece = self._mangler.feed(piece)
                    mark_flips(self._context.recorder, self._mangler, self._plan.number, Side.REQUEST)
                self._duplicator.keep(piece)
                await self._send(h11.Data(data=piece))
                is_short = self._truncated()
        if not self.is_over and not self.is_too_large:
            await self._send(h11.EndOfMessage())
            self._duplicator.send()

    def _exceed(self, size: int) -> None:
        if not self.is_too_large:
            mark_limit(self._context.recorder, size, self._plan.number)
            self.is_too_large = self._is_deaf = True
            self._side.stream.abort()

    def _truncated(self) -> bool:
        """Return whether the plan cuts the body here. If so, note it, and break the connection if the plan says so."""
        if not self._mangler.ended:
            return False
        mark_truncation(self._context.recorder, self._mangler, self._plan.number, Side.REQUEST)
        if self._mangler.breaks:
            self._leave()
        return True
