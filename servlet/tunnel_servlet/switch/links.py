"""Tracks the batches that were sent on a link and are not yet receipted (PROTOCOL 8.2)."""

from collections import deque

from tunnel.wire import Frame

__all__ = ["ServedLink"]


class ServedLink:
    """One link of an attachment. Batches are receipted in order; those without a receipt can be taken back."""

    __slots__ = (
        "_batches",
        "_taken_back",
        "is_distrusted",
        "is_signalled",
        "link",
        "unreceipted_bytes",
        "unreceipted_packets",
    )

    def __init__(self, link: int) -> None:
        self.link = link
        self.is_signalled = False  # it was queued for `poll_link_ready`, and the host has not called `poll_link` since
        self.is_distrusted = False  # a batch stalled (`link_stalled_us`): no packets leave here until something comes
        self.unreceipted_bytes = 0
        self.unreceipted_packets = 0
        self._batches: deque[tuple[int, list[Frame], int]] = deque()  # time sent, packets, bytes
        self._taken_back = 0  # earlier batches that were taken back and may still be receipted

    def room(self, bytes_max: int, packets_max: int) -> int:
        """Return how many packets the link takes now. The arguments limit the bytes and packets without a receipt."""
        return max(0, packets_max - self.unreceipted_packets) if self.unreceipted_bytes < bytes_max else 0

    def sent(self, frames: list[Frame], now: int) -> None:
        """Record a batch that leaves."""
        size = sum(frame.size for frame in frames)
        self._batches.append((now, frames, size))
        self.unreceipted_bytes += size
        self.unreceipted_packets += len(frames)

    def receipted(self, count: int) -> list[Frame]:
        """Record receipts of the oldest `count` batches; return their packets, except for batches taken back before."""
        forgotten = min(count, self._taken_back)
        self._taken_back -= forgotten
        return self._pop(count - forgotten)

    def take_back(self) -> list[Frame]:
        """Forget all batches without a receipt and return their packets."""
        self._taken_back += len(self._batches)
        return self._pop(len(self._batches))

    def is_stalled(self, since_us: int) -> bool:
        """Whether a batch that was sent before `since_us` has no receipt."""
        return bool(self._batches) and self._batches[0][0] < since_us

    def unreceipted(self) -> list[Frame]:
        """Return the packets of all batches without a receipt."""
        return [frame for _, frames, _ in self._batches for frame in frames]

    def _pop(self, count: int) -> list[Frame]:
        found: list[Frame] = []
        for _ in range(min(count, len(self._batches))):
            _, frames, size = self._batches.popleft()
            self.unreceipted_bytes -= size
            self.unreceipted_packets -= len(frames)
            found += frames
        return found
