"""An endpoint among an application, a carrier and peers that the fuzzer plays, with checks of every step."""

from random import Random

from xxhash import xxh3_128

from tests.fuzz.draw import Draw
from tests.fuzz.peer import BLOB, Peer, Role
from tunnel.core import constants
from tunnel.core.config import EndpointConfig
from tunnel.core.connection.connection import Connection
from tunnel.core.endpoint import Endpoint
from tunnel.core.events import (
    Closed,
    Connected,
    ConnectRequested,
    Event,
    Flushed,
    Incoming,
    Lost,
    PeerClosed,
    PeerFinished,
    Refused,
)
from tunnel.wire import (
    HEADER_SIZE,
    Ack,
    Packet,
    PacketType,
    decode_accepted,
    decode_ack,
    decode_connect,
    decode_end,
    encode_packets,
    parse_packets,
    unwrap,
)

__all__ = ["Session", "World"]

_FAT = Packet(PacketType.NOOP, 0, 0, 0, bytes(150_000))  # makes a body large: a small slice must not keep it in memory
_ENDING = (Closed, Lost, Refused)
_SEQUENCED = (PacketType.DATA, PacketType.FINISH, PacketType.CLOSE, PacketType.OPTION, PacketType.ACCEPTED)


class Session:
    """One connection, seen from its application."""

    def __init__(self, connection: Connection, peer: Peer, number: int) -> None:
        self.connection = connection
        self.peer = peer
        self.start = 4096 + (number * 3571) % 4096
        self.written_bytes = 0
        self.read_bytes = 0
        self.digest = xxh3_128()
        self.closed = False  # close() or abort() was called: unread data need not arrive
        self.events: list[Event] = []
        self.ended: Event | None = None
        self.finished = False  # the application has read the end of the peer's stream

    @property
    def written(self) -> bytes:
        """Every byte that write() accepted."""
        return BLOB[self.start : self.start + self.written_bytes]


class _Recorder(dict[int, Connection]):
    """The endpoint's table of connections; reports each new one, even one that is removed before the call returns."""

    def __init__(self, world: "World") -> None:
        super().__init__()
        self._world = world

    def __setitem__(self, key: int, value: Connection) -> None:
        super().__setitem__(key, value)
        self._world.appeared(value)


class World:
    """The endpoint and all that it talks to.

    `inbox` is in flight to the endpoint: pairs of a packet and its sender (None: the relay, or an unknown peer).
    """

    def __init__(
        self, draw: Draw, config: EndpointConfig, random: Random, *, hostile: bool, fat: bool, traced: bool
    ) -> None:
        self.draw = draw
        self.hostile = hostile
        self.fat = fat
        self.now = constants.SECOND_US
        self.records = 0
        self.endpoint = Endpoint(config, random, endpoint_id=bytes(range(16)), trace=self._count if traced else None)
        self.endpoint.connections = _Recorder(self)
        self.peers: list[Peer] = []
        self.sessions: dict[int, Session] = {}
        self.inbox: list[tuple[Packet, Peer | None]] = []
        self.batches: list[tuple[int, list[Packet]]] = []
        self.early_acks: list[tuple[Peer, Ack]] = []
        self._next_peer: Peer | None = None

    def _count(self, record: object) -> None:
        self.records += 1

    # connections

    def expect(self, peer: Peer) -> Peer:
        """Add a peer; the connection that appears next may be the one with this peer."""
        self.peers.append(peer)
        self._next_peer = peer if peer.role is Role.ACCEPTOR else None
        return peer

    def find(self, own_id: int, route_key: bytes, user: str) -> Peer | None:
        """Return the peer that opened, or will open, the connection that this id, key and user name."""
        names = (own_id, route_key, user)
        return next((peer for peer in self.peers if (peer.own_id, peer.route_key, peer.user) == names), None)

    def appeared(self, connection: Connection) -> None:
        """Record a connection that the endpoint has made."""
        identity = connection.identity
        peer = self._next_peer
        if identity.initiator:
            assert peer is not None
            peer.route_key, peer.their_id = identity.route_key, connection.id
        else:
            peer = self.find(identity.peer_id, identity.route_key, identity.user)
            assert peer is not None
            if any(session.peer is peer for session in self.sessions.values()):
                again = peer.again()  # an earlier connection with the same names has ended and was forgotten
                again.furthest = peer.furthest
                self.peers[self.peers.index(peer)] = peer = again
            if self.hostile:
                peer.their_id = connection.id  # a hostile peer guesses it
        self._next_peer = None
        assert connection.id not in (0, *self.sessions), "an id is 0 or used again"
        self.sessions[connection.id] = Session(connection, peer, len(self.sessions))

    def live(self) -> list[Session]:
        """Return the sessions whose connections have not ended."""
        return [session for session in self.sessions.values() if session.connection.id in self.endpoint.connections]

    # towards the endpoint

    def send(self, peer: Peer, kind: int, payload: bytes = b"", sequence: int = 0, attempt: int = 0) -> None:
        """Send a packet of the peer to the endpoint, unless the peer cannot know the connection id yet."""
        if kind == PacketType.ACCEPTED:
            packet = Packet(kind, peer.their_id, peer.own_id, sequence & 0xFFFFFFFF, payload, attempt & 0xFF)
        elif kind == PacketType.CONNECT:
            packet = Packet(kind, peer.own_id, 0, sequence & 0xFFFFFFFF, payload, attempt & 0xFF)
        elif peer.their_id:
            packet = Packet(kind, peer.own_id, peer.their_id, sequence & 0xFFFFFFFF, payload, attempt & 0xFF)
        else:
            return
        self.inbox.append((packet, peer))

    def send_segment(self, peer: Peer, index: int, attempt: int = 0) -> None:
        """Send a packet of the peer's stream, if it fits the window or the peer ignores the window."""
        sequence, kind, payload = peer.segments[index]
        if self.hostile or kind != PacketType.DATA or peer.fits(index):
            self.send(peer, kind, payload, sequence, attempt)

    def flush(self) -> None:
        """Deliver the inbox as one body, in the order in which it was sent."""
        if not self.inbox:
            return
        arriving, self.inbox = self.inbox, []
        packets = [packet for packet, _ in arriving]
        for packet, peer in arriving:
            if peer is not None:
                self._told(peer, packet)
        body = b"".join(encode_packets([*packets, _FAT] if self.fat else packets))
        parsed, discarded = parse_packets(body)
        assert discarded is None
        self.endpoint.receive_packets(parsed, self.now)
        self.events()

    def _told(self, peer: Peer, packet: Packet) -> None:
        """Record what the packet allows the endpoint to believe from now on."""
        session = self.sessions.get(peer.their_id)
        if packet.type == PacketType.REJECTED:
            peer.rejected = True
        if packet.type in _SEQUENCED and packet.type != PacketType.ACCEPTED:
            peer.delivered.add(unwrap(packet.sequence, peer.next_sequence()))
        if session is None:
            return
        if packet.type == PacketType.ACCEPTED:
            for early_peer, early in self.early_acks:
                if early_peer is peer:
                    self._vouch(session, early)
        ack: Ack | None = None
        if packet.type == PacketType.ACK:
            ack = decode_ack(packet.payload)
        elif packet.type == PacketType.CLOSE:
            end = decode_end(packet.payload)
            if end is not None and end.received is not None:
                ack = Ack(end.received, 0, 0, 0, 0)
        if ack is not None:
            if not session.connection.identity.peer_id:
                self.early_acks.append((peer, ack))
            self._vouch(session, ack)

    def _vouch(self, session: Session, ack: Ack) -> None:
        window = session.connection.sender.window
        cumulative = unwrap(ack.cumulative, window.oldest)
        ranges = [(unwrap(first, window.oldest), unwrap(last, window.oldest)) for first, last in ack.ranges]
        bad = any(not cumulative < first <= last < window.unsent_sequence for first, last in ranges)
        if cumulative < window.unsent_sequence and not bad:
            session.peer.vouch(cumulative, ack.window)
            for first, last in ranges:
                if not set(range(first, last + 1)) <= session.peer.received:
                    session.peer.lied_acks = True

    # from the endpoint

    def take_batch(self, size_max: int, *, arrives: bool) -> bool:
        """Let the carrier take a batch; return whether there was one."""
        batch = self.endpoint.next_batch(size_max, self.now)
        if batch is None:
            assert not self.endpoint.wants_batch(), "wants_batch() is true, but there is no batch"
            return False
        assert batch.size == sum(packet.size for packet in batch.packets)
        assert batch.size <= size_max or len(batch.packets) == 1, f"{batch.size} bytes in a batch of at most {size_max}"
        self.batches.append((batch.token, batch.packets))
        for packet in batch.packets:
            self._emitted(packet)
            if arrives:
                self._reaches_peer(packet)
        self.events()
        return True

    def _emitted(self, packet: Packet) -> None:
        own = packet.destination if packet.type == PacketType.ACCEPTED else packet.source
        session = self.sessions.get(own)
        if session is None or packet.type == PacketType.REJECTED:
            strays = (PacketType.ABORT, PacketType.REJECTED, PacketType.LISTEN_STATE, PacketType.SHUTDOWN)
            assert packet.type in strays, f"a packet of type {packet.type} that belongs to no connection"
            return
        peer = session.peer
        if packet.type == PacketType.ACCEPTED:
            peer.their_id = own
        if packet.type == PacketType.ACCEPTED:
            accepted = decode_accepted(packet.payload)
            assert accepted is not None
            peer.granted(peer.first, accepted.window)
        elif packet.type == PacketType.CONNECT:
            connect = decode_connect(packet.payload)
            assert connect is not None
            peer.granted(peer.first, connect.window)
        if packet.type in _SEQUENCED or packet.type == PacketType.CONNECT:
            handshake = session.connection.handshake
            limit = min(handshake.peer_packet_bytes_max, self.endpoint.carrier.packet_bytes_max)
            peer.emitted(packet, session.written, min(limit - HEADER_SIZE, constants.PACKET_PAYLOAD_MAX))
        elif packet.type == PacketType.ACK and not peer.lied:
            ack = decode_ack(packet.payload)
            assert ack is not None
            self._check_ack(session, ack)
            peer.granted(unwrap(ack.cumulative, peer.next_sequence()), ack.window)

    def _check_ack(self, session: Session, ack: Ack) -> None:
        """Check that acknowledged packets were delivered (4.2); an endpoint that has closed may skip gaps (5.6)."""
        peer = session.peer
        delivered = peer.delivered
        cumulative = unwrap(ack.cumulative, peer.next_sequence())
        assert cumulative <= max(delivered), "an acknowledgement of a packet that was never sent"
        if not session.connection.receiver.window.discarding:
            missing = [number for number in range(peer.first, cumulative + 1) if number not in delivered]
            assert not missing, f"acknowledged, but never delivered: {missing}"
        for first, last in ack.ranges:
            low, high = unwrap(first, cumulative), unwrap(last, cumulative)
            assert cumulative < low <= high
            assert set(range(low, high + 1)) <= delivered, "a range that was never delivered"
        peer.acknowledged = max(peer.acknowledged, cumulative)

    def _reaches_peer(self, packet: Packet) -> None:
        own = packet.destination if packet.type == PacketType.ACCEPTED else packet.source
        session = self.sessions.get(own)
        if session is not None and packet.type in _SEQUENCED:
            session.peer.arrived(packet)

    # the application

    def events(self) -> None:
        """Take the endpoint's events, and check that it may report them."""
        while (event := self.endpoint.poll_event()) is not None:
            session = self.sessions[event.connection_id]
            assert session.ended is None, f"{event} after {session.ended}"
            self._check_event(session, event)
            session.events.append(event)
            if isinstance(event, _ENDING):
                session.ended = event

    def _check_event(self, session: Session, event: Event) -> None:
        peer = session.peer
        if isinstance(event, Connected | Incoming | ConnectRequested | PeerFinished | PeerClosed):
            kinds = [type(earlier) for earlier in session.events]
            assert type(event) not in kinds, f"{event} twice"
        if isinstance(event, Flushed):
            assert peer.vouched >= session.written_bytes, "Flushed before everything was acknowledged"
        elif isinstance(event, PeerFinished):
            assert not session.closed, "an end of stream after close()"
            shown = (session.read_bytes, session.digest.digest())
            assert shown in peer.ends, f"an end of stream after {session.read_bytes} bytes that the peer never sent"
            session.finished = True
        elif isinstance(event, PeerClosed):
            assert peer.closed or peer.lied, "PeerClosed without CLOSE"
        elif isinstance(event, Closed):
            assert peer.vouched >= session.written_bytes, "a clean end before everything was acknowledged"
            assert session.closed or session.finished, "a clean end before the end of the peer's stream was read"
        elif isinstance(event, Refused):
            assert peer.rejected, "Refused without REJECTED"

    def read(self, session: Session, size_max: int) -> int:
        """Read once and compare."""
        connection = session.connection
        readable = connection.readable
        data = bytes(connection.read(size_max, self.now))
        assert len(data) <= size_max
        assert bool(data) == (readable and size_max > 0), "`readable` disagrees with read()"
        begin = session.peer.start + session.read_bytes
        if not session.peer.lied:
            assert data == BLOB[begin : begin + len(data)], f"wrong bytes at {session.read_bytes}"
            assert session.read_bytes + len(data) <= session.peer.sent_bytes
        session.read_bytes += len(data)
        session.digest.update(data)
        self.events()
        assert connection.at_eof == session.finished
        return len(data)

    def write(self, session: Session, size: int) -> int:
        """Write once; return the number of bytes that were accepted."""
        begin = session.start + session.written_bytes
        data = BLOB[begin : min(begin + size, len(BLOB) - 1)]
        before = session.connection.unacknowledged_bytes
        taken = session.connection.write(data, self.now)
        session.written_bytes += taken
        assert 0 <= taken <= len(data)
        assert session.connection.unacknowledged_bytes == before + taken
        self.events()
        return taken
