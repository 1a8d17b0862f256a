"""The writing half of a transport: what the endpoint has not taken waits here, and the protocol is paused meanwhile."""

import asyncio
import sys
from collections import deque
from collections.abc import Callable

from tunnel.core import LostReason, PeerClosedError
from tunnel.errors import ResetError
from tunnel.streams.asyncio_compat import note_paused, sends_file
from tunnel.streams.rate_limit import RateTurns, Take
from tunnel.streams.transport_state import TransportState
from tunnel.wire import Buffer

__all__ = ["WritingHalf"]

_HIGH_BYTES = 64 * 1024  # asyncio's default; the endpoint below this transport has a buffer of its own


class WritingHalf:
    """Passes written bytes to the endpoint, in order, and after them the end of the direction or a close.

    Bytes wait while the endpoint's buffer is full, or for the turns of a rate limit. When too many wait, the protocol
    is paused.
    """

    def __init__(self, state: TransportState) -> None:
        self.waiting: deque[Buffer] = deque()
        self.waiting_bytes = 0
        self.high_bytes = _HIGH_BYTES
        self.low_bytes = _HIGH_BYTES // 4
        self.is_ended = False  # the application has ended this direction
        self.is_peer_closed = False
        self.turns: RateTurns | None = None  # with a rate limit
        self.after_turn: Callable[[], None] | None = None
        self.flushes: list[asyncio.Future[None]] = []
        self._state = state
        self._is_protocol_paused = False

    def limit_rate(self, make_turns: Callable[[Take], RateTurns] | None) -> None:
        """Let bytes wait for these turns from now on; None: for none."""
        if self.turns is not None:
            self.turns.end()
        self.turns = None if make_turns is None else make_turns(self._turn)

    def set_limits(self, high: int | None, low: int | None) -> None:
        """Pause the protocol while more bytes wait than `high`, until no more wait than `low`."""
        if high is None:
            high = _HIGH_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high}) must be at least low ({low}), and low at least 0")
        self.high_bytes, self.low_bytes = high, low
        self._pause_protocol()

    def go_on(self) -> None:
        """Pass on what waited for turns at an earlier limit."""
        if self.waiting and self._state.over is None:
            self.move()

    def take(self, data: Buffer) -> int:
        """Write to the endpoint; return the number of bytes that it took."""
        if not self.is_peer_closed:
            try:
                return self._state.connection.write(data, self._state.driver.now())
            except PeerClosedError:
                self.is_peer_closed = True
        self.fail()
        return 0

    def wait(self, data: Buffer, taken: int) -> None:
        """Let these bytes wait, except for the first ones, which were taken. Pause the protocol if too many wait."""
        rest = data if isinstance(data, bytes) else bytes(data)
        self.waiting.append(memoryview(rest)[taken:])
        self.waiting_bytes += len(rest) - taken
        if self.turns is not None:
            self.turns.ask()
        self._pause_protocol()

    def fail(self) -> None:
        """Note that the peer will not read what is written, and drop what waits."""
        state = self._state
        if state.transport.write_error is None:
            state.transport.write_error = ResetError(
                f"{state.target}: the peer has closed and will not read further data", LostReason.PEER_CLOSED
            )
        if sends_file(state.protocol):
            # A file may be long, and only the end of the transport stops `loop.sendfile`.
            state.loop.call_soon(state.transport.abort)
        self.drop()

    def drop(self) -> None:
        """Drop what waits."""
        self.waiting.clear()
        self.waiting_bytes = 0
        self._resume_protocol()

    def move(self) -> None:
        """Write what waits, because the endpoint takes bytes again. With a rate limit, wait for turns."""
        if self.turns is None:
            self._turn(sys.maxsize)
        else:
            self.turns.ask()

    def _turn(self, size_max: int) -> int:
        """Write up to this much of what waits; return how much the endpoint took."""
        used = 0
        while self.waiting and used < size_max:
            data = self.waiting[0]
            offered = data if len(data) <= size_max - used else memoryview(data)[: size_max - used]
            taken = self.take(offered)
            if self.is_peer_closed:
                break
            used += taken
            self.waiting_bytes -= taken
            if taken < len(data):
                self.waiting[0] = memoryview(data)[taken:]
            else:
                self.waiting.popleft()
            if taken < len(offered):
                break
        self._resume_protocol()
        if not self.waiting and self._state.over is None:
            self.pass_end()
        if used and self.turns is not None:
            self._state.driver.wake()
        if self.after_turn is not None:
            self.after_turn()
        return used

    def pass_end(self) -> None:
        """Pass on a close or an end of file that was requested, because no byte waits any more."""
        state = self._state
        if state.is_closing:
            state.connection.close(state.driver.now())
        elif self.is_ended:
            state.connection.finish(state.driver.now())

    def on_peer_closed(self, junked_bytes: int) -> None:
        """Note that the peer reads nothing more; it has thrown this many received bytes away."""
        self.is_peer_closed = True
        if junked_bytes or self.waiting:
            self.fail()
        self._settle_flushes(self._state.transport.write_error)
        self.pass_end()

    def on_over(self, error: BaseException | None) -> None:
        """Drop what waits, and end all flushes, because the transport is over."""
        self.waiting.clear()
        self.waiting_bytes = 0
        self._settle_flushes(error)

    def on_flushed(self) -> None:
        """End all flushes if the peer's endpoint has acknowledged everything."""
        if not self.waiting and not self._state.connection.unacknowledged_bytes:
            self._settle_flushes(None)

    def _settle_flushes(self, error: BaseException | None) -> None:
        waiters, self.flushes = self.flushes, []
        for waiter in waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)

    def _pause_protocol(self) -> None:
        protocol = self._state.protocol
        if self.waiting_bytes > self.high_bytes and not self._is_protocol_paused and protocol is not None:
            self._is_protocol_paused = True
            note_paused(self._state.transport, is_paused=True)
            self._state.guard(protocol.pause_writing)

    def _resume_protocol(self) -> None:
        protocol = self._state.protocol
        if self._is_protocol_paused and self.waiting_bytes <= self.low_bytes and protocol is not None:
            self._is_protocol_paused = False
            note_paused(self._state.transport, is_paused=False)
            self._state.guard(protocol.resume_writing)
