"""The round-trip time of exchanges, and the deadlines that follow from it (PROTOCOL 7.7, 7.8)."""

from tunnel.exchange.config import MILLISECOND_US, SECOND_US

__all__ = ["RoundTrip"]

_DEADLINE_US_MIN = 500 * MILLISECOND_US  # 7.8
_DEADLINE_US_MAX = 30 * SECOND_US  # 7.8
_DEADLINE_US_FIRST = SECOND_US  # before the first sample (RFC 6298 2.1): the first exchange also opens connections
_GRACE_US = 50 * MILLISECOND_US  # 7.7
_REPEAT_US = SECOND_US  # 7.8: the longest time between repeats is at least this
_LEAST_WINDOW_US = 60 * SECOND_US  # the minimum follows a changed path after one to two of these windows
_LONGEST_US = 60 * SECOND_US  # an answer that came so long ago says nothing about a queue


class RoundTrip:
    """The times from request to answer of exchanges that the relay answers at once."""

    def __init__(self) -> None:
        self.srtt_us = 0  # 0: no sample yet
        self._var_us = 0  # the mean deviation of the samples from `srtt_us`
        self.least_us = 0
        """The round trip without queues: the shortest exchange of the last minute or two."""
        self.queued_us = 0
        """How long a request that gets no answer may still wait in a queue (7.8): twice the longest answered wait."""
        self._least_us = 0  # minimum of the window that began at _window_us
        self._least_before_us = 0  # minimum of the previous window
        self._window_us = 0
        self._longest_us = 0  # the longest wait that was answered; each shorter one takes an eighth from it
        self._longest_at_us = 0  # when the newest answer came that did not shorten it

    def sample(self, took_us: int, now: int) -> None:
        """Add the duration of an exchange."""
        took_us = max(1, took_us)
        # RFC 6298 (2.3): alpha = 1/8, beta = 1/4. The deviation begins at 0: one sample says nothing about it.
        if self.srtt_us:
            self._var_us += (abs(took_us - self.srtt_us) - self._var_us) // 4
        self.srtt_us = self.srtt_us + (took_us - self.srtt_us) // 8 if self.srtt_us else took_us
        if not self._least_us or now - self._window_us >= _LEAST_WINDOW_US:
            self._least_before_us = self._least_us or took_us
            self._least_us = took_us
            self._window_us = now
        if took_us < self._least_us:
            self._least_us = took_us
        self.least_us = min(self._least_us, self._least_before_us)
        self.note_wait(took_us, now)

    def note_wait(self, took_us: int, now: int) -> None:
        """Record how long an answered request was under way, except for the time for which the relay held it."""
        shorter_us = self._longest_us - self._longest_us // 8 if now - self._longest_at_us < _LONGEST_US else 0
        if took_us >= shorter_us:
            self._longest_at_us = now
        self._longest_us = max(took_us, shorter_us)
        self.queued_us = min(_DEADLINE_US_MAX, 2 * self._longest_us)

    def queue_us(self, now: int) -> int:
        """How long a request that leaves now may wait in a queue: `queued_us`, unless that is out of date."""
        return self.queued_us if now - self._longest_at_us < _LONGEST_US else 0

    @property
    def deadline_us(self) -> int:
        """The first wait (7.8) of an exchange that is answered at once: its first repeat leaves after this time."""
        if not self.srtt_us:
            return _DEADLINE_US_FIRST
        return min(_DEADLINE_US_MAX, max(_DEADLINE_US_MIN, 4 * self.srtt_us))

    @property
    def grace_us(self) -> int:
        """The time for which an answer that the relay has sent may still be in transit (7.7).

        Where answers take times of their own, one may come a few deviations after another that left later.
        """
        return _GRACE_US + max(self.srtt_us // 4, 4 * self._var_us)

    def repeat_us(self, attempts: int) -> int:
        """Return the longest time between two repeats (7.8), if `attempts` may be open at once.

        Each attempt must stay open until its answer can come. That may take several round trips, since a repeat opens
        a new connection through proxies and TLS. The maximum keeps a single answer that took minutes from delaying
        every later repair by minutes.
        """
        return min(_DEADLINE_US_MAX, max(_REPEAT_US, 4 * self.srtt_us // max(1, attempts - 1)))
