"""How many bytes may have no receipt on a link that carries alone (PROTOCOL 8.3). Without I/O.

Both halves of a link use it: the endpoint for what it sends to the relay, the relay for what it sends to the endpoint.
"""

from tunnel.exchange.config import KIB, MIB, SECOND_US
from tunnel.exchange.path.roundtrip import RoundTrip

__all__ = ["LINK_BYTES_START", "LinkWindow"]

# 8.3: what a path carries in this time may wait on it. More only fills its buffers; with less, the bytes of others in
# the same buffers, which often take a second, would leave this link next to nothing.
_QUEUE_US = 2 * SECOND_US
_MEMORY_US = 10 * SECOND_US  # 8.3: for one to two of these times, the highest rate counts
# Such a number of bytes gets a receipt at once, so a fast path waits for none.
LINK_BYTES_START = 256 * KIB
_BYTES_MIN = 64 * KIB
_BYTES_MAX = 8 * MIB  # 50 MB/s with 160 ms from a batch to its receipt


class LinkWindow:
    """What the path has carried lately in `_QUEUE_US`. Only a full window shows how little a path carries: it never
    shrinks because an application sends little."""

    __slots__ = ("_bytes", "_rate", "_rate_before", "_rate_us", "_since_us", "_times", "_was_full", "window_bytes")

    def __init__(self) -> None:
        self.window_bytes = LINK_BYTES_START
        self._times = RoundTrip()  # times from a batch to its receipt
        self._was_full = False  # since `_since_us`
        self._since_us = -1  # when the count of bytes began; -1: with the next receipt
        self._bytes = 0  # with a receipt since then
        self._rate = 0  # the highest one since `_rate_us`, in bytes per second
        self._rate_before = 0  # the highest one of the `_MEMORY_US` before that
        self._rate_us = -2 * _MEMORY_US

    @property
    def queued_us(self) -> int:
        """How long a receipt may take because of a queue: twice the longest time that one took."""
        return self._times.queued_us

    def allows(self, unreceipted_bytes: int) -> bool:
        """Return whether another batch may leave. If not, note that the window was the limit."""
        if unreceipted_bytes < self.window_bytes:
            return True
        self._was_full = True
        return False

    def on_receipted(self, size: int, sent_us: int, now: int, *, waits: bool) -> None:
        """A receipt came for `size` bytes; the newest of them were sent at `sent_us`. `waits`: others have none."""
        took_us = max(1, now - sent_us)
        self._times.note_wait(took_us, now)
        if self._since_us < 0:
            self._since_us = sent_us
        self._bytes += size
        span_us = max(1, now - self._since_us)
        if span_us >= took_us:
            self._count(self._bytes * SECOND_US // span_us, now)
            self._since_us, self._bytes, self._was_full = now, 0, False
        if not waits:
            self._since_us, self._bytes = -1, 0

    def _count(self, rate: int, now: int) -> None:
        if self._was_full and now - self._rate_us >= _MEMORY_US:
            self._rate_before = self._rate if now - self._rate_us < 2 * _MEMORY_US else 0
            self._rate, self._rate_us = rate, now
        elif rate > self._rate:
            self._rate = rate
        wanted = max(self._rate, self._rate_before) * _QUEUE_US // SECOND_US
        if self._was_full or wanted > self.window_bytes:
            self.window_bytes = max(_BYTES_MIN, min(_BYTES_MAX, wanted))
