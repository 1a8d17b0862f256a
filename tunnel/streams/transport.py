"""A connection as an asyncio transport: for any protocol, with flow control in both directions, and with TLS on top.

After `close()`, `connection_lost` is called when the peer's endpoint has acknowledged every byte, not when the bytes
have left. Its argument therefore says whether they arrived.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from tunnel.core import (
    Closed,
    Connected,
    ConnectionStats,
    Event,
    Flushed,
    Lost,
    LostReason,
    PeerClosed,
    PeerFinished,
    Readable,
    Refused,
    Writable,
)
from tunnel.driver import Driver
from tunnel.errors import ResetError, lost_error, refused_error
from tunnel.streams.asyncio_compat import SENDFILE_BY_COPYING, FlowControlled
from tunnel.streams.rate_limit import RateLimit, RateTurns
from tunnel.streams.reading import ReadingHalf
from tunnel.streams.transport_state import ByteStream, TransportState
from tunnel.streams.writing import WritingHalf
from tunnel.wire import AbortReason, Buffer

__all__ = ["MadeTransport", "Transport"]

_END = "closed"


class MadeTransport:
    """A transport for those who make it: the parts that applications do not see. The transport sets them."""

    transport: "Transport"
    opened: Callable[[], Coroutine[Any, Any, None]]
    """Return when the peer has accepted; raise the error if it did not. Cancelling ends the connection."""
    begin: Callable[[asyncio.BaseProtocol], None]
    """Attach the connection to its protocol. Data that arrived before is delivered in the next round of the event loop,
    unless the protocol pauses reading, the connection is over, or a rate limit lets it wait. An end that came before is
    reported after that data."""
    fail: Callable[[BaseException], None]
    """End at once with this error of the attachment."""
    move_to: Callable[[Driver], None]
    """Go on with the driver of another endpoint, which has taken the connection over."""
    await_turn: Callable[[], None]
    """Let the application write first, so that data leaves with what is about to leave where the connection is now."""


class Transport(FlowControlled):
    """A connection as an asyncio transport, created by `Attachment`. It owns the connection's events until the end."""

    _start_tls_compatible = True  # asyncio's start_tls requires it
    _sendfile_compatible = SENDFILE_BY_COPYING  # asyncio's sendfile requires it

    def __init__(
        self,
        driver: Driver,
        connection: ByteStream,
        target: str,
        extra: dict[str, Any],
        made: MadeTransport,
        ended: Callable[["Transport"], None],
        connected: Callable[["Transport"], None] | None = None,
    ) -> None:
        self._state = TransportState(self, driver, connection, target)
        super().__init__({"tunnel_connection": connection, **extra}, self._state.loop)
        self._writing = WritingHalf(self._state)
        self._reading = ReadingHalf(self._state)
        self._ended = ended
        self._connected = connected
        self._opened: asyncio.Future[None] | None = None
        self._shown_error: BaseException | None = None  # the argument of connection_lost
        made.transport, made.opened, made.begin, made.fail = self, self._wait_for_opening, self._begin, self._fail
        made.move_to = self._move_to
        made.await_turn = lambda: self._state.driver.await_turn()
        driver.register(connection.id, self._handle)

    def __repr__(self) -> str:
        return f"<tunnel.Transport {self.target} {self._state.over or self._state.connection.state.value}>"

    @property
    def connection_id(self) -> int:
        """The id that the endpoint gave the connection."""
        return self._state.connection.id

    @property
    def target(self) -> str:
        """The target, in a form for people."""
        return self._state.target

    def stats(self) -> ConnectionStats:
        """Return the counters of the connection; bytes are those of the application."""
        return self._state.connection.snapshot()

    @property
    def encryption(self) -> str:
        """How the stream is encrypted: empty if it is in clear."""
        return ""

    def limit_rate(self, limit: RateLimit | None) -> None:
        """Let the connection share this limit from now on, in place of the previous one; None: no limit."""
        self._writing.limit_rate(None if limit is None else partial(RateTurns, limit.up))
        self._reading.limit_rate(None if limit is None else partial(RateTurns, limit.down))
        self._state.loop.call_soon(self._writing.go_on)
        self._state.loop.call_soon(self._reading.go_on)

    # opening

    async def _wait_for_opening(self) -> None:
        self._opened = self._state.loop.create_future()
        self._state.driver.wake()
        try:
            await self._opened
        except BaseException:
            self.abort()
            raise

    def _begin(self, protocol: asyncio.BaseProtocol) -> None:
        state = self._state
        state.protocol = protocol
        protocol.connection_made(self)
        # Data, or the end of the connection, may have come before there was a protocol.
        self._state.loop.call_soon(self._reading.read)
        if state.over is not None:
            self._state.loop.call_soon(state.guard, protocol.connection_lost, self._shown_error)

    # writing

    def write(self, data: Buffer) -> None:
        """Send these bytes without blocking. If the peer has closed, drop them and set `write_error`."""
        state, writing = self._state, self._writing
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data must be bytes-like, not {type(data).__name__}")
        if writing.is_ended:
            raise RuntimeError("cannot write() after write_eof()")
        if isinstance(data, memoryview):
            data = data.cast("B") if data.nbytes else b""
        if not data or state.is_closing:
            return
        if state.over is not None:
            writing.fail()
            return
        taken = 0 if writing.waiting or writing.turns is not None else writing.take(data)
        if taken < len(data) and not writing.is_peer_closed:
            writing.wait(data, taken)
        state.driver.wake()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        for data in list_of_data:
            self.write(data)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """End this direction after the written bytes; the other direction continues."""
        if self._writing.is_ended or self._state.is_closing or self._state.over is not None:
            return
        self._writing.is_ended = True
        if not self._writing.waiting:
            self._writing.pass_end()
        self._state.driver.wake()

    async def flush(self) -> None:
        """Return when the peer's endpoint has acknowledged every byte written; raise if it never will."""
        state, writing = self._state, self._writing
        if self.write_error is not None:
            raise self.write_error.with_traceback(None)
        if state.over is not None and isinstance(state.over, BaseException):
            raise state.over.with_traceback(None)
        if state.over is None and (writing.waiting or state.connection.unacknowledged_bytes):
            waiter = self._state.loop.create_future()
            writing.flushes.append(waiter)
            state.connection.flush(writing.waiting_bytes)
            state.driver.wake()
            await waiter

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._writing.set_limits(high, low)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._writing.low_bytes, self._writing.high_bytes

    def get_write_buffer_size(self) -> int:
        """Return the number of written bytes that the endpoint has not taken, since its buffer is full or a rate limit
        lets them wait."""
        return self._writing.waiting_bytes

    # reading

    def is_reading(self) -> bool:
        return self._reading.is_reading()

    def pause_reading(self) -> None:
        """Deliver nothing until `resume_reading`. Arriving data is buffered; the peer waits when the buffer is full."""
        self._reading.is_wanted = False

    def resume_reading(self) -> None:
        if not self._reading.is_wanted and not self._state.is_closing and self._state.over is None:
            self._reading.is_wanted = True
            self._state.loop.call_soon(self._reading.read)

    # closing

    def is_closing(self) -> bool:
        return self._state.is_closing or self._state.over is not None

    def close(self) -> None:
        """Read nothing more, deliver the written bytes; `connection_lost` follows when the peer endpoint has them."""
        if self._state.is_closing or self._state.over is not None:
            return
        self._state.is_closing = True
        if not self._writing.waiting:
            self._writing.pass_end()
        self._state.driver.wake()

    def abort(self, reason: AbortReason = AbortReason.APPLICATION, text: str = "") -> None:
        """End at once. Unacknowledged bytes are lost, and the peer gets an error with this reason and text."""
        state = self._state
        if state.over is not None:
            return
        state.is_closing = True
        self._writing.drop()
        state.connection.abort(state.driver.now(), reason, text)
        state.driver.wake()

    def _fail(self, error: BaseException) -> None:
        if self._state.over is None:
            self._state.connection.abort(self._state.driver.now())
            self._finish(error)

    def _move_to(self, driver: Driver) -> None:
        self._state.driver.unregister(self.connection_id)
        self._state.driver = driver
        driver.register(self.connection_id, self._handle)

    def _force_close(self, error: BaseException | None) -> None:
        """Abort. asyncio's TLS calls this when it gives up."""
        self.abort()

    # protocols

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._state.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._state.protocol is not None
        return self._state.protocol

    # events

    def _handle(self, event: Event) -> None:
        match event:
            case Readable():
                self._reading.read()
            case Writable():
                self._writing.move()
            case Flushed():
                self._writing.on_flushed()
            case PeerFinished():
                self._reading.end()
            case PeerClosed(junked_bytes=junked_bytes):
                self._writing.on_peer_closed(junked_bytes)
            case Connected():
                if self._opened is not None and not self._opened.done():
                    self._opened.set_result(None)
                if self._connected is not None:
                    self._connected(self)
            case Closed():
                self._finish(None)
            case Lost(reason=reason):
                error = lost_error(event, self.target)
                self._finish(error, shown=reason is not LostReason.ABORTED)
            case Refused():
                self._finish(refused_error(event, self.target))

    def _finish(self, error: BaseException | None, *, shown: bool = True) -> None:
        """End the transport. `shown`: pass the error to the protocol's `connection_lost`."""
        state = self._state
        if error is None:
            error = self.write_error
        state.over = error or _END
        self._shown_error = error if shown else None
        state.driver.unregister(state.connection.id)
        self._writing.on_over(error)
        if self._opened is not None and not self._opened.done():
            self._opened.set_exception(error or ResetError(f"{self.target}: closed"))
        if state.protocol is not None:
            self._state.loop.call_soon(state.guard, state.protocol.connection_lost, self._shown_error)
        self._ended(self)
