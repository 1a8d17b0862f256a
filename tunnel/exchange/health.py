"""When a path is in trouble: told to a person once, and once when it is over (7.9)."""

from tunnel.exchange.events import Recovered, Troubled
from tunnel.exchange.flight import Flight

__all__ = ["Health"]

_FAILURES = 3  # of one body, with nothing valid on any lane in between


class Health:
    """Counts failures since the last valid answer on any lane."""

    def __init__(self) -> None:
        self.failures = 0
        self.troubled = False
        self.last = ""  # how the latest attempt failed since then

    def failed(self, flight: Flight) -> Troubled | None:
        """An attempt of this flight failed, or was silent for too long."""
        self.failures += 1
        self.last = flight.last
        if self.troubled or min(self.failures, flight.failures) < _FAILURES:
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
