"""Detects when the path is in trouble and when it has recovered. Each is reported once, for people (PROTOCOL 7.9)."""

from tunnel.exchange.config import MILLISECOND_US
from tunnel.exchange.events import Recovered, Troubled
from tunnel.exchange.flight import Flight

__all__ = ["Health"]

_FAILURES = 3  # trouble needs this number of failures since the last valid answer, and as many of one body
_TROUBLE_US = 750 * MILLISECOND_US  # time since the first failure; shorter trouble is not worth a report


class Health:
    """Counts failures since the last valid answer on any lane."""

    def __init__(self) -> None:
        self.failures = 0
        self.troubled = False
        self._since_us = 0  # time of the first failure
        self.last = ""  # the latest failure, in words

    def failed(self, flight: Flight, now: int) -> Troubled | None:
        """Record that an attempt of this flight failed or passed its deadline. Return `Troubled` if that is due."""
        if not self.failures:
            self._since_us = now
        self.failures += 1
        self.last = flight.last
        if self.troubled or min(self.failures, flight.failures) < _FAILURES or now - self._since_us < _TROUBLE_US:
            return None
        self.troubled = True
        return Troubled(self.failures, flight.last)

    def answered(self) -> Recovered | None:
        """Record a valid answer from the relay. Return `Recovered` if the path was in trouble."""
        self.failures = 0
        self.last = ""
        recovered = Recovered() if self.troubled else None
        self.troubled = False
        return recovered
