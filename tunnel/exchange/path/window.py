"""How many bytes may be on a path without a receipt (PROTOCOL 7.20, 8.3, 8.7). Without I/O.

Both halves of a link use it, and the relay for streamed answers, whose receipts are the confirmations of the endpoint.
"""

from tunnel.exchange.config import KIB, MIB, SECOND_US
from tunnel.exchange.path.roundtrip import RoundTrip

__all__ = ["AT_ONCE_BYTES", "PATIENCE_US_MAX", "SHARED_BYTES_START", "PathWindow"]

# 7.20, 8.2: such a number of bytes gets a receipt at once, so a window of this size waits for none on a fast path.
AT_ONCE_BYTES = 256 * KIB
SHARED_BYTES_START = 64 * KIB  # 8.7: up to four links begin on one path
PATIENCE_US_MAX = 8 * SECOND_US  # 7.20, 8.7: the longest wait because of a queue before other ways carry
# 8.3: what a path carries in this time may wait on it. More only fills its buffers; with less, the bytes of others in
# the same buffers, which often take a second, would leave next to nothing.
_QUEUE_US = 2 * SECOND_US
_MEMORY_US = 10 * SECOND_US  # 8.3: for one to two of these times, the highest rate counts
_BYTES_MIN = 64 * KIB
_BYTES_MAX = 8 * MIB  # 50 MB/s with 160 ms from a batch to its receipt
# A part is at most an eighth of the window, so that receipts come often, even on a slow path.
_PARTS = 8
_PART_BYTES_MIN = 16 * KIB
_PATIENCE_US_MIN = SECOND_US  # 7.20, 8.7


class PathWindow:
    """What the path has carried lately in `_QUEUE_US`. Only a full window shows how little a path carries: it never
    shrinks because an application sends little."""

    __slots__ = (
        "_bytes",
        "_least_us",
        "_rate",
        "_rate_before",
        "_rate_us",
        "_since_us",
        "_times",
        "_was_full",
        "window_bytes",
    )

    def __init__(self, start_bytes: int = AT_ONCE_BYTES) -> None:
        self.window_bytes = start_bytes
        self._times = RoundTrip()  # times from what was sent to its receipt
        self._least_us = 0  # the shortest of them; 0: there was none
        self._was_full = False  # since `_since_us`
        self._since_us = -1  # when the count of bytes began; -1: with the next receipt
        self._bytes = 0  # with a receipt since then
        self._rate = 0  # the highest one since `_rate_us`, in bytes per second
        self._rate_before = 0  # the highest one of the `_MEMORY_US` before that
        self._rate_us = -2 * _MEMORY_US

    @property
    def part_bytes(self) -> int:
        """How much should be sent at a time, at most, where that is up to the sender."""
        return max(_PART_BYTES_MIN, self.window_bytes // _PARTS)

    @property
    def queued_us(self) -> int:
        """How long a receipt may take because of a queue: twice the longest time that one took."""
        return self._times.queued_us

    @property
    def patience_us(self) -> int:
        """How long to wait for the next receipt before what was sent counts as lost."""
        return max(_PATIENCE_US_MIN, 4 * self._least_us, min(PATIENCE_US_MAX, self._times.queued_us))

    def allows(self, unreceipted_bytes: int) -> bool:
        """Return whether more may leave. If not, note that the window was the limit."""
        if unreceipted_bytes < self.window_bytes:
            return True
        self._was_full = True
        return False

    def on_receipted(self, size: int, first_us: int, sent_us: int, now: int, *, waits: bool) -> None:
        """A receipt came for `size` bytes; the oldest of them were sent at `first_us`, the newest at `sent_us`.
        `waits`: others have none."""
        took_us = now - sent_us
        self.note_wait(took_us, now)
        if self._since_us < 0:
            self._since_us = first_us
        self._bytes += size
        span_us = now - self._since_us or 1
        if span_us >= took_us:
            self._count(self._bytes * SECOND_US // span_us, now)
            self._since_us, self._bytes, self._was_full = now, 0, False
        if not waits:
            self._since_us, self._bytes = -1, 0

    def note_wait(self, took_us: int, now: int) -> None:
        """Record how long something took whose bytes do not count."""
        took_us = took_us or 1
        if took_us < self._least_us or not self._least_us:
            self._least_us = took_us
        self._times.note_wait(took_us, now)

    def on_failed(self) -> None:
        """Halve the window. What was sent came to nothing, and does not count as on the path any more."""
        self._rate, self._rate_before = self._rate // 2, self._rate_before // 2
        self.window_bytes = max(_BYTES_MIN, self.window_bytes // 2)

    def _count(self, rate: int, now: int) -> None:
        if self._was_full and now - self._rate_us >= _MEMORY_US:
            self._rate_before = self._rate if now - self._rate_us < 2 * _MEMORY_US else 0
            self._rate, self._rate_us = rate, now
        elif rate > self._rate:
            self._rate = rate
        wanted = max(self._rate, self._rate_before) * _QUEUE_US // SECOND_US
        if self._was_full or wanted > self.window_bytes:
            self.window_bytes = max(_BYTES_MIN, min(_BYTES_MAX, wanted))
