"""The answer to a client: forwarded, replaced or dropped."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import h11

from loadtests.faultproxy.answers import send_answer
from loadtests.faultproxy.context import Context
from loadtests.faultproxy.faults import ExchangePlan, Fate, FaultKind, Side
from loadtests.faultproxy.http import HttpSide, UpstreamError, body_length, end_to_end, with_length
from loadtests.faultproxy.mangle import Mangler
from loadtests.faultproxy.marks import mark_delay, mark_flips, mark_truncation
from loadtests.faultproxy.options import Html
from loadtests.faultproxy.sources import DelayLine, Source, collected
from loadtests.faultproxy.tunnel import run_tunnel
from tunnel.traces.record import TraceFault

__all__ = ["COLLECTED_BYTES_MAX", "ConnectionOver", "Responder"]

COLLECTED_BYTES_MAX = 64 * 1024 * 1024  # limit for a body under --buffer; larger ones are refused
SWITCHING = 101
BODILESS = (204, 304)


class ConnectionOver(Exception):
    """The client's connection must be closed."""


class Responder:
    """Answers one request of one client."""

    def __init__(self, context: Context, client: HttpSide, method: bytes, plan: ExchangePlan) -> None:
        self._context = context
        self._client = client
        self._method = method
        self._plan = plan
        self.has_begun = False  # whether the head of an answer was sent

    def lose(self, kind: FaultKind, cause: TraceFault) -> None:
        """Drop the exchange without an answer. If the plan says silent, leave the client's connection open but let
        nothing pass on it any more, else raise ConnectionOver."""
        self._context.recorder.fault(kind, cause, self._plan.number, text="silent" if self._plan.silent else "")
        if not self._plan.silent:
            raise ConnectionOver
        self._client.stream.mute()

    async def replace(self) -> None:
        """Send the planned answer instead of upstream's."""
        answer = self._plan.answer
        assert answer is not None  # the plan has an answer for ANSWERED and ANSWER_REPLACED
        kind, status = (FaultKind.HTML, 200) if isinstance(answer, Html) else (FaultKind.STATUS, answer.code)
        self._context.recorder.fault(
            kind, TraceFault.ANSWER_REPLACED, self._plan.number, status=status, text="after" if answer.after else ""
        )
        await send_answer(self._client, self._method, answer)

    async def delay(self) -> None:
        """Wait for the planned delay of the answer."""
        if delay_us := self._plan.response.delay_us:
            mark_delay(self._context.recorder, delay_us, self._plan.number, Side.RESPONSE)
            await asyncio.sleep(delay_us / 1e6)

    async def is_met(self) -> bool:
        """Drop or replace upstream's answer if the plan says so, and return whether it does. Raises as lose() does."""
        if self._plan.fate is Fate.RESPONSE_DROPPED:
            self.lose(FaultKind.DROP_RESPONSE, TraceFault.RESPONSE_LOST)
        elif self._plan.fate is Fate.ANSWER_REPLACED:
            await self.replace()
        else:
            return False
        return True

    async def pass_on(self, side: HttpSide, *, upgrade: bool, request_done: Callable[[], Awaitable[None]]) -> None:
        """Read upstream's answer and forward, replace or drop it as planned.

        Raise UpstreamError if the answer is missing or incomplete.
        """
        response = await self._head(side)
        if self._plan.fate is not Fate.PASSED:
            if isinstance(response, h11.Response):
                await side.discard()
            else:
                side.stream.close()
            await request_done()
            await self.is_met()
        elif isinstance(response, h11.Response):
            await self._pass_response(side, response, request_done)
        else:
            await request_done()
            await self._switch(side, response)

    async def _head(self, side: HttpSide) -> h11.Response | h11.InformationalResponse:
        """Return the head of the final answer, or of a 101. Forward other informational answers."""
        while True:
            event = await side.next_event()
            if isinstance(event, h11.Response):
                return event
            # h11 raises an error if the connection ends without an answer.
            assert isinstance(event, h11.InformationalResponse)
            if event.status_code == SWITCHING:
                return event
            if self._wants(event.status_code):
                headers = end_to_end(event.headers.raw_items())
                await self._client.send(
                    h11.InformationalResponse(status_code=event.status_code, headers=headers, reason=event.reason)
                )

    def _wants(self, status: int) -> bool:
        """Return whether to forward this informational answer to the client (RFC 9110, 15.2)."""
        # Without a 100 the client would never send its body.
        is_planned = self._plan.fate is Fate.PASSED or status == 100
        return is_planned and self._client.h11.their_http_version != b"1.0"

    async def _switch(self, side: HttpSide, response: h11.InformationalResponse) -> None:
        """Forward the 101 and move the bytes of the new protocol until it ends."""
        self._client.stream.on_end = None  # the new protocol may end one direction alone
        await self.delay()
        raw = response.headers.raw_items()
        protocol = [(name, value) for name, value in raw if name.lower() == b"upgrade"]
        headers = [*end_to_end(raw), *protocol, (b"Connection", b"Upgrade")]
        await self._client.send(
            h11.InformationalResponse(status_code=SWITCHING, headers=headers, reason=response.reason)
        )
        side.leave_http()
        self._client.leave_http()
        is_websocket = any(value.lower() == b"websocket" for _, value in protocol)
        await run_tunnel(self._context, self._client.stream, side.stream, self._plan, is_websocket=is_websocket)
        raise ConnectionOver

    async def _pass_response(
        self, side: HttpSide, response: h11.Response, request_done: Callable[[], Awaitable[None]]
    ) -> None:
        raw = response.headers.raw_items()
        headers = end_to_end(raw)
        bodiless = self._method == b"HEAD" or response.status_code in BODILESS
        length = 0 if bodiless else _response_length(raw)
        source: Source = side.next_piece
        async with contextlib.AsyncExitStack() as stack:
            if self._context.options.buffer and length != 0:
                body = await side.collect(COLLECTED_BYTES_MAX)
                if body is None:
                    raise UpstreamError("upstream's answer is too large to be buffered")
                source, length = collected(body), len(body)
                headers = with_length(headers, length)
            elif length is None and self._plan.response.delay_us:
                source = await stack.enter_async_context(DelayLine(source, self._plan.response.delay_us))
            await self.delay()
            mangler = Mangler(self._plan.response, length)
            if mangler.length != length:
                headers = with_length(headers, mangler.length)
            # The client never got "100 Continue" and does not get it now. If it sent the body nevertheless, the proxy
            # could not tell the body from a next request. So the connection must end.
            closing = self._client.h11.they_are_waiting_for_100_continue
            if closing:
                headers.append((b"Connection", b"close"))
            self.has_begun = True
            await self._client.send(
                h11.Response(status_code=response.status_code, headers=headers, reason=response.reason)
            )
            await self._move(source, side, mangler)
        if closing:
            raise ConnectionOver
        await request_done()

    async def _move(self, source: Source, side: HttpSide, mangler: Mangler) -> None:
        """Forward the body, mangled as planned."""
        number, recorder = self._plan.number, self._context.recorder
        while not mangler.ended and (piece := await source()) is not None:
            self._context.counts.response_bytes += len(piece)
            if not mangler.is_harmless:
                piece = mangler.feed(piece)
                mark_flips(recorder, mangler, number, Side.RESPONSE)
            await self._client.send(h11.Data(data=piece))
        if mangler.ended:
            mark_truncation(recorder, mangler, number, Side.RESPONSE)
            side.stream.close()  # perhaps the rest of the body never ends
            if mangler.breaks:
                raise ConnectionOver
        await self._client.send(h11.EndOfMessage())


def _response_length(headers: list[tuple[bytes, bytes]]) -> int | None:
    """Return the length of the body, or None if it is chunked or ends with the connection."""
    names = [name.lower() for name, _ in headers]
    return body_length(headers) if b"content-length" in names or b"transfer-encoding" in names else None
