"""How many bytes of streamed answers may be unconfirmed, learned from their confirmations (PROTOCOL 7.20).

A window without an estimate of bandwidth: it doubles while it is the limit and confirmations come about as early as
the path allows, and it halves when they come much later, which shows a queue on the path.
"""

from tunnel.exchange.config import KIB, MIB, MILLISECOND_US, SECOND_US
from tunnel.exchange.path.roundtrip import RoundTrip

__all__ = ["OWED_US", "StreamPace", "beat_after_us"]

OWED_US = 300 * MILLISECOND_US  # 7.20: a confirmation may wait this long for a request that carries it
_BEATS_US = tuple(seconds * SECOND_US for seconds in (1, 2, 4, 8, 15))  # 7.20
_WINDOW_BYTES_START = 64 * KIB  # bytes at risk on a road that has carried nothing yet
_WINDOW_BYTES_MIN = 64 * KIB
_WINDOW_BYTES_MAX = 8 * MIB  # 50 MB/s with 160 ms from a packet to its confirmation
_GROW_EXTRA_US = 100 * MILLISECOND_US  # the same value as for bodies (pacing.py)
_SHRINK_EXTRA_US = 500 * MILLISECOND_US
# An envelope is at most an eighth of the window, so that confirmations come often, even on a slow path.
_ENVELOPE_PART = 8
_ENVELOPE_BYTES_MIN = 16 * KIB
_PATIENCE_US_MIN = SECOND_US  # 7.20


def beat_after_us(empty: int) -> int:
    """Return how long after its newest envelope the relay sends an empty one, if it has sent `empty` empty envelopes
    in succession."""
    return _BEATS_US[min(empty, len(_BEATS_US) - 1)]


class StreamPace:
    """The window of the streams of one attachment. It outlives each of them."""

    def __init__(self) -> None:
        self.window_bytes = _WINDOW_BYTES_START
        self._times = RoundTrip()  # times from an envelope to its confirmation
        self._was_full = False
        self._confirmed_us = 0  # when the newest confirmation came
        self._changed_us = -1  # envelopes that were sent before this say nothing about the present window

    @property
    def envelope_bytes(self) -> int:
        """The most bytes of packets that one envelope holds, unless a single packet is larger."""
        return max(_ENVELOPE_BYTES_MIN, self.window_bytes // _ENVELOPE_PART)

    @property
    def patience_us(self) -> int:
        """How long the relay waits for the next confirmation."""
        return max(_PATIENCE_US_MIN, 4 * self._times.least_us)

    @property
    def queued_us(self) -> int:
        """How long a confirmation may take because of a queue: twice the longest time that one took."""
        return self._times.queued_us

    def allows(self, unconfirmed_bytes: int) -> bool:
        """Return whether another envelope may leave. If not, note that the window was the limit."""
        if unconfirmed_bytes < self.window_bytes:
            return True
        self._was_full = True
        return False

    def on_confirmed(self, sent_us: int, now: int) -> None:
        """Learn from the confirmation of an envelope that was sent at `sent_us`."""
        took_us = max(1, now - sent_us)
        least_us = self._times.least_us
        gap_us = min(max(0, now - self._confirmed_us), OWED_US + least_us)
        self._confirmed_us = now
        self._times.sample(took_us, now)
        if sent_us < self._changed_us or not least_us:
            return
        extra_us = took_us - least_us - gap_us
        if extra_us > _GROW_EXTRA_US + _SHRINK_EXTRA_US:
            self._resize(self.window_bytes // 2, now)
        elif self._was_full and extra_us <= _GROW_EXTRA_US:
            self._resize(2 * self.window_bytes, now)

    def on_failed(self, now: int) -> None:
        """Halve the window, because no confirmation came in time."""
        self._resize(self.window_bytes // 2, now)

    def _resize(self, window_bytes: int, now: int) -> None:
        self.window_bytes = max(_WINDOW_BYTES_MIN, min(_WINDOW_BYTES_MAX, window_bytes))
        self._was_full = False
        self._changed_us = now
