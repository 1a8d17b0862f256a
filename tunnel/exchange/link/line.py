"""One of several links that share the load (PROTOCOL 8.7): how much may wait on it, and whether it stalls. Without I/O.

Both halves of a link use it: the endpoint for what it sends to the relay, the relay for what it sends to the endpoint.
"""

from tunnel.exchange.config import SECOND_US
from tunnel.exchange.path.pulls import NEVER_US
from tunnel.exchange.path.window import PATIENCE_US_MAX, SHARED_BYTES_START, PathWindow

__all__ = ["Line"]

_DEAD_US = 10 * SECOND_US  # 8.7
_STEP_SHIFT = 14  # lines whose waiting bytes differ by less than 16 KiB count as equal


class Line:
    """Decides about one link. The caller reports each batch that leaves, and each receipt, in order.

    A line *stalls* when a batch waits and no receipt has come for the line's patience. The caller then takes its
    batches back, and sends nothing on it until a receipt comes. If one comes after all, the line was only slow: its
    patience doubles.
    """

    __slots__ = ("_patience_us", "_stalled_us", "_waits_since_us", "_window")

    def __init__(self) -> None:
        self._window = PathWindow(SHARED_BYTES_START)
        self._patience_us = SECOND_US
        self._waits_since_us = NEVER_US  # since when the next receipt is awaited
        self._stalled_us = NEVER_US  # since when the line stalls

    @property
    def is_stalled(self) -> bool:
        """Whether no batch may leave on this line, because it stalls."""
        return self._stalled_us != NEVER_US

    @property
    def stalls_us(self) -> int:
        """When the line stalls if no receipt comes until then."""
        if self._waits_since_us == NEVER_US:
            return NEVER_US
        return self._waits_since_us + max(self._patience_us, min(self._window.patience_us, PATIENCE_US_MAX))

    @property
    def dead_us(self) -> int:
        """When to close the line if no receipt comes until then."""
        return self._stalled_us + _DEAD_US if self.is_stalled else NEVER_US

    def room(self, waiting_bytes: int) -> int:
        """Return how many bytes the next batch may have, while so many have no receipt; 0: no batch may leave.

        Those that were taken back count as well: they may still fill the path.
        """
        if self.is_stalled or not self._window.allows(waiting_bytes):
            return 0
        return self._window.part_bytes

    def on_sent(self, now: int) -> None:
        """A batch leaves."""
        if self._waits_since_us == NEVER_US:
            self._waits_since_us = now

    def on_receipted(self, size: int, first_us: int, sent_us: int, now: int, *, waits: bool, left_bytes: int) -> None:
        """A receipt came for `size` bytes; the oldest of them were sent at `first_us`, the newest at `sent_us`.

        `waits`: a batch that was not taken back has no receipt. `left_bytes`: of all batches without a receipt.
        """
        self._window.on_receipted(size, first_us, sent_us, now, waits=left_bytes > 0)
        self._waits_since_us = now if waits else NEVER_US
        if self.is_stalled:  # the batch was taken back, and yet it came: the line is slow, and not dead
            self._stalled_us = NEVER_US
            self._patience_us = min(2 * self._patience_us, PATIENCE_US_MAX)

    def stall(self, now: int) -> None:
        """The caller takes all batches without a receipt back."""
        self._waits_since_us = NEVER_US
        self._stalled_us = now

    @staticmethod
    def load(waiting_bytes: int) -> int:
        """Return the measure by which lines are compared: the next batch leaves on the line with the least.

        It is coarse, so that small batches keep to one line.
        """
        return waiting_bytes >> _STEP_SHIFT
