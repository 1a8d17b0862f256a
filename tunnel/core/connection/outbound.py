"""What leaves a connection: its control packets, and its segments as packets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunnel.core.connection.handshake import accepted_packet, accepted_payload, connect_packet
from tunnel.core.connection.state import State
from tunnel.core.constants import (
    BACKOFF_MAX_US,
    NEVER_US,
    OPEN_ANEW_US,
    OPENS_ANEW,
    PACKET_PAYLOAD_MAX,
    PACKET_PAYLOAD_MIN,
    RESUME_INTERVAL_US,
    SECOND_US,
)
from tunnel.core.send.window import Segment, SegmentState
from tunnel.core.timers import Timer
from tunnel.wire import (
    HEADER_SIZE,
    Packet,
    PacketType,
    Rejected,
    RejectReason,
    encode_ack,
    encode_rejected,
)

if TYPE_CHECKING:
    from tunnel.core.connection.connection import Connection

__all__ = ["Outbound"]

_ACCEPTED = int(PacketType.ACCEPTED)


class Outbound:
    """Knows which control packets are due. `take_control` and `take_segment` are called while a batch is filled."""

    __slots__ = (
        "_answers",
        "_backoff",
        "_connection",
        "_opens",
        "_refusal",
        "answer_due",
        "answer_resumed",
        "farewells",
        "open_due",
        "peer_packet_bytes_max",
    )

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.open_due = False
        self.answer_due = False  # a repeated CONNECT or a resume wants its ACCEPTED
        self.answer_resumed = False
        self.farewells = 0  # so often SHUTDOWN was sent (5.7)
        self.peer_packet_bytes_max = connection.owner.config.packet_bytes_max
        self._refusal: bytes | None = None
        self._opens = 0
        self._backoff = 0  # of CONNECT that opens
        self._answers = 0

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

    def open_anew(self, now: int) -> None:
        """As `open_now`, at a relay that did not know us: what silence there was is no reason to wait, and who is to
        answer may not be back yet (3.1, 6.5)."""
        self._backoff = -OPENS_ANEW
        self.open_now(now)

    def open_again(self) -> bool:
        """The CONNECT that left did not arrive (4.10); False when it is not wanted any more."""
        if self._connection.timers.get(Timer.OPEN) == NEVER_US:
            return False
        self.open_due = True
        return True

    def wants_control(self) -> bool:
        """Whether a control packet is due now; a delayed ACK is not."""
        connection = self._connection
        if self.open_due or self.answer_due:
            return True
        if connection.suspended_since_us != NEVER_US:
            return False
        return (
            connection.receiver.ack_due
            or bool(connection.pongs)
            or connection.liveness.ping_due
            or connection.sender.probe_due
        )

    def accepted_waits(self) -> bool:
        """ACCEPTED is to be sent again: before anything else, since it binds the route (3.2)."""
        if self._connection.identity.initiator:
            return False
        window = self._connection.sender.window
        first = window.outstanding.get(window.oldest)
        return first is not None and first.type == _ACCEPTED and first.state is SegmentState.LOST

    def take_control(self, now: int) -> list[Packet]:
        """The control packets that are due, with any ACK that is pending; none is due afterwards."""
        connection = self._connection
        packets: list[Packet] = []
        if connection.state is State.CLOSED:
            return packets
        if self.open_due:
            packets.append(self._connect_packet())
        if self.answer_due:
            self.answer_due = False
            self._answers += 1
            packets.append(
                accepted_packet(connection.identity, self.accepted_payload(resumed=self.answer_resumed), self._answers)
            )
        if connection.suspended_since_us != NEVER_US or connection.state is State.REQUESTED:
            return packets
        if connection.receiver.may_ack(now):
            packets.append(self._packet(PacketType.ACK, encode_ack(connection.receiver.take_ack(now))))
        if connection.pongs:
            packets.extend(self._packet(PacketType.PONG, payload) for payload in connection.pongs)
            connection.pongs.clear()
        if connection.liveness.ping_due:
            connection.liveness.ping_due = False
            packets.append(self._packet(PacketType.PING, b""))
        if connection.sender.probe_due:
            packets.append(self.take_probe())
        return packets

    def take_probe(self) -> Packet:
        """The PROBE that is due."""
        self._connection.sender.probe_due = False
        return self._packet(PacketType.PROBE, b"")

    def take_segment(self, payload_max: int, now: int) -> tuple[Segment, Packet] | None:
        """The next sequenced packet; a new one has at most `payload_max` bytes of payload."""
        connection = self._connection
        limit = min(payload_max, PACKET_PAYLOAD_MAX, self.peer_packet_bytes_max - HEADER_SIZE)
        limit = min(limit, connection.owner.carrier.packet_bytes_max - HEADER_SIZE)
        if not connection.identity.peer_id:
            limit = min(limit, PACKET_PAYLOAD_MIN)  # early: what the peer takes is not known yet (4.13)
        sender = connection.sender
        segment = sender.take(limit, now)
        if segment is None:
            return None
        identity = connection.identity
        attempt = segment.attempt & 0xFF
        if segment.type == _ACCEPTED:
            return segment, accepted_packet(identity, segment.payload, attempt)
        packet = Packet(
            segment.type, identity.own_id, identity.peer_id, segment.sequence & 0xFFFFFFFF, segment.payload, attempt
        )
        return segment, packet

    def accepted_payload(self, *, resumed: bool) -> bytes:
        """ACCEPTED as it is now."""
        connection = self._connection
        owner = connection.owner
        window_bytes = connection.receiver.window.window_bytes
        return accepted_payload(
            connection.identity,
            owner.config,
            owner.carrier.pull_interval_us,
            window_bytes,
            owner.endpoint_id,
            resumed=resumed,
        )

    def last_answer(self) -> bytes:
        """What a CONNECT gets that comes after the end: the payload of REJECTED."""
        return self._refusal or encode_rejected(Rejected(self._connection.identity.route_key, RejectReason.GONE))

    def finished(self) -> None:
        """Both halves have ended well: who asks later need not think that something is missing."""
        self.refuse(RejectReason.FINISHED, "")

    def refuse(self, reason: RejectReason, text: str) -> None:
        """From now on the answer is this; ValueError when the text does not fit."""
        self._refusal = encode_rejected(Rejected(self._connection.identity.route_key, reason, text))

    def rejection(self) -> Packet:
        """REJECTED with the reason that was given."""
        return Packet(PacketType.REJECTED, self._connection.identity.peer_id, 0, 0, self.last_answer())

    def _connect_packet(self) -> Packet:
        self.open_due = False
        connection = self._connection
        owner = connection.owner
        window_bytes = connection.receiver.window.window_bytes
        packet = connect_packet(
            connection.identity,
            owner.config,
            owner.carrier.pull_interval_us,
            window_bytes,
            self._opens,
            resume=bool(connection.identity.peer_id),
        )
        self._opens += 1
        self._backoff += 1
        return packet

    def _packet(self, packet_type: PacketType, payload: bytes) -> Packet:
        identity = self._connection.identity
        return Packet(packet_type, identity.own_id, identity.peer_id, 0, payload)
