"""Timers as an enum and a table. A deadline in the past is due; what is not set is never due."""

import enum

from tunnel.core.constants import NEVER_US

__all__ = ["Timer", "TimerTable"]


class Timer(enum.IntEnum):
    """Every timer of a connection; the order is the order in which those due at once are handled."""

    ACK_DELAY = 0
    """An acknowledgement has waited long enough (4.3)."""
    REORDER = 1
    """What was overtaken counts as lost (4.8)."""
    TAIL_PROBE = 2
    """Silence after the last packet (4.7)."""
    RETRANSMIT = 3
    """RTO (4.6)."""
    WINDOW_PROBE = 4
    """The peer's window is shut (4.12)."""
    OPEN = 5
    """CONNECT is to be repeated (3.1, 6.5)."""
    KEEPALIVE = 6
    """Nothing was heard for long (4.16)."""
    USER_TIMEOUT = 7
    """Nothing is to be hoped for any more (4.15)."""
    DRAIN = 8
    """Late repeats have died out (5.7)."""
    FAREWELL = 9
    """SHUTDOWN was not answered (5.7)."""


class TimerTable:
    """One deadline per timer. `earliest` is a lower bound of them that costs nothing to keep: a timer that is cleared
    or moved later leaves it behind, and who wakes up too early calls `next`, which makes it exact again."""

    __slots__ = ("_deadlines", "earliest")

    def __init__(self) -> None:
        self._deadlines = [NEVER_US] * len(Timer)
        self.earliest = NEVER_US

    def get(self, timer: Timer) -> int:
        """The deadline, NEVER_US when not set."""
        return self._deadlines[timer]

    def set(self, timer: Timer, deadline_us: int) -> None:
        """Replace the deadline."""
        self._deadlines[timer] = deadline_us
        if deadline_us < self.earliest:
            self.earliest = deadline_us

    def clear(self, timer: Timer) -> None:
        """The timer is not due any more."""
        self._deadlines[timer] = NEVER_US

    def clear_all(self) -> None:
        """As at the end of a connection."""
        self._deadlines = [NEVER_US] * len(Timer)
        self.earliest = NEVER_US

    def next(self) -> int:
        """The earliest deadline, NEVER_US when none is set."""
        self.earliest = min(self._deadlines)
        return self.earliest

    def due(self, timer: Timer, now: int) -> bool:
        """Whether this timer has expired; it is cleared when it has, so that it fires once."""
        if self._deadlines[timer] > now:
            return False
        self._deadlines[timer] = NEVER_US
        return True
