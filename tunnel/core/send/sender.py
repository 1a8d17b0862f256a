"""The sending half of a connection: it connects window, round-trip time, loss detection and their timers."""

from tunnel.core.constants import ACK_DELAY_US, BACKOFF_MAX_US, NEVER_US
from tunnel.core.ports import CarrierView
from tunnel.core.send.loss import LossDetector
from tunnel.core.send.rtt import RttEstimator
from tunnel.core.send.window import Segment, SegmentState, SendWindow
from tunnel.core.stats import ConnectionStats
from tunnel.core.timers import Timer, TimerTable
from tunnel.traces.record import TraceCause
from tunnel.wire import Ack, Buffer, PacketType, unwrap

__all__ = ["Sender"]


class Sender:
    """The sender of a connection.

    The caller must call `on_receipted` or `given_up` for each segment taken, when its batch is done; `acknowledge` for
    each ACK; and `handle_timers` when a timer of the table is due. While suspended, the sender sends nothing and no
    timer runs. One thing because each of these inputs can change the round trip, the losses and the timers together.
    """

    def __init__(self, window: SendWindow, timers: TimerTable, stats: ConnectionStats, carrier: CarrierView) -> None:
        self.window = window
        self.rtt = RttEstimator()
        self.suspended = True
        self.stopped = False
        self.probe_due = False
        self.flush_offset = NEVER_US  # stream offset up to which the application waits for acknowledgement (4.17)
        self.probing_since_us = NEVER_US  # time of the first unanswered window probe
        self.progress_us = 0  # the last time that something new was acknowledged, or began to wait
        self._timers = timers
        self._carrier = carrier
        self._stats = stats
        self._loss = LossDetector()
        self._tail_probed = False
        self._probes = 0
        self._held_back = False  # during the pause after DROPPED(full) (4.10)

    def use_carrier(self, carrier: CarrierView) -> None:
        """Use another carrier from now on."""
        self._carrier = carrier

    # getters

    def sendable(self) -> bool:
        """Return whether `take` would return a segment for a large enough batch."""
        return not self.suspended and not self._held_back and self.window.sendable()

    @property
    def waiting_since_us(self) -> int:
        """Since when bytes have waited, or been unacknowledged, without progress (4.15).

        NEVER_US if there are none, or if the peer has no room: then window probes show whether the peer is there.
        """
        return NEVER_US if self.window.idle or self.window.is_blocked else self.progress_us

    # calls from the connection

    def write(self, data: Buffer, now: int) -> int:
        """Take bytes of the stream. Return how many were taken."""
        self._begin_wait(now)
        window = self.window
        taken = window.write(data)
        if window.peer_edge <= window.sent_offset and window.is_blocked:
            self.arm(now)  # nothing is in flight, so no ACK will arm the window probe
        return taken

    def end(self, packet_type: int, now: int) -> None:
        """Queue FINISH or CLOSE after everything written."""
        self._begin_wait(now)
        self.window.end(packet_type)

    def insert(self, packet_type: int, payload: bytes, now: int) -> None:
        """Queue a sequenced packet without bytes of the stream, before everything that has no number yet."""
        self._begin_wait(now)
        self.window.insert(packet_type, payload)

    def flush(self, offset: int) -> None:
        """Ask for the acknowledgement of the stream up to `offset`, with a PROBE when all of it has left (4.17)."""
        self.flush_offset = offset
        if self.window.sent_offset >= offset:
            self._ask()

    def _ask(self) -> None:
        self.probe_due = True
        self.flush_offset = NEVER_US

    def _begin_wait(self, now: int) -> None:
        if self.window.idle or self.window.is_blocked:
            self.progress_us = now

    def take(self, size_max: int, now: int) -> Segment | None:
        """Return the next segment for a batch, or None. The segment counts as carried from now on."""
        if self.suspended or self._held_back:
            return None
        window = self.window
        if not window.outstanding:
            self.progress_us = now
        segment = window.take(size_max)
        if segment is None:
            return None
        if window.sent_offset >= self.flush_offset:
            self._ask()
        stats = self._stats
        stats.packets_sent += 1
        stats.bytes_carried += segment.size
        if segment.attempt:
            stats.packets_resent += 1
            stats.resent_by_cause[segment.cause] = stats.resent_by_cause.get(segment.cause, 0) + 1
            self.arm(now)
        return segment

    def resume(self, edge_bytes: int, now: int) -> None:
        """Start to send, or resume. Segments that may have been lost with an old route leave first (4.10)."""
        self.suspended = False
        self.window.reset_edge(edge_bytes)
        self._held_back = self._tail_probed = False
        self._probes = 0
        self.progress_us = now
        # The silence came from the old route, so it must not delay the new one (4.6).
        self.rtt.reset_backoff()
        self._loss.clear()
        self._void_receipts()
        for segment in self.window.outstanding.values():
            self.window.lose(segment, TraceCause.ROUTE_RESUMED)
        self.arm(now)

    def suspend(self) -> None:
        """Stop sending: the route is lost."""
        self.suspended = True
        self._void_receipts()  # here and not only in `resume`: an ACK can come before the ACCEPTED that resumes
        self._clear_timers()

    def _void_receipts(self) -> None:
        for segment in self.window.outstanding.values():
            segment.void_receipts()

    def stop(self) -> int:
        """Stop sending for good. Return how many unacknowledged bytes were dropped."""
        if self.stopped and self.window.idle:
            return 0
        self.stopped = True
        self._loss.clear()
        junked = self.window.junk()
        self.probe_due = False
        self.flush_offset = self.probing_since_us = NEVER_US
        self._clear_timers()
        return junked

    def on_receipted(self, segment: Segment, attempt: int, now: int) -> None:
        """Record that this attempt is queued at the relay."""
        self._stats.bytes_receipted += segment.size
        if segment.state is SegmentState.ACKNOWLEDGED or self.stopped:
            return
        if attempt != segment.attempt:
            segment.note_earlier(attempt, now)
            return
        segment.receipt_us = now
        if segment.state is SegmentState.CARRIED:
            segment.state = SegmentState.RECEIPTED
            self._loss.on_receipted(segment)

    def given_up(self, segment: Segment, attempt: int) -> None:
        """Declare this attempt lost: the carrier has given up its batch."""
        if attempt == segment.attempt and segment.state is SegmentState.CARRIED and not self.stopped:
            self.window.lose(segment, TraceCause.BATCH_GIVEN_UP)

    def repeat_first(self) -> bool:
        """Send ACCEPTED again. Return False if it is acknowledged already, so that its segment no longer exists."""
        first = self.window.outstanding.get(self.window.oldest)
        if first is None or first.type != PacketType.ACCEPTED:
            return False
        if first.state < SegmentState.LOST:
            self._lose(first, TraceCause.HANDSHAKE_TIMEOUT)
        return True

    def on_dropped(self, first: int, last: int, room_bytes: int, now: int) -> None:
        """Declare packets lost, because the relay had no room for them. They are resent after the pause of 4.10.

        A relay that names room for packets in DROPPED, which PROTOCOL 2.9 does not provide for, gets them at once.
        """
        window = self.window
        first, last = unwrap(first, window.oldest), unwrap(last, window.oldest)
        for sequence in range(max(first, window.oldest), min(last, window.next_sequence - 1) + 1):
            segment = window.outstanding[sequence]
            if segment.state < SegmentState.LOST:
                self._lose(segment, TraceCause.DROPPED_BY_RELAY)
        if room_bytes == 0 and window.outstanding and not self.suspended:
            self._held_back = True
            self._timers.set(Timer.RETRANSMIT, now + self.rtt.rto_us())
        else:
            self.arm(now)

    def edge(self, sequence: int, room_bytes: int, now: int) -> None:
        """Process EDGE: the relay has announced how much fits. An EDGE that is ignored ends no pause (4.10)."""
        if self.window.announce_edge(unwrap(sequence, self.window.oldest), room_bytes):
            self._held_back = False
            self.arm(now)

    def acknowledge(self, ack: Ack, now: int) -> list[Segment] | None:
        """Process an ACK. Return the segments that it acknowledges for the first time.

        Return None if the ACK is malformed; then nothing was changed.
        """
        window = self.window
        near = window.oldest
        cumulative = unwrap(ack.cumulative, near)
        ranges = [(unwrap(first, near), unwrap(last, near)) for first, last in ack.ranges] if ack.ranges else []
        echoed = window.outstanding.get(unwrap(ack.echo_sequence, near))
        fresh_echo = echoed is not None and echoed.state is not SegmentState.ACKNOWLEDGED
        was_blocked = window.is_blocked
        newly = window.acknowledge(cumulative, ranges)
        if newly is None:
            return None
        exact = self._learn_from_echo(echoed, ack, fresh_echo, now) if echoed is not None else None
        for segment in newly:
            if segment.attempt and segment is not exact:
                self._loss.forget(segment)  # it is unknown which attempt arrived: this tells nothing of other packets
            else:
                self._loss.on_acknowledged(segment)
        if newly:
            self.progress_us = now
            self.rtt.reset_backoff()
            self._tail_probed = False
            self._held_back = False
        if window.open_peer_window(cumulative, ack.window):
            self._probes = 0
            if was_blocked:
                self.progress_us = now
        elif newly:
            self._probes = 0
        self.probing_since_us = NEVER_US
        self._detect_losses(now)
        self.arm(now)
        return newly

    def _learn_from_echo(self, segment: Segment, ack: Ack, fresh: bool, now: int) -> Segment | None:
        """Take the RTT sample of the attempt that the ACK names. Return the segment if that is its latest attempt."""
        attempt = segment.attempt - ((segment.attempt - ack.echo_attempt) & 0xFF)
        if attempt < 0:
            return None
        receipt_us = segment.receipt_of(attempt)
        if fresh and receipt_us >= 0:
            self.rtt.sample(max(1, now - receipt_us - min(ack.delay_us, ACK_DELAY_US)))
        if attempt == segment.attempt:
            return segment
        if fresh:
            self._stats.packets_spurious += 1
            self.rtt.spurious()
        return None

    # timers

    def handle_timers(self, now: int) -> None:
        """Handle REORDER, TAIL_PROBE, RETRANSMIT and WINDOW_PROBE if they are due."""
        timers, deadlines = self._timers, self._timers.deadlines
        if min(deadlines[Timer.REORDER : Timer.OPEN]) > now:  # the usual case
            self.arm(now)
            return
        if timers.due(Timer.REORDER, now):
            self._detect_losses(now)
        if timers.due(Timer.TAIL_PROBE, now):
            newest = self._loss.newest()
            if newest is not None and self._silent_until(newest) <= now:
                self._tail_probed = True
                self._lose(newest, TraceCause.PTO_PROBE)
        if timers.due(Timer.RETRANSMIT, now):
            self._expire(now)
        if timers.due(Timer.WINDOW_PROBE, now):
            self.probe_due = True
            self._probes += 1
            if self.probing_since_us == NEVER_US:
                self.probing_since_us = now
        self.arm(now)

    def _expire(self, now: int) -> None:
        """Handle RTO: resend the oldest packet alone (4.6), or only end the pause after DROPPED(full) (4.10)."""
        if self._held_back:
            self._held_back = False
            return
        head = self.window.outstanding.get(self.window.oldest)
        if head is not None and head.state is SegmentState.RECEIPTED:
            self.rtt.backed_off()
            self._lose(head, TraceCause.RETRANSMIT_TIMEOUT)

    def arm_after_receipts(self) -> None:
        """Set the timers when only receipts have come; cheaper than `arm`.

        A receipt moves no deadline that is set to an earlier time. It can move one to a later time; this method then
        leaves the timer as it is. The timer may therefore fire too early, which does no harm, because the deadline is
        checked again then.
        """
        if self._timers.get(Timer.RETRANSMIT) == NEVER_US and not self.suspended:
            head = self.window.outstanding.get(self.window.oldest)
            if head is not None:
                self._arm_in_flight(head)

    def arm(self, now: int) -> None:
        """Set the timers according to the state; while packets are in flight, `_detect_losses` sets REORDER."""
        timers = self._timers
        if self.suspended:
            return
        window = self.window
        head = window.outstanding.get(window.oldest)
        if head is None:
            deadlines = timers.deadlines  # written directly: most ACKs come here
            deadlines[Timer.REORDER] = deadlines[Timer.TAIL_PROBE] = deadlines[Timer.RETRANSMIT] = NEVER_US
            if window.is_blocked:
                self._arm_window_probe(now)
            else:
                deadlines[Timer.WINDOW_PROBE] = NEVER_US
                self._probes = 0
                self.probe_due = False
        else:
            self._arm_in_flight(head)

    def _arm_in_flight(self, head: Segment) -> None:
        timers = self._timers
        timers.clear(Timer.WINDOW_PROBE)
        rto_deadline = NEVER_US
        if self._held_back:
            rto_deadline = timers.get(Timer.RETRANSMIT)
        elif head.state is SegmentState.RECEIPTED:
            rto_deadline = max(head.receipt_us, self.progress_us) + self.rtt.rto_us()
        timers.set(Timer.RETRANSMIT, rto_deadline)
        self._arm_tail_probe(rto_deadline)

    def _arm_tail_probe(self, rto_deadline: int) -> None:
        newest = self._loss.newest()
        if newest is None or self._tail_probed or self.rtt.backoff or not self.rtt.srtt_us:
            self._timers.clear(Timer.TAIL_PROBE)
            return
        deadline = self._silent_until(newest)
        self._timers.set(Timer.TAIL_PROBE, deadline if deadline < rto_deadline else NEVER_US)

    def _silent_until(self, newest: Segment) -> int:
        """Return when the silence after the newest receipt will be long enough for a tail probe (4.7)."""
        return max(newest.receipt_us, self.progress_us) + self.rtt.tail_probe_us()

    def _arm_window_probe(self, now: int) -> None:
        if self._timers.get(Timer.WINDOW_PROBE) == NEVER_US:
            interval_us = self.rtt.base_rto_us() << min(self._probes, 16)
            self._timers.set(Timer.WINDOW_PROBE, now + min(interval_us, BACKOFF_MAX_US))

    def _detect_losses(self, now: int) -> None:
        if self.suspended or not self.rtt.srtt_us:
            return  # without an RTT sample no loss is detected by time (4.8)
        patience_us = self.rtt.latest_us + self.rtt.reorder_window_us(self._carrier.lanes)
        lost, due = self._loss.find_lost(now, patience_us)
        for segment in lost:
            self._lose(segment, TraceCause.RETRANSMIT_REORDERED)
        self._timers.set(Timer.REORDER, due)

    def _lose(self, segment: Segment, cause: str) -> None:
        self._loss.forget(segment)
        self.window.lose(segment, cause)

    def _clear_timers(self) -> None:
        self._timers.clear_in_flight()
        self._timers.clear(Timer.WINDOW_PROBE)
