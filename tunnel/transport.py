"""A connection as an asyncio transport: for any protocol, with flow control in both directions, and with TLS on top.

After `close()`, `connection_lost` is called when the peer's endpoint has acknowledged every byte, not when the bytes
have left. Its argument therefore says whether they arrived.
"""

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol, cast

from tunnel.asyncio_compat import SENDFILE_BY_COPYING, FlowControlled, fill, sends_file
from tunnel.core import (
    Closed,
    Connected,
    ConnectionStats,
    Event,
    Flushed,
    Lost,
    LostReason,
    PeerClosed,
    PeerClosedError,
    PeerFinished,
    Readable,
    Refused,
    State,
    Writable,
)
from tunnel.driver import Driver
from tunnel.errors import ResetError, lost_error, refused_error
from tunnel.rate_limit import RateLimit, Turns
from tunnel.wire import AbortReason, Buffer

__all__ = ["ByteStream", "MadeTransport", "Transport"]

_READ_BYTES = 256 * 1024  # the most that one data_received gets: the largest payload that we send (4.13)
_HIGH_BYTES = 64 * 1024  # asyncio's default; the endpoint below this transport has a buffer of its own
_END = "closed"


class ByteStream(Protocol):
    """The methods of a connection that a transport uses. `Connection` and `EncryptedConnection` have them."""

    id: int

    @property
    def state(self) -> State: ...
    @property
    def unacknowledged_bytes(self) -> int: ...
    def snapshot(self) -> ConnectionStats: ...
    def write(self, data: Buffer, now: int) -> int: ...
    def flush(self, waiting_bytes: int = 0) -> None: ...
    def read(self, size_max: int, now: int) -> Buffer: ...
    def finish(self, now: int) -> None: ...
    def close(self, now: int) -> None: ...
    def abort(self, now: int, reason: AbortReason = ..., text: str = ...) -> None: ...


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
        self._loop = asyncio.get_running_loop()
        super().__init__({"tunnel_connection": connection, **extra}, self._loop)
        self.write_error: ConnectionError | None = None  # set when bytes were written that the peer will never read
        self._driver = driver
        self._connection = connection
        self._target = target
        self._ended = ended
        self._connected = connected
        self._protocol: asyncio.BaseProtocol | None = None
        self._opened: asyncio.Future[None] | None = None
        self._backlog: deque[Buffer] = deque()
        self._backlog_bytes = 0
        self._high_bytes = _HIGH_BYTES
        self._low_bytes = _HIGH_BYTES // 4
        self._protocol_paused = False
        self._reading = True
        self._eof_written = False
        self._peer_closed = False
        self._peer_finished = False  # also set while there is no protocol to call, or while reading is paused
        self._eof_shown = False
        self._closing = False
        self._over: BaseException | str | None = None
        self._shown_error: BaseException | None = None  # the argument of connection_lost
        self._flushes: list[asyncio.Future[None]] = []
        self._up: Turns | None = None  # with a rate limit, the bytes of `_backlog` wait for these turns
        self._down: Turns | None = None
        made.transport, made.opened, made.begin, made.fail = self, self._wait_for_opening, self._begin, self._fail
        driver.register(connection.id, self._handle)

    def __repr__(self) -> str:
        return f"<tunnel.Transport {self._target} {self._over or self._connection.state.value}>"

    @property
    def connection_id(self) -> int:
        """The id that the endpoint gave the connection."""
        return self._connection.id

    @property
    def target(self) -> str:
        """The target, in a form for people."""
        return self._target

    def stats(self) -> ConnectionStats:
        """Return the counters of the connection; bytes are those of the application."""
        return self._connection.snapshot()

    @property
    def encryption(self) -> str:
        """How the stream is encrypted: empty if it is in clear."""
        return ""

    def limit_rate(self, limit: RateLimit | None) -> None:
        """Let the connection share this limit from now on, in place of the previous one; None: no limit."""
        for turns in filter(None, (self._up, self._down)):
            turns.end()
        self._up = None if limit is None else Turns(limit.up, self._write_turn)
        self._down = None if limit is None else Turns(limit.down, self._read_turn)
        self._loop.call_soon(self._resume_turns)

    def _resume_turns(self) -> None:
        """Go on with what waited for turns at an earlier limit."""
        if self._backlog and self._over is None:
            self._move_backlog()
        if self._protocol is not None:
            self._read()

    # opening

    async def _wait_for_opening(self) -> None:
        self._opened = self._loop.create_future()
        self._driver.wake()
        try:
            await self._opened
        except BaseException:
            self.abort()
            raise

    def _begin(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        protocol.connection_made(self)
        # Data, or the end of the connection, may have come before there was a protocol.
        self._loop.call_soon(self._read)
        if self._over is not None:
            self._loop.call_soon(self._guard, protocol.connection_lost, self._shown_error)

    # writing

    def write(self, data: Buffer) -> None:
        """Send these bytes without blocking. If the peer has closed, drop them and set `write_error`."""
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data must be bytes-like, not {type(data).__name__}")
        if self._eof_written:
            raise RuntimeError("cannot write() after write_eof()")
        if isinstance(data, memoryview):
            data = data.cast("B") if data.nbytes else b""
        if not data or self._closing:
            return
        if self._over is not None:
            self._fail_writing()
            return
        taken = 0 if self._backlog or self._up is not None else self._take(data)
        if taken < len(data) and not self._peer_closed:
            rest = data if isinstance(data, bytes) else bytes(data)
            self._backlog.append(memoryview(rest)[taken:])
            self._backlog_bytes += len(rest) - taken
            if self._up is not None:
                self._up.ask()
            self._maybe_pause_protocol()
        self._driver.wake()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        for data in list_of_data:
            self.write(data)

    def _take(self, data: Buffer) -> int:
        """Write to the endpoint; return the number of bytes that it took."""
        if not self._peer_closed:
            try:
                return self._connection.write(data, self._driver.now())
            except PeerClosedError:
                self._peer_closed = True
        self._fail_writing()
        return 0

    def _fail_writing(self) -> None:
        if self.write_error is None:
            self.write_error = ResetError(
                f"{self._target}: the peer has closed and will not read further data", LostReason.PEER_CLOSED
            )
        if sends_file(self._protocol):
            # A file may be long, and only the end of the transport stops `loop.sendfile`.
            self._loop.call_soon(self.abort)
        self._drop_backlog()

    def _drop_backlog(self) -> None:
        self._backlog.clear()
        self._backlog_bytes = 0
        self._maybe_resume_protocol()

    def _move_backlog(self) -> None:
        """Write the backlog, because the endpoint takes bytes again. With a rate limit, wait for turns."""
        if self._up is None:
            self._write_turn(sys.maxsize)
        else:
            self._up.ask()

    def _write_turn(self, size_max: int) -> int:
        """Write up to this much of the backlog; return how much the endpoint took."""
        used = 0
        while self._backlog and used < size_max:
            data = self._backlog[0]
            offered = data if len(data) <= size_max - used else memoryview(data)[: size_max - used]
            taken = self._take(offered)
            if self._peer_closed:
                break
            used += taken
            self._backlog_bytes -= taken
            if taken < len(data):
                self._backlog[0] = memoryview(data)[taken:]
            else:
                self._backlog.popleft()
            if taken < len(offered):
                break
        self._maybe_resume_protocol()
        if not self._backlog and self._over is None:
            self._end_writing()
        if used and self._up is not None:
            self._driver.wake()
        return used

    def _end_writing(self) -> None:
        """Pass on a close or an end of file that was requested, because no byte waits any more."""
        if self._closing:
            self._connection.close(self._driver.now())
        elif self._eof_written:
            self._connection.finish(self._driver.now())

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """End this direction after the written bytes; the other direction continues."""
        if self._eof_written or self._closing or self._over is not None:
            return
        self._eof_written = True
        if not self._backlog:
            self._end_writing()
        self._driver.wake()

    async def flush(self) -> None:
        """Return when the peer's endpoint has acknowledged every byte written; raise if it never will."""
        if self.write_error is not None:
            raise self.write_error.with_traceback(None)
        if self._over is not None and isinstance(self._over, BaseException):
            raise self._over.with_traceback(None)
        if self._over is None and (self._backlog or self._connection.unacknowledged_bytes):
            waiter = self._loop.create_future()
            self._flushes.append(waiter)
            self._connection.flush(self._backlog_bytes)
            self._driver.wake()
            await waiter

    def _flushed(self) -> None:
        if not self._backlog and not self._connection.unacknowledged_bytes:
            self._settle_flushes(None)

    def _settle_flushes(self, error: BaseException | None) -> None:
        waiters, self._flushes = self._flushes, []
        for waiter in waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)

    # flow control of the protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = _HIGH_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high}) must be at least low ({low}), and low at least 0")
        self._high_bytes, self._low_bytes = high, low
        self._maybe_pause_protocol()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low_bytes, self._high_bytes

    def get_write_buffer_size(self) -> int:
        """Return the number of written bytes that the endpoint has not taken, since its buffer is full or a rate limit
        lets them wait."""
        return self._backlog_bytes

    def _maybe_pause_protocol(self) -> None:
        if self._backlog_bytes > self._high_bytes and not self._protocol_paused and self._protocol is not None:
            self._protocol_paused = True
            self._guard(self._protocol.pause_writing)

    def _maybe_resume_protocol(self) -> None:
        if self._protocol_paused and self._backlog_bytes <= self._low_bytes and self._protocol is not None:
            self._protocol_paused = False
            self._guard(self._protocol.resume_writing)

    # reading

    def is_reading(self) -> bool:
        return self._reading and not self._closing and self._over is None

    def pause_reading(self) -> None:
        """Deliver nothing until `resume_reading`. Arriving data is buffered; the peer waits when the buffer is full."""
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading and not self._closing and self._over is None:
            self._reading = True
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        """Deliver what has arrived. With a rate limit, wait for turns."""
        if self._down is None:
            self._read_turn(sys.maxsize)
        else:
            self._down.ask()

    def _read_turn(self, size_max: int) -> int:
        """Deliver up to this much of what has arrived; return how much there was."""
        now = self._driver.now()
        left = size_max
        while left and self.is_reading() and self._protocol is not None:
            data = self._connection.read(min(_READ_BYTES, left), now)
            if not len(data):
                break
            left -= len(data)
            self._deliver(data)
        if self._peer_finished:
            self._end_reading()
        self._driver.wake()
        return size_max - left

    def _deliver(self, data: Buffer) -> None:
        protocol = self._protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            self._guard(fill, protocol, memoryview(data))
        else:
            # asyncio promises bytes; its own stream reader copies them anyway
            plain = data if isinstance(protocol, asyncio.StreamReaderProtocol) else bytes(data)
            self._guard(cast(asyncio.Protocol, protocol).data_received, plain)

    # closing

    def is_closing(self) -> bool:
        return self._closing or self._over is not None

    def close(self) -> None:
        """Read nothing more, deliver the written bytes; `connection_lost` follows when the peer endpoint has them."""
        if self._closing or self._over is not None:
            return
        self._closing = True
        if not self._backlog:
            self._end_writing()
        self._driver.wake()

    def abort(self, reason: AbortReason = AbortReason.APPLICATION, text: str = "") -> None:
        """End at once. Unacknowledged bytes are lost, and the peer gets an error with this reason and text."""
        if self._over is not None:
            return
        self._closing = True
        self._drop_backlog()
        self._connection.abort(self._driver.now(), reason, text)
        self._driver.wake()

    def _fail(self, error: BaseException) -> None:
        if self._over is None:
            self._connection.abort(self._driver.now())
            self._finish(error)

    def _force_close(self, error: BaseException | None) -> None:
        """Abort. asyncio's TLS calls this when it gives up."""
        self.abort()

    def _fatal(self, error: BaseException) -> None:
        """Report an error that the protocol raised, and abort, as asyncio's transports do."""
        context = {"message": "a protocol raised", "exception": error, "transport": self, "protocol": self._protocol}
        self._loop.call_exception_handler(context)
        self.abort()

    def _guard(self, call: Callable[..., object], *arguments: object) -> object:
        try:
            return call(*arguments)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._fatal(error)
            return None

    # protocols

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    # events

    def _handle(self, event: Event) -> None:
        match event:
            case Readable():
                self._read()
            case Writable():
                self._move_backlog()
            case Flushed():
                self._flushed()
            case PeerFinished():
                self._end_reading()
            case PeerClosed(junked_bytes=junked_bytes):
                self._peer_has_closed(junked_bytes)
            case Connected():
                if self._opened is not None and not self._opened.done():
                    self._opened.set_result(None)
                if self._connected is not None:
                    self._connected(self)
            case Closed():
                self._finish(None)
            case Lost(reason=reason):
                error = lost_error(event, self._target)
                self._finish(error, shown=reason is not LostReason.ABORTED)
            case Refused():
                self._finish(refused_error(event, self._target))

    def _end_reading(self) -> None:
        """Report the peer's end of file to the protocol, once; if the protocol has paused reading, when it resumes."""
        self._peer_finished = True
        if self._closing or self._protocol is None or self._eof_shown or not self._reading:
            return
        self._eof_shown = True
        if not self._guard(cast(asyncio.Protocol, self._protocol).eof_received):
            self.close()

    def _peer_has_closed(self, junked_bytes: int) -> None:
        self._peer_closed = True
        if junked_bytes or self._backlog:
            self._fail_writing()
        self._settle_flushes(self.write_error)
        self._end_writing()

    def _finish(self, error: BaseException | None, *, shown: bool = True) -> None:
        """End the transport. `shown`: pass the error to the protocol's `connection_lost`."""
        if error is None:
            error = self.write_error
        self._over = error or _END
        self._shown_error = error if shown else None
        self._driver.unregister(self._connection.id)
        self._backlog.clear()
        self._backlog_bytes = 0
        self._settle_flushes(error)
        if self._opened is not None and not self._opened.done():
            self._opened.set_exception(error or ResetError(f"{self._target}: closed"))
        protocol = self._protocol
        if protocol is not None:
            self._loop.call_soon(self._guard, protocol.connection_lost, self._shown_error)
        self._ended(self)
