"""Detects when the path is in trouble and when it has recovered. Each is reported once, for people (PROTOCOL 7.9).

Some paths refuse only requests that carry data: for their size, or for what they look like. Pulls pass, so that nothing
is lost, and without a report connections would be silent for ever.
"""

from tunnel.exchange.config import TROUBLE_US
from tunnel.exchange.events import Recovered, Troubled
from tunnel.exchange.flight import Flight

__all__ = ["Health"]

_FAILURES = 3  # trouble needs this number of failures since the last valid answer, and as many of one body


class Health:
    """Counts failures since the last valid answer on any lane, and refusals of pushes while other exchanges pass."""

    def __init__(self, trouble_us: int = TROUBLE_US) -> None:
        self._trouble_us = trouble_us
        self.failures = 0
        self.troubled = False
        self._since_us = 0  # time of the first failure
        self.last = ""  # the latest failure, in words
        self._refused = 0  # pushes' attempts that were refused since one of that size passed
        self._refused_since_us = 0
        self._refused_bytes = 0  # the smallest body of these
        self._tells_refused = False  # they were reported
        self._passed_us = -1  # when the newest exchange left that was answered

    def on_failed(self, flight: Flight, now: int) -> Troubled | None:
        """Record that an attempt of this flight failed or passed its deadline. Return `Troubled` if that is due."""
        if not self.failures:
            self._since_us = now
        self.failures += 1
        self.last = flight.last
        if self.troubled or min(self.failures, flight.failures) < _FAILURES or now - self._since_us < self._trouble_us:
            return None if self.troubled or flight.pull or not flight.refusals else self._push_refused(flight, now)
        self.troubled = True
        return Troubled(self.failures, flight.last)

    def _push_refused(self, flight: Flight, now: int) -> Troubled | None:
        if not self._refused:
            self._refused_since_us = now
            self._refused_bytes = flight.body_bytes
        self._refused += 1
        self._refused_bytes = min(self._refused_bytes, flight.body_bytes)
        lasted = now - self._refused_since_us >= self._trouble_us
        lasted = lasted and self._passed_us >= self._refused_since_us
        if self._tells_refused or min(self._refused, flight.refusals) < _FAILURES or not lasted:
            return None
        self._tells_refused = True
        text = f"requests that carry data are refused, here one of {flight.body_bytes} bytes, while others pass"
        return Troubled(self._refused, f"{text}: {flight.last}", is_partial=True)

    def on_answered(self, flight: Flight | None = None, sent_us: int = -1) -> Recovered | None:
        """Record a valid answer from the relay, perhaps to this flight by an attempt that was sent at `sent_us`. Return
        `Recovered` if the path was in trouble."""
        self._passed_us = max(self._passed_us, sent_us)
        self.failures = 0
        self.last = ""
        was_troubled, self.troubled = self.troubled, False
        if flight is not None and not flight.pull and flight.body_bytes >= self._refused_bytes:
            was_troubled = was_troubled or self._tells_refused
            self._refused, self._tells_refused = 0, False
        return Recovered() if was_troubled and not self._tells_refused else None
