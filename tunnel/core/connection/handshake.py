"""The handshake: CONNECT and its answers, when a connection opens and when its route is resumed (section 3, 6.5, 6.6).

The initiator repeats CONNECT until it is answered. A relay that has lost its state has lost the route, too: CONNECT
leaves again with `resume`, and ACCEPTED binds the route anew. Before the first answer the peer's packets are held.
"""

from tunnel.core.connection.base import ConnectionBase, ConnectionIdentity, Owner
from tunnel.core.connection.state import Input, State
from tunnel.core.constants import (
    BACKOFF_MAX_US,
    EARLY_BYTES_MAX,
    EARLY_PACKETS_MAX,
    HELD_BYTES_MAX,
    NEVER_US,
    OPEN_ANEW_US,
    OPENS_ANEW,
    PACKET_PAYLOAD_MIN,
    RESUME_INTERVAL_US,
    SECOND_US,
)
from tunnel.core.events import Connected, Incoming, LostReason, Refused
from tunnel.core.send.window import SegmentState
from tunnel.core.timers import Timer
from tunnel.wire import (
    HEADER_SIZE,
    VERSION,
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
_FINAL_REFUSALS = frozenset({RejectReason.GONE, RejectReason.DENIED, RejectReason.FINISHED})  # of a resume (6.8)


class Handshake:
    """Opens one connection, keeps its route, and exchanges options with the peer."""

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
        self.suspended_since_us = NEVER_US  # since then the relay has no route of ours (6.5)
        self.unseen = not connection.identity.initiator  # the application has not been told of it
        self.open_due = False  # CONNECT is to leave
        self.answer_due = False  # a repeated CONNECT or a resume wants its ACCEPTED
        self.peer_packet_bytes_max = owner.config.packet_bytes_max
        self._answer_resumed = False
        self._opens = 0  # CONNECTs that left
        self._backoff = 0  # of the CONNECT that opens
        self._answers = 0
        self._held: list[Packet] = []
        self._held_bytes = 0
        self._refusal: bytes | None = None  # the payload of REJECTED
        self._peer_pull_interval_us = 0
        self._option_sent = 0
        self._option_received = 0

    # opening, at the initiator

    def open_now(self, now: int) -> None:
        """CONNECT leaves with the next batch, and again after a while (3.1, 6.5)."""
        self.open_due = True
        if self._connection.identity.peer_id:
            interval_us = RESUME_INTERVAL_US
        elif self._backoff < 0:
            interval_us = OPEN_ANEW_US
        else:
            interval_us = min(SECOND_US << min(self._backoff, 16), BACKOFF_MAX_US)
        self._connection.timers.set(Timer.OPEN, now + interval_us)

    def open_again(self) -> bool:
        """The CONNECT that left did not arrive (4.10); False when it is not wanted any more."""
        if self._connection.timers.get(Timer.OPEN) == NEVER_US:
            return False
        self.open_due = True
        return True

    def hold(self, packet: Packet) -> None:
        """Keep a packet that overtook ACCEPTED on another lane (3.7)."""
        size = len(packet.payload)
        if len(self._held) < EARLY_PACKETS_MAX and self._held_bytes + size <= HELD_BYTES_MAX:
            packet.payload = bytes(packet.payload)  # a slice would keep its whole body
            self._held.append(packet)
            self._held_bytes += size
        else:
            self._connection.stats.packets_discarded += 1

    def answered(self, accepted: Accepted, packet: Packet, now: int) -> list[Packet]:
        """ACCEPTED came: the first opens the connection, one after a lost route resumes it, any other is a repeat.
        Returns the held packets, in order."""
        connection = self._connection
        identity = connection.identity
        if identity.peer_id and identity.peer_id != packet.destination:
            # A second acceptor took our CONNECT, so the first must have died: both streams are over.
            self._owner.send_abort(identity.own_id, packet.destination)
            connection.fail(LostReason.GONE, None, now, "another endpoint answered in place of the peer")
            return []
        connection.liveness.heard(now)
        if not identity.peer_id:
            self._opened(accepted, packet, now)
            held, self._held = self._held, []
            return held
        if self.suspended_since_us != NEVER_US:
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
        receiver.window.next_sequence = (1 << 32) + packet.sequence
        receiver.insert((1 << 32) + packet.sequence, packet.attempt, packet.type, b"", None, now)
        if receiver.window.discarding:
            window.close_received = (1 << 32) + packet.sequence
        window.peer_edge = accepted.window  # the early allowance was no window of the peer (3.6)
        self.learn(accepted.options)
        connection.apply(Input.ANSWERED, now)

    def rejected(self, rejected: Rejected, now: int) -> None:
        """REJECTED came, with our route key: the connection does not open, or its route is not resumed (6.8)."""
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
        """ACCEPTED begins the stream."""
        self._connection.sender.insert(_ACCEPTED, self._accepted_payload(resumed=False), now)

    def accepted_waits(self) -> bool:
        """ACCEPTED is to be sent again: before anything else, since it binds the route (3.2)."""
        if self._connection.identity.initiator:
            return False
        window = self._connection.sender.window
        first = window.outstanding.get(window.oldest)
        return first is not None and first.type == _ACCEPTED and first.state is SegmentState.LOST

    def surface(self, now: int) -> None:
        """Show the connection to the application: its initiator has been heard."""
        identity = self._connection.identity
        self.unseen = False
        if identity.target.kind == TargetKind.SERVICE:
            self._owner.emit(Incoming(identity.own_id, identity.target.host, identity.user))
        else:
            self._owner.emit(Connected(identity.own_id))

    def refuse(self, reason: RejectReason, text: str) -> None:
        """From now on a CONNECT is answered with this; ValueError when the text does not fit a packet (2.3)."""
        self._refusal = encode_rejected(Rejected(self._connection.identity.route_key, reason, text))

    def send_rejected(self, now: int) -> None:
        """Answer REJECTED with the reason that was given."""
        peer_id = self._connection.identity.peer_id
        self._owner.send(Packet(PacketType.REJECTED, peer_id, 0, 0, self.last_answer()))

    def last_answer(self) -> bytes:
        """What a CONNECT gets that comes after the end: the payload of REJECTED."""
        return self._refusal or encode_rejected(Rejected(self._connection.identity.route_key, RejectReason.GONE))

    # both

    def begin(self, now: int) -> None:
        """Both sides know each other: the stream may flow."""
        connection, initial_edge_bytes = self._connection, self._owner.carrier.initial_edge_bytes
        sender = connection.sender
        sender.window.ends_held = False
        self.open_due = False
        connection.timers.clear(Timer.OPEN)
        connection.liveness.begin(now)
        if connection.identity.initiator:
            # early data may still be in flight: it is not lost, and still counts against the edge
            sender.suspended = False
            sender.window.edge_bytes = initial_edge_bytes
            sender.rtt.progressed()  # the peer could not acknowledge what went early: that silence meant nothing
            sender.arm(now)
            self._owner.emit(Connected(connection.id))
        else:
            sender.resume(initial_edge_bytes, now)

    # the route

    def begin_early(self, now: int) -> None:
        """CONNECT leaves, and 64 KiB may follow it before the answer (3.6)."""
        sender = self._connection.sender
        sender.window.ends_held = True
        sender.resume(min(self._owner.carrier.initial_edge_bytes, EARLY_BYTES_MAX), now)
        self.open_now(now)

    def route_lost(self, now: int) -> None:
        """The relay does not know our route any more: nothing flows until it is resumed (6.5)."""
        connection = self._connection
        if connection.state in (State.CONNECTING, State.CLOSED_EARLY):
            # Restart the backoff: the silence was the lost route's. The acceptor may not be back yet (3.1, 6.5).
            self._backoff = -OPENS_ANEW
            self.open_now(now)
            connection.sender.resume(min(self._owner.carrier.initial_edge_bytes, EARLY_BYTES_MAX), now)
        elif connection.state not in (State.REQUESTED, State.CLOSED) and self.suspended_since_us == NEVER_US:
            self.suspended_since_us = now
            connection.sender.suspend()
            if connection.identity.initiator:
                self.open_now(now)

    def repeated(self, *, resume: bool, now: int) -> None:
        """CONNECT came again: answer as before; with `resume` everything unacknowledged is sent again."""
        connection = self._connection
        if connection.state is State.REQUESTED:
            return
        if resume or self.suspended_since_us != NEVER_US:
            self.resume(now)
        if not connection.sender.repeat_first():
            self.answer_due = True
            self._answer_resumed = resume

    def resume(self, now: int) -> None:
        """The route is bound again: both sides resend what is unacknowledged and acknowledge what they have (6.6)."""
        connection = self._connection
        self.suspended_since_us = NEVER_US
        self.open_due = False
        connection.timers.clear(Timer.OPEN)
        connection.liveness.heard(now)
        connection.sender.resume(self._owner.carrier.initial_edge_bytes, now)
        connection.receiver.owe_ack(now)
        connection.route_resumed(now)

    # what the sides say of themselves

    def learn(self, options: Options) -> None:
        """What the peer says of itself."""
        if options.packet_bytes_max is not None:
            self.peer_packet_bytes_max = max(options.packet_bytes_max, PACKET_PAYLOAD_MIN + HEADER_SIZE)
        if options.user_timeout_ms:
            ours_us = self._owner.config.user_timeout_us
            self._connection.liveness.limit(max(SECOND_US, min(options.user_timeout_ms * 1000, ours_us)))
        if options.pull_interval_ms is not None:
            self._peer_pull_interval_us = min(options.pull_interval_ms * 1000, BACKOFF_MAX_US)
        self._add_pull_intervals()

    def option_received(self, option: Option) -> None:
        """OPTION came: the newest version counts (2.7)."""
        if option.version > self._option_received:
            self._option_received = option.version
            self.learn(option.options)

    def pull_interval_changed(self, now: int) -> None:
        """Our carrier pulls at another rate: the peer's timers depend on it, too (2.7, 4.6)."""
        self._add_pull_intervals()
        if self._connection.state in (State.ACCEPTED, State.OPEN):  # later there may be a CLOSE: nothing may follow it
            self._option_sent += 1
            options = Options(pull_interval_ms=self._owner.carrier.pull_interval_us // 1000)
            payload = encode_option(Option(self._option_sent, options))
            self._connection.sender.insert(PacketType.OPTION, payload, now)

    def _add_pull_intervals(self) -> None:
        rtt = self._connection.sender.rtt
        rtt.pull_interval_us = self._owner.carrier.pull_interval_us + self._peer_pull_interval_us

    # packets

    def take_packets(self) -> list[Packet]:
        """CONNECT and ACCEPTED, as far as they are due; neither is due afterwards."""
        packets = []
        if self.open_due:
            packets.append(self._connect_packet())
        if self.answer_due:
            self.answer_due = False
            self._answers += 1
            payload = self._accepted_payload(resumed=self._answer_resumed)
            packets.append(accepted_packet(self._connection.identity, payload, self._answers))
        return packets

    def _connect_packet(self) -> Packet:
        """CONNECT, with resume (6.5) once the peer is known, or without (3.1)."""
        self.open_due = False
        identity = self._connection.identity
        resume = bool(identity.peer_id)
        options = self._options(identity.acceptor_endpoint if resume else None)
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
        self._backoff += 1
        return packet

    def _accepted_payload(self, *, resumed: bool) -> bytes:
        """ACCEPTED as it is now (2.2)."""
        route_key = self._connection.identity.route_key
        window_bytes = self._connection.receiver.window.window_bytes
        return encode_accepted(Accepted(route_key, resumed, window_bytes, self._options(self._owner.endpoint_id)))

    def _options(self, endpoint: bytes | None) -> Options:
        config = self._owner.config
        return Options(
            versions=VERSIONS,
            packet_bytes_max=config.packet_bytes_max,
            keepalive_ms=config.keepalive_us // 1000,
            user_timeout_ms=config.user_timeout_us // 1000,
            pull_interval_ms=self._owner.carrier.pull_interval_us // 1000,
            endpoint_id=endpoint,
        )


def common_version(theirs: tuple[int, int] | None) -> int:
    """The highest version in both ranges (3.4); 0 if there is none."""
    lowest, highest = theirs or VERSIONS
    best = min(highest, VERSIONS[1])
    return best if best >= max(lowest, VERSIONS[0]) else 0


def accepted_packet(identity: ConnectionIdentity, payload: Buffer, attempt: int) -> Packet:
    """ACCEPTED: its ids are the wrong way round, as the seed of the protocol has them (2.2)."""
    return Packet(
        PacketType.ACCEPTED, identity.peer_id, identity.own_id, wrap(identity.first_sequence), payload, attempt & 0xFF
    )
