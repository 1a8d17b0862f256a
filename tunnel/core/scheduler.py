"""Fills batches: whose packets leave first, fairly, and what their receipt means (4.13, 4.14)."""

from collections import deque

import msgspec

from tunnel.core.connection.connection import Connection
from tunnel.core.connection.state import State
from tunnel.core.constants import PACKET_PAYLOAD_MAX, PACKET_PAYLOAD_MIN, SMALL_BYTES
from tunnel.core.send.window import Segment
from tunnel.wire import HEADER_SIZE, Packet, PacketType

__all__ = ["Batch", "Scheduler"]

SHARE = 8  # 4.13: a packet is at most this part of its batch
STRAY_ABORTS_MAX = 64  # 3.9
STRAYS_MAX = 1024  # beyond it what the peer asks for again is not answered: REJECTED, SHUTDOWN
CONTROL_ROOM = 1024  # bytes: the control packets of one connection fit
ROOM_MIN = HEADER_SIZE + 64  # bytes: less room than this is not worth a packet

_ABORT = int(PacketType.ABORT)
_LISTEN_STATE = int(PacketType.LISTEN_STATE)


class Batch(msgspec.Struct):
    """Packets for one exchange, or one write on a link. Report what became of it with `batch_done(token, ...)`."""

    token: int
    packets: list[Packet]
    size: int
    """Bytes on the wire."""


class _Carried(msgspec.Struct):
    """What a batch owes to whom, until its receipt."""

    segments: list[tuple[Connection, Segment, int]]
    acks: list[Connection]
    opens: list[Connection]
    strays: list[Packet]


class Scheduler:
    """Three queues, emptied in this order: control packets, connections with little to send, the others in turn.
    `touch` puts a connection where it belongs; the cost of a batch is that of the connections in it."""

    def __init__(self) -> None:
        self.strays: deque[Packet] = deque()
        self._stray_aborts = 0
        self._control: dict[int, Connection] = {}
        self._delayed_acks: dict[int, Connection] = {}
        self._small: deque[Connection] = deque()
        self._bulk: deque[Connection] = deque()
        self._carried: dict[int, _Carried] = {}
        self._next_token = 1
        self._size_max = 0
        self._too_large: Connection | None = None  # what it is to send again hardly fits a batch together with others

    # getters

    def wanted(self) -> bool:
        """Whether something should leave now; a delayed ACK alone does not ask."""
        return bool(self._control or self._small or self._bulk or self.strays)

    # what changes the queues

    def touch(self, connection: Connection) -> None:
        """Queue the connection for what it has to send."""
        if connection.outbound.wants_control():
            self._control[connection.id] = connection
        elif connection.receiver.ack_pending:
            self._delayed_acks[connection.id] = connection
        if not connection.place.queued and connection.sender.sendable():
            connection.place.queued = True
            window = connection.sender.window
            (self._small if window.waiting_bytes < SMALL_BYTES else self._bulk).append(connection)

    def add_stray(self, packet: Packet, *, is_answer: bool = False) -> None:
        """A packet without a connection; answers to strangers are bounded (3.9)."""
        if is_answer:
            if self._stray_aborts >= STRAY_ABORTS_MAX:
                return
            self._stray_aborts += 1
        if packet.type == _LISTEN_STATE:
            if packet not in self.strays:  # it is repeated until it is answered, also when nothing leaves
                self.strays.append(packet)
        elif len(self.strays) < STRAYS_MAX:
            self.strays.append(packet)

    # filling

    def fill(self, size_max: int, now: int) -> Batch | None:
        """What leaves now, at most `size_max` bytes, or one packet that is larger; None when nothing waits."""
        carried = _Carried([], [], [], [])
        packets: list[Packet] = []
        self._size_max = size_max
        payload_max = min(max(size_max // SHARE, PACKET_PAYLOAD_MIN), PACKET_PAYLOAD_MAX)
        room = size_max
        if self._too_large is not None:
            room -= self._fill_alone(self._too_large, packets, carried, size_max, payload_max, now)
        if not packets:
            room = self._fill_control(packets, carried, room, now)
            if self._small:
                room = self._fill_small(packets, carried, room, payload_max, now)
            if self._bulk:
                room = self._fill_bulk(packets, carried, room, payload_max, now)
        if not packets:
            return None
        token = self._next_token
        self._next_token += 1
        self._carried[token] = carried
        return Batch(token, packets, size_max - room)

    def _fill_alone(
        self, connection: Connection, packets: list[Packet], carried: _Carried, room: int, payload_max: int, now: int
    ) -> int:
        """What was packed for larger batches, and fills more than half of this one, begins it: it would wait for ever
        behind what is always there."""
        self._too_large = None
        if not connection.sender.sendable():
            return 0
        return self._add_segment(connection, packets, carried, room, payload_max, now)

    def _fill_control(self, packets: list[Packet], carried: _Carried, room: int, now: int) -> int:
        while self.strays and (room >= self.strays[0].size or not packets):
            packet = self.strays.popleft()
            packets.append(packet)
            carried.strays.append(packet)
            room -= packet.size
        if not self.strays:
            self._stray_aborts = 0
        control = self._control
        while control and room > CONTROL_ROOM:
            connection = control.pop(next(iter(control)))
            self._delayed_acks.pop(connection.id, None)
            room = self._add_control(connection, packets, carried, room, now)
        if self._delayed_acks:
            room = self._fill_delayed_acks(packets, carried, room, now)
        return room

    def _fill_delayed_acks(self, packets: list[Packet], carried: _Carried, room: int, now: int) -> int:
        """They travel with what leaves anyway; those that just had one wait for their timer or for a later batch."""
        for connection in list(self._delayed_acks.values()):
            if room <= CONTROL_ROOM:
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
        for packet in connection.outbound.take_control(now):
            packets.append(packet)
            room -= HEADER_SIZE + len(packet.payload)
        return room

    def _fill_small(self, packets: list[Packet], carried: _Carried, room: int, payload_max: int, now: int) -> int:
        for _ in range(len(self._small)):
            if room < ROOM_MIN:
                break
            connection = self._small.popleft()
            if connection.sender.window.waiting_bytes >= SMALL_BYTES:
                self._bulk.append(connection)
                continue
            while (size := self._add_segment(connection, packets, carried, room, payload_max, now)) > 0:
                room -= size
                if connection.sender.window.exhausted:
                    break  # the usual case, without asking once more
                if room < ROOM_MIN:
                    size = -1
                    break
            if size < 0:
                self._small.appendleft(connection)
                break
            connection.place.queued = False
        return room

    def _fill_bulk(self, packets: list[Packet], carried: _Carried, room: int, payload_max: int, now: int) -> int:
        """Deficit round robin: each gets a packet's worth of bytes in turn; an overdraft is carried over."""
        quantum = payload_max + HEADER_SIZE
        bulk = self._bulk
        while bulk and (room >= ROOM_MIN or not packets):
            connection = bulk[0]
            place = connection.place
            if place.deficit <= 0:
                place.deficit += quantum
            while place.deficit > 0:
                size = self._add_segment(connection, packets, carried, room, payload_max, now)
                if size < 0:
                    return room
                if size == 0:
                    bulk.popleft()
                    place.queued = False
                    place.deficit = 0
                    break
                room -= size
                place.deficit -= size
                if room < ROOM_MIN:
                    break
            else:
                bulk.rotate(-1)
        return room

    def _add_segment(
        self, connection: Connection, packets: list[Packet], carried: _Carried, room: int, payload_max: int, now: int
    ) -> int:
        """Bytes added; 0 when the connection has nothing for now, -1 when what it has does not fit any more."""
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
        """Somebody waits for the acknowledgement of the last packet: it is asked for in the same batch (4.17)."""
        if room < HEADER_SIZE:
            self._control[connection.id] = connection
            return 0
        packets.append(connection.outbound.take_probe())
        return HEADER_SIZE

    # receipts

    def done(self, token: int, ok: bool, now: int) -> list[Connection]:
        """The batch is queued at the relay, or given up; the connections that this concerns, once each: their timers
        are still to be armed."""
        carried = self._carried.pop(token, None)
        if carried is None:
            return []
        concerned: dict[int, Connection] = {}
        for connection, segment, attempt in carried.segments:
            if ok:
                connection.sender.receipted(segment, attempt, now)
            else:
                connection.sender.given_up(segment, attempt)
            concerned[connection.id] = connection
        if not ok:
            self._give_up(carried, concerned, now)
        return list(concerned.values())

    def _give_up(self, carried: _Carried, concerned: dict[int, Connection], now: int) -> None:
        """Nothing of it arrived for certain: what no timer repeats is queued again."""
        for connection in carried.acks:
            if connection.state is not State.CLOSED:
                connection.receiver.owe_ack(now)
                concerned[connection.id] = connection
        for connection in carried.opens:
            if connection.handshake.open_again():
                concerned[connection.id] = connection
        for packet in carried.strays:
            if packet.type != _ABORT:
                self.add_stray(packet)  # within the same limit: batches that fail together may hold thousands
