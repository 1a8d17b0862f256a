"""A limit of bytes per second for the connections of one process: in each direction, they take turns at one pace.

    limit = RateLimit(parse_rate("20 MiB/s"))
    transport.limit_rate(limit)                 # this connection shares the rate with others of the same limit

Bytes that wait for their turn stay where they are: written ones in the transport, arriving ones in the receive buffer.
So back-pressure reaches the writer on either side, and nothing is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tunnel.ground.rates import Flow, Pace, parse_rate
from tunnel.system.clock import LoopTimer, now_us

__all__ = ["RateLimit", "RateTurns", "Take"]

_TURN_BYTES_MIN = 1024  # at the lowest rate, 16 KiB/s, this takes 62.5 ms; smaller packets would be mostly header

Take: TypeAlias = Callable[[int], int]
"""Moves up to this number of bytes now; returns how many it moved, which is 0 when none wait."""


class RateLimit:
    """A rate for each direction. `within` is a wider limit that applies, too, such as that of the whole process."""

    def __init__(self, rate: int, within: RateLimit | None = None) -> None:
        self.rate = rate  # bytes per second
        self.up: _Line = _Line(rate, None if within is None else within.up)
        self.down: _Line = _Line(rate, None if within is None else within.down)

    @classmethod
    def parse(cls, text: str, within: RateLimit | None = None) -> RateLimit | None:
        """Return the limit for a rate such as 20 MiB/s, inside the wider limit `within`.

        Return `within` itself if the text is empty. Raise ValueError if the text is no rate.
        """
        return cls(parse_rate(text), within) if text else within


class RateTurns:
    """The turns of one direction of a connection at one limit. `take` is called at each turn."""

    def __init__(self, line: _Line, take: Take) -> None:
        self._line = line
        self._take: Take | None = take
        self._flow = Flow(self)

    def ask(self) -> None:
        """Ask for turns, which go on until `take` moves nothing. The first one may come within this call."""
        if self._take is not None:
            self._line.join(self._flow)

    def take(self, size_max: int) -> int:
        """Use a turn. Return the number of bytes that were moved."""
        return 0 if self._take is None else self._take(size_max)

    def end(self) -> None:
        """Take no more turns."""
        self._take = None


class _Line:
    """The streams that share one rate in one direction. Within a wider limit the line itself is one stream there."""

    def __init__(self, rate: int, within: _Line | None) -> None:
        self._pace: Pace[RateTurns] = Pace(rate)
        self._turn_bytes = max(self._pace.turn_bytes, _TURN_BYTES_MIN)
        self._timer = LoopTimer(self._run)
        self._outer = None if within is None else RateTurns(within, self._take)
        self._running = False
        self._at_turn: Flow[RateTurns] | None = None
        self._joins_again = False

    def join(self, flow: Flow[RateTurns]) -> None:
        """Put a stream into the line, and let it pass at once if it need not wait."""
        if flow is self._at_turn:
            self._joins_again = True  # after it has paid, so that it takes its place after the others
            return
        self._pace.join(flow, now_us())
        self._run()

    def _run(self) -> None:
        """Let the streams pass whose turn it is, and set the timer for the next one."""
        if self._running:
            return
        self._running = True
        try:
            while self._is_due():
                if self._outer is not None:
                    self._outer.ask()
                    break
                self._pass(self._turn_bytes)
        finally:
            self._running = False

    def _is_due(self) -> bool:
        """Whether it is a stream's turn. Otherwise set the timer."""
        due_us = self._pace.next_timeout()
        if due_us is None:
            return False
        now = now_us()
        if due_us > now:
            self._timer.due_by(due_us, now)
            return False
        return True

    def _take(self, size_max: int) -> int:
        """Use a turn at the wider limit for the first stream here that has something to move."""
        while self._is_due():
            used = self._pass(min(size_max, self._turn_bytes))
            if used:
                return used
        return 0

    def _pass(self, size_max: int) -> int:
        """Let one stream, whose turn it is, move up to this number of bytes."""
        flow = self._pace.poll(now_us())
        if flow is None:
            return 0
        self._at_turn, self._joins_again = flow, False
        used = 0
        try:
            used = flow.owner.take(size_max)
        finally:
            self._at_turn = None
            now = now_us()
            self._pace.pay(flow, used, now)
            if used or self._joins_again:
                self._pace.join(flow, now)
        return used
