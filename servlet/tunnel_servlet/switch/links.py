"""The relay's books about one link: what was sent on it and not yet receipted (8.2)."""

from collections import deque

from tunnel.wire import Frame

__all__ = ["ServedLink"]


class ServedLink:
    """One link of an attachment. Batches are receipted in order; what is not may be taken back."""

    __slots__ = ("_batches", "_taken_back", "is_distrusted", "is_signalled", "link", "unreceipted_bytes")

    def __init__(self, link: int) -> None:
        self.link = link
        self.is_signalled = False  # the shell was told to ask, and has not asked yet
        self.is_distrusted = False  # it was silent while the endpoint pulled: nothing is given to it until it is heard
        self.unreceipted_bytes = 0
        self._batches: deque[tuple[int, list[Frame], int]] = deque()  # when sent, what, how many bytes
        self._taken_back = 0  # batches before those, of which a receipt may still come

    def sent(self, frames: list[Frame], now: int) -> None:
        """A batch leaves."""
        size = sum(frame.size for frame in frames)
        self._batches.append((now, frames, size))
        self.unreceipted_bytes += size

    def receipted(self, count: int) -> list[Frame]:
        """The packets of the oldest `count` batches, except for those that were taken back."""
        forgotten = min(count, self._taken_back)
        self._taken_back -= forgotten
        return self._pop(count - forgotten)

    def take_back(self) -> list[Frame]:
        """The packets of all batches without a receipt."""
        self._taken_back += len(self._batches)
        return self._pop(len(self._batches))

    def is_stalled(self, since_us: int) -> bool:
        """Whether a batch sent before that has no receipt."""
        return bool(self._batches) and self._batches[0][0] < since_us

    def unreceipted(self) -> list[Frame]:
        """Its packets."""
        return [frame for _, frames, _ in self._batches for frame in frames]

    def _pop(self, count: int) -> list[Frame]:
        found: list[Frame] = []
        for _ in range(min(count, len(self._batches))):
            _, frames, size = self._batches.popleft()
            self.unreceipted_bytes -= size
            found += frames
        return found
