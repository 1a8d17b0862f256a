"""The connections of people without the tunnel, each of which is spliced to a stream that leads to a service."""

import asyncio
import enum
from collections.abc import Callable
from http import HTTPStatus
from typing import cast

import structlog

from tunnel.streams.splice import Side, SocketSide
from tunnel.turns.queues import Turns
from tunnel_servlet.access.connections import CountedConnection
from tunnel_servlet.web.public.request import BadRequest, PublicRequest

__all__ = ["STRANGERS", "HttpSide", "PublicSide"]

_log = structlog.get_logger("public")
_LINGER_S = 5.0  # time for the client to read the end of an answer; a reset because of unread input would destroy it
_BEYOND_BYTES_MAX = 64 * 1024  # of input after the end of a request; honest clients send none or little
# Bytes of a head or of chunks, parsed before their cost is charged. Twice as many took 13.5 ms in chunks of one byte.
_PIECE_BYTES = 2 * 1024
STRANGERS = "@strangers"  # pays for TLS and parsing until the owner of the service is known; no user has this name
_SWITCHED = b"HTTP/1.1 101"


class PublicSide(SocketSide):
    """A connection of `client` at a public place, which is among `sides` while it is open.

    `begin(side)` opens the stream, and `gone(side)` is called at the end.
    """

    def __init__(
        self,
        counted: CountedConnection,
        client: tuple[str, int],
        sides: dict["PublicSide", None],
        begin: Callable[["PublicSide"], None],
        gone: Callable[["PublicSide"], None],
    ) -> None:
        super().__init__(ended=self._has_ended)
        self.counted = counted  # for the limits of connections, and of the bytes that they hold
        self._sides = sides
        self.owner = ""  # the user whose service it leads to, once that is known
        self.opening: asyncio.Task[None] | None = None
        # The transport does not know the address if the client has reset the connection already.
        self.client = client[0].partition("%")[0], client[1]
        self.server = ("", 0)
        self.is_tls = False
        self._begin = begin
        self._gone = gone

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        try:
            self.server = transport.get_extra_info("sockname")[:2]
            self.is_tls = transport.get_extra_info("ssl_object") is not None
            super().connection_made(transport)
        except BaseException:  # uvloop would neither read from the connection nor end it
            self.counted.leave()
            cast("asyncio.Transport", transport).abort()
            raise
        self._sides[self] = None
        self.ready()

    def ready(self) -> None:
        """Go on, now that the connection exists."""
        self._begin(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._charge_kept()

    def catch_up(self) -> None:
        super().catch_up()
        self._charge_kept()

    def _kept_bytes(self) -> int:
        """The bytes of input that are kept in memory, because the service does not take them yet."""
        return sum(map(len, self._early))

    def _charge_kept(self) -> None:
        """Charge the kept input to the client's address. End the connection if the address has too much."""
        more = self._kept_bytes() - self.counted.held_bytes
        if more > 0 and not self.counted.hold(more):
            _log.info("too_many_bytes", address=self.client[0], text="wait for services of people without the tunnel")
            self.abort_both()
        elif more < 0:
            self.counted.free(-more)

    def refuse(self, status: int, text: str) -> None:
        """End the connection, because it leads nowhere."""
        _log.info("public_refused", address=self.client[0], status=status, text=text)
        self.abort()

    def _has_ended(self, side: Side, error: Exception | None) -> None:
        self.counted.leave()
        self._sides.pop(self, None)
        if self.opening is not None:
            self.opening.cancel()
        self._gone(self)


class _Phase(enum.Enum):
    HEAD = "head"  # the head of the request has not come whole
    BODY = "body"
    DONE = "done"  # the request has come whole, and further input is ignored
    SWITCHING = "switching"  # the service may switch to another protocol
    SWITCHED = "switched"
    ANSWERED = "answered"  # the relay or the service has ended its answer


class HttpSide(PublicSide):
    """A connection that carries one HTTP request, whose head must arrive within `head_seconds`.

    `begin` is called once the head has come: `host` then says which service the client asks for. The processor time of
    parsing, in small pieces, is charged to the owner of that service; reading stops while it is not the payer's turn.
    """

    def __init__(
        self,
        counted: CountedConnection,
        client: tuple[str, int],
        sides: dict[PublicSide, None],
        begin: Callable[[PublicSide], None],
        gone: Callable[[PublicSide], None],
        head_seconds: float,
        turns: Turns,
    ) -> None:
        super().__init__(counted, client, sides, begin, gone)
        self._phase = _Phase.HEAD
        self._head_seconds = head_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._turns = turns
        self._payer = ""  # empty: nothing is parsed any more
        self._spent_us = counted.spent_us
        self._may_read = False  # the service takes more
        self._is_input_held = False  # it is not the payer's turn
        self._rest = bytearray()  # input that waits until the service takes more and it is the payer's turn
        self._is_end_next = False  # the end of the input came, and waits until `_rest` is handled
        self._request: PublicRequest
        self._held = bytearray()  # input that waits until the service switches protocols
        self._is_end_held = False  # the end of the input waits until then, too
        self._ignored = 0  # bytes that came after the end of the request
        self._answer = b""  # the first bytes of the answer, until they tell whether the service switches protocols

    @property
    def host(self) -> str:
        """The name of the host that the request asks for."""
        return self._request.host

    def ready(self) -> None:
        self._request = PublicRequest(self.client[0], "https" if self.is_tls else "http")
        self._start_timer(self._head_seconds, self._too_slow)
        self._pays(STRANGERS)
        self.resume_reading()

    def refuse(self, status: int, text: str) -> None:
        """Answer with this status instead of the service."""
        if self.is_over or self._phase is _Phase.ANSWERED:
            return
        _log.info("public_refused", address=self.client[0], status=status, text=text)
        body = f"{text}\n".encode()
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self._transport.write(head.encode() + body)
        self._finish()

    # the client's input

    def data_received(self, data: bytes) -> None:
        self._rest += data
        self._go_on()

    def _kept_bytes(self) -> int:
        return super()._kept_bytes() + len(self._rest) + len(self._held)

    def _go_on(self) -> None:
        """Handle what has come, as long as the service takes it and it is the payer's turn. Then read on."""
        while self._rest and self._may_read and not self._is_input_held and not self.is_over:
            is_costly = self._phase is _Phase.HEAD or (self._phase is _Phase.BODY and self._request.is_chunked)
            size = _PIECE_BYTES if is_costly else len(self._rest)
            piece = bytes(self._rest[:size])
            del self._rest[:size]
            self._handle(piece)
        self._charge_kept()
        if self._rest or self._is_input_held or not self._may_read:
            super().pause_reading()
        elif self._is_end_next:
            self._is_end_next = False
            self.eof_received()
        else:
            super().resume_reading()

    def pause_reading(self) -> None:
        self._may_read = False
        super().pause_reading()

    def resume_reading(self) -> None:
        self._may_read = True
        self._go_on()

    def pause_input(self) -> None:
        """Handle nothing: it is not the payer's turn."""
        self._is_input_held = True
        super().pause_reading()

    def resume_input(self) -> None:
        """Go on where the input stopped."""
        self._is_input_held = False
        self._go_on()

    def _pays(self, payer: str) -> None:
        """Let this payer pay for parsing from now on, and for what was parsed before; "": nothing more is parsed."""
        if self._payer:
            self._turns.leave(self._payer, self, self.counted.source)
            self._is_input_held = False
        before, self._payer = self._payer, payer
        if payer:
            self._turns.join(payer, self, self.counted.source)
            if before:
                self._turns.move(before, payer, self._spent_us)

    def _handle(self, data: bytes) -> None:
        match self._phase:
            case _Phase.HEAD | _Phase.BODY:
                self._take(data)
            case _Phase.SWITCHING:
                self._held += data
                self._keep_within(len(self._held))
            case _Phase.SWITCHED:
                SocketSide.data_received(self, data)
            case _Phase.DONE:  # it is still read, so that a client that goes away is noticed
                self._ignored += len(data)
                self._keep_within(self._ignored)
            case _Phase.ANSWERED:
                pass  # it is read only so that the client gets no reset

    def _keep_within(self, size: int) -> None:
        if size > _BEYOND_BYTES_MAX:
            self.abort_both()

    def _take(self, data: bytes) -> None:
        started = self._turns.meter.start()
        try:
            out = self._request.feed(data)
        except BadRequest as bad:
            self._turns.spent_since(self._payer, started)
            if self._phase is _Phase.HEAD:
                self.refuse(bad.status, bad.text)
            else:
                self.abort_both()  # the service has only a part of the request, and must not take it for the whole
            return
        self._spent_us += self._turns.spent_since(self._payer, started)
        began = self._phase is _Phase.HEAD and bool(out)
        if began:
            self._phase = _Phase.BODY
            self._stop_timer()
        if self._request.is_complete:
            self._phase = _Phase.SWITCHING if self._request.is_upgrade else _Phase.DONE
            if self._request.is_upgrade:
                self._held += self._request.trailing
        if out:
            SocketSide.data_received(self, out)
        if began:
            self._begin(self)
        if began and self.owner:
            self._pays(self.owner)
        if self._phase not in (_Phase.HEAD, _Phase.BODY):
            self._pays("")

    def catch_up(self) -> None:
        early, self._early = self._early, []
        for data in early:
            SocketSide.data_received(self, data)
        self._charge_kept()
        if self.is_eof and self._other is not None:
            self._pass_end_on(self._other)

    def eof_received(self) -> bool:
        if self._rest:
            self._is_end_next = True
            return True
        if self._phase is _Phase.HEAD or self._phase is _Phase.ANSWERED:
            self.is_eof = True
            self.close()
            return True
        if self._phase is _Phase.BODY:
            self.abort_both()  # the request is not whole
            return True
        if self._phase is _Phase.SWITCHING:
            self._is_end_held = True
            return True
        return super().eof_received()

    # the service's answer

    def write(self, data: bytes) -> bool:
        if self._phase is _Phase.SWITCHING:
            self._answer += bytes(data[: len(_SWITCHED)])
            if len(self._answer) >= len(_SWITCHED):
                self._switch(self._answer.startswith(_SWITCHED))
        return super().write(data)

    def _switch(self, is_switched: bool) -> None:
        self._phase = _Phase.SWITCHED if is_switched else _Phase.DONE
        held, self._held = bytes(self._held), bytearray()
        if is_switched and held:
            SocketSide.data_received(self, held)
        self._charge_kept()
        if is_switched and self._is_end_held:
            super().eof_received()

    def end_writing(self) -> None:
        """End the connection after the answer, which is the only one on it."""
        if self._phase is _Phase.SWITCHED:
            super().end_writing()
        else:
            self._finish()

    def other_ended(self, other: Side, *, clean: bool) -> None:
        if self._phase is not _Phase.ANSWERED or not clean:
            super().other_ended(other, clean=clean)

    def _finish(self) -> None:
        if self.is_over:
            return
        self._phase = _Phase.ANSWERED
        self._pays("")
        if not self._transport.can_write_eof():  # TLS has an end of its own
            self.close()
            return
        super().end_writing()
        if self._other is not None:
            self._other.end_writing()
        self.resume_reading()
        self._start_timer(_LINGER_S, self.close)

    # time

    def _start_timer(self, seconds: float, act: Callable[[], None]) -> None:
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(seconds, act)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self.refuse(408, f"the head of the request did not arrive within {self._head_seconds:g} s")

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._rest.clear()
        self._pays("")
        super().connection_lost(exc)
