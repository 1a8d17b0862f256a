"""The outgoing packets of a connection: its control packets, and its segments as packets."""

from tunnel.core.connection.base import ConnectionBase, Owner
from tunnel.core.connection.handshake import Handshake, accepted_packet
from tunnel.core.connection.state import State
from tunnel.core.constants import NEVER_US, PACKET_PAYLOAD_MAX, PACKET_PAYLOAD_MIN
from tunnel.core.send.window import Segment
from tunnel.wire import HEADER_SIZE, Packet, PacketType, encode_ack

__all__ = ["Outbound"]

_ACCEPTED = int(PacketType.ACCEPTED)


class Outbound:
    """Builds the packets that leave. The scheduler calls `take_control` and `take_segment` while it fills a batch."""

    __slots__ = ("_connection", "_handshake", "_owner")

    def __init__(self, connection: ConnectionBase, handshake: Handshake, owner: Owner) -> None:
        self._connection = connection
        self._handshake = handshake
        self._owner = owner

    def leave_for(self, owner: Owner) -> None:
        """Belong to another endpoint from now on."""
        self._owner = owner

    def wants_control(self) -> bool:
        """Return whether a control packet must leave now. A delayed ACK does not count."""
        connection, handshake = self._connection, self._handshake
        if handshake.open_due or handshake.answer_due:
            return True
        if handshake.suspended_since_us != NEVER_US:
            return False
        return connection.receiver.ack_due or connection.liveness.packet_due or connection.sender.probe_due

    def take_control(self, now: int) -> list[Packet]:
        """Return the control packets that are due, and a pending ACK if it may leave.

        No control packet is due afterwards. But while the route is lost, or the application has not accepted the
        connection, only CONNECT and ACCEPTED leave, and the others stay due.
        """
        connection, handshake = self._connection, self._handshake
        if connection.state is State.CLOSED:
            return []
        packets = handshake.take_packets()
        if handshake.suspended_since_us != NEVER_US or connection.state is State.REQUESTED:
            return packets
        if connection.receiver.may_ack(now):
            packets.append(self._packet(PacketType.ACK, encode_ack(connection.receiver.take_ack(now))))
        liveness = connection.liveness
        if liveness.packet_due:
            pongs, ping_due = liveness.take()
            packets.extend(self._packet(PacketType.PONG, payload) for payload in pongs)
            if ping_due:
                packets.append(self._packet(PacketType.PING, b""))
        if connection.sender.probe_due:
            packets.append(self.take_probe())
        return packets

    def take_probe(self) -> Packet:
        """Return the PROBE that is due."""
        self._connection.sender.probe_due = False
        return self._packet(PacketType.PROBE, b"")

    def take_segment(self, payload_max: int, now: int) -> tuple[Segment, Packet] | None:
        """Return the next sequenced packet, or None. A new packet has at most `payload_max` bytes of payload."""
        identity = self._connection.identity
        limit = min(payload_max, PACKET_PAYLOAD_MAX, self._handshake.peer_packet_bytes_max - HEADER_SIZE)
        limit = min(limit, self._owner.carrier.packet_bytes_max - HEADER_SIZE)
        if not identity.peer_id:
            limit = min(limit, PACKET_PAYLOAD_MIN)  # early data: the peer has not announced its largest packet (3.6)
        segment = self._connection.sender.take(limit, now)
        if segment is None:
            return None
        attempt = segment.attempt & 0xFF
        if segment.type == _ACCEPTED:
            return segment, accepted_packet(identity, segment.payload, attempt)
        packet = Packet(
            segment.type, identity.own_id, identity.peer_id, segment.sequence & 0xFFFFFFFF, segment.payload, attempt
        )
        return segment, packet

    def _packet(self, packet_type: PacketType, payload: bytes) -> Packet:
        identity = self._connection.identity
        return Packet(packet_type, identity.own_id, identity.peer_id, 0, payload)
