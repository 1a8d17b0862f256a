"""How large the batches of a link are: learned from how long their receipts take, and allowed to grow again."""

from collections import deque

from tunnel.exchange.config import KIB, MIB, MILLISECOND_US

__all__ = ["LinkPace"]

_START_BYTES = 128 * KIB
_BYTES_MIN = 16 * KIB
_BYTES_MAX = 1 * MIB  # packets are at most an eighth (4.13)
_FAST_US = 100 * MILLISECOND_US  # full batches receipted sooner may grow
_SLOW_US = 500 * MILLISECOND_US  # those that take longer shrink


class LinkPace:
    """Told of each batch and of each receipt, in order."""

    def __init__(self) -> None:
        self.batch_bytes = _START_BYTES
        self._sent: deque[tuple[int, bool]] = deque()  # when, and whether full; for each batch without a receipt

    @property
    def waits(self) -> bool:
        """Whether a receipt is to come."""
        return bool(self._sent)

    def sent(self, size: int, now: int) -> None:
        """A batch of so many bytes leaves. Packets do not fill it to the last byte."""
        self._sent.append((now, size * 4 >= self.batch_bytes * 3))

    def receipted(self, now: int) -> None:
        """The oldest batch has arrived."""
        sent_us, was_full = self._sent.popleft()
        took_us = now - sent_us
        if was_full and took_us < _FAST_US:
            self.batch_bytes = min(2 * self.batch_bytes, _BYTES_MAX)
        elif took_us > _SLOW_US:
            self.batch_bytes = max(self.batch_bytes // 2, _BYTES_MIN)

    def forget(self) -> None:
        """The receipts that are to come tell nothing any more."""
        self._sent.clear()
