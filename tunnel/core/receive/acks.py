"""The receiving half of a connection: it accepts sequenced packets and decides when an ACK leaves."""

from collections.abc import Callable

from tunnel.core.constants import ACK_DELAY_US, ACK_SPACING_BYTES, ACK_SPACING_US, ACK_SPACING_US_MAX, SECOND_US
from tunnel.core.receive.window import Arrival, ReceiveWindow
from tunnel.core.stats import ConnectionStats
from tunnel.core.timers import Timer, TimerTable
from tunnel.wire import Ack, Buffer, End, PacketType, wrap

__all__ = ["Receiver"]

_DATA = int(PacketType.DATA)
# If a window's worth of bytes comes sooner than this, the window may be too small for the round trip. On a long path
# a window cannot come sooner than in one round trip, so the time grows with the round trip.
_EPOCH_US_MIN = 2 * SECOND_US
_EPOCH_US_MAX = 60 * SECOND_US
_EPOCH_TRIPS = 4


class Receiver:
    """The receive window and the ACKs of a connection.

    The caller must call `insert` for each sequenced packet, and `take_ack` when an ACK leaves with a batch. If
    `ack_due`, an ACK must leave at once; if only `ack_pending`, it may wait for a batch that leaves anyway (4.3).
    `round_trip` returns an estimate of the time to the peer and back, in microseconds; 0: unknown.
    """

    __slots__ = (
        "_acknowledged_offset",
        "_cause",
        "_epoch_offset",
        "_epoch_us",
        "_last_ack_us",
        "_newest_us",
        "_round_trip",
        "_stats",
        "_timers",
        "_waiting_since_us",
        "ack_due",
        "ack_pending",
        "window",
    )

    def __init__(
        self, window: ReceiveWindow, timers: TimerTable, stats: ConnectionStats, round_trip: Callable[[], int]
    ) -> None:
        self.window = window
        self.ack_due = False
        self.ack_pending = False
        self._round_trip = round_trip
        self._timers = timers
        self._stats = stats
        self._cause = (0, 0)  # sequence and attempt of the kept packet that arrived last (4.3)
        self._waiting_since_us = 0
        self._newest_us = 0  # arrival of the cause, or a later request for an ACK: the ack delay counts from it (4.3)
        self._last_ack_us = -ACK_SPACING_US_MAX
        self._acknowledged_offset = 0  # bytes in order at the last ACK
        self._epoch_us = 0  # start of the present epoch, in which one window's worth of bytes comes
        self._epoch_offset = 0  # offset at which the epoch ends

    def insert(
        self, sequence: int, attempt: int, packet_type: int, payload: Buffer, end: End | None, now: int
    ) -> Arrival:
        """Insert a sequenced packet into the window, and note whether an ACK is due or pending."""
        window = self.window
        had_gaps = window.gaps
        arrival = window.insert(sequence, packet_type, payload, end)
        if arrival is Arrival.REFUSED or arrival is Arrival.MISMATCH:
            self._stats.packets_discarded += 1
            self.ack_due = True  # the ACK tells the sender where the window ends
            return arrival
        self._cause = (sequence, attempt)
        self._newest_us = now
        if window.received_offset >= self._epoch_offset:
            self._next_epoch(now)
        if not self.ack_pending:
            self.ack_pending = True
            self._waiting_since_us = now
        if arrival is Arrival.DUPLICATE:
            self._stats.packets_duplicate += 1
            self.ack_due = True
        elif packet_type != _DATA or had_gaps or arrival is Arrival.OUT_OF_ORDER:
            self.ack_due = True
        elif not self.ack_due:
            self._timers.set(Timer.ACK_DELAY, self._waiting_since_us + ACK_DELAY_US)
        return arrival

    def _next_epoch(self, now: int) -> None:
        """End the epoch, after a window's worth of bytes has come. If it was short, let the window grow."""
        epoch_us = min(max(_EPOCH_US_MIN, _EPOCH_TRIPS * self._round_trip()), _EPOCH_US_MAX)
        if now - self._epoch_us < epoch_us and self._epoch_offset:
            self.window.use_up()
        self._epoch_us = now
        self._epoch_offset = self.window.received_offset + self.window.size_bytes

    def opened_by(self, sequence: int, attempt: int) -> None:
        """Start the stream after CONNECT, which counts as the packet that arrived last."""
        self.window.next_sequence = sequence + 1
        self._cause = (sequence, attempt)

    def request_ack(self, now: int) -> None:
        """Make an ACK due now."""
        if not self.ack_pending:
            self.ack_pending = True
            self._waiting_since_us = self._newest_us = now
        self.ack_due = True

    def handle_timers(self, now: int) -> None:
        """Make the delayed ACK due when its timer has expired."""
        if self._timers.due(Timer.ACK_DELAY, now) and self.ack_pending:
            self.ack_due = True

    def on_read(self, now: int) -> None:
        """React to bytes that the reader took: make an ACK due if the window has opened far enough (4.12)."""
        if self.window.advance():
            self.request_ack(now)

    def may_ack(self, now: int) -> bool:
        """Return whether an ACK may travel with the batch that leaves now.

        A pending ACK that is not due waits if the last one left only a moment ago. At thousands of small packets a
        second, this saves most of the ACKs, each of which would cost as much as a packet.
        """
        if self.ack_due or not self.ack_pending:
            return self.ack_due
        since_us = now - self._last_ack_us
        if since_us < ACK_SPACING_US:
            return False
        fresh_bytes = self.window.received_offset - self._acknowledged_offset
        return since_us >= ACK_SPACING_US_MAX or fresh_bytes >= ACK_SPACING_BYTES

    def take_ack(self, now: int) -> Ack:
        """Return the ACK that leaves now. None is due or pending afterwards."""
        window = self.window
        window.advance()
        delay_us = now - self._newest_us if self.ack_pending else 0
        self.ack_due = self.ack_pending = False
        self._last_ack_us = now
        self._acknowledged_offset = window.received_offset
        self._timers.clear(Timer.ACK_DELAY)
        sequence, attempt = self._cause
        ranges = [(wrap(first), wrap(last)) for first, last in window.ranges()]
        return Ack(
            cumulative=wrap(window.next_sequence - 1),
            window=min(window.announce(), 0xFFFFFFFF),
            delay_us=min(max(delay_us, 0), 0xFFFFFFFF),
            echo_sequence=wrap(sequence),
            echo_attempt=attempt,
            ranges=ranges,
        )
