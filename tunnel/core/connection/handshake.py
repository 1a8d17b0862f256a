"""The handshake: CONNECT and its answers, to open a connection and to resume its route (section 3, 6.5, 6.6).

The initiator repeats CONNECT until it is answered. When the relay has lost its state, and so the route, the initiator
sends CONNECT with `resume`, and ACCEPTED binds the route again. Until the first answer, the peer's packets are held.
"""

from msgspec import structs

from tunnel.core.connection.base import ConnectionBase, ConnectionIdentity, Owner
from tunnel.core.connection.state import Input, State
from tunnel.core.constants import (
    BACKOFF_MAX_US,
    EARLY_BYTES_MAX,
    EARLY_PACKETS_MAX,
    FAST_OPEN_INTERVAL_US,
    FAST_OPENS,
    HELD_BYTES_MAX,
    NEVER_US,
    PACKET_PAYLOAD_MIN,
    RESUME_INTERVAL_US,
    SECOND_US,
)
from tunnel.core.events import Connected, Incoming, LostReason, Refused
from tunnel.core.ports import CarrierView
from tunnel.core.send.window import SegmentState
from tunnel.core.timers import Timer
from tunnel.wire import (
    HEADER_SIZE,
    VERSION,
    AbortReason,
    Accepted,
    Buffer,
    Connect,
    Option,
    Options,
    Packet,
    PacketType,
    Rejected,
    RejectReason,
    TargetKind,
    encode_accepted,
    encode_connect,
    encode_option,
    encode_rejected,
    unwrap,
    wrap,
)

__all__ = ["VERSIONS", "Handshake", "accepted_packet", "common_version"]

VERSIONS = (VERSION, VERSION)
"""The versions of the protocol that this endpoint speaks."""

_ACCEPTED = int(PacketType.ACCEPTED)
_KNOWN_REFUSALS = frozenset(int(reason) for reason in RejectReason)
_WITHDRAWN = {
    AbortReason.APPLICATION: RejectReason.REFUSED,
    AbortReason.INTEGRITY: RejectReason.MALFORMED,
    AbortReason.PROTOCOL: RejectReason.MALFORMED,
    AbortReason.SHUTTING_DOWN: RejectReason.SHUTTING_DOWN,
    AbortReason.DENIED: RejectReason.DENIED,
}
"""The refusal of a CONNECT whose connection fails before any ACCEPTED has left; GONE for other failures."""
_FINAL_REFUSALS = frozenset({RejectReason.GONE, RejectReason.DENIED, RejectReason.FINISHED})  # of a resume (6.8)


class Handshake:
    """Opens one connection, keeps its route, and exchanges options with the peer.

    One thing because opening and resuming send the same packets, and one timer repeats both.
    """

    __slots__ = (
        "_answer_resumed",
        "_answers",
        "_backoff",
        "_connection",
        "_held",
        "_held_bytes",
        "_opens",
        "_option_received",
        "_option_sent",
        "_owner",
        "_peer_pull_interval_us",
        "_refusal",
        "answer_due",
        "is_asked",
        "is_encrypted",
        "offer",
        "open_due",
        "opened_us",
        "peer_packet_bytes_max",
        "suspended_since_us",
        "unseen",
    )

    def __init__(self, connection: ConnectionBase, owner: Owner, now: int) -> None:
        self._connection = connection
        self._owner = owner
        self.opened_us = now
        self.suspended_since_us = NEVER_US  # when this endpoint learned that the route is lost (6.5); else NEVER_US
        self.unseen = not connection.identity.initiator  # the connection was not shown to the application yet
        self.is_asked = False  # the acceptor's application decides about CONNECT, so it knows the connection already
        self.is_encrypted = False  # the acceptor takes up the offer to encrypt (3.13)
        self.offer = b""  # the ClientHello in CONNECT, until it is answered; empty: encryption is not offered
        self.open_due = False  # CONNECT must leave
        self.answer_due = False  # a repeated CONNECT or a resume must be answered with ACCEPTED
        self.peer_packet_bytes_max = owner.config.packet_bytes_max
        self._answer_resumed = False
        self._opens = 0  # number of CONNECTs sent
        self._backoff = 0  # doublings of the CONNECT interval; -n: n repeats at FAST_OPEN_INTERVAL_US come first
        self._answers = 0
        self._held: list[Packet] = []
        self._held_bytes = 0
        self._refusal: bytes | None = None  # the payload of REJECTED
        self._peer_pull_interval_us = 0
        self._option_sent = 0
        self._option_received = 0

    def leave_for(self, owner: Owner) -> None:
        """Belong to another endpoint, with another carrier, from now on (6.11)."""
        self._owner = owner
        self._add_pull_intervals()

    # opening, at the initiator

    def open_now(self, now: int) -> None:
        """Send CONNECT with the next batch, and set the timer for its repeat (3.1, 6.5)."""
        self.open_due = True
        if self._connection.identity.peer_id:
            interval_us = RESUME_INTERVAL_US
        elif self._backoff < 0:
            interval_us = FAST_OPEN_INTERVAL_US
        else:
            interval_us = min(SECOND_US << min(self._backoff, 16), BACKOFF_MAX_US)
        self._connection.timers.set(Timer.OPEN, now + interval_us)

    def open_again(self) -> bool:
        """Send CONNECT again, because its batch was given up (4.10). Return False if it is no longer needed."""
        if self._connection.timers.get(Timer.OPEN) == NEVER_US:
            return False
        self.open_due = True
        return True

    def hold(self, packet: Packet) -> None:
        """Hold a packet that overtook ACCEPTED on another lane (3.7), or discard it beyond the limits."""
        size = len(packet.payload)
        if len(self._held) < EARLY_PACKETS_MAX and self._held_bytes + size <= HELD_BYTES_MAX:
            packet.payload = bytes(packet.payload)  # a slice would keep its whole body in memory
            self._held.append(packet)
            self._held_bytes += size
        else:
            self._connection.stats.packets_discarded += 1

    def handle_accepted(self, accepted: Accepted, packet: Packet, now: int) -> list[Packet]:
        """Process ACCEPTED: the first opens the connection, one after a lost route resumes it, others are repeats.

        Return the held packets, in order.
        """
        connection = self._connection
        identity = connection.identity
        if identity.peer_id and identity.peer_id != packet.destination:
            # A second acceptor took our CONNECT, so the first must have died: both connections end.
            self._owner.send_abort(identity.own_id, packet.destination)
            connection.fail(LostReason.GONE, None, now, "another endpoint answered in place of the peer")
            return []
        connection.liveness.on_heard(now)
        if not identity.peer_id:
            self._opened(accepted, packet, now)
            held, self._held = self._held, []
            return held
        if self.suspended_since_us != NEVER_US:
            if (accepted.options.move or 0) == identity.move:  # else it answers an earlier resume
                self.resume(now)  # it came over a bound route, whether it says "resumed" or is the first one again
        else:
            sequence = unwrap(packet.sequence, connection.receiver.window.next_sequence)
            connection.receiver.insert(sequence, packet.attempt, packet.type, b"", None, now)
        return []

    def _opened(self, accepted: Accepted, packet: Packet, now: int) -> None:
        connection = self._connection
        identity, receiver, window = connection.identity, connection.receiver, connection.sender.window
        identity.peer_id = packet.destination
        identity.acceptor_endpoint = accepted.options.endpoint_id
        identity.further_ids = accepted.options.further_ids
        self.is_encrypted = bool(self.offer) and accepted.options.encryption is not None
        self.offer = b""
        receiver.window.next_sequence = (1 << 32) + packet.sequence
        receiver.insert((1 << 32) + packet.sequence, packet.attempt, packet.type, b"", None, now)
        if receiver.window.discarding:
            window.close_received = (1 << 32) + packet.sequence
        window.peer_edge = accepted.window  # it replaces the allowance for early data, which was not a window (3.6)
        self.learn(accepted.options)
        connection.apply(Input.ANSWERED, now)

    def handle_rejected(self, rejected: Rejected, now: int) -> None:
        """Process REJECTED with the right route key: the connection does not open, or is not resumed (6.8)."""
        connection = self._connection
        if connection.state in (State.CONNECTING, State.CLOSED_EARLY):
            reason = RejectReason(rejected.reason) if rejected.reason in _KNOWN_REFUSALS else RejectReason.REFUSED
            self._owner.emit(Refused(connection.id, reason, rejected.text))
            connection.apply(Input.REJECTED, now)
        elif self.suspended_since_us == NEVER_US:
            return  # out of date
        elif rejected.reason == RejectReason.FINISHED and connection.state is State.CLOSING:
            connection.all_received(now)
        elif rejected.reason in _FINAL_REFUSALS:
            connection.fail(LostReason.GONE, None, now, rejected.text)

    # opening, at the acceptor

    def send_accepted(self, now: int) -> None:
        """Send ACCEPTED as the first packet of the stream."""
        self._connection.sender.insert(_ACCEPTED, self._accepted_payload(resumed=False), now)

    def accepted_waits(self) -> bool:
        """Return whether ACCEPTED must be sent again. It goes before anything else, since it binds the route (3.2)."""
        if self._connection.identity.initiator:
            return False
        window = self._connection.sender.window
        first = window.outstanding.get(window.oldest)
        return first is not None and first.type == _ACCEPTED and first.state is SegmentState.LOST

    def surface(self, now: int) -> None:
        """Show the connection to the application, after a packet of its initiator has come."""
        identity = self._connection.identity
        self.unseen = False
        if identity.target.kind == TargetKind.SERVICE and not self.is_asked:
            self._owner.emit(Incoming(identity.own_id, identity.target.host, identity.user))
        else:
            self._owner.emit(Connected(identity.own_id))

    def refuse(self, reason: RejectReason, text: str) -> None:
        """Set the refusal for `send_rejected` and the tombstone. Raise ValueError if the text does not fit a packet."""
        self._refusal = encode_rejected(Rejected(self._connection.identity.route_key, reason, text))

    @property
    def answer_left(self) -> bool:
        """Whether the relay may have ACCEPTED, which binds the route: only then can it forward ABORT."""
        identity = self._connection.identity
        return identity.initiator or self._connection.sender.window.unsent_sequence > identity.first_sequence

    def withdraw(self, tell: AbortReason, text: str, now: int) -> None:
        """Answer CONNECT with REJECTED, because the connection fails and nothing shows that ACCEPTED came (3.2).

        The relay would otherwise keep the CONNECT as unanswered for 75 s if ACCEPTED did not come. If ACCEPTED came,
        REJECTED only makes the relay forget the route; the reason must then also end a resume (6.8).
        """
        identity, window = self._connection.identity, self._connection.sender.window
        if self.unseen and window.oldest == identity.first_sequence:
            reason = RejectReason.GONE if self.answer_left else _WITHDRAWN.get(tell, RejectReason.GONE)
            self.refuse(reason, text)
            self.send_rejected(now)

    def send_rejected(self, now: int) -> None:
        """Send REJECTED with the reason that `refuse` has set."""
        peer_id = self._connection.identity.peer_id
        self._owner.send(Packet(PacketType.REJECTED, peer_id, 0, 0, self.last_answer()))

    def last_answer(self) -> bytes:
        """Return the payload of REJECTED that answers a CONNECT after the end of the connection."""
        return self._refusal or encode_rejected(Rejected(self._connection.identity.route_key, RejectReason.GONE))

    # both

    def begin(self, now: int) -> None:
        """Start the stream: this side knows the id of the other."""
        connection, initial_edge_bytes = self._connection, self._owner.carrier.initial_edge_bytes
        sender = connection.sender
        sender.window.ends_held = False
        self.open_due = False
        connection.timers.clear(Timer.OPEN)
        connection.liveness.begin(now)
        if connection.identity.initiator:
            # Early data may still be in flight: it is not lost, and it still counts against the edge.
            sender.suspended = False
            sender.window.edge_bytes = initial_edge_bytes
            sender.rtt.reset_backoff()  # the peer could not acknowledge early data, so its silence was no failure
            sender.arm(now)
            self._owner.emit(Connected(connection.id))
        else:
            sender.resume(initial_edge_bytes, now)

    # the route

    def begin_early(self, now: int) -> None:
        """Send CONNECT, and allow 64 KiB of early data before its answer (3.6)."""
        sender = self._connection.sender
        sender.window.ends_held = True
        sender.resume(min(self._owner.carrier.initial_edge_bytes, EARLY_BYTES_MAX), now)
        self.open_now(now)

    def route_lost(self, now: int) -> None:
        """React to the loss of the route at the relay.

        An unanswered CONNECT is sent again (3.1). On an accepted connection, this side stops sending until the route is
        resumed, and the initiator asks for that with CONNECT (6.5).
        """
        connection = self._connection
        if connection.state in (State.CONNECTING, State.CLOSED_EARLY):
            # Restart the backoff, since the silence came from the lost route. Begin with quick repeats, because perhaps
            # the acceptor is not back yet (3.1, 6.5).
            self._backoff = -FAST_OPENS
            self.open_now(now)
            connection.sender.resume(min(self._owner.carrier.initial_edge_bytes, EARLY_BYTES_MAX), now)
        elif connection.state not in (State.REQUESTED, State.CLOSED) and self.suspended_since_us == NEVER_US:
            self.suspended_since_us = now
            connection.sender.suspend()
            if connection.identity.initiator:
                self.open_now(now)

    def handle_repeat(self, *, resume: bool, now: int) -> None:
        """Process a repeated CONNECT: answer as before. With `resume`, or if the route was lost, also resume."""
        connection = self._connection
        if connection.state is State.REQUESTED:
            return
        if resume or self.suspended_since_us != NEVER_US:
            self.resume(now)
        if connection.identity.move or not connection.sender.repeat_first():  # the first one names no move
            self.answer_due = True
            self._answer_resumed = resume

    def go_on(self, options: Options, now: int) -> None:
        """Go on at the relay to which the connection has moved, with what the acceptor has announced there (6.11)."""
        identity = self._connection.identity
        identity.acceptor_endpoint, identity.further_ids = options.endpoint_id, options.further_ids
        self.learn(options)
        self.resume(now)

    def resume(self, now: int) -> None:
        """Resume after the route is bound again: resend what is unacknowledged, and acknowledge what has come (6.6)."""
        connection = self._connection
        self.suspended_since_us = NEVER_US
        self.open_due = False
        connection.timers.clear(Timer.OPEN)
        connection.liveness.on_heard(now)
        connection.sender.resume(self._owner.carrier.initial_edge_bytes, now)
        connection.receiver.request_ack(now)
        connection.route_resumed(now)

    # options

    def learn(self, options: Options) -> None:
        """Apply the options that the peer has announced."""
        if options.packet_bytes_max is not None:
            self.peer_packet_bytes_max = max(options.packet_bytes_max, PACKET_PAYLOAD_MIN + HEADER_SIZE)
        if options.user_timeout_ms:
            ours_us = self._owner.config.user_timeout_us
            self._connection.liveness.limit(max(SECOND_US, min(options.user_timeout_ms * 1000, ours_us)))
        if options.pull_interval_ms is not None:
            self._peer_pull_interval_us = min(options.pull_interval_ms * 1000, BACKOFF_MAX_US)
        self._add_pull_intervals()

    def option_received(self, option: Option) -> None:
        """Process OPTION, unless the same or a newer version was applied before (2.7)."""
        if option.version > self._option_received:
            self._option_received = option.version
            self.learn(option.options)

    def pull_interval_changed(self, now: int) -> None:
        """Use the carrier's new pull interval, and announce it to the peer, whose timers depend on it (2.7, 4.6)."""
        self._add_pull_intervals()
        if self._connection.state in (State.ACCEPTED, State.OPEN):  # later, nothing may follow a queued CLOSE
            self._option_sent += 1
            options = Options(pull_interval_ms=self._owner.carrier.pull_interval_us // 1000)
            payload = encode_option(Option(self._option_sent, options))
            self._connection.sender.insert(PacketType.OPTION, payload, now)

    def _add_pull_intervals(self) -> None:
        rtt = self._connection.sender.rtt
        rtt.pull_interval_us = self._owner.carrier.pull_interval_us + self._peer_pull_interval_us

    # packets

    def take_packets(self) -> list[Packet]:
        """Return CONNECT and ACCEPTED if they are due. Neither is due afterwards."""
        packets = []
        if self.open_due:
            packets.append(self._connect_packet())
        if self.answer_due:
            self.answer_due = False
            self._answers += 1
            payload = self._accepted_payload(resumed=self._answer_resumed)
            packets.append(accepted_packet(self._connection.identity, payload, self._answers))
        return packets

    def moving_packet(self, carrier: CarrierView, number: int) -> Packet:
        """Build CONNECT with resume for another relay, which `carrier` leads to (6.11)."""
        identity = self._connection.identity
        options = structs.replace(
            self._options(identity.acceptor_endpoint, None),
            further_ids=identity.further_ids,
            move=number,
            pull_interval_ms=carrier.pull_interval_us // 1000,
        )
        return self._connect_with(options)

    def _connect_packet(self) -> Packet:
        """Build CONNECT: with resume (6.5) once the peer is known, else without (3.1)."""
        self.open_due = False
        self._backoff += 1
        identity = self._connection.identity
        return self._connect_with(
            self._options(identity.acceptor_endpoint if identity.peer_id else None, self.offer or None)
        )

    def _connect_with(self, options: Options) -> Packet:
        identity = self._connection.identity
        resume = bool(identity.peer_id)
        window_bytes = self._connection.receiver.window.window_bytes
        connect = Connect(identity.route_key, resume, identity.target, window_bytes, options)
        packet = Packet(
            PacketType.CONNECT,
            identity.own_id,
            identity.peer_id,
            wrap(identity.first_sequence),
            encode_connect(connect),
            self._opens & 0xFF,
        )
        self._opens += 1
        return packet

    def _accepted_payload(self, *, resumed: bool) -> bytes:
        """Encode the payload of ACCEPTED with the present window (2.2)."""
        route_key = self._connection.identity.route_key
        window_bytes = self._connection.receiver.window.window_bytes
        options = self._options(self._owner.endpoint_id, b"" if self.is_encrypted else None, self._owner.further_ids)
        return encode_accepted(Accepted(route_key, resumed, window_bytes, options))

    def _options(
        self, endpoint: bytes | None, encryption: bytes | None, further_ids: tuple[bytes, ...] | None = None
    ) -> Options:
        config = self._owner.config
        return Options(
            versions=VERSIONS,
            packet_bytes_max=config.packet_bytes_max,
            keepalive_ms=config.keepalive_us // 1000,
            user_timeout_ms=config.user_timeout_us // 1000,
            pull_interval_ms=self._owner.carrier.pull_interval_us // 1000,
            endpoint_id=endpoint,
            encryption=encryption,
            further_ids=further_ids,
            move=self._connection.identity.move or None,
        )


def common_version(theirs: tuple[int, int] | None) -> int:
    """Return the highest version in both ranges (3.4); 0 if there is none."""
    lowest, highest = theirs or VERSIONS
    best = min(highest, VERSIONS[1])
    return best if best >= max(lowest, VERSIONS[0]) else 0


def accepted_packet(identity: ConnectionIdentity, payload: Buffer, attempt: int) -> Packet:
    """Build ACCEPTED. As in REJECTED and in no other packet of the acceptor, its source is the initiator's id (2.2)."""
    return Packet(
        PacketType.ACCEPTED, identity.peer_id, identity.own_id, wrap(identity.first_sequence), payload, attempt & 0xFF
    )
