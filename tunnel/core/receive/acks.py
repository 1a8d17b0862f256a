"""The receiving half of a connection: takes sequenced packets in and decides when an ACK leaves."""

from tunnel.core.constants import ACK_DELAY_US, ACK_SPACING_BYTES, ACK_SPACING_US, ACK_SPACING_US_MAX, SECOND_US
from tunnel.core.receive.window import Arrival, ReceiveWindow
from tunnel.core.stats import ConnectionStats
from tunnel.core.timers import Timer, TimerTable
from tunnel.wire import Ack, Buffer, End, PacketType, wrap

__all__ = ["Receiver"]

_DATA = int(PacketType.DATA)
_EPOCH_US = 2 * SECOND_US  # a window that fills up sooner may be too small for the round trip


class Receiver:
    """Call `insert` for each sequenced packet and `take_ack` when a batch leaves. `ack_due` asks for a batch now;
    `ack_pending` only wants to travel with the next one (4.3)."""

    __slots__ = (
        "_acknowledged_offset",
        "_cause",
        "_epoch_offset",
        "_epoch_us",
        "_last_ack_us",
        "_newest_us",
        "_stats",
        "_timers",
        "_waiting_since_us",
        "ack_due",
        "ack_pending",
        "window",
    )

    def __init__(self, window: ReceiveWindow, timers: TimerTable, stats: ConnectionStats) -> None:
        self.window = window
        self.ack_due = False
        self.ack_pending = False
        self._timers = timers
        self._stats = stats
        self._cause = (0, 0)  # sequence and attempt of the newest packet
        self._waiting_since_us = 0
        self._newest_us = 0  # when what the next ACK is for came: the delay that it reports is exact (4.5)
        self._last_ack_us = -ACK_SPACING_US_MAX
        self._acknowledged_offset = 0  # what the last ACK said
        self._epoch_us = 0  # since then a window's worth of bytes comes, up to the offset
        self._epoch_offset = 0

    def insert(
        self, sequence: int, attempt: int, packet_type: int, payload: Buffer, end: End | None, now: int
    ) -> Arrival:
        """Take a sequenced packet in, and note what is owed for it."""
        window = self.window
        had_gaps = window.gaps
        arrival = window.insert(sequence, packet_type, payload, end)
        if arrival is Arrival.REFUSED or arrival is Arrival.MISMATCH:
            self._stats.packets_discarded += 1
            self.ack_due = True  # the sender should learn where our window ends
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
        """A window's worth of bytes has come. The window holds what comes within an epoch, if the budget allows."""
        if now - self._epoch_us < _EPOCH_US and self._epoch_offset:
            self.window.use_up()
        self._epoch_us = now
        self._epoch_offset = self.window.received_offset + self.window.size_bytes

    def opened_by(self, sequence: int, attempt: int) -> None:
        """CONNECT came: the stream begins behind it, and until then it is the newest packet."""
        self.window.next_sequence = sequence + 1
        self._cause = (sequence, attempt)

    def owe_ack(self, now: int) -> None:
        """An ACK leaves with the next batch, and one is asked for now."""
        if not self.ack_pending:
            self.ack_pending = True
            self._waiting_since_us = self._newest_us = now
        self.ack_due = True

    def handle_timers(self, now: int) -> None:
        """The delayed ACK has waited long enough."""
        if self._timers.due(Timer.ACK_DELAY, now) and self.ack_pending:
            self.ack_due = True

    def opened(self, now: int) -> None:
        """The reader took bytes: tell the peer if that is worth a packet (4.12)."""
        if self.window.advance():
            self.owe_ack(now)

    def may_ack(self, now: int) -> bool:
        """Whether an ACK should travel with the batch that leaves now: what is owed, unless one has just left and
        nothing asks for it. At thousands of small packets a second that saves the most of their acknowledgements, each
        of which would cost as much as a packet."""
        if self.ack_due or not self.ack_pending:
            return self.ack_due
        since_us = now - self._last_ack_us
        if since_us < ACK_SPACING_US:
            return False
        fresh_bytes = self.window.received_offset - self._acknowledged_offset
        return since_us >= ACK_SPACING_US_MAX or fresh_bytes >= ACK_SPACING_BYTES

    def take_ack(self, now: int) -> Ack:
        """The ACK that leaves now; nothing is owed afterwards."""
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
            window=min(window.announced(), 0xFFFFFFFF),
            delay_us=min(max(delay_us, 0), 0xFFFFFFFF),
            echo_sequence=wrap(sequence),
            echo_attempt=attempt,
            ranges=ranges,
        )
