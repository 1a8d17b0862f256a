"""Which receipted attempts are lost, by time (RACK, RFC 8985, with receipts in the place of transmissions)."""

from tunnel.core.constants import NEVER_US
from tunnel.core.send.window import Segment

__all__ = ["LossDetector"]


class LossDetector:
    """Keeps attempts in the order of their receipts. What was receipted before something that is acknowledged by now
    was overtaken; when that has lasted longer than RTT plus the reordering window, it is lost (4.8).
    An attempt in an unfinished exchange is not here, hence never lost."""

    __slots__ = ("_next_order", "_overtaken_order", "_receipted")

    def __init__(self) -> None:
        self._receipted: dict[int, Segment] = {}  # in the order of insertion, which is that of receipts
        self._next_order = 0
        self._overtaken_order = -1  # everything up to here was overtaken

    def __len__(self) -> int:
        return len(self._receipted)

    def receipted(self, segment: Segment) -> None:
        """The latest attempt of the segment is queued at the relay."""
        self.forget(segment)
        segment.order = self._next_order
        self._receipted[self._next_order] = segment
        self._next_order += 1

    def forget(self, segment: Segment) -> None:
        """The segment is acknowledged, lost, or carried again."""
        if segment.order >= 0:
            del self._receipted[segment.order]
            segment.order = -1

    def acknowledged(self, segment: Segment) -> None:
        """As `forget`, and what was receipted before it counts as overtaken."""
        if segment.order > self._overtaken_order:
            self._overtaken_order = segment.order
        self.forget(segment)

    def newest(self) -> Segment | None:
        """The segment whose attempt was receipted last."""
        return next(reversed(self._receipted.values()), None)

    def lost(self, now: int, patience_us: int) -> tuple[list[Segment], int]:
        """The overtaken attempts receipted `patience_us` ago or earlier, and when the next one will be due."""
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
        """Nothing is in flight any more."""
        for segment in self._receipted.values():
            segment.order = -1
        self._receipted.clear()
