"""The relay's half of one streamed answer: how long it lasts, what it may carry, and when it must speak.

Clause 7.20 of docs/PROTOCOL.md.
"""

from tunnel.exchange.stream_times import beat_after_us

__all__ = ["ServedStream"]


class ServedStream:
    """A streamed answer. Its packets are in its lane's ledger, which keeps what is not confirmed.

    It holds no packets until it is *proven*: until the endpoint has confirmed the first envelope. When it is *over*,
    nothing more is written to it, but its packets may still be confirmed.
    """

    def __init__(self, handle: int, number: int, limit_bytes: int, ends_us: int, serial: int, now: int) -> None:
        self.handle = handle
        self.number = number
        self.first_serial = serial
        self.opened_us = now
        self.is_proven = False
        self.is_over = False
        self.left_bytes = limit_bytes  # of the HTTP body that may still be sent
        self.ends_us = ends_us
        self.progress_us = now  # the time since when packets have waited for a confirmation
        self._empty = 0  # empty envelopes since the last one with packets; the first one of the stream does not count
        self._sent_us = now

    @property
    def beat_us(self) -> int:
        """When an empty envelope is due, if no other leaves first."""
        return self._sent_us + beat_after_us(self._empty)

    @property
    def carries(self) -> bool:
        """Whether packets leave on it."""
        return self.is_proven and not self.is_over

    def on_sent(self, size_bytes: int, now: int, *, empty: bool) -> None:
        """Record an envelope that leaves after the first."""
        self.left_bytes -= size_bytes
        self._empty = self._empty + 1 if empty else 0
        self._sent_us = now
