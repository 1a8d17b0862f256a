"""Loss detection by time (RACK, RFC 8985), with receipts in place of transmissions."""

from tunnel.core.constants import NEVER_US
from tunnel.core.send.window import Segment

__all__ = ["LossDetector"]


class LossDetector:
    """Finds lost attempts among those that have a receipt, kept in the order of their receipts.

    An attempt is overtaken when one that was receipted later has been acknowledged. An overtaken attempt is lost when
    the latest RTT and the reordering window have passed since its own receipt (4.8). An attempt in an unfinished
    exchange has no receipt and is therefore never lost here.
    """

    __slots__ = ("_next_order", "_overtaken_order", "_receipted")

    def __init__(self) -> None:
        self._receipted: dict[int, Segment] = {}  # the order of insertion is the order of receipts
        self._next_order = 0
        self._overtaken_order = -1  # every attempt up to this order was overtaken

    def __len__(self) -> int:
        return len(self._receipted)

    def on_receipted(self, segment: Segment) -> None:
        """Add a segment whose latest attempt is queued at the relay."""
        self.forget(segment)
        segment.order = self._next_order
        self._receipted[self._next_order] = segment
        self._next_order += 1

    def forget(self, segment: Segment) -> None:
        """Remove a segment that is acknowledged, lost or carried again."""
        if segment.order >= 0:
            del self._receipted[segment.order]
            segment.order = -1

    def on_acknowledged(self, segment: Segment) -> None:
        """Remove an acknowledged segment. Attempts that were receipted before it now count as overtaken."""
        if segment.order > self._overtaken_order:
            self._overtaken_order = segment.order
        self.forget(segment)

    def newest(self) -> Segment | None:
        """Return the segment whose attempt was receipted last, or None."""
        return next(reversed(self._receipted.values()), None)

    def find_lost(self, now: int, patience_us: int) -> tuple[list[Segment], int]:
        """Return the overtaken segments receipted at least `patience_us` ago, and when the next one will be due."""
        lost: list[Segment] = []
        for order, segment in self._receipted.items():
            if order > self._overtaken_order:
                break
            due = segment.receipt_us + patience_us
            if due > now:
                return lost, due
            lost.append(segment)
        return lost, NEVER_US

    def clear(self) -> None:
        """Remove all segments, because their attempts are lost or no longer matter."""
        for segment in self._receipted.values():
            segment.order = -1
        self._receipted.clear()
