"""Tracks the batches that were sent on a link and are not yet receipted (PROTOCOL 8.2)."""

from collections import deque

from tunnel.exchange import PATIENCE_US_MAX, Line, PathWindow
from tunnel.wire import Frame, PacketType
from tunnel_servlet.switch.stats import Traffic
from tunnel_servlet.switch.witness import NOWHERE, Origin

__all__ = ["ServedLink"]

_ABORT = int(PacketType.ABORT)


class ServedLink:
    """One link of an attachment. Batches are receipted in order; those without a receipt can be taken back."""

    __slots__ = (
        "_batches",
        "_late",
        "_late_bytes",
        "_popped_us",
        "_round_trip_us",
        "_taken_back",
        "_window",
        "is_distrusted",
        "is_left",
        "is_signalled",
        "line",
        "link",
        "origin",
        "traffic",
        "unreceipted_bytes",
        "unreceipted_packets",
    )

    def __init__(
        self, link: int, origin: Origin = NOWHERE, traffic: Traffic | None = None, *, shares: bool = False
    ) -> None:
        self.link = link
        self.line = Line() if shares else None  # how much may leave here, if it shares the load with other links (8.7)
        # The same if it carries alone. A link in the relay's own process needs no limit.
        self._window = None if shares or traffic is None else PathWindow()
        self.origin = origin
        self.traffic = traffic  # of all links; None: this one is of an endpoint in the relay's own process
        self.is_signalled = False  # it was queued for `poll_link_ready`, and the host has not called `poll_link` since
        self.is_distrusted = False  # a batch stalled (`link_stalled_us`): no packets leave here until something comes
        self.is_left = False  # the endpoint will close it soon, and has others: no packets leave here any more (8.7)
        self.unreceipted_bytes = 0
        self.unreceipted_packets = 0
        self._batches: list[tuple[int, list[Frame], int]] = []  # time sent, packets, bytes
        self._round_trip_us = 0  # see `take_round_trip`
        self._popped_us = 0  # when the newest batch that was taken out had left
        self._taken_back = 0  # earlier batches that were taken back and may still be receipted
        # The time sent and the bytes of each of them, if there is a window, which bounds both.
        self._late: deque[tuple[int, int]] = deque()
        self._late_bytes = 0

    def room(self, bytes_max: int, packets_max: int) -> int:
        """Return how many packets the link takes now. The arguments limit the bytes and packets without a receipt."""
        if self.is_left or (self.line is not None and not self.line.room(self.unreceipted_bytes + self._late_bytes)):
            return 0
        if self._window is not None and not self._window.allows(self.unreceipted_bytes + self._late_bytes):
            return 0
        return max(0, packets_max - self.unreceipted_packets) if self.unreceipted_bytes < bytes_max else 0

    @property
    def load(self) -> int:
        """The measure by which links that share the load are compared."""
        return Line.load(self.unreceipted_bytes + self._late_bytes)

    @property
    def holds_abort(self) -> bool:
        """Whether a batch with an ABORT has no receipt: its bytes may still be in this process."""
        return any(frame.type == _ABORT for _, frames, _ in self._batches for frame in frames)

    def batch_bytes(self, limit_bytes: int) -> int:
        """Return how many bytes the next batch may have, at most `limit_bytes`. Call `room` before."""
        if self.line is None:
            return limit_bytes
        return min(limit_bytes, self.line.room(self.unreceipted_bytes + self._late_bytes))

    def on_sent(self, frames: list[Frame], now: int) -> None:
        """Record a batch that leaves."""
        if self.line is not None:
            self.line.on_sent(now)
        size = 0
        for frame in frames:
            size += len(frame.data)
        self._batches.append((now, frames, size))
        self.unreceipted_bytes += size
        self.unreceipted_packets += len(frames)

    def take_receipted(self, count: int, now: int) -> list[Frame]:
        """Record receipts of the oldest `count` batches; return their packets, except for batches taken back before."""
        forgotten = min(count, self._taken_back)
        self._taken_back -= forgotten
        before_bytes, first_us, sent_us = self.unreceipted_bytes + self._late_bytes, -1, now
        for _ in range(forgotten if self._late else 0):
            sent_us, size = self._late.popleft()
            self._late_bytes -= size
            if first_us < 0:
                first_us = sent_us
        if first_us < 0 and self._batches:
            first_us = self._batches[0][0]
        found = self._pop(count - forgotten)
        if found:
            sent_us = self._popped_us
        left_bytes = self.unreceipted_bytes + self._late_bytes
        size = before_bytes - left_bytes
        if count and self._window is not None:
            self._window.on_receipted(size, first_us, sent_us, now, waits=left_bytes > 0)
        elif count and self.line is not None:
            waits = bool(self._batches)
            self.line.on_receipted(size, first_us, sent_us, now, waits=waits, left_bytes=left_bytes)
        if found:
            trip_us = now - self._popped_us or 1
            if trip_us < self._round_trip_us or not self._round_trip_us:
                self._round_trip_us = trip_us
        return found

    def take_round_trip(self) -> int:
        """Return the shortest time, in microseconds, from a batch to its receipt since the last call; 0 if no receipt
        came. The endpoint may let a receipt wait (8.2), so the shortest one tells most about the path."""
        found, self._round_trip_us = self._round_trip_us, 0
        return found

    def stall(self, now: int) -> list[Frame]:
        """Take all batches without a receipt back; nothing leaves here until something comes."""
        self.is_distrusted = True
        if self.line is not None:
            self.line.stall(now)
        return self.take_back()

    def take_back(self) -> list[Frame]:
        """Forget all batches without a receipt and return their packets."""
        self._taken_back += len(self._batches)
        if self.line is not None or self._window is not None:
            self._late.extend((sent_us, size) for sent_us, _, size in self._batches)
            self._late_bytes += self.unreceipted_bytes
        return self._pop(len(self._batches))

    def is_stalled(self, since_us: int, now: int) -> bool:
        """Whether a batch that was sent before `since_us` has no receipt, although it has waited for longer than in the
        queues that receipts have shown; if the link shares the load, whether its line stalls."""
        if self.line is not None:
            return self.line.stalls_us <= now
        if self._window is not None:
            since_us = min(since_us, now - min(self._window.queued_us, PATIENCE_US_MAX))
        return bool(self._batches) and self._batches[0][0] < since_us

    def unreceipted_frames(self) -> list[Frame]:
        """Return the packets of all batches without a receipt."""
        return [frame for _, frames, _ in self._batches for frame in frames]

    def _pop(self, count: int) -> list[Frame]:
        found: list[Frame] = []
        for sent_us, frames, size in self._batches[:count]:
            self._popped_us = sent_us
            self.unreceipted_bytes -= size
            self.unreceipted_packets -= len(frames)
            found += frames
        del self._batches[:count]
        return found
