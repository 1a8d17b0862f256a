"""The connection object that the application holds. It connects its parts and the state table.

How to drive it: pass packets in (`inbound.receive`), fire timers (`handle_timeout`), call the commands (`write`,
`read`, `finish`, `close`, `abort`), then take the packets that leave (`outbound.py`). Events go to the owner.
"""

from __future__ import annotations

from collections.abc import Callable

from tunnel.core.connection.base import ConnectionBase, ConnectionIdentity, Owner, QueuePlace
from tunnel.core.connection.closing import Closing
from tunnel.core.connection.handshake import Handshake
from tunnel.core.connection.outbound import Outbound
from tunnel.core.connection.state import LIVE, TRANSITIONS, Action, Input, State
from tunnel.core.constants import NEVER_US
from tunnel.core.errors import LocalProtocolError, PeerClosedError
from tunnel.core.events import Event, Flushed, LostReason, PeerClosed, PeerFinished, Readable, Writable
from tunnel.core.receive.window import Arrival
from tunnel.core.send.window import NO_EDGE, Segment
from tunnel.core.stats import ConnectionStats
from tunnel.core.timers import Timer
from tunnel.traces.record import TraceEvent
from tunnel.wire import HEADER_SIZE, AbortReason, Ack, Buffer, End, Packet, PacketType, RejectReason, unwrap

__all__ = ["Connection", "ConnectionOwner"]

WRITABLE_SHARE = 4  # emit Writable once a quarter of the send buffer is free, so that a woken writer has room


class ConnectionOwner(Owner):
    """The methods of the endpoint that a connection calls."""

    is_traced: bool

    def hand_over(self, connection: Connection) -> list[Event]:
        """Let a sibling have the connection, with the events that were not polled yet (6.11)."""
        raise NotImplementedError

    def touch(self, connection: Connection) -> None:
        """Queue and schedule a connection that may have something to send, or whose next deadline may have changed."""
        raise NotImplementedError

    def forget(self, connection: Connection, now: int) -> None:
        """Forget the connection; a tombstone keeps its id and, at the acceptor, the answer to a late CONNECT."""
        raise NotImplementedError

    def note(self, connection: Connection, event: TraceEvent, now: int) -> None:
        """Write a trace record of an event on the connection."""
        raise NotImplementedError

    def note_acknowledged(self, connection: Connection, ack: Ack, newly: list[Segment], now: int) -> None:
        """Write a trace record of what an ACK acknowledged for the first time. Called only if `is_traced`."""
        raise NotImplementedError

    def note_read(self, connection: Connection, now: int) -> None:
        """Write a trace record if the application read late. Called only if `is_traced`."""
        raise NotImplementedError


class Connection(ConnectionBase):
    """A byte stream in each direction between this endpoint and a peer.

    An `Endpoint` creates it. After its end only a tombstone remains: its id and, at the acceptor, the answer to a late
    CONNECT.
    """

    def __init__(self, owner: ConnectionOwner, identity: ConnectionIdentity, now: int) -> None:
        super().__init__(owner, identity, now)
        self.owner = owner
        self.handshake = Handshake(self, owner, now)
        self.closing = Closing(self, self.handshake, owner)
        self.outbound = Outbound(self, self.handshake, owner)
        self.place = QueuePlace()
        self._end_shown = False
        self._write_refused = self._unflushed = False
        self._send_granted = 0  # bytes of the send buffer that the budget granted
        if identity.initiator:
            self.handshake.begin_early(now)

    # getters

    @property
    def readable(self) -> bool:
        """Whether `read` would return bytes."""
        return self.receiver.window.readable

    @property
    def at_eof(self) -> bool:
        """Whether every byte of the peer's stream was read, and its length and digest matched."""
        return self._end_shown

    @property
    def unacknowledged_bytes(self) -> int:
        """The number of bytes that were written and not yet acknowledged."""
        return self.sender.window.unacknowledged_bytes

    @property
    def room(self) -> int:
        """The number of bytes that `write` would take now."""
        return self.sender.window.room

    def snapshot(self) -> ConnectionStats:
        """Return the counters. Values that are not counted all the time are looked up now."""
        stats, sender, window = self.stats, self.sender, self.sender.window
        stats.bytes_buffered = window.pending_bytes
        stats.bytes_acknowledged = window.acknowledged_offset
        stats.bytes_received = self.receiver.window.received_offset
        stats.bytes_delivered = self.receiver.window.delivered_offset
        stats.window_bytes = max(0, window.peer_edge - window.sent_offset)
        stats.edge_bytes = window.edge_bytes
        stats.in_flight_packets = len(window.outstanding)
        stats.receive_buffer_bytes = self.receiver.window.buffered_bytes
        stats.srtt_us, stats.rto_us, stats.backoff = sender.rtt.srtt_us, sender.rtt.rto_us(), sender.rtt.backoff
        stats.round_trip_us = self.round_trip_us()
        return stats

    # commands

    def write(self, data: Buffer, now: int) -> int:
        """Write bytes to the stream. Return the number taken; if it is less than all, wait for Writable.

        Raise PeerClosedError if the peer has closed or the connection has ended, LocalProtocolError if writing is not
        allowed yet, or not any more.
        """
        if self.state in (State.PEER_CLOSED, State.DRAIN, State.CLOSED):
            raise PeerClosedError("the connection is closed: the peer will not read further data")
        if self.closing.finished_writing or self.state is State.REQUESTED:
            raise LocalProtocolError("write() after finish() or close(), or before accept()")
        taken = self.sender.write(data, now)
        self.stats.bytes_written += taken
        if taken < len(data):
            self._write_refused = True
        if taken:
            self._unflushed = True
            self.owner.touch(self)
        return taken

    def flush(self, waiting_bytes: int = 0) -> None:
        """Speed up Flushed: ask for an ACK of everything written so far and of the next `waiting_bytes` (4.17).

        The PROBE that asks leaves after all of these bytes. The call has no effect before the peer has accepted.
        """
        if self.identity.peer_id and self.unacknowledged_bytes + waiting_bytes:
            self.sender.flush(self.sender.window.written_bytes + waiting_bytes)
            self.owner.touch(self)

    def read(self, size_max: int, now: int) -> Buffer:
        """Return the next bytes of the stream, at most `size_max`; b"" if there are none now, or at its end."""
        data = self.receiver.window.read(size_max)
        if len(data):
            window = self.receiver.window
            self.receiver.on_read(now)
            if self.owner.is_traced:
                self.owner.note_read(self, now)
            if window.finished:
                self._check_end(now)
                self.owner.touch(self)
            elif self.receiver.ack_due:
                self.owner.touch(self)
        return data

    def finish(self, now: int) -> None:
        """End this direction after everything written (5.1). Calling it again has no effect."""
        self.closing.finish(now)
        self.owner.touch(self)

    def close(self, now: int) -> None:
        """Deliver everything written, unless the peer has closed, and read nothing more (5.2). Closed, Lost or Refused
        follows.

        It has no effect on a connection that is closing or has ended.
        """
        if self.state is State.REQUESTED:
            raise LocalProtocolError("close() before accept(): refuse it instead")
        self.apply(Input.CLOSE_CALLED, now)
        self.owner.touch(self)

    def accept(self, now: int, *, encrypted: bool = False) -> None:
        """Answer a requested connection with ACCEPTED. Bytes that the initiator has sent already are readable."""
        self.handshake.is_encrypted = encrypted
        if not self.apply(Input.ACCEPT_CALLED, now):
            raise LocalProtocolError("accept() of a connection that the peer did not request, or that was answered")
        self.owner.touch(self)

    def refuse(self, reason: RejectReason, text: str, now: int) -> None:
        """Answer a requested connection with REJECTED. Raise ValueError if the text does not fit a packet (2.3)."""
        if self.state is not State.REQUESTED:
            raise LocalProtocolError("refuse() of a connection that the peer did not request, or that was answered")
        self.handshake.refuse(reason, text)
        self.apply(Input.REFUSE_CALLED, now)

    def abort(self, now: int, reason: AbortReason = AbortReason.APPLICATION, text: str = "") -> None:
        """End the connection at once; the peer gets an error. It has no effect on a connection that has ended."""
        if self.state in LIVE:
            self.fail(LostReason.ABORTED, reason, now, text)

    # packets (called by inbound.py)

    def handle_sequenced(self, packet: Packet, now: int, end: End | None = None) -> None:
        """Process a packet with a sequence number. `end` is the decoded payload of FINISH and CLOSE."""
        if len(packet.payload) + HEADER_SIZE > self.owner.config.packet_bytes_max:
            self.stats.packets_discarded += 1  # 1.3
            return
        window = self.receiver.window
        was_readable = window.readable
        sequence = unwrap(packet.sequence, window.next_sequence)
        arrival = self.receiver.insert(sequence, packet.attempt, packet.type, packet.payload, end, now)
        # What lies above CLOSE has no effect: everything up to CLOSE has come, perhaps with this packet (5.1, 5.8).
        if arrival is Arrival.MISMATCH and not window.closed:
            self.fail(LostReason.INTEGRITY, AbortReason.INTEGRITY, now)
            return
        if arrival is Arrival.REFUSED or arrival is Arrival.DUPLICATE:
            return
        if packet.type == PacketType.CLOSE and end is not None:
            self._peer_closing(end, now)
        if not was_readable and window.readable:
            self.owner.emit(Readable(self.id))
        if window.finished:
            self._check_end(now)

    def handle_ack(self, ack: Ack, now: int) -> bool:
        """Process an ACK. Return False if it is malformed."""
        window = self.sender.window
        newly = self.sender.acknowledge(ack, now)
        if newly is None:
            return False
        owner = self.owner
        if owner.is_traced:
            owner.note_acknowledged(self, ack, newly, now)
        self._fit_send_buffer(ack.window)
        if self._write_refused and window.room * WRITABLE_SHARE >= window.buffer_bytes_max:
            self._write_refused = False
            owner.emit(Writable(self.id))
        if self._unflushed and not window.unacknowledged_bytes:
            self._unflushed = False
            owner.emit(Flushed(self.id))
        if unwrap(ack.cumulative, window.next_sequence) >= window.close_sequence:
            window.close_sequence = NO_EDGE  # apply CLOSE_ACKED once: later ACKs cover the CLOSE too (1.7)
            self.apply(Input.CLOSE_ACKED, now)
        return True

    def _fit_send_buffer(self, peer_window_bytes: int) -> None:
        """Let a send buffer that was full grow with the peer's window, as far as the budget grants it.

        The budget decides because a peer may claim any window. When the window is smaller, the buffer shrinks again.
        """
        window, config = self.sender.window, self.owner.config
        wanted = max(config.send_buffer_bytes_max, min(peer_window_bytes, config.window_bytes_max))
        more = wanted - window.buffer_bytes_max
        if more > 0 and self._write_refused:
            granted = self.budget.grant(more)
            self._send_granted += granted
            window.buffer_bytes_max += granted
        elif more < 0 and window.unacknowledged_bytes <= wanted:
            self.budget.release(-more)
            self._send_granted += more
            window.buffer_bytes_max = wanted

    def release_send_buffer(self) -> None:
        """Give back what the budget granted for sending, at the end of the connection."""
        self.budget.release(self._send_granted)
        self._send_granted = 0

    def _peer_closing(self, end: End, now: int) -> None:
        """Process the peer's CLOSE, in order or not. The peer discards data that had not come when it closed (5.4)."""
        window = self.sender.window
        if end.received is not None:
            received = unwrap(end.received, window.oldest)
            if window.oldest <= received < window.next_sequence:
                window.acknowledge(received, [])
        self.apply(Input.PEER_CLOSE, now)

    def _check_end(self, now: int) -> None:
        window = self.receiver.window
        if not window.at_end or window.discarding:
            return
        if not self._end_shown:
            self._end_shown = True
            self.owner.emit(PeerFinished(self.id))
        if window.closed:
            self.apply(Input.READER_AT_CLOSE, now)

    # moves (6.11)

    def leave_for(self, owner: ConnectionOwner) -> None:
        """Belong to another endpoint, at another relay, from now on."""
        self.owner = owner
        self.use_carrier(owner.carrier)
        self.place = QueuePlace()
        self.handshake.leave_for(owner)
        self.closing.leave_for(owner)
        self.outbound.leave_for(owner)

    # calls from the parts

    def all_received(self, now: int) -> None:
        self.closing.all_received(now)

    def route_resumed(self, now: int) -> None:
        if self.state is State.DRAIN:
            self.closing.drain_anew(now)
        self.owner.note(self, TraceEvent.ROUTE_RESUMED, now)

    # timers

    def handle_timeout(self, now: int) -> None:
        """Handle every timer that is due. Early and late calls do no harm."""
        timers = self.timers
        if timers.next() > now:
            return
        deadlines = timers.deadlines
        if deadlines[Timer.ACK_DELAY] <= now:
            self.receiver.handle_timers(now)
        self.sender.handle_timers(now)
        if timers.next() > now:
            return  # the usual case
        if timers.due(Timer.OPEN, now):
            self.handshake.open_now(now)
        if timers.due(Timer.KEEPALIVE, now):
            is_over = self.state not in LIVE or self.complete
            self.liveness.handle_keepalive(self.sender.rtt.base_rto_us(), now, is_over=is_over)
        self.closing.handle_timers(now)
        if timers.due(Timer.USER_TIMEOUT, now) and self.liveness.handle_user_timeout(self._unanswered_since(), now):
            self.fail(LostReason.TIMEOUT, AbortReason.USER_TIMEOUT, now)

    def _unanswered_since(self) -> int:
        """Return the start of the longest wait that the user timeout limits (4.15); NEVER_US if nothing waits."""
        if self.state is State.REQUESTED or self.state is State.DRAIN:
            return NEVER_US
        gone_since_us = min(self.handshake.suspended_since_us, self.owner.carrier.absent_since_us)
        since = min(gone_since_us, self.sender.probing_since_us, self.liveness.pinging_since_us)
        if self.state in (State.CONNECTING, State.CLOSED_EARLY):
            return min(since, self.handshake.opened_us)
        return min(since, self.sender.waiting_since_us)

    # the state table

    def apply(self, event: Input, now: int) -> bool:
        row = TRANSITIONS.get((self.state, event))
        if row is None:
            return False
        self.state, actions = row
        for action in actions:
            ACTIONS[action](self, now)
        self.owner.note(self, TraceEvent.CONNECTION_STATE_UPDATED, now)
        return True

    def fail(self, reason: LostReason, tell: AbortReason | None, now: int, text: str = "") -> None:
        self.closing.fail(reason, tell, now, text)

    def junk_send(self) -> None:
        """Drop the send queue, because the peer does not read any more, or has received everything."""
        junked = self.sender.stop()
        self._unflushed = self._write_refused = False  # a later ACK must not emit Flushed or Writable
        if self.state is State.PEER_CLOSED:
            self.owner.emit(PeerClosed(self.id, junked))
        self.closing.on_peer_closed(junked)

    def forget(self, now: int) -> None:
        """Free everything. The endpoint keeps a tombstone."""
        self.sender.stop()
        self.receiver.window.discard()
        self.timers.clear_all()
        self.owner.forget(self, now)


ACTIONS: dict[Action, Callable[[Connection, int], None]] = {
    Action.SEND_ACCEPTED: lambda connection, now: connection.handshake.send_accepted(now),
    Action.SEND_REJECTED: lambda connection, now: connection.handshake.send_rejected(now),
    Action.BEGIN: lambda connection, now: connection.handshake.begin(now),
    Action.SURFACE: lambda connection, now: connection.handshake.surface(now),
    Action.DISCARD_RECEIVED: lambda connection, now: connection.closing.discard_received(now),
    Action.QUEUE_CLOSE: lambda connection, now: connection.closing.queue_close(now),
    Action.JUNK_SEND: lambda connection, now: connection.junk_send(),
    Action.REPORT_CLOSED: lambda connection, now: connection.closing.report_closed(now),
    Action.SEND_SHUTDOWN: lambda connection, now: connection.closing.release(now),
    Action.SEND_LAST_SHUTDOWN: lambda connection, now: connection.closing.send_last_shutdown(now),
    Action.START_DRAIN: lambda connection, now: connection.closing.start_drain(now),
    Action.FORGET: lambda connection, now: connection.forget(now),
}
"""The method that carries out each action of the state table."""
