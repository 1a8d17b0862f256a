"""Whether the path lets streamed answers pass, as a state machine (PROTOCOL 7.20).

unknown   No stream has been tried.
trying    A stream was asked for.
ready     Its first envelope came at once.
used      The relay has heard that it came: packets leave on the stream.
doubted   A stream that was in use has failed. The next one must prove itself while pulls carry the packets.
resting   Streams fail: none is tried for a while.
"""

import enum

from tunnel.exchange.config import KIB, SECOND_US

__all__ = ["StreamEvent", "StreamRoad", "StreamState"]

_MOVED_BYTES = 256 * KIB  # an attachment that has moved this much is worth a try at once
_REST_US_MIN = SECOND_US  # doubles each time, up to the maximum
_REST_US_MAX = 600 * SECOND_US
_RELIABLE_US = 60 * SECOND_US  # after this time in use, earlier failures are forgotten
_FAILURES_MAX = 3  # the road rests after this many failures in use, none of them forgotten


class StreamState(enum.Enum):
    """The states that the module describes."""

    UNKNOWN = enum.auto()
    TRYING = enum.auto()
    READY = enum.auto()
    USED = enum.auto()
    DOUBTED = enum.auto()
    RESTING = enum.auto()


class StreamEvent(enum.Enum):
    """An event on the road."""

    TRIED = enum.auto()
    PASSED = enum.auto()  # the first envelope of a stream came at once
    CONFIRMED = enum.auto()  # the relay has heard that the first envelope came
    FAILED = enum.auto()  # no envelope came, or a stream was cut
    RESTED = enum.auto()


_S, _E = StreamState, StreamEvent
# An event that is not listed changes nothing.
_TRANSITIONS: dict[tuple[StreamState, StreamEvent], StreamState] = {
    (_S.UNKNOWN, _E.TRIED): _S.TRYING,
    (_S.TRYING, _E.PASSED): _S.READY,
    (_S.TRYING, _E.FAILED): _S.RESTING,
    (_S.READY, _E.CONFIRMED): _S.USED,
    (_S.READY, _E.FAILED): _S.RESTING,
    (_S.USED, _E.FAILED): _S.DOUBTED,
    (_S.DOUBTED, _E.CONFIRMED): _S.USED,
    (_S.DOUBTED, _E.FAILED): _S.RESTING,
    (_S.RESTING, _E.RESTED): _S.UNKNOWN,
}


class StreamRoad:
    """The state of the road, and when a stream may be tried. It outlives the attachment's generations.

    `after_us` is the age at which an attachment that has moved little is worth a try.
    """

    def __init__(self, after_us: int) -> None:
        self.state = StreamState.UNKNOWN
        self._after_us = after_us
        self._attached_us = 0
        self._moved_bytes = 0
        self._not_before_us = 0
        self._rest_us = _REST_US_MIN
        self._used_us = 0  # when the road came into use
        self._failures = 0

    def on_attached(self, now: int, spread_us: int) -> None:
        """Record that a generation begins. A road that was in use is tried again after `spread_us`, which is random,
        since all endpoints of a relay that has returned attach at the same time."""
        if not self._attached_us:
            self._attached_us = now
        if self.state in (_S.USED, _S.DOUBTED):
            self._not_before_us = now + spread_us

    def on_moved(self, size_bytes: int) -> None:
        """Count the bytes of packets that the attachment has moved."""
        self._moved_bytes += size_bytes

    def due_us(self) -> int:
        """Return when the next stream may be tried."""
        if self.state is _S.UNKNOWN and self._moved_bytes < _MOVED_BYTES:
            return max(self._not_before_us, self._attached_us + self._after_us)
        return self._not_before_us

    def on_event(self, event: StreamEvent, now: int) -> None:
        """Move to the next state."""
        if event is _E.TRIED and self.state is _S.RESTING:
            self._move(_E.RESTED, now)
        self._move(event, now)

    def _move(self, event: StreamEvent, now: int) -> None:
        before = self.state
        self.state = _TRANSITIONS.get((before, event), before)
        if event is _E.FAILED and before is _S.USED:
            self._failures = 1 if now - self._used_us >= _RELIABLE_US else self._failures + 1
            if self._failures == 1:
                self._rest_us = _REST_US_MIN
            if self._failures >= _FAILURES_MAX:
                self.state = _S.RESTING
        if self.state is _S.USED and before is not _S.USED:
            self._used_us = now
        if self.state is _S.RESTING and before is not _S.RESTING:
            self._failures = 0
            self._not_before_us = now + self._rest_us
            self._rest_us = min(_REST_US_MAX, 2 * self._rest_us)
