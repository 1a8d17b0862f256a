"""The way of one streamed answer from the relay to an endpoint: pieces are held, joined, cut, changed or lost.

Here, a *piece* is a part of the HTTP body, not a part of a packet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tests.sim.clock import Clock
from tests.sim.faults import STREAM_KINDS, FaultKind
from tests.sim.randomness import between, chance, log_between

__all__ = ["AnswerFlow", "FlowShape", "FlowSink"]

K = FaultKind
CUT_BYTES_MAX = 200_000  # a fault strikes after at most this many bytes of a streamed answer


@dataclass(frozen=True, slots=True)
class FlowShape:
    """The treatment that a path gives to every streamed answer, without being faulty."""

    buffers: bool = False  # holds each answer back until it ends
    joins_us: int = 0  # a piece waits for this time, and arrives together with those that came meanwhile


@dataclass(slots=True)
class FlowSink:
    """The endpoint's side."""

    piece: Callable[[bytes], None]
    end: Callable[[], None]
    fail: Callable[[], None]


class AnswerFlow:
    """Pieces arrive in order, split anywhere. At most one fault strikes.

    STREAM_HELD keeps the whole answer back until its end. Every other fault strikes after a number of bytes, if the
    answer is that long.
    """

    def __init__(
        self,
        clock: Clock,
        random: Random,
        shape: FlowShape,
        faults: list[FaultKind],
        note: Callable[[FaultKind, bytes], None],
        sink: FlowSink,
    ) -> None:
        self._clock, self._random, self._shape, self._note, self._sink = clock, random, shape, note, sink
        kinds = [kind for kind in faults if kind in STREAM_KINDS]
        self._fault = kinds[0] if kinds else None
        self._strikes_at = log_between(random, 1, CUT_BYTES_MAX)
        self._passed = 0
        self._kept = b""  # held back until the answer ends
        self._joined = b""  # pieces that arrive together
        self._joined_until_us = 0  # the time at which they arrive
        self._latest_us = 0  # the latest arrival so far: no piece arrives before an earlier one
        self._is_over = False

    def send(self, piece: bytes, arrive_us: int, *, is_last: bool) -> None:
        """Send a piece. Without faults, it arrives at `arrive_us` or later; the answer ends after the last one."""
        if self._is_over:
            return
        if self._shape.buffers or self._fault is K.STREAM_HELD:
            self._kept += piece
            if not is_last:
                return
            if self._fault is K.STREAM_HELD:
                self._note(K.STREAM_HELD, self._kept)
            piece, self._kept = self._kept, b""
        if self._shape.joins_us:
            piece = self._join(piece, arrive_us, is_last=is_last)
            if self._is_over:  # a fault has struck earlier pieces
                return
        self._pass_on(piece, arrive_us)
        if is_last and not self._is_over:
            self._is_over = True
            self._at(arrive_us, self._sink.end)

    def _join(self, piece: bytes, arrive_us: int, *, is_last: bool) -> bytes:
        """Let the piece wait, so that it arrives together with those that come soon after it, and return no bytes.

        The last piece of the answer does not wait: return it at once, after the pieces that still wait.
        """
        if arrive_us > self._joined_until_us:
            self._release_joined()
        if is_last:
            piece, self._joined = self._joined + piece, b""
            return piece
        if piece and not self._joined:
            self._joined_until_us = until_us = arrive_us + self._shape.joins_us
            self._clock.at(until_us, lambda: self._release_joined() if self._joined_until_us == until_us else None)
        self._joined += piece
        return b""

    def _release_joined(self) -> None:
        """Let the joined pieces arrive."""
        joined, self._joined = self._joined, b""
        if joined and not self._is_over:
            self._pass_on(joined, self._joined_until_us)

    def _pass_on(self, piece: bytes, arrive_us: int) -> None:
        before = self._passed
        self._passed += len(piece)
        if self._fault is not None and self._fault is not K.STREAM_HELD and self._passed >= self._strikes_at:
            piece = self._strike(self._fault, piece, max(0, self._strikes_at - before), arrive_us)
        while piece:
            size = between(self._random, 1, len(piece)) if chance(self._random, 0.3) else len(piece)
            part, piece = piece[:size], piece[size:]
            self._at(arrive_us, lambda part=part: self._sink.piece(part))  # type: ignore[misc]

    def _strike(self, fault: FaultKind, piece: bytes, at: int, arrive_us: int) -> bytes:
        self._fault = None
        self._note(fault, piece)
        random = self._random
        if fault is K.STREAM_FLIPPED:
            changed = bytearray(piece)
            if changed:
                changed[min(at, len(changed) - 1)] ^= 1 << between(random, 0, 7)
            return bytes(changed)
        if fault is K.STREAM_LIED:
            return self._lie(piece, at)
        self._is_over = True
        if fault is K.STREAM_CUT:
            self._pass_on(piece[:at], arrive_us)
            self._at(arrive_us, self._sink.end if chance(random, 0.5) else self._sink.fail)
        return piece[:at] if fault is K.STREAM_STALLED else b""

    def _lie(self, piece: bytes, at: int) -> bytes:
        """Leave bytes out, send some twice, or put others in between."""
        kind = between(self._random, 0, 2)
        if kind == 0:
            return piece[:at] + piece[at + between(self._random, 1, 5000) :]
        if kind == 1:
            return piece + piece
        return piece[:at] + self._random.randbytes(between(self._random, 1, 200)) + piece[at:]

    def _at(self, time_us: int, act: Callable[[], None]) -> None:
        self._latest_us = max(self._latest_us, time_us)
        self._clock.at(self._latest_us, act)
