"""The size of a link's batches, learned from the time that their receipts take. It can shrink and grow again."""

from tunnel.exchange.config import KIB, MIB, MILLISECOND_US

__all__ = ["LinkPace"]

_START_BYTES = 128 * KIB
_BYTES_MIN = 16 * KIB
_BYTES_MAX = 1 * MIB  # the payload of a packet is at most an eighth of this (4.13)
_FAST_US = 100 * MILLISECOND_US  # if the receipt of a full batch comes sooner, batches grow
_SLOW_US = 500 * MILLISECOND_US  # if a receipt takes longer, batches shrink


class LinkPace:
    """Chooses the batch size of a link. The caller must report each batch sent and each receipt, in order."""

    def __init__(self) -> None:
        self.batch_bytes = _START_BYTES
        self._sent: list[tuple[int, bool]] = []  # for each unreceipted batch: time sent, and whether it was full

    @property
    def waits(self) -> bool:
        """Whether a batch has no receipt yet."""
        return bool(self._sent)

    def on_sent(self, size: int, now: int) -> None:
        """Record that a batch of `size` bytes leaves. Three quarters of the limit count as full."""
        self._sent.append((now, size * 4 >= self.batch_bytes * 3))

    def on_receipted(self, now: int) -> int:
        """Record the receipt of the oldest unreceipted batch. Return when the batch was sent."""
        sent_us, was_full = self._sent.pop(0)
        took_us = now - sent_us
        if was_full and took_us < _FAST_US:
            self.batch_bytes = min(2 * self.batch_bytes, _BYTES_MAX)
        elif took_us > _SLOW_US:
            self.batch_bytes = max(self.batch_bytes // 2, _BYTES_MIN)
        return sent_us

    def forget(self) -> list[int]:
        """Forget all batches without a receipt, since the carrier has given them up. Return when each was sent."""
        sent, self._sent = self._sent, []
        return [sent_us for sent_us, _ in sent]
