"""Admission of connections: for each CONNECT, open, repeat the answer, resume or refuse (PROTOCOL 3.3, 6.6)."""

from tunnel.core.connection.base import ConnectionIdentity
from tunnel.core.connection.connection import Connection, ConnectionOwner
from tunnel.core.connection.handshake import VERSIONS, common_version
from tunnel.core.connection.state import State
from tunnel.core.constants import EARLY_BYTES_MAX
from tunnel.core.events import ConnectRequested
from tunnel.core.services import Services
from tunnel.core.tombstones import RouteName, Tombstones
from tunnel.wire import (
    ROUTE_KEY_SIZE,
    VERSION,
    Connect,
    Options,
    Packet,
    PacketType,
    Rejected,
    RejectReason,
    TargetKind,
    asked_about,
    decode_connect,
    encode_rejected,
)

__all__ = ["Admission", "AdmittingOwner"]


class AdmittingOwner(ConnectionOwner):
    """The methods of the endpoint that admission calls."""

    is_in_domain: bool  # it has siblings at other relays, at which the same connections may come (6.11)

    def accepted_elsewhere(self, route: RouteName) -> Connection | None:
        """Return the connection of this user and route key that a sibling has accepted."""
        raise NotImplementedError

    def answer_elsewhere(self, route: RouteName, now: int) -> bytes | None:
        """Return the answer to a late CONNECT of a connection that has ended at a sibling."""
        raise NotImplementedError

    def take_over(self, connection: Connection, now: int) -> bool:
        """Become the endpoint of a sibling's connection. Return False if this relay cannot carry it."""
        raise NotImplementedError

    def new_id(self) -> int:
        """Draw an id that is not 0, not in use and has no tombstone (3.1)."""
        raise NotImplementedError

    def has_room(self) -> bool:
        """Return whether another connection may be opened."""
        raise NotImplementedError

    def adopt(self, connection: Connection) -> None:
        """Add the connection to those of the endpoint."""
        raise NotImplementedError

    def new_sequence(self) -> int:
        """Draw an unbounded first sequence number, far enough from 0 that no number near it is negative (1.6)."""
        raise NotImplementedError


class Admission:
    """Answers CONNECTs. A repeated CONNECT, recognised by user and route key, opens no second connection (3.3)."""

    def __init__(self, owner: AdmittingOwner, services: Services, tombstones: Tombstones) -> None:
        self._owner = owner
        self._services = services
        self._tombstones = tombstones
        self._routes: dict[RouteName, Connection] = {}

    def receive_connect(self, packet: Packet, now: int) -> bool:
        """Open a connection for a CONNECT, repeat its answer, resume or refuse. Return False if it is malformed, or of
        a version of packets that this endpoint does not speak. Only the relay answers questions (3.14)."""
        connect = decode_connect(packet.payload) if packet.version == VERSION else None
        if connect is None or not packet.source or asked_about(connect.target) is not None:
            self._refuse_unread(packet)
            return False
        route: RouteName = (connect.options.user or "", connect.route_key)
        known = self._routes.get(route)
        if known is not None:
            self._repeat(known, packet, connect, now)
            return True
        if self._owner.is_in_domain and (known := self._owner.accepted_elsewhere(route)) is not None:
            self._move_here(known, packet, connect, now)
            return True
        answer = self._tombstones.answer(route, now)
        if answer is None and self._owner.is_in_domain:
            answer = self._owner.answer_elsewhere(route, now)
        if answer is None:
            answer = self._refusal(connect)
        if answer is not None:
            self._refuse(packet, answer)
        else:
            self._open(packet, connect, route, now)
        return True

    def _refuse_unread(self, packet: Packet) -> None:
        """Refuse a CONNECT that cannot be read, if at least its route key can: the relay counts it as unanswered."""
        route_key = bytes(packet.payload[:ROUTE_KEY_SIZE])
        if not packet.source or len(route_key) < ROUTE_KEY_SIZE:
            return
        if packet.version == VERSION:
            rejected = Rejected(route_key, RejectReason.MALFORMED)
        else:
            rejected = Rejected(route_key, RejectReason.VERSION, "", Options(versions=VERSIONS))
        self._refuse(packet, encode_rejected(rejected))

    def _refuse(self, packet: Packet, answer: bytes) -> None:
        """Answer a CONNECT with REJECTED."""
        self._owner.send(Packet(PacketType.REJECTED, packet.source, 0, 0, answer))

    def _repeat(self, known: Connection, packet: Packet, connect: Connect, now: int) -> None:
        """Answer a repeated CONNECT, or a resume, of a known connection. Refuse it if an id does not match (6.6)."""
        identity = known.identity
        if packet.source != identity.peer_id or (connect.resume and packet.destination != identity.own_id):
            self._refuse(packet, encode_rejected(Rejected(connect.route_key, RejectReason.GONE)))
            return
        number = connect.options.move or 0
        if number < identity.move:
            return  # it is older than the last one that was answered (6.11)
        identity.move = number
        known.handshake.handle_repeat(resume=connect.resume, now=now)
        self._owner.touch(known)

    def _move_here(self, known: Connection, packet: Packet, connect: Connect, now: int) -> None:
        """Answer a resume of a sibling's connection, and take the connection over (6.11). Its user is the same, as the
        siblings are in one domain. What is not newer than the last resume is out of date, and gets no answer."""
        identity = known.identity
        if not connect.resume or (connect.options.move or 0) <= identity.move or known.state is State.REQUESTED:
            return
        if (packet.source, packet.destination) != (identity.peer_id, identity.own_id):
            self._refuse(packet, encode_rejected(Rejected(connect.route_key, RejectReason.GONE)))
        elif self._owner.take_over(known, now):
            known.handshake.learn(connect.options)
            self._repeat(known, packet, connect, now)

    def adopt(self, connection: Connection) -> None:
        """Answer the CONNECTs of a connection that has moved here."""
        identity = connection.identity
        if not identity.initiator:
            self._routes[identity.user, identity.route_key] = connection

    def connection_of(self, route: RouteName) -> Connection | None:
        """Return the connection of this user and route key, if it is here."""
        return self._routes.get(route)

    def _refusal(self, connect: Connect) -> bytes | None:
        """Return the payload of REJECTED if this CONNECT must be refused, else None."""
        config, services, name = self._owner.config, self._services, connect.target.host
        reason: RejectReason | None = None
        options = Options()
        if connect.resume:
            reason = RejectReason.GONE  # this endpoint does not know the connection that should be resumed
        elif not common_version(connect.options.versions):
            reason, options = RejectReason.VERSION, Options(versions=VERSIONS)
        elif not self._owner.has_room():
            reason = RejectReason.BUSY
        elif connect.target.kind == TargetKind.TCP:
            reason = None if config.exit else RejectReason.DENIED
        elif not services.is_up(name):
            reason = RejectReason.NO_SUCH_SERVICE
        if reason is None:
            return None
        return encode_rejected(Rejected(connect.route_key, reason, "", options))

    def _open(self, packet: Packet, connect: Connect, route: RouteName, now: int) -> None:
        owner = self._owner
        identity = ConnectionIdentity(
            own_id=owner.new_id(),
            peer_id=packet.source,
            initiator=False,
            route_key=connect.route_key,
            target=connect.target,
            first_sequence=owner.new_sequence(),
            user=route[0],
        )
        connection = Connection(owner, identity, now)
        owner.adopt(connection)
        self._routes[route] = connection
        connection.receiver.opened_by((1 << 32) + packet.sequence, packet.attempt)
        connection.receiver.window.admit(EARLY_BYTES_MAX)
        connection.sender.window.peer_edge = connect.window
        connection.handshake.learn(connect.options)
        if connect.target.kind == TargetKind.SERVICE and not owner.config.asks_services:
            connection.accept(now)
        else:
            connection.handshake.is_asked = True
            owner.emit(ConnectRequested(connection.id, connect.target, route[0], connect.options.encryption or b""))
            owner.touch(connection)

    def forget(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        identity = connection.identity
        self._routes.pop((identity.user, identity.route_key), None)
