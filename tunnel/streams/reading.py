"""The reading half of a transport: what has arrived goes to the protocol, unless it has paused reading."""

import asyncio
import sys
from collections.abc import Callable
from typing import cast

from tunnel.streams.asyncio_compat import fill
from tunnel.streams.rate_limit import RateTurns, Take
from tunnel.streams.transport_state import TransportState
from tunnel.wire import Buffer

__all__ = ["ReadingHalf"]

_READ_BYTES = 256 * 1024  # the most that one data_received gets: the largest payload that we send (4.13)


class ReadingHalf:
    """Delivers data and the peer's end of file, each once and in this order. With a rate limit, data waits for turns.

    While nothing is delivered, data stays in the endpoint's buffer, and the peer waits when that is full.
    """

    def __init__(self, state: TransportState) -> None:
        self.is_wanted = True  # the protocol has not paused reading
        self.is_finished = False  # the peer has; also set while there is no protocol to tell, or it has paused reading
        self.after_turn: Callable[[], None] | None = None
        self._state = state
        self._is_end_shown = False
        self._turns: RateTurns | None = None

    def limit_rate(self, make_turns: Callable[[Take], RateTurns] | None) -> None:
        """Let data wait for these turns from now on; None: for none."""
        if self._turns is not None:
            self._turns.end()
        self._turns = None if make_turns is None else make_turns(self._turn)

    def is_reading(self) -> bool:
        return self.is_wanted and not self._state.is_closing and self._state.over is None

    def go_on(self) -> None:
        """Deliver what waited for turns at an earlier limit, if there is a protocol."""
        if self._state.protocol is not None:
            self.read()

    def read(self) -> None:
        """Deliver what has arrived. With a rate limit, wait for turns."""
        if self._turns is None:
            self._turn(sys.maxsize)
        else:
            self._turns.ask()

    def _turn(self, size_max: int) -> int:
        """Deliver up to this much of what has arrived; return how much there was."""
        state = self._state
        now = state.driver.now()
        left = size_max
        while left and self.is_reading() and state.protocol is not None:
            data = state.connection.read(min(_READ_BYTES, left), now)
            if not len(data):
                break
            left -= len(data)
            self._deliver(data)
        if self.is_finished:
            self.end()
        state.driver.wake()
        if self.after_turn is not None:
            self.after_turn()
        return size_max - left

    def _deliver(self, data: Buffer) -> None:
        protocol = self._state.protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            self._state.guard(fill, protocol, memoryview(data))
        else:
            # asyncio promises bytes; its own stream reader copies them anyway
            plain = data if isinstance(protocol, asyncio.StreamReaderProtocol) else bytes(data)
            self._state.guard(cast(asyncio.Protocol, protocol).data_received, plain)

    def end(self) -> None:
        """Report the peer's end of file to the protocol, once; if the protocol has paused reading, when it resumes."""
        self.is_finished = True
        state = self._state
        if state.is_closing or state.protocol is None or self._is_end_shown or not self.is_wanted:
            return
        self._is_end_shown = True
        if not state.guard(cast(asyncio.Protocol, state.protocol).eof_received):
            state.transport.close()
