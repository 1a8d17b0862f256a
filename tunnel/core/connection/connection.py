"""One connection: wires the two halves, the state table and the timers together, and is what the application holds.

How to drive it: hand packets in (`inbound.receive`), fire timers (`handle_timeout`), command it (`write`, `read`,
`finish`, `close`, `abort`), then take what leaves (`outbound.py`). Events go to the owner.
"""

from tunnel.core.connection.closing import ACTIONS, Owner, drain_anew, drain_over, repeat_farewell
from tunnel.core.connection.handshake import Identity
from tunnel.core.connection.liveness import Liveness
from tunnel.core.connection.outbound import Outbound
from tunnel.core.connection.state import LIVE, TRANSITIONS, Input, State
from tunnel.core.constants import (
    BACKOFF_MAX_US,
    EARLY_BYTES_MAX,
    NEVER_US,
    PACKET_PAYLOAD_MIN,
    SECOND_US,
)
from tunnel.core.errors import LocalProtocolError, PeerClosedError
from tunnel.core.events import Flushed, Lost, LostReason, PeerClosed, PeerFinished, Readable, Writable
from tunnel.core.receive.acks import Receiver
from tunnel.core.receive.window import ReceiveWindow
from tunnel.core.send.sender import Sender
from tunnel.core.send.window import NO_EDGE, SendWindow
from tunnel.core.stats import ConnectionStats
from tunnel.core.timers import Timer, TimerTable
from tunnel.traces.record import TraceEvent
from tunnel.wire import (
    HEADER_SIZE,
    Abort,
    AbortReason,
    Accepted,
    Ack,
    Buffer,
    End,
    Option,
    Options,
    Packet,
    PacketType,
    RejectReason,
    encode_abort,
    encode_option,
    unwrap,
)

__all__ = ["Connection"]

WRITABLE_SHARE = 4  # Writable when this part of the send buffer is free again, so that writers wake up for something


class Connection:
    """A stream to or from a peer. Made by an `Endpoint`; an id is all that survives its end."""

    def __init__(self, owner: Owner, identity: Identity, now: int) -> None:
        config = owner.config
        self.owner = owner
        self.identity = identity
        self.id = identity.own_id
        self.state = State.CONNECTING if identity.initiator else State.REQUESTED
        self.timers = TimerTable()
        self.stats = ConnectionStats()
        self.liveness = Liveness(self.timers, config.keepalive_us, config.user_timeout_us, now)
        first = identity.first_sequence + 1 if identity.initiator else identity.first_sequence
        window = SendWindow(first, config.send_buffer_bytes_max, EARLY_BYTES_MAX if identity.initiator else 0)
        self.sender = Sender(window, self.timers, self.stats, owner.carrier)
        self.receiver = Receiver(ReceiveWindow(config, owner.budget, 0), self.timers, self.stats)
        self.outbound = Outbound(self)
        self.opened_us = now
        self.suspended_since_us = NEVER_US  # the route is gone since then (6.5)
        self.option_version = 0
        self.held_packets: list[Packet] = []
        self.held_bytes = 0
        self.pongs: list[bytes] = []
        self.peer_shut = False
        self.loss: tuple[LostReason, str] | None = None  # how it will have ended
        self.finished_writing = False
        self._end_shown = False
        self._write_refused = self._unflushed = False
        self._peer_pull_interval_us = 0
        self._option_sent = 0
        self.unseen = not identity.initiator  # the application has not been told of it
        self.queued = False  # the next three are kept for the endpoint's queues
        self.deficit = 0
        self.scheduled_us = NEVER_US
        if identity.initiator:
            self.sender.window.ends_held = True
            self.sender.resume(min(owner.carrier.initial_edge_bytes, EARLY_BYTES_MAX), now)
            self.outbound.open_now(now)

    # getters

    @property
    def readable(self) -> bool:
        """`read` would give bytes."""
        return self.receiver.window.readable

    @property
    def complete(self) -> bool:
        """Everything of the peer has come, and it wants nothing more: only our reader is behind. What happens to the
        path or the peer from now on costs no byte (4.2, 5.5)."""
        return self.state is State.PEER_CLOSED and self.receiver.window.closed

    @property
    def at_eof(self) -> bool:
        """Every byte of the peer's stream was read, and its length and digest were right."""
        return self._end_shown

    @property
    def unacknowledged_bytes(self) -> int:
        """Written and not known to be in the peer's buffer."""
        return self.sender.window.unacknowledged_bytes

    def snapshot(self) -> ConnectionStats:
        """The counters, with what is cheaper to look up than to count."""
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
        return stats

    # commands

    def write(self, data: Buffer, now: int) -> int:
        """Take bytes of the stream; how many. 0 means full: wait for Writable."""
        if self.state in (State.PEER_CLOSED, State.DRAIN, State.CLOSED):
            raise PeerClosedError("the connection is closed: nobody would read this")
        if self.finished_writing or self.state is State.REQUESTED:
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
        """Somebody waits for Flushed: ask for the acknowledgement of everything written, and of `waiting_bytes` that
        will be, when it has left (4.17). Before the peer has accepted it changes nothing."""
        if self.identity.peer_id and self.unacknowledged_bytes + waiting_bytes:
            self.sender.flush(self.sender.window.written_bytes + waiting_bytes)
            self.owner.touch(self)

    def read(self, size_max: int, now: int) -> Buffer:
        """The next bytes of the stream, at most `size_max`; b"" when there are none now or it has ended (`at_eof`)."""
        data = self.receiver.window.read(size_max)
        if len(data):
            window = self.receiver.window
            self.receiver.opened(now)
            if window.finished:
                self._check_end(now)
                self.owner.touch(self)
            elif self.receiver.ack_due:
                self.owner.touch(self)
        return data

    def finish(self, now: int) -> None:
        """End our direction after everything written (5.1); harmless when it has ended already."""
        if self.state is State.REQUESTED:
            raise LocalProtocolError("finish() before accept()")
        if not self.finished_writing and self.state in LIVE and self.state is not State.PEER_CLOSED:
            self.finished_writing = True
            self.sender.end(PacketType.FINISH, now)
            self.owner.touch(self)

    def close(self, now: int) -> None:
        """Deliver everything written, read nothing more (5.2). Closed or Lost follows. Harmless when it has ended."""
        if self.state is State.REQUESTED:
            raise LocalProtocolError("close() before accept(): refuse it instead")
        self.apply(Input.CLOSE_CALLED, now)
        self.owner.touch(self)

    def accept(self, now: int) -> None:
        """Answer ACCEPTED to what was requested; the bytes that it may have sent already are readable."""
        if not self.apply(Input.ACCEPT_CALLED, now):
            raise LocalProtocolError("accept() of a connection that was not requested, or is answered")
        self.owner.touch(self)

    def refuse(self, reason: RejectReason, text: str, now: int) -> None:
        """Answer REJECTED to what was requested. ValueError when the text does not fit a packet (2.3)."""
        if self.state is not State.REQUESTED:
            raise LocalProtocolError("refuse() of a connection that was not requested, or is answered")
        self.outbound.refuse(reason, text)
        self.apply(Input.REFUSE_CALLED, now)

    def abort(self, now: int, reason: AbortReason = AbortReason.APPLICATION, text: str = "") -> None:
        """End at once; the peer gets an error. Harmless when it has ended."""
        if self.state in LIVE:
            self.fail(LostReason.ABORTED, reason, now, text)

    def pull_interval_changed(self, now: int) -> None:
        """Our carrier pulls at another rate: the peer's timers depend on it, too (2.7, 4.6)."""
        self._add_pull_intervals()
        if self.state in (State.ACCEPTED, State.OPEN):  # later there may be a CLOSE, which nothing may follow
            self._option_sent += 1
            options = Options(pull_interval_ms=self.owner.carrier.pull_interval_us // 1000)
            self.sender.insert(PacketType.OPTION, encode_option(Option(self._option_sent, options)), now)

    # what packets bring (called by inbound.py)

    def answered(self, accepted: Accepted, packet: Packet, now: int) -> None:
        """ACCEPTED: the first time it opens, after a resume it reopens, else it is a repeat."""
        identity = self.identity
        sequence = unwrap(packet.sequence, self.receiver.window.next_sequence)
        if not identity.peer_id:
            identity.peer_id = packet.destination
            identity.acceptor_endpoint = accepted.options.endpoint_id
            self.receiver.window.next_sequence = (1 << 32) + packet.sequence
            self.receiver.insert((1 << 32) + packet.sequence, packet.attempt, packet.type, b"", None, now)
            if self.receiver.window.discarding:
                self.sender.window.close_received = (1 << 32) + packet.sequence
            self.sender.window.peer_edge = accepted.window  # the early allowance was no window of the peer (3.6)
            self.learn(accepted.options)
            self.apply(Input.ANSWERED, now)
            held, self.held_packets = self.held_packets, []
            for early in held:
                self.owner.receive(self, early, now)
        elif self.suspended_since_us != NEVER_US:
            self.resume(now)  # it came over a bound route, whether it says "resumed" or is the first one again
        else:
            self.receiver.insert(sequence, packet.attempt, packet.type, b"", None, now)

    def replaced(self, other_id: int, now: int) -> None:
        """A second acceptor took our CONNECT, which the first must have died for: both streams are over."""
        self.owner.send_abort(self.id, other_id)
        self.fail(LostReason.GONE, None, now, "another endpoint answered in place of the peer")

    def acknowledged(self, ack: Ack, now: int) -> bool:
        """An ACK; False if it is malformed."""
        window = self.sender.window
        newly = self.sender.acknowledge(ack, now)
        if newly is None:
            return False
        if self.owner.tracer is not None:
            self.owner.tracer.acknowledged(self, ack, newly, now)
        config = self.owner.config
        window.buffer_bytes_max = max(config.send_buffer_bytes_max, min(ack.window, config.window_bytes_max))
        if self._write_refused and window.room * WRITABLE_SHARE >= window.buffer_bytes_max:
            self._write_refused = False
            self.owner.emit(Writable(self.id))
        if self._unflushed and not window.unacknowledged_bytes:
            self._unflushed = False
            self.owner.emit(Flushed(self.id))
        if unwrap(ack.cumulative, window.next_sequence) >= window.close_sequence:
            window.close_sequence = NO_EDGE  # once: a later ACK says the same (1.7)
            self.apply(Input.CLOSE_ACKED, now)
        return True

    def peer_closing(self, end: End, now: int) -> None:
        """Their CLOSE, in order or not: what they had not received by then they never will (5.4)."""
        window = self.sender.window
        if end.received is not None:
            received = unwrap(end.received, window.oldest)
            if window.oldest <= received < window.next_sequence:
                window.acknowledge(received, [])
        self.apply(Input.PEER_CLOSE, now)

    def arrived(self, was_readable: bool, now: int) -> None:
        """Something sequenced was taken in."""
        if not was_readable and self.receiver.window.readable:
            self.owner.emit(Readable(self.id))
        if self.receiver.window.finished:
            self._check_end(now)

    def learn(self, options: Options) -> None:
        """What the peer says of itself."""
        if options.packet_bytes_max is not None:
            self.outbound.peer_packet_bytes_max = max(options.packet_bytes_max, PACKET_PAYLOAD_MIN + HEADER_SIZE)
        if options.user_timeout_ms:
            self.liveness.limit(max(SECOND_US, min(options.user_timeout_ms * 1000, self.owner.config.user_timeout_us)))
        if options.pull_interval_ms is not None:
            self._peer_pull_interval_us = min(options.pull_interval_ms * 1000, BACKOFF_MAX_US)
        self._add_pull_intervals()

    # the route

    def route_lost(self, now: int) -> None:
        """The relay does not know our route any more: nothing flows until it is resumed (6.5)."""
        if self.state in (State.CONNECTING, State.CLOSED_EARLY):
            self.outbound.open_anew(now)
            self.sender.resume(min(self.owner.carrier.initial_edge_bytes, EARLY_BYTES_MAX), now)
            return
        if self.state in (State.REQUESTED, State.CLOSED) or self.suspended_since_us != NEVER_US:
            return
        self.suspended_since_us = now
        self.sender.suspend()
        if self.identity.initiator:
            self.outbound.open_now(now)

    def reopened(self, *, resume: bool, now: int) -> None:
        """Its CONNECT came again: answer as before; with a resume everything unacknowledged is sent again."""
        if self.state is State.REQUESTED:
            return
        if resume or self.suspended_since_us != NEVER_US:
            self.resume(now)
        if not self.sender.repeat_first():
            self.outbound.answer_due = True
            self.outbound.answer_resumed = resume

    def resume(self, now: int) -> None:
        """The route is bound again: both sides resend what is unacknowledged and acknowledge what they have (6.6)."""
        self.suspended_since_us = NEVER_US
        self.outbound.open_due = False
        self.timers.clear(Timer.OPEN)
        self.liveness.heard(now)
        self.sender.resume(self.owner.carrier.initial_edge_bytes, now)
        self.receiver.owe_ack(now)
        if self.state is State.DRAIN:
            drain_anew(self, now)
        self.owner.note(self, TraceEvent.ROUTE_RESUMED, now)

    # timers

    def handle_timeout(self, now: int) -> None:
        """Whatever is due; early or late calls are harmless."""
        timers = self.timers
        if timers.next() > now:
            return
        self.receiver.handle_timers(now)
        self.sender.handle_timers(now)
        if timers.due(Timer.OPEN, now):
            self.outbound.open_now(now)
        if timers.due(Timer.KEEPALIVE, now) and self.state in LIVE and not self.complete:
            self.liveness.handle_keepalive(self.sender.rtt.base_rto_us(), now)
        if timers.due(Timer.FAREWELL, now):
            repeat_farewell(self, now)
        if timers.due(Timer.DRAIN, now):
            drain_over(self, now)
        if timers.due(Timer.USER_TIMEOUT, now) and self.liveness.expired(self._unanswered_since(), now):
            self.fail(LostReason.TIMEOUT, AbortReason.USER_TIMEOUT, now)

    def _unanswered_since(self) -> int:
        """Since when the oldest thing is unanswered that the user timeout watches (4.15)."""
        if self.state is State.REQUESTED or self.state is State.DRAIN:
            return NEVER_US
        gone_since_us = min(self.suspended_since_us, self.owner.carrier.absent_since_us)
        since = min(gone_since_us, self.sender.probing_since_us, self.liveness.pinging_since_us)
        if self.state in (State.CONNECTING, State.CLOSED_EARLY):
            return min(since, self.opened_us)
        return min(since, self.sender.waiting_since_us)

    def _add_pull_intervals(self) -> None:
        self.sender.rtt.pull_interval_us = self.owner.carrier.pull_interval_us + self._peer_pull_interval_us

    # the state table

    def apply(self, event: Input, now: int) -> bool:
        """Feed the table and carry out the row's actions; False when the input changes nothing in this state."""
        row = TRANSITIONS.get((self.state, event))
        if row is None:
            return False
        self.state, actions = row
        for action in actions:
            ACTIONS[action](self, now)
        self.owner.note(self, TraceEvent.CONNECTION_STATE_UPDATED, now)
        return True

    def fail(self, reason: LostReason, tell: AbortReason | None, now: int, text: str = "") -> None:
        """End with an error: the application learns the reason, the peer too if `tell` is given."""
        if self.state is State.CLOSED:
            return
        if self.complete and reason is not LostReason.ABORTED:
            for timer in (Timer.OPEN, Timer.KEEPALIVE, Timer.USER_TIMEOUT):
                self.timers.clear(timer)
            return
        if tell is not None and self.identity.peer_id:
            payload = encode_abort(Abort(tell, text))
            self.owner.send(Packet(PacketType.ABORT, self.id, self.identity.peer_id, 0, payload))
        self.loss = (reason, text)
        self.apply(Input.LOST, now)

    def junk_send(self) -> None:
        """The peer wants nothing more, or has everything."""
        junked = self.sender.stop()
        self._unflushed = self._write_refused = False  # a later ACK must claim nothing
        if self.state is State.PEER_CLOSED:
            self.owner.emit(PeerClosed(self.id, junked))
        if junked:
            self.loss = (LostReason.PEER_CLOSED, f"{junked} bytes were not acknowledged")

    def report_end(self) -> Lost | None:
        """How it ended, if that was an error."""
        return None if self.loss is None else Lost(self.id, *self.loss)

    def _check_end(self, now: int) -> None:
        window = self.receiver.window
        if not window.at_end or window.discarding:
            return
        if not self._end_shown:
            self._end_shown = True
            self.owner.emit(PeerFinished(self.id))
        if window.closed:
            self.apply(Input.READER_AT_CLOSE, now)
