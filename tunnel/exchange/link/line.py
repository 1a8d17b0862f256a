"""One of several links that share the load (PROTOCOL 8.7): how much may wait on it, and whether it stalls. Without I/O.

Both halves of a link use it: the endpoint for what it sends to the relay, the relay for what it sends to the endpoint.
"""

from tunnel.exchange.config import SECOND_US
from tunnel.exchange.path.pulls import NEVER_US
from tunnel.exchange.path.stream_pace import StreamPace

__all__ = ["LINK_PATIENCE_US_MAX", "Line"]

LINK_PATIENCE_US_MAX = 8 * SECOND_US  # 8.7: the longest wait for a receipt before other ways carry
_DEAD_US = 10 * SECOND_US  # 8.7
_STEP_SHIFT = 14  # lines whose waiting bytes differ by less than 16 KiB count as equal


class Line:
    """Decides about one link. The caller reports each batch that leaves, and each receipt, in order.

    A line *stalls* when a batch waits and no receipt has come for the line's patience. The caller then takes its
    batches back, and sends nothing on it until a receipt comes. If one comes after all, the line was only slow: its
    patience doubles.
    """

    __slots__ = ("_pace", "_patience_us", "_stalled_us", "_waits_since_us")

    def __init__(self) -> None:
        self._pace = StreamPace()
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
        usual_us = max(self._pace.patience_us, self._pace.queued_us)
        return self._waits_since_us + max(self._patience_us, min(usual_us, LINK_PATIENCE_US_MAX))

    @property
    def dead_us(self) -> int:
        """When to close the line if no receipt comes until then."""
        return self._stalled_us + _DEAD_US if self.is_stalled else NEVER_US

    def room(self, waiting_bytes: int) -> int:
        """Return how many bytes the next batch may have, while so many have no receipt; 0: no batch may leave.

        Those that were taken back count as well: they may still fill the path.
        """
        if self.is_stalled or not self._pace.allows(waiting_bytes):
            return 0
        return self._pace.envelope_bytes

    def on_sent(self, now: int) -> None:
        """A batch leaves."""
        if self._waits_since_us == NEVER_US:
            self._waits_since_us = now

    def on_receipted(self, sent_us: int, now: int, *, waits: bool) -> None:
        """A receipt came for a batch that was sent at `sent_us`. `waits`: another batch has none."""
        self._pace.on_confirmed(sent_us, now)
        self._waits_since_us = now if waits else NEVER_US
        self._stalled_us = NEVER_US

    def on_late(self, sent_us: int, now: int, *, waits: bool) -> None:
        """A receipt came for a batch that was taken back. If it ends a stall, the line is slow, and not dead.
        `waits`: a batch that was not taken back has no receipt."""
        self._pace.on_confirmed(sent_us, now)
        self._waits_since_us = now if waits else NEVER_US
        if self.is_stalled:
            self._stalled_us = NEVER_US
            self._patience_us = min(2 * self._patience_us, LINK_PATIENCE_US_MAX)

    def stall(self, now: int) -> None:
        """The caller takes all batches without a receipt back."""
        self._waits_since_us = NEVER_US
        self._stalled_us = now
        self._pace.on_failed(now)

    @staticmethod
    def load(waiting_bytes: int) -> int:
        """Return the measure by which lines are compared: the next batch leaves on the line with the least.

        It is coarse, so that small batches keep to one line.
        """
        return waiting_bytes >> _STEP_SHIFT
