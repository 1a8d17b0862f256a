"""What the sender of one route and direction was promised, and when it should hear more (2.10, 7.12, 9.4)."""

from tunnel.wire import unwrap, wrap

__all__ = ["EdgeLedger"]


class EdgeLedger:
    """S and what was announced. Positions are payload bytes let go beyond S: absolute, like the announcements."""

    __slots__ = (
        "_announced_at",
        "_known",
        "_promised",
        "_step_bytes",
        "is_smaller",
        "late_bytes",
        "newest",
        "passed_bytes",
        "s",
    )

    def __init__(self, initial_edge_bytes: int, step_bytes: int) -> None:
        self.s = 0  # the newest let go, unwrapped
        self.newest = 0  # of all that came, unwrapped
        self.passed_bytes = 0  # let go beyond S, ever
        self.late_bytes = 0  # payload that waits and is not beyond S
        self.is_smaller = False  # the sender believes in less than the limit: an empty queue is to be announced
        self._known = False  # whether any sequence is known
        self._step_bytes = step_bytes  # progress below it is too little to matter even to the smallest limit
        self._promised = initial_edge_bytes  # the position up to which the sender believes that it may send
        self._announced_at = 0

    def start_at(self, sequence: int) -> None:
        """The sender's initial sequence number, if the route is new: the initial edge counts from it."""
        self.s = self.newest = sequence
        self._known = True

    def key(self, sequence: int) -> int:
        """The unbounded number of a wire sequence. Of a resumed route the first to come shows where it stands."""
        if not self._known:
            self.start_at(sequence)
            self.s -= 1
        return unwrap(sequence, self.newest)

    def let_go(self, key: int, size: int) -> None:
        """The packet `key` with `size` bytes of payload leaves."""
        if key > self.s:
            self.s = key
            self.passed_bytes += size
        else:
            self.late_bytes -= size

    def room(self, limit: int) -> tuple[int, int]:
        """S on the wire and B, under this limit."""
        return wrap(self.s), max(0, limit - self.late_bytes)

    def announced(self, room_bytes: int, limit: int) -> None:
        """The sender is being told B."""
        self._promised = self.passed_bytes + room_bytes
        self._announced_at = self.passed_bytes
        self.is_smaller = room_bytes < limit

    def named_dropped(self, waiting_bytes: int) -> None:
        """The sender is being told that no more fits than what waits beyond S."""
        self._promised = self.passed_bytes + waiting_bytes
        self._announced_at = self.passed_bytes
        self.is_smaller = True

    def has_moved(self) -> bool:
        """Whether `is_due` is worth asking; mostly not."""
        return self.passed_bytes - self._announced_at >= self._step_bytes

    def is_due(self, limit: int) -> bool:
        """What may be sent has grown by a quarter of the limit since it was announced."""
        return (self.passed_bytes + max(0, limit - self.late_bytes) - self._promised) * 4 >= limit
