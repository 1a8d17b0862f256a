"""One HTTP connection to the relay: aiohttp's handler, with deadlines, turns, and charges for waiting data.

What any server needs for this is in `HeadDeadline`, `UnreadAnswer`, `InputTurns` and `InputPieces`. This class tells
them what aiohttp does, and changes what no option of aiohttp reaches.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import structlog
from aiohttp import web, web_protocol

from tunnel.turns.queues import Turns
from tunnel_servlet.access.connections import CountedConnection
from tunnel_servlet.config import ServiceLimits
from tunnel_servlet.switch.witness import NOWHERE
from tunnel_servlet.web.http.bodies import discard
from tunnel_servlet.web.http.head_deadline import HeadDeadline
from tunnel_servlet.web.http.input_turns import InputTurns
from tunnel_servlet.web.http.payers import REQUEST_US
from tunnel_servlet.web.http.pieces import InputPieces
from tunnel_servlet.web.http.unread_answer import UnreadAnswer

__all__ = ["DISCARD_S", "RelayHandler"]

_log = structlog.get_logger("server")
DISCARD_S = 4.0  # time to read the rest of a refused body, so that a reset does not destroy the answer
_NOBODY = asyncio.Protocol()
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
    read while the payer must wait. The memory of unparsed data is charged to the payer, too, while the data waits: for
    the payer's turn, or for an earlier request to be handled.
    """

    def __init__(
        self, server: web.Server, limits: ServiceLimits, turns: Turns | None, counted: CountedConnection, **others: Any
    ) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **others)
        self._max_msg_queue_size = _AHEAD_REQUESTS
        self._msg_queue_resume_size = _AHEAD_REQUESTS // 2
        self.counted = counted  # for the limits of connections, and of the bytes that they hold
        self.head = HeadDeadline(limits.header_seconds, self.force_close)
        self.answer = UnreadAnswer(counted, limits.answer_seconds, self._cut)
        self.turns = InputTurns(turns, counted, self._pause_transport_reading, self._go_on)
        self.pieces = InputPieces(counted, self.turns, self.head, self._take, self._cut)
        self.client = ""  # the address from which it comes, or that its PROXY header names
        self.origin = NOWHERE  # of its latest request
        self._output: asyncio.WriteTransport | None = None
        self._has_chunks = False  # a body without a length has come
        self._ahead_bytes = 0  # charged for data that came while aiohttp parses nothing, because a request waits
        self._discards_unread_body = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        began = self.turns.start()
        super().connection_made(transport)
        if isinstance(transport, asyncio.WriteTransport):
            self._output = transport
            # `pause_writing` is called as soon as an answer must wait; with 0, TLS would call it for an empty buffer.
            transport.set_write_buffer_limits(high=1)
        self.head.begin()
        self.turns.join()
        self.turns.charge(began)

    def data_received(self, data: bytes) -> None:
        pieces, requests = self.pieces, self._request_count
        if data and self.turns.turns is not None and (pieces.rest or pieces.wants(data)):
            self._expect_head()
            pieces.rest += data
            pieces.take()
            pieces.charge()
        else:
            self._take(data)
            if self._request_count == requests:  # otherwise, the whole head has come at once, as it usually does
                self._expect_head()

    def _expect_head(self) -> None:
        if self.head.is_idle and self.head.timer is None:
            self.head.begin()

    def _take(self, data: bytes) -> None:
        """Parse data, and charge what that costs."""
        began, requests = self.turns.start(), self._request_count
        super().data_received(data)
        self._charge_ahead(len(data))
        if self._request_count > requests and self._messages:
            is_chunked = any(getattr(message, "chunked", False) for message, _ in self._messages)
            self.pieces.is_chunked = is_chunked
            self._has_chunks = self._has_chunks or is_chunked
        self.turns.charge(began, (self._request_count - requests) * REQUEST_US)

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

    def set_parser(self, parser: Any, data_received_cb: Callable[[], None] | None = None) -> None:
        pieces = self.pieces
        if pieces.guard is not None:
            pieces.guard.parser = parser
            parser = pieces.guard
            if self._message_tail:  # frames came with the request, perhaps thousands: they are parsed in pieces
                pieces.rest, self._message_tail = self._message_tail + pieces.rest, b""
                self.turns.go_on_soon()
        super().set_parser(parser, data_received_cb)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.answer.on_waiting(self._output.get_write_buffer_size() if self._output is not None else 0)

    def resume_writing(self) -> None:
        self.answer.forget()
        super().resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        began = self.turns.start()
        self._end(exc)
        self.turns.charge(began)
        self.counted.leave()

    def request_began(self) -> None:
        """Stop the deadline: all headers of a request have arrived."""
        self.head.on_arrived()

    def request_ended(self) -> None:
        """Note that the request was answered; the next byte starts the deadline again."""
        self.head.is_idle = True

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
        turns = self.turns.turns
        if turns is not None and self._upgraded and self._payload_parser is None and self._message_tail:
            self._message_tail = b""
            resp.force_close()
        response, is_lost = await super().finish_response(request, resp, start_time)
        content = request.content
        is_over = is_lost or self._close or self._force_close or content.is_eof()
        if turns is not None and self._discards_unread_body and not is_over:
            await discard(content, turns, lambda: self.turns.payer, DISCARD_S)
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

    def hand_over(self) -> None:
        """Leave the connection to another protocol, after the answer to an upgrade has left. The new protocol must call
        `counted.leave()` at the end.

        A connection may stay for days. So everything that served its requests ends now, as when a connection is lost:
        the task and the request whose handler calls this, its headers, the parser and the timers, 15 KiB together. The
        handler must return without waiting for anything.
        """
        self.turns.leave()
        self._resume_transport_reading()
        if self.transport is not None:
            # uvloop keeps a method of this object until it is replaced by that of another protocol of the same kind.
            self.transport.set_protocol(_NOBODY)
        self.transport = self._output = None  # so that nothing here closes it
        self._end(None)

    def _end(self, exc: BaseException | None) -> None:
        self.head.end()
        self.answer.end()
        self.turns.end()
        self.pieces.end()
        super().connection_lost(exc)
        # Thousands of connections can end at once. The parts that ended above, `_messages` and `_keepalive_handle` lead
        # back to this object. Without them, its memory is freed now; with them, only when the collector finds the
        # cycle, which in an idle relay may be never. (aiohttp's task does not use them any more: it was cancelled,
        # since the server has `handler_cancellation`.)
        self._messages.clear()
        self._keepalive_handle = None

    def _go_on(self) -> None:
        self.pieces.take()
        self.pieces.charge()
        if not (self.turns.is_held or self._reading_paused or self._buffer_paused):
            self._resume_transport_reading()

    def resume_reading(self, resume_parser: bool = True) -> None:
        # aiohttp calls this each time a handler takes a part of a body. While reading is not paused, the call would
        # only run the parser on zero bytes, which costs as much as receiving a part. Only after a pause for too many
        # chunks, the parser can have stopped without notice, even when the next body comes.
        if self._reading_paused or self._has_chunks:
            super().resume_reading(resume_parser)

    def _resume_transport_reading(self) -> None:
        if not self.turns.is_held:
            super()._resume_transport_reading()

    def _cut(self) -> None:
        """End the connection at once: closing it would wait until the answer is read."""
        self.pieces.rest = b""
        if self._output is not None:
            self._output.abort()
