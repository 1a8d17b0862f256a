"""The scheduler: it fills batches fairly (PROTOCOL 4.13, 4.14) and reports their receipts to the connections."""

from collections import deque

import msgspec

from tunnel.core.connection.connection import Connection
from tunnel.core.connection.state import State
from tunnel.core.constants import BATCH_PACKETS_MAX, PACKET_PAYLOAD_MAX, PACKET_PAYLOAD_MIN, SMALL_BYTES
from tunnel.core.send.window import Segment
from tunnel.wire import HEADER_SIZE, Packet, PacketType

__all__ = ["Batch", "Scheduler"]

SHARE = 8  # 4.13: a payload takes at most 1/SHARE of its batch
UNOWNED_ANSWERS_MAX = 64  # 3.9
STRAYS_MAX = 1024  # beyond this, only answers to CONNECT, LEAVE and types in _REPEATED are queued
REFUSALS_MAX = 8192
"""Beyond this many packets, REJECTED is not queued either. It is eight times the backlog of a service: the relay counts
a CONNECT as unanswered until REJECTED comes, and only an honest initiator asks for it again."""
LEAVES_MAX = 10_000
"""Beyond this many packets, LEAVE is not queued: a relay has no more routes by default, and one that never answers
again must cost no more memory. A route without LEAVE ends with the attachment (9.6)."""
CONTROL_ROOM = 1024  # bytes: room for all control packets of one connection, without the ClientHello in CONNECT
CONTROL_PACKETS = 16  # more than the control packets of one connection, which leave together
ROOM_MIN = HEADER_SIZE + 64  # bytes: with less room than this, no further segment is added

_ABORT = int(PacketType.ABORT)
_REJECTED = int(PacketType.REJECTED)
_LEAVE = int(PacketType.LEAVE)
_REPEATED = frozenset({int(PacketType.LISTEN_STATE), int(PacketType.OPTION)})  # repeated until the relay answers


class Batch(msgspec.Struct):
    """Packets for one exchange, or one write on a link. The caller must report its result: `batch_done(token, ...)`."""

    token: int
    packets: list[Packet]
    size: int
    """Number of bytes on the wire."""


class _Carried(msgspec.Struct):
    """The contents of a batch, kept until its receipt or its failure is reported to the connections."""

    segments: list[tuple[Connection, Segment, int]]
    acks: list[Connection]
    opens: list[Connection]
    strays: list[Packet]


class _Turn:
    """The connections of one user that have more to send, at least one. They take turns while the user has a turn."""

    __slots__ = ("connections", "deficit")

    def __init__(self) -> None:
        self.connections: deque[Connection] = deque()
        self.deficit = 1  # its first turn comes at once, and is paid for then


class Scheduler:
    """Fills batches in this order: control packets, connections with little to send, all others in turn.

    `touch` puts a connection into the queues where it belongs. The cost of a batch depends only on the connections that
    have something to send or to acknowledge.
    """

    def __init__(self) -> None:
        self.strays: deque[Packet] = deque()  # packets that no connection keeps
        self.packets_max = BATCH_PACKETS_MAX
        """The largest number of packets in one batch (4.13)."""
        self._unowned_answers = 0
        self.control: dict[int, Connection] = {}
        self._delayed_acks: dict[int, Connection] = {}
        self.small: deque[Connection] = deque()
        self.bulk: deque[_Turn] = deque()
        """The connections with more to send, by the user who opened them."""
        self._bulk_of: dict[str, _Turn] = {}  # the same, by the name of the user
        self._carried: dict[int, _Carried] = {}
        self.next_token = 1  # of the batch that leaves next
        self._size_max = 0
        self._too_large: Connection | None = None  # its lost packet is so large that it must begin the next batch

    # changes to the queues

    def touch(self, connection: Connection) -> None:
        """Queue the connection if it has something to send."""
        if connection.outbound.wants_control():
            self.control[connection.id] = connection
        elif connection.receiver.ack_pending:
            self._delayed_acks[connection.id] = connection
        if not connection.place.queued and connection.sender.sendable():
            connection.place.queued = True
            if connection.sender.window.waiting_bytes < SMALL_BYTES:
                self.small.append(connection)
            else:
                self._add_bulk(connection)

    def _add_bulk(self, connection: Connection) -> None:
        user = connection.identity.user
        turn = self._bulk_of.get(user)
        if turn is None:
            turn = self._bulk_of[user] = _Turn()
            self.bulk.append(turn)
        turn.connections.append(connection)

    def remove(self, connection: Connection) -> None:
        """Forget a connection that goes on at another relay. Batches on their way remember it."""
        self.control.pop(connection.id, None)
        self._delayed_acks.pop(connection.id, None)
        if connection.place.queued:
            user = connection.identity.user
            turn = self._bulk_of.get(user)
            if connection in self.small:
                self.small.remove(connection)
            elif turn is not None:
                turn.connections.remove(connection)
                if not turn.connections:
                    self.bulk.remove(self._bulk_of.pop(user))
        if self._too_large is connection:
            self._too_large = None

    def add_unowned(self, packet: Packet, *, is_answer: bool = False) -> None:
        """Queue a packet that no connection keeps. The number of answers to unknown ids is limited (3.9)."""
        if is_answer:
            if self._unowned_answers >= UNOWNED_ANSWERS_MAX:
                return
            self._unowned_answers += 1
        if packet.type in _REPEATED:
            if packet not in self.strays:  # one copy is enough: repeats come even while no batch leaves
                self.strays.append(packet)
        else:
            other_max = LEAVES_MAX if packet.type == _LEAVE else STRAYS_MAX
            if len(self.strays) < (REFUSALS_MAX if packet.type == _REJECTED else other_max):
                self.strays.append(packet)

    def forget_leaves(self) -> None:
        """Drop every LEAVE that waits: the relay has forgotten all routes."""
        self.strays = deque(packet for packet in self.strays if packet.type != _LEAVE)

    # filling

    def fill(self, size_max: int, now: int) -> Batch | None:
        """Return the batch that leaves now: at most `size_max` bytes, or one larger packet; None when nothing waits."""
        carried = _Carried([], [], [], [])
        packets: list[Packet] = []
        self._size_max = size_max
        payload_max = min(max(size_max // SHARE, PACKET_PAYLOAD_MIN), PACKET_PAYLOAD_MAX)
        room = size_max
        if self._too_large is not None:
            room -= self._fill_alone(self._too_large, packets, carried, size_max, payload_max, now)
        if not packets:
            room = self._fill_control(packets, carried, room, now)
            if self.small:
                room = self._fill_small(packets, carried, room, payload_max, now)
            if self.bulk:
                room = self._fill_bulk(packets, carried, room, payload_max, now)
        if not packets:
            return None
        token = self.next_token
        self.next_token += 1
        self._carried[token] = carried
        return Batch(token, packets, size_max - room)

    def _fill_alone(
        self, connection: Connection, packets: list[Packet], carried: _Carried, room: int, payload_max: int, now: int
    ) -> int:
        """Begin the batch with a lost packet that was cut for larger batches and fills more than half of this one.

        Otherwise it could wait forever, since control packets and small writes would always leave too little room.
        """
        self._too_large = None
        if not connection.sender.sendable():
            return 0
        return self._add_segment(connection, packets, carried, room, payload_max, now)

    def _fill_control(self, packets: list[Packet], carried: _Carried, room: int, now: int) -> int:
        while self.strays and (room >= self.strays[0].size or not packets) and not self._is_full(packets):
            packet = self.strays.popleft()
            packets.append(packet)
            carried.strays.append(packet)
            room -= packet.size
        if not self.strays:
            self._unowned_answers = 0
        control = self.control
        while control and room > CONTROL_ROOM and not self._is_full(packets):
            connection = control[next(iter(control))]
            handshake = connection.handshake
            if packets and handshake.open_due and room <= CONTROL_ROOM + len(handshake.offer):
                break
            del control[connection.id]
            self._delayed_acks.pop(connection.id, None)
            room = self._add_control(connection, packets, carried, room, now)
        if self._delayed_acks:
            room = self._fill_delayed_acks(packets, carried, room, now)
        return room

    def _is_full(self, packets: list[Packet]) -> bool:
        """Whether there is no room for all control packets of another connection."""
        return len(packets) > self.packets_max - CONTROL_PACKETS

    def _fill_delayed_acks(self, packets: list[Packet], carried: _Carried, room: int, now: int) -> int:
        """Add delayed ACKs to a batch that leaves anyway.

        A connection that has just sent an ACK waits for its timer or a later batch.
        """
        for connection in list(self._delayed_acks.values()):
            if room <= CONTROL_ROOM or self._is_full(packets):
                break
            if connection.receiver.may_ack(now):
                del self._delayed_acks[connection.id]
                room = self._add_control(connection, packets, carried, room, now)
            elif not connection.receiver.ack_pending:
                del self._delayed_acks[connection.id]
        return room

    def _add_control(
        self, connection: Connection, packets: list[Packet], carried: _Carried, room: int, now: int
    ) -> int:
        if connection.receiver.may_ack(now):
            carried.acks.append(connection)
        if connection.handshake.open_due:
            carried.opens.append(connection)
        if connection.handshake.accepted_waits():
            room -= max(0, self._add_segment(connection, packets, carried, room, PACKET_PAYLOAD_MIN, now))
        control = connection.outbound.take_control(now)
        connection.stats.packets_control += len(control)
        for packet in control:
            packets.append(packet)
            room -= HEADER_SIZE + len(packet.payload)
        return room

    def _fill_small(self, packets: list[Packet], carried: _Carried, room: int, payload_max: int, now: int) -> int:
        for _ in range(len(self.small)):
            if room < ROOM_MIN:
                break
            connection = self.small.popleft()
            if connection.sender.window.waiting_bytes >= SMALL_BYTES:
                self._add_bulk(connection)
                continue
            while (size := self._add_segment(connection, packets, carried, room, payload_max, now)) > 0:
                room -= size
                if connection.sender.window.is_exhausted:
                    break  # the usual case: this check saves another call
                if room < ROOM_MIN:
                    size = -1
                    break
            if size < 0:
                self.small.appendleft(connection)
                break
            connection.place.queued = False
        return room

    def _fill_bulk(self, packets: list[Packet], carried: _Carried, room: int, payload_max: int, now: int) -> int:
        """Share the batch by deficit round robin: the users take turns, and so do the connections of each user.

        Both get one packet's worth of bytes in a turn, and an overdraft is carried over to the next round. Where a
        connection has less to send, the turn of its user goes on at the next one.
        """
        quantum = payload_max + HEADER_SIZE
        bulk = self.bulk
        while bulk and (room >= ROOM_MIN or not packets):
            turn = bulk[0]
            if turn.deficit <= 0:
                turn.deficit += quantum
                bulk.rotate(-1)
                continue
            connections = turn.connections
            connection = connections[0]
            place = connection.place
            if place.deficit <= 0:
                place.deficit += quantum
            while place.deficit > 0:
                size = self._add_segment(connection, packets, carried, room, payload_max, now)
                if size < 0:
                    return room
                if size == 0:
                    place.queued = False
                    place.deficit = 0
                    connections.popleft()
                    break
                room -= size
                place.deficit -= size
                turn.deficit -= size
                if room < ROOM_MIN:
                    break
            else:
                connections.rotate(-1)
            if not connections:
                bulk.popleft()
                del self._bulk_of[connection.identity.user]
        return room

    def _add_segment(
        self, connection: Connection, packets: list[Packet], carried: _Carried, room: int, payload_max: int, now: int
    ) -> int:
        """Add the next segment of a connection. Return the number of bytes added.

        Return 0 if the connection has nothing to send now, and -1 if its next packet does not fit any more.
        """
        if len(packets) > self.packets_max - CONTROL_PACKETS:
            return -1
        fits = room - HEADER_SIZE
        if packets and (lost_size := connection.sender.window.lost_size()) > fits:
            if lost_size > self._size_max // 2:
                self._too_large = connection
            return -1
        taken = connection.outbound.take_segment(
            min(payload_max, max(fits, PACKET_PAYLOAD_MIN if not packets else 0)), now
        )
        if taken is None:
            return 0
        segment, packet = taken
        packets.append(packet)
        carried.segments.append((connection, segment, segment.attempt))
        size = HEADER_SIZE + len(packet.payload)
        if connection.sender.probe_due:
            size += self._add_probe(connection, packets, room - size)
        return size

    def _add_probe(self, connection: Connection, packets: list[Packet], room: int) -> int:
        """Add a PROBE after the last packet whose acknowledgement the application waits for, in the same batch (4.17).

        If it does not fit, it leaves with the next batch.
        """
        if room < HEADER_SIZE:
            self.control[connection.id] = connection
            return 0
        packets.append(connection.outbound.take_probe())
        connection.stats.packets_control += 1
        return HEADER_SIZE

    # receipts

    def done(self, token: int, ok: bool, now: int) -> list[Connection]:
        """Record that the batch is queued at the relay (`ok`), or was given up.

        Return each connection that this concerns, once. The caller must arm their timers.
        """
        carried = self._carried.pop(token, None)
        if carried is None:
            return []
        concerned: dict[int, Connection] = {}
        for connection, segment, attempt in carried.segments:
            if ok:
                connection.sender.on_receipted(segment, attempt, now)
            else:
                connection.sender.given_up(segment, attempt)
            concerned[connection.id] = connection
        if not ok:
            self._give_up(carried, concerned, now)
        return list(concerned.values())

    def _give_up(self, carried: _Carried, concerned: dict[int, Connection], now: int) -> None:
        """Queue again each ACK, CONNECT and unowned packet of a failed batch, except ABORT (4.10)."""
        for connection in carried.acks:
            if connection.state is not State.CLOSED:
                connection.receiver.request_ack(now)
                concerned[connection.id] = connection
        for connection in carried.opens:
            if connection.handshake.open_again():
                concerned[connection.id] = connection
        for packet in carried.strays:
            if packet.type != _ABORT:
                self.add_unowned(packet)  # STRAYS_MAX applies again: batches that fail together can hold thousands
