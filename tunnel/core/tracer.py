"""The tracer of an endpoint: it writes trace records and changes no state. It does not run when there is no trace."""

from collections import deque
from collections.abc import Mapping

from tunnel.core.connection.connection import Connection
from tunnel.core.constants import ACK_DELAY_US
from tunnel.core.scheduler import Batch
from tunnel.core.send.window import NO_EDGE, Segment
from tunnel.core.timers import Timer
from tunnel.traces.record import TraceCause, TraceEvent, TraceLevel, TraceReason, TraceSink, TraceSource, level_of
from tunnel.wire import IN_STREAM, TO_SOURCE, Ack, Packet, PacketType, unwrap, wrap

__all__ = ["LATE_US", "Tracer"]

LATE_US = 100_000
"""Bytes that wait for less are read in good time. It is also the least time between two records of late reads."""

_ARRIVAL_US = 25_000  # bytes that arrive within this time count as one arrival
_UNREAD_US = 1_000_000  # after this time, unread bytes are recorded although no read happens
_ARRIVALS_MAX = 1_000  # remembered for each connection, so that unread bytes of hours take no more memory


class _Unread:
    """What of a connection's stream the application has not read: when it arrived."""

    __slots__ = ("arrivals", "told_offset", "told_us")

    def __init__(self, told_offset: int) -> None:
        self.arrivals: deque[tuple[int, int]] = deque()  # offset of the end, and time; the oldest first
        self.told_offset = told_offset  # how far the application had read when the last record was written
        self.told_us = 0


class Tracer:
    """Writes one endpoint's trace records to a sink. At the level "connection" most records are left out."""

    def __init__(self, sink: TraceSink, node: str) -> None:
        self.carrier = ""  # name of the carrier in use; the driver sets it
        self._source = TraceSource(sink, node)
        self._packets = level_of(sink) >= TraceLevel.PACKET
        self._batches: dict[int, int] = {}  # token -> time at which the batch was filled
        self._before = (0, 0)  # counts of duplicate and discarded packets before the present packet
        self._unread: dict[int, _Unread] = {}  # by connection, if bytes in order wait for the application

    # batches and packets that leave

    def batch_filled(self, batch: Batch, connections: Mapping[int, Connection], now: int) -> None:
        """Record that the batch leaves."""
        if not self._packets:
            return
        self._batches[batch.token] = now
        self._source.tell(
            TraceEvent.BATCH_SENT,
            now,
            batch=batch.token,
            count=len(batch.packets),
            size_bytes=batch.size,
            carrier=self.carrier,
        )
        for packet in batch.packets:
            connection = connections.get(packet.destination if packet.type in TO_SOURCE else packet.source)
            if connection is not None:
                self._sent(packet, connection, batch.token, now)

    def batch_done(self, token: int, ok: bool, now: int) -> None:
        """Record that the batch is at the relay (`ok`), or was given up."""
        filled_us = self._batches.pop(token, None)
        if filled_us is not None:
            self._source.tell(
                TraceEvent.BATCH_RECEIPTED if ok else TraceEvent.BATCH_GIVEN_UP,
                now,
                batch=token,
                latency_us=now - filled_us,
                carrier=self.carrier,
            )

    def _sent(self, packet: Packet, connection: Connection, token: int, now: int) -> None:
        sender = connection.sender
        window = sender.window
        cause = ""
        if packet.attempt:
            segment = window.find(packet.sequence)
            cause = "" if segment is None else segment.cause
        rtt = sender.rtt
        self._source.tell(
            TraceEvent.PACKET_SENT,
            now,
            connection=connection.id,
            peer=connection.identity.peer_id,
            packet_type=packet.type,
            sequence=packet.sequence,
            attempt=packet.attempt,
            size_bytes=packet.size,
            cause=cause,
            srtt_us=rtt.srtt_us,
            rto_us=rtt.rto_us(),
            backoff=rtt.backoff,
            window_bytes=max(0, window.peer_edge - window.sent_offset),
            in_flight_bytes=window.sent_offset - window.acknowledged_offset,
            backlog_bytes=window.waiting_bytes,
            edge_bytes=-1 if window.edge_bytes >= NO_EDGE else max(0, window.edge_bytes - window.edge_used),
            batch=token,
            carrier=self.carrier,
        )

    # packets that come

    def receiving(self, packet: Packet, connection: Connection, now: int) -> None:
        """Record that a packet came. Call this before the connection processes it."""
        if not self._packets:
            return
        self._before = (connection.stats.packets_duplicate, connection.stats.packets_discarded)
        self._packet(TraceEvent.PACKET_RECEIVED, packet, connection, now)

    def on_received(self, packet: Packet, connection: Connection, now: int) -> None:
        """Record that a packet was dropped, or waits behind a gap. Call this after the connection has processed it."""
        if not self._packets:
            return
        duplicates, discarded = self._before
        if connection.stats.packets_duplicate != duplicates:
            self._packet(TraceEvent.PACKET_DROPPED, packet, connection, now, TraceReason.DUPLICATE)
        elif connection.stats.packets_discarded != discarded:
            is_data = packet.type == PacketType.DATA
            reason = TraceReason.OUTSIDE_WINDOW if is_data else TraceReason.INVALID
            self._packet(TraceEvent.PACKET_DROPPED, packet, connection, now, reason)
        elif packet.type in IN_STREAM:
            window = connection.receiver.window
            if window.gaps and unwrap(packet.sequence, window.next_sequence) > window.next_sequence:
                self._packet(TraceEvent.PACKET_BUFFERED, packet, connection, now)
            elif window.buffered_bytes:
                self._arrived(connection, now)

    def _arrived(self, connection: Connection, now: int) -> None:
        """Remember when the bytes came that are in order and not read yet."""
        window = connection.receiver.window
        unread = self._unread.get(connection.id)
        if unread is None:
            unread = self._unread[connection.id] = _Unread(window.delivered_offset)
        arrivals = unread.arrivals
        if arrivals and (now - arrivals[-1][1] < _ARRIVAL_US or len(arrivals) >= _ARRIVALS_MAX):
            arrivals[-1] = (window.received_offset, arrivals[-1][1])
        else:
            arrivals.append((window.received_offset, now))
        oldest_us = arrivals[0][1]
        if now - max(oldest_us, unread.told_us) >= _UNREAD_US:
            self._waited(connection, unread, oldest_us, now)

    def on_read(self, connection: Connection, now: int) -> None:
        """Record, at most once in LATE_US, that the application read bytes that had waited for it for as long."""
        unread = self._unread.get(connection.id)
        if unread is None:
            return
        arrivals, offset = unread.arrivals, connection.receiver.window.delivered_offset
        oldest_us = arrivals[0][1]
        while arrivals and arrivals[0][0] <= offset:
            arrivals.popleft()
        if now - oldest_us >= LATE_US and (not arrivals or now - unread.told_us >= LATE_US):
            self._waited(connection, unread, oldest_us, now)
        if not arrivals:
            del self._unread[connection.id]

    def _waited(self, connection: Connection, unread: _Unread, oldest_us: int, now: int) -> None:
        window = connection.receiver.window
        self._source.tell(
            TraceEvent.STREAM_DATA_WAITED,
            now,
            connection=connection.id,
            peer=connection.identity.peer_id,
            size_bytes=window.delivered_offset - unread.told_offset,
            backlog_bytes=window.buffered_bytes,
            latency_us=now - oldest_us,
        )
        unread.told_offset, unread.told_us = window.delivered_offset, now

    def on_discarded(self, packet: Packet, now: int) -> None:
        """Record a packet without a connection, or of a version that this endpoint does not speak."""
        if self._packets:
            self._source.tell(
                TraceEvent.PACKET_DROPPED,
                now,
                connection=packet.destination,
                peer=packet.source,
                packet_type=packet.type,
                sequence=packet.sequence,
                attempt=packet.attempt,
                size_bytes=packet.size,
                reason=TraceReason.CONNECTION_UNKNOWN,
            )

    def _packet(
        self, event: TraceEvent, packet: Packet, connection: Connection, now: int, reason: TraceReason | None = None
    ) -> None:
        self._source.tell(
            event,
            now,
            connection=connection.id,
            peer=connection.identity.peer_id or packet.source,
            packet_type=packet.type,
            sequence=packet.sequence,
            attempt=packet.attempt,
            size_bytes=packet.size,
            reason=reason or "",
        )

    # recovery

    def on_acknowledged(self, connection: Connection, ack: Ack, newly: list[Segment], now: int) -> None:
        """Record an ACK and the segments that it acknowledged for the first time."""
        if not self._packets or not newly:
            return
        rtt_us = 0
        for segment in newly:
            if wrap(segment.sequence) == ack.echo_sequence:
                rtt_us = self._echoed(connection, ack, segment, now)
            if segment.attempt:
                self._segment(TraceEvent.PACKET_RECOVERED, connection, segment, now)
        sender = connection.sender
        window = sender.window
        if ack.ranges:
            self._sacked(connection, unwrap(ack.cumulative, window.next_sequence), newly, now)
        self._source.tell(
            TraceEvent.PACKETS_ACKED,
            now,
            connection=connection.id,
            peer=connection.identity.peer_id,
            sequence=ack.cumulative,
            size_bytes=sum(segment.size for segment in newly),
            count=len(newly),
            rtt_us=rtt_us,
            srtt_us=sender.rtt.srtt_us,
            rto_us=sender.rtt.rto_us(),
            window_bytes=max(0, window.peer_edge - window.sent_offset),
            in_flight_bytes=window.sent_offset - window.acknowledged_offset,
            backlog_bytes=window.waiting_bytes,
            edge_bytes=-1 if window.edge_bytes >= NO_EDGE else max(0, window.edge_bytes - window.edge_used),
        )

    def _sacked(self, connection: Connection, edge: int, newly: list[Segment], now: int) -> None:
        """Record the packets beyond a gap, one record for each run of neighbours. `edge` is the cumulative number."""
        runs: list[list[int]] = []
        for sequence in sorted(segment.sequence for segment in newly if segment.sequence > edge):
            if runs and runs[-1][0] + runs[-1][1] == sequence:
                runs[-1][1] += 1
            else:
                runs.append([sequence, 1])
        for first, count in runs:
            self._source.tell(
                TraceEvent.PACKETS_SACKED,
                now,
                connection=connection.id,
                peer=connection.identity.peer_id,
                sequence=wrap(first),
                count=count,
            )

    def _echoed(self, connection: Connection, ack: Ack, segment: Segment, now: int) -> int:
        """Return the RTT sample of the ACK (4.5), or 0. Record a retransmission that it proves spurious (4.9)."""
        attempt = segment.attempt - ((segment.attempt - ack.echo_attempt) & 0xFF)
        if attempt < 0:
            return 0
        if attempt != segment.attempt:
            self._segment(TraceEvent.SPURIOUS_RETRANSMIT, connection, segment, now)
        receipt_us = segment.receipt_of(attempt)
        return max(1, now - receipt_us - min(ack.delay_us, ACK_DELAY_US)) if receipt_us >= 0 else 0

    def _segment(self, event: TraceEvent, connection: Connection, segment: Segment, now: int) -> None:
        self._source.tell(
            event,
            now,
            connection=connection.id,
            peer=connection.identity.peer_id,
            packet_type=segment.type,
            sequence=wrap(segment.sequence),
            attempt=segment.attempt,
            size_bytes=segment.size,
            cause=segment.cause,
        )

    def timer_expired(self, connection: Connection, deadline_us: int, now: int) -> None:
        """Record that a timer of the connection fires, and how late: `latency_us` after its deadline."""
        timers = connection.timers
        due = [timer.name.lower() for timer in Timer if timers.get(timer) <= now]
        if self._packets and due:
            self._source.tell(
                TraceEvent.TIMER_UPDATED,
                now,
                cause=TraceCause.EXPIRED,
                connection=connection.id,
                peer=connection.identity.peer_id,
                latency_us=now - deadline_us,
                text=" ".join(due),
            )

    # connections

    def note(self, connection: Connection, event: TraceEvent, now: int) -> None:
        """Record an event on the connection. `text` is the connection's state."""
        rtt = connection.sender.rtt
        self._source.tell(
            event,
            now,
            connection=connection.id,
            peer=connection.identity.peer_id,
            srtt_us=rtt.srtt_us,
            rto_us=rtt.rto_us(),
            backoff=rtt.backoff,
            text=connection.state.value,
        )

    def on_ended(self, connection: Connection, now: int) -> None:
        """Record the end of a connection: the totals that it moved, and the reason why it ended."""
        self._unread.pop(connection.id, None)
        stats = connection.stats
        for cause, size_bytes, count in (
            (TraceCause.APPLICATION_TO_TRANSPORT, stats.bytes_written, 0),
            (TraceCause.TRANSPORT_TO_NETWORK, stats.bytes_carried, stats.packets_sent),
            (TraceCause.NETWORK_TO_TRANSPORT, connection.receiver.window.received_offset, stats.packets_received),
            (TraceCause.TRANSPORT_TO_APPLICATION, connection.receiver.window.delivered_offset, 0),
        ):
            self._total(connection, TraceEvent.STREAM_DATA_MOVED, now, cause=cause, size_bytes=size_bytes, count=count)
        loss = connection.closing.loss
        reason = "clean" if loss is None else loss[0].name.lower()
        self._total(connection, TraceEvent.CONNECTION_CLOSED, now, reason=reason, count=stats.packets_resent)

    def _total(
        self,
        connection: Connection,
        event: TraceEvent,
        now: int,
        *,
        cause: str = "",
        reason: str = "",
        size_bytes: int = 0,
        count: int = 0,
    ) -> None:
        self._source.tell(
            event,
            now,
            connection=connection.id,
            peer=connection.identity.peer_id,
            cause=cause,
            reason=reason,
            size_bytes=size_bytes,
            count=count,
        )
