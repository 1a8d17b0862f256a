"""The edge that was announced to a sender, and when to announce a new one (PROTOCOL 2.10, 7.12, 9.4)."""

from tunnel.wire import unwrap, wrap

__all__ = ["EdgeLedger"]


class EdgeLedger:
    """The edge of one route and direction. A position is a number of bytes: it counts the payload of all packets that
    raised S when they left the queue."""

    __slots__ = (
        "_announced_at",
        "_promised",
        "_step_bytes",
        "is_known",
        "is_smaller",
        "late_bytes",
        "left_late_bytes",
        "newest",
        "passed_bytes",
        "s",
    )

    def __init__(self, initial_edge_bytes: int, step_bytes: int) -> None:
        self.s = 0  # the newest sequence number that left the queue, unwrapped
        self.newest = 0  # the newest sequence number that came, unwrapped
        self.passed_bytes = 0  # payload of all packets that raised S when they left the queue
        self.late_bytes = 0  # payload that waits in packets up to S
        self.left_late_bytes = 0  # payload of all packets that did not raise S when they left
        self.is_smaller = False  # the announced edge is below the limit: announce again when the queue is empty
        self.is_known = False  # whether any sequence is known
        self._step_bytes = step_bytes  # with less progress, no announcement is due even under the smallest limit
        self._promised = initial_edge_bytes  # the position up to which the sender may send
        self._announced_at = 0

    def start_at(self, sequence: int) -> None:
        """Set the sender's initial sequence number, from which the initial edge of a new route counts."""
        self.s = self.newest = sequence
        self.is_known = True

    def key(self, sequence: int) -> int:
        """Return the unwrapped form of a wire sequence. On a resumed route the first packet sets the starting point."""
        if not self.is_known:
            self.start_at(sequence)
            self.s -= 1
        return unwrap(sequence, self.newest)

    def let_go(self, key: int, size: int) -> None:
        """Note that the packet `key` with `size` bytes of payload leaves the queue."""
        if key > self.s:
            self.s = key
            self.passed_bytes += size
        else:
            self.late_bytes -= size
            self.left_late_bytes += size

    @property
    def left_bytes(self) -> int:
        """The payload of all packets that have left the queue, with those that left again."""
        return self.passed_bytes + self.left_late_bytes

    def room(self, limit: int) -> tuple[int, int]:
        """Return S in its wire form, and B under this limit."""
        return wrap(self.s), max(0, limit - self.late_bytes)

    def on_announced(self, room_bytes: int, limit: int) -> None:
        """Note that an EDGE with B = `room_bytes` is sent to the sender."""
        self._promised = self.passed_bytes + room_bytes
        self._announced_at = self.passed_bytes
        self.is_smaller = room_bytes < limit

    def named_dropped(self, waiting_bytes: int) -> None:
        """Note that DROPPED(full) is sent: the sender learns that no more fits than the bytes that wait beyond S."""
        self._promised = self.passed_bytes + waiting_bytes
        self._announced_at = self.passed_bytes
        self.is_smaller = True

    def has_moved(self) -> bool:
        """Whether enough has left that `is_due` is worth calling. This quick check is usually False."""
        return self.passed_bytes - self._announced_at >= self._step_bytes

    def is_due(self, limit: int) -> bool:
        """Whether the sender's room has grown by a quarter of the limit since the last announcement."""
        return (self.passed_bytes + max(0, limit - self.late_bytes) - self._promised) * 4 >= limit
