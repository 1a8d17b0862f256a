"""The timers of a connection. A timer whose deadline has passed is due; a timer that is not set is never due."""

import enum

from tunnel.core.constants import NEVER_US

__all__ = ["Timer", "TimerTable"]


class Timer(enum.IntEnum):
    """Every timer of a connection."""

    ACK_DELAY = 0
    """Send the delayed ACK (4.3)."""
    REORDER = 1
    """Declare overtaken packets lost (4.8)."""
    TAIL_PROBE = 2
    """Resend the newest packet after silence (4.7)."""
    RETRANSMIT = 3
    """The retransmission timeout, RTO (4.6)."""
    WINDOW_PROBE = 4
    """Probe the peer's closed window (4.12)."""
    OPEN = 5
    """Repeat CONNECT (3.1, 6.5)."""
    KEEPALIVE = 6
    """Send a PING after silence (4.16)."""
    USER_TIMEOUT = 7
    """Check whether the user timeout has passed (4.15)."""
    DRAIN = 8
    """End the drain: late repeats no longer come (5.7)."""
    FAREWELL = 9
    """Repeat SHUTDOWN (5.7)."""


class TimerTable:
    """One deadline per timer.

    `earliest` is a lower bound of all deadlines, which is cheap to maintain: clearing a timer or moving it to a later
    time does not change `earliest`. A caller that wakes up too early calls `next`, which makes `earliest` exact again.
    """

    __slots__ = ("deadlines", "earliest")

    def __init__(self) -> None:
        self.deadlines = [NEVER_US] * len(Timer)
        self.earliest = NEVER_US

    def get(self, timer: Timer) -> int:
        """Return the deadline of a timer; NEVER_US if it is not set."""
        return self.deadlines[timer]

    def set(self, timer: Timer, deadline_us: int) -> None:
        """Set or replace the deadline of a timer."""
        self.deadlines[timer] = deadline_us
        if deadline_us < self.earliest:
            self.earliest = deadline_us

    def clear(self, timer: Timer) -> None:
        """Clear a timer, so that it never becomes due."""
        self.deadlines[timer] = NEVER_US

    def clear_in_flight(self) -> None:
        """Clear the timers that run only while packets are in flight."""
        deadlines = self.deadlines
        deadlines[Timer.REORDER] = deadlines[Timer.TAIL_PROBE] = deadlines[Timer.RETRANSMIT] = NEVER_US

    def clear_all(self) -> None:
        """Clear all timers, at the end of a connection."""
        self.deadlines = [NEVER_US] * len(Timer)
        self.earliest = NEVER_US

    def next(self) -> int:
        """Return the earliest deadline exactly, and store it in `earliest`; NEVER_US if no timer is set."""
        self.earliest = min(self.deadlines)
        return self.earliest

    def due(self, timer: Timer, now: int) -> bool:
        """Return whether this timer has expired. An expired timer is cleared, so that it fires once."""
        if self.deadlines[timer] > now:
            return False
        self.deadlines[timer] = NEVER_US
        return True
