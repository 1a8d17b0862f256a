"""The relay's books about one link: what was sent on it and not yet receipted (8.2)."""

from collections import deque

from tunnel.wire import Frame

__all__ = ["ServedLink"]


class ServedLink:
    """One link of an attachment. Batches are receipted in order; what is not comes back when the link ends."""

    __slots__ = ("_batches", "link", "signalled", "unreceipted_bytes")

    def __init__(self, link: int) -> None:
        self.link = link
        self.signalled = False  # the shell was told to ask, and has not asked yet
        self.unreceipted_bytes = 0
        self._batches: deque[tuple[int, list[Frame]]] = deque()  # when sent, what

    def sent(self, frames: list[Frame], now: int) -> None:
        """A batch leaves."""
        self._batches.append((now, frames))
        self.unreceipted_bytes += sum(frame.size for frame in frames)

    def receipted(self, count: int) -> list[Frame]:
        """The packets of the oldest `count` batches."""
        frames: list[Frame] = []
        for _ in range(min(count, len(self._batches))):
            frames += self._batches.popleft()[1]
        self.unreceipted_bytes -= sum(frame.size for frame in frames)
        return frames

    def take_back(self) -> list[Frame]:
        """The packets of all batches without a receipt."""
        return self.receipted(len(self._batches))

    def owes_since(self) -> int | None:
        """When the oldest batch without a receipt was sent."""
        return self._batches[0][0] if self._batches else None
