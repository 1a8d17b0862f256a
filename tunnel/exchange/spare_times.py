"""When the next spare link is tried. The wait doubles with each failure, up to a minute."""

from random import Random

from tunnel.exchange.config import MILLISECOND_US, SECOND_US

__all__ = ["SpareTimes"]

_WAIT_US_MIN = 100 * MILLISECOND_US  # doubles up to the maximum
_WAIT_US_MAX = 60 * SECOND_US


class SpareTimes:
    """The time of the next try, and the wait after it if it fails. Up to a quarter of a wait is left out at random."""

    def __init__(self, random: Random) -> None:
        self.due_us = 0
        self._random = random
        self._wait_us = _WAIT_US_MIN

    def opened(self) -> None:
        """A link was opened: the next wait is short again."""
        self._wait_us = _WAIT_US_MIN

    def failed(self, now: int) -> None:
        """A spare link could not be opened, was lost, or is used now: wait before the next try."""
        wait_us = self._wait_us
        self._wait_us = min(2 * wait_us, _WAIT_US_MAX)
        self.due_us = now + wait_us - self._random.getrandbits(16) * wait_us // (4 << 16)
