"""A streamed answer: the task that writes the envelopes of one HTTP response, one after the other (PROTOCOL 7.20)."""

import asyncio
from collections.abc import Mapping
from typing import Any

import structlog
from aiohttp import web

from tunnel.carriers.halves.unsent_bytes import limit_unsent
from tunnel.system.clock import now_us
from tunnel.wire import Status, StatusCode, encode_envelope
from tunnel_servlet.access.tokens import Identity
from tunnel_servlet.switch.responses import RelayResponse
from tunnel_servlet.web.host import SwitchHost

__all__ = ["AnswerStream"]


class AnswerStream:
    """One streamed answer of a user. The host wakes it when the switch may have another envelope for it.

    An envelope is asked for only when the one before has left this process, so a client that does not read holds one
    envelope here. The rest stays in the mailbox, where it is charged, and where a small packet need not wait behind it.
    """

    def __init__(self, host: SwitchHost, identity: Identity, first: RelayResponse) -> None:
        self.identity = identity
        self._host = host
        self._handle = first.handle
        self._first = first
        self._last: bytes | None = None  # what leaves before the response ends; None: it does not end yet
        self._woken = asyncio.Event()

    # --- HostedStream

    def wake(self) -> None:
        """Ask the switch for the next envelope."""
        self._woken.set()

    def finish(self, data: bytes) -> None:
        """End the response after these bytes."""
        if self._last is None:
            self._last = data
            self._woken.set()

    # --- TokenBound

    def end(self, text: str) -> None:
        """End at once, because the token was revoked. A STATUS in the stream tells the endpoint."""
        _log.debug("stream_ended", user=self.identity.user, text=text)
        self.finish(b"".join(encode_envelope(Status(StatusCode.NOT_AUTHORISED, text=text))))

    # --- the response

    async def serve(self, request: web.Request, headers: Mapping[str, str]) -> web.StreamResponse:
        """Write the response until it ends or the connection is lost."""
        response = web.StreamResponse(headers=headers)
        try:
            await response.prepare(request)
            if request.transport is not None:
                limit_unsent(request.transport.get_extra_info("socket"))
            await response.write(b"".join(self._first.body))
            while (data := await self._next()) is not None:
                if data:
                    await response.write(data)
                # `write` alone would let 64 KiB wait in this process.
                await request.writer.drain()
            await response.write_eof()
        finally:
            self._host.stream_gone(self._handle)
        return response

    async def _next(self) -> bytes | None:
        """Return the next envelope, when there is one and it is the user's turn. Return None at the end."""
        turns, user = self._host.turns, self.identity.user
        while True:
            await turns.wait_for_turn(user)
            if self._last is not None:
                data, self._last = self._last, b""
                return data or None
            self._woken.clear()
            began = turns.meter.start()
            found = self._host.switch.poll_stream(self._handle, now_us())
            if found is not None:
                data = b"".join(found.body)
                self._host.pump()
                turns.spent_since(user, began)
                if not found.goes_on:
                    self._last = b""
                await asyncio.sleep(0)  # other users have their turn, even if the connection takes everything at once
                return data
            await self._woken.wait()


_log: Any = structlog.get_logger("stream")
