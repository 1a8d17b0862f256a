"""When the next spare link is tried: after a wait that doubles with each failure, and not while requests pause."""

from random import Random

from tunnel.exchange.backoff import Backoff
from tunnel.exchange.config import MILLISECOND_US, SECOND_US

__all__ = ["SpareTimes"]

_WAIT_US_MIN = 100 * MILLISECOND_US  # doubles up to the maximum
_WAIT_US_MAX = 60 * SECOND_US


class SpareTimes:
    """The time of the next try, and the wait after it if it fails. Up to a quarter of a wait is left out at random.

    `backoff` is that of all requests to the relay: a try waits for its pauses, and counts as a request there.
    """

    def __init__(self, random: Random, backoff: Backoff) -> None:
        self._random = random
        self._backoff = backoff
        self._due_us = 0
        self._wait_us = _WAIT_US_MIN

    @property
    def due_us(self) -> int:
        """When the next try may begin."""
        return max(self._due_us, self._backoff.next_us)

    def on_attached(self) -> None:
        """The endpoint has attached: links are opened at once."""
        self._due_us = 0

    def on_tried(self, now: int) -> None:
        """A try begins."""
        self._backoff.on_sent(now)

    def on_opened(self) -> None:
        """A link was opened: the next wait is short again."""
        self._wait_us = _WAIT_US_MIN

    def on_failed(self, now: int) -> None:
        """A spare link could not be opened, was lost, or is used now: wait before the next try."""
        wait_us = self._wait_us
        self._wait_us = min(2 * wait_us, _WAIT_US_MAX)
        self._due_us = now + wait_us - self._random.getrandbits(16) * wait_us // (4 << 16)
