"""When a path is in trouble: told to a person once, and once when it is over (7.9)."""

from tunnel.exchange.config import MILLISECOND_US
from tunnel.exchange.events import Recovered, Troubled
from tunnel.exchange.flight import Flight

__all__ = ["Health"]

_FAILURES = 3  # of one body, with nothing valid on any lane in between
_TROUBLE_US = 750 * MILLISECOND_US  # since the first of them: what is over sooner is worth no word


class Health:
    """Counts failures since the last valid answer on any lane."""

    def __init__(self) -> None:
        self.failures = 0
        self.troubled = False
        self._since_us = 0  # the first of the failures
        self.last = ""  # how the latest attempt failed since then

    def failed(self, flight: Flight, now: int) -> Troubled | None:
        """An attempt of this flight failed, or was silent for too long."""
        if not self.failures:
            self._since_us = now
        self.failures += 1
        self.last = flight.last
        if self.troubled or min(self.failures, flight.failures) < _FAILURES or now - self._since_us < _TROUBLE_US:
            return None
        self.troubled = True
        return Troubled(self.failures, flight.last)

    def answered(self) -> Recovered | None:
        """The relay was heard."""
        self.failures = 0
        self.last = ""
        recovered = Recovered() if self.troubled else None
        self.troubled = False
        return recovered
