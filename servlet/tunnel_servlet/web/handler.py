"""One HTTP connection to the relay: aiohttp's handler, with deadlines, turns, and charges for waiting data."""

import asyncio
from collections.abc import Callable
from typing import Any

import structlog
from aiohttp import web, web_protocol

from tunnel.turns.meter import Start
from tunnel.turns.queues import Turns
from tunnel_servlet.access.connections import CountedConnection
from tunnel_servlet.config import ServiceLimits
from tunnel_servlet.web.bodies import discard
from tunnel_servlet.web.heads import is_plain
from tunnel_servlet.web.payers import REQUEST_US, UNAUTHENTICATED
from tunnel_servlet.web.websocket_guard import FrameGuard

__all__ = ["DISCARD_S", "RelayHandler"]

_log = structlog.get_logger("server")
DISCARD_S = 4.0  # time to read the rest of a refused body, so that a reset does not destroy the answer
_PIECE_BYTES = (
    4 * 1024
)  # heads (unless `is_plain`), chunked bodies and websocket frames are parsed in pieces of this size
_AHEAD_REQUESTS = 2  # aiohttp parses this many ahead on a connection, then stops reading from it; its default is 32


# aiohttp has no option for the length of its queue of parsed requests. Each request takes 4 KiB, and tens of objects
# for the garbage collector to visit. Two limits must be set: that of the queue, which `RelayHandler` sets, and this one
# of the parser, which keeps its own count of the requests in the queue. After a request whose body came later than its
# head, the parser's count is one too high (never two). So the parser's limit is one higher than the queue's: otherwise
# the parser could stop although the queue has room, and nothing would start it again. Now it stops only when the queue
# is full, and a handler that empties the queue starts it again.
web_protocol.MAX_MSG_QUEUE_SIZE = _AHEAD_REQUESTS + 1


class RelayHandler(web.RequestHandler):
    """One HTTP connection. It is closed if the headers of a request do not arrive in time, and cut if an answer is not
    read in time.

    The processor time of its requests is charged to the connection's payer when they arrive, and the connection is not
    read while the payer must wait. When the first token comes, its user takes over what the connection has cost before.
    The memory of unparsed data is charged to the payer, too, while the data waits: for the payer's turn, or for an
    earlier request to be handled.
    """

    def __init__(
        self, server: web.Server, limits: ServiceLimits, turns: Turns | None, counted: CountedConnection, **others: Any
    ) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(server, loop=loop, **others)
        self._max_msg_queue_size = _AHEAD_REQUESTS
        self._msg_queue_resume_size = _AHEAD_REQUESTS // 2
        self.counted = counted  # for the limits of connections, and of the bytes that they hold
        self._limits = limits
        self._clock = loop
        self._deadline: asyncio.TimerHandle | None = None
        self._answer_timer: asyncio.Handle | None = None  # set while a part of an answer waits in this process
        self._answer_bytes = 0  # charged for this part
        self._output: asyncio.WriteTransport | None = None
        self._answer_number = 0  # of the request whose answer leaves now, or left last; the SwitchHost numbers them
        self._is_idle = True  # no request is being handled
        self._turns = turns
        self._is_held = False  # nothing is read until it is the payer's turn
        self._spent_us = counted.spent_us  # processor time charged for this connection since its payer last changed
        self._is_chunked = False  # the body that comes has no length
        self._has_chunks = False  # a body without a length has come
        self._rest = b""  # data that came and waits for the payer's turn
        self._rest_bytes = 0  # charged for `_rest`
        self._resuming: asyncio.Handle | None = None  # resumes reading after a change of the payer
        self._ahead_bytes = 0  # charged for data that came while aiohttp parses nothing, because a request waits
        self._guard: FrameGuard | None = None  # of the websocket that this connection has become
        self._discards_unread_body = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        began = self._began()
        super().connection_made(transport)
        if isinstance(transport, asyncio.WriteTransport):
            self._output = transport
            # `pause_writing` is called as soon as an answer must wait; with 0, TLS would call it for an empty buffer.
            transport.set_write_buffer_limits(high=1)
        self._expect_headers()
        if self._turns is not None:
            self._turns.join(self._payer, self, self.counted.source)
            # Pause later if `join` holds this connection: the transport begins to read after this method, and uvloop
            # ignores a pause that comes before.
            self._clock.call_soon(self._hold_reading)
        self._charge(began)

    def data_received(self, data: bytes) -> None:
        if self._is_idle and self._deadline is None:
            self._expect_headers()
        if data and self._turns is not None and (self._rest or self._needs_pieces(data)):
            self._rest += data
            self._take_pieces()
            self._charge_rest()
        else:
            self._take(data)

    def _take(self, data: bytes) -> None:
        """Parse data, and charge what that costs."""
        began, requests = self._began(), self._request_count
        super().data_received(data)
        self._charge_ahead(len(data))
        if self._request_count > requests and self._messages:
            self._is_chunked = any(getattr(message, "chunked", False) for message, _ in self._messages)
            self._has_chunks = self._has_chunks or self._is_chunked
        self._charge(began, (self._request_count - requests) * REQUEST_US)

    def _charge_rest(self) -> None:
        """Charge the payer for data that waits for a turn. End the connection if the payer has too much."""
        is_charged = self._guard is not None or self._is_chunked  # the whole message or body is charged elsewhere
        size = 0 if is_charged or len(self._rest) <= _PIECE_BYTES else len(self._rest)
        if size <= self._rest_bytes:
            self.counted.free(self._rest_bytes - size)
        elif not self.counted.hold(size - self._rest_bytes):
            self._cut()
            return
        self._rest_bytes = size

    def _charge_ahead(self, size: int) -> None:
        """Charge the payer for data that waits in aiohttp's parser. End the connection if the payer has too much."""
        if not self._buffer_paused:
            if self._ahead_bytes:
                self.counted.free(self._ahead_bytes)
                self._ahead_bytes = 0
        elif self.counted.hold(size):
            self._ahead_bytes += size
        else:
            self._cut()

    def _resume_reading_for_buffer(self) -> None:
        super()._resume_reading_for_buffer()
        self._charge_ahead(0)

    def _take_pieces(self) -> None:
        """Parse the data that waits: piece by piece while it may be costly to parse (`_expects_costly`)."""
        while self._rest and not self._is_held:
            size = _PIECE_BYTES if self._expects_costly else len(self._rest)
            if self._guard is not None:
                size = max(size, self._guard.coming_bytes)
            piece, self._rest = self._rest[:size], self._rest[size:]
            self._take(piece)
            if not self._is_chunked and self._guard is None and self._rest:
                rest, self._rest = self._rest, b""
                self._take(rest)

    @property
    def _expects_costly(self) -> bool:
        """Whether the data that comes now may take long to parse for its size, so that it is parsed in pieces.

        Such data is a head (no request is being handled), a chunked body, or websocket frames.
        """
        return self._is_idle or self._is_chunked or self._guard is not None

    def _needs_pieces(self, data: bytes) -> bool:
        """Whether this data, which has just come, must be parsed in pieces."""
        if len(data) <= _PIECE_BYTES or not self._expects_costly:
            return False
        return self._is_chunked or self._guard is not None or not is_plain(data, _PIECE_BYTES)

    def watch_frames(self, guard: FrameGuard) -> None:
        """Let this guard check the frames of the websocket that the present request opens."""
        self._guard = guard

    def set_parser(self, parser: Any, data_received_cb: Callable[[], None] | None = None) -> None:
        if self._guard is not None:
            self._guard.parser = parser
            parser = self._guard
            if self._message_tail:  # frames came with the request, perhaps thousands: they are parsed in pieces
                self._rest, self._message_tail = self._message_tail + self._rest, b""
                self._resuming = self._clock.call_soon(self._go_on)
        super().set_parser(parser, data_received_cb)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._answer_bytes = self._output.get_write_buffer_size() if self._output is not None else 0
        if self.counted.hold(self._answer_bytes):
            self._answer_timer = self._clock.call_later(self._limits.answer_seconds, self._cut_unread_answer)
        else:
            self._answer_bytes = 0
            self._answer_timer = self._clock.call_soon(self._cut_unread_answer)

    def resume_writing(self) -> None:
        self._forget_answer()
        super().resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        began = self._began()
        self._stop_deadline()
        self._forget_answer()
        self._leave_turns()
        super().connection_lost(exc)
        # Thousands of connections can end at once. `_messages` and `_keepalive_handle` lead back to this object.
        # Without them, its memory is freed now; with them, only when the collector finds the cycle, which in an idle
        # relay may be never. (aiohttp's task does not use them any more: it was cancelled, since the server has
        # `handler_cancellation`.)
        self._messages.clear()
        self._keepalive_handle = None
        self._charge(began)
        self.counted.leave()

    def request_began(self) -> None:
        """Stop the deadline: all headers of a request have arrived."""
        self._is_idle = False
        self._stop_deadline()

    def request_ended(self) -> None:
        """Note that the request was answered; the next byte starts the deadline again."""
        self._is_idle = True

    def answer_begins(self, number: int) -> int:
        """Note that the answer to this request leaves from now on. Return the request whose answer left before."""
        before, self._answer_number = self._answer_number, number
        return before

    def cut_answer(self, number: int) -> None:
        """Cut the connection if the answer to this request waits in this process for its client to read."""
        if self._answer_timer is not None and number == self._answer_number:
            self._cut_unread_answer()

    def close_unread(self) -> None:
        """Close the connection after this answer, even if the rest of the request's body has not been read."""
        self._discards_unread_body = False

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send the answer. Then read the rest of the request's body when it is the payer's turn.

        aiohttp would read it without regard to payers. Once, the bodies of 124 requests that were all refused at the
        same time kept the event loop busy for 1.4 s without a break. Data behind a refused upgrade is not parsed at
        all, because aiohttp would parse it at the cost of no user.
        """
        if self._turns is not None and self._upgraded and self._payload_parser is None and self._message_tail:
            self._message_tail = b""
            resp.force_close()
        response, is_lost = await super().finish_response(request, resp, start_time)
        content = request.content
        is_over = is_lost or self._close or self._force_close or content.is_eof()
        if self._turns is not None and self._discards_unread_body and not is_over:
            await discard(content, self._turns, lambda: self._payer, DISCARD_S)
        return response, is_lost

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer a request that is not valid HTTP. Neither the answer nor the log quotes it, as it may hold a token."""
        _log.info("bad_request", address=request.remote, error=type(exc).__name__)
        if request.writer.output_size > 0:
            raise ConnectionError("part of an answer was sent already")
        response = web.Response(status=status, text="Bad Request" if status < 500 else "Internal Server Error")
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Write to the relay's log the errors that aiohttp reports, except those of a connection that is closing.

        uvloop raises RuntimeError where an answer is written to a connection that has just ended.
        """
        if self._output is not None and not self._output.is_closing():
            _log.error("failed", address=self.counted.source, exc_info=kw.get("exc_info"))

    # --- turns

    @property
    def _payer(self) -> str:
        return self.counted.user or UNAUTHENTICATED

    def charge_to(self, user: str) -> bool:
        """Charge the connection to this user from now on. Return False if the user has too many connections."""
        payer = self._payer
        if not self.counted.charge_to(user):
            return False
        if self._turns is not None and payer != user:
            self._turns.leave(payer, self, self.counted.source)
            if self._is_held:
                self._is_held = False
                self._resuming = self._clock.call_soon(self._go_on)  # but `join`, below, may hold this connection again
            self._turns.join(user, self, self.counted.source)
            spent_us, self._spent_us = self._spent_us, 0.0
            if payer == UNAUTHENTICATED:
                self._turns.move(payer, user, spent_us)
        return True

    def hand_over(self) -> None:
        """Note that another protocol reads from the connection from now on."""
        self._leave_turns()
        self._resume_transport_reading()

    def _leave_turns(self) -> None:
        if self._resuming is not None:
            self._resuming.cancel()  # another protocol decides from now on whether the connection is read
        if self._turns is not None:
            self._turns.leave(self._payer, self, self.counted.source)
            self._is_held = False

    def pause_input(self) -> None:
        """Read nothing until `resume_input` is called."""
        self._is_held = True
        self._hold_reading()

    def resume_input(self) -> None:
        """Resume reading, unless a body or a request waits for its handler."""
        self._is_held = False
        self._go_on()

    def _go_on(self) -> None:
        self._take_pieces()
        self._charge_rest()
        if not (self._is_held or self._reading_paused or self._buffer_paused):
            self._resume_transport_reading()

    def resume_reading(self, resume_parser: bool = True) -> None:
        # aiohttp calls this each time a handler takes a part of a body. While reading is not paused, the call would
        # only run the parser on zero bytes, which costs as much as receiving a part. Only after a pause for too many
        # chunks, the parser can have stopped without notice, even when the next body comes.
        if self._reading_paused or self._has_chunks:
            super().resume_reading(resume_parser)

    def _resume_transport_reading(self) -> None:
        if not self._is_held:
            super()._resume_transport_reading()

    def _hold_reading(self) -> None:
        if self._is_held:
            self._pause_transport_reading()

    def _began(self) -> Start:
        return self._turns.meter.start() if self._turns is not None else (0.0, 0.0)

    def _charge(self, began: Start, cost_us: int = 0) -> None:
        if self._turns is not None:
            spent_us = self._turns.meter.since(began) * 1e6 + cost_us
            self._spent_us += spent_us
            self._turns.spend(self._payer, spent_us)

    # --- deadlines

    def _expect_headers(self) -> None:
        self._deadline = self._clock.call_later(self._limits.header_seconds, self._too_slow)

    def _too_slow(self) -> None:
        self._deadline = None
        if self._is_idle:
            self.force_close()

    def _cut_unread_answer(self) -> None:
        """Cut the connection, because its client does not read the answer."""
        if self._answer_timer is not None:
            self._answer_timer.cancel()
        self._answer_timer = None
        self._cut()

    def _cut(self) -> None:
        """End the connection at once: closing it would wait until the answer is read."""
        self._rest = b""
        if self._output is not None:
            self._output.abort()

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _forget_answer(self) -> None:
        """Note that no part of an answer waits any more: the client has read it, or the connection is lost."""
        self.counted.free(self._answer_bytes)
        self._answer_bytes = 0
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None
