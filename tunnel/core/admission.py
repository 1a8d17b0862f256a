"""The accepting side of an endpoint: services, CONNECTs and who may have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tunnel.core.connection.connection import Connection
from tunnel.core.connection.handshake import VERSIONS, Identity, common_version
from tunnel.core.constants import EARLY_BYTES_MAX
from tunnel.core.events import ConnectRequested
from tunnel.core.services import Announcements
from tunnel.core.tombstones import RouteName
from tunnel.wire import (
    Connect,
    ListenStatus,
    Options,
    Packet,
    PacketType,
    Rejected,
    RejectReason,
    TargetKind,
    decode_connect,
    decode_listen_state,
    encode_rejected,
)

if TYPE_CHECKING:
    from tunnel.core.endpoint import Endpoint

__all__ = ["Acceptor"]


class _Service(msgspec.Struct):
    backlog: int
    version: int
    waiting: int = 0  # accepted, and not yet seen by the application
    refused: bool = False  # by the relay


class Acceptor:
    """Answers CONNECT, idempotently by user and route key (3.3), and tells the relay which services are up."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._services: dict[str, _Service] = {}
        self._routes: dict[RouteName, Connection] = {}
        self.announcements = Announcements(endpoint.send)

    # services

    def listen(self, name: str, backlog: int, now: int) -> None:
        """The service is up; a second call changes the backlog. ValueError when that cannot be announced (2.8)."""
        known = self._services.get(name)
        waiting = known.waiting if known is not None else 0
        version = self.announcements.announce(name, ListenStatus.UP, backlog, now)
        self._services[name] = _Service(backlog, version, waiting)

    def unlisten(self, name: str, now: int) -> None:
        """The service is down."""
        if self._services.pop(name, None) is not None:
            self.announcements.announce(name, ListenStatus.DOWN, 0, now)

    def announce_all(self, now: int) -> None:
        """A relay that does not know us must hear of every service."""
        self.announcements.forget()
        for name, service in self._services.items():
            service.version = self.announcements.announce(name, ListenStatus.UP, service.backlog, now)

    def refused(self, name: str) -> bool:
        """Whether the relay's rules do not let us listen under that name."""
        service = self._services.get(name)
        return service is not None and service.refused

    def receive_listen_state(self, packet: Packet) -> None:
        """The relay's answer to an announcement."""
        state = decode_listen_state(packet.payload)
        service = None if state is None else self._services.get(state.name)
        if state is None or (not self.announcements.answered(state) and service is None):
            self._endpoint.packets_discarded += 1
        elif service is not None and state.version == service.version:
            service.refused = state.state == ListenStatus.REFUSED

    def surfaced(self, name: str) -> None:
        """The application has seen a connection: there is room in the backlog."""
        service = self._services.get(name)
        if service is not None:
            service.waiting = max(0, service.waiting - 1)

    # CONNECT

    def receive_connect(self, packet: Packet, now: int) -> None:
        """Open, repeat the answer, resume, or refuse."""
        connect = decode_connect(packet.payload)
        if connect is None or not packet.source:
            self._endpoint.packets_discarded += 1
            return
        route: RouteName = (connect.options.user or "", connect.route_key)
        known = self._routes.get(route)
        if known is not None:
            self._repeat(known, packet, connect, now)
            return
        answer = self._endpoint.rest.answer(route, now)
        if answer is None and connect.resume:
            answer = encode_rejected(Rejected(connect.route_key, RejectReason.GONE))
        if answer is None:
            answer = self._refusal(connect)
        if answer is not None:
            self._endpoint.send(Packet(PacketType.REJECTED, packet.source, 0, 0, answer))
            return
        self._open(packet, connect, route, now)

    def _repeat(self, known: Connection, packet: Packet, connect: Connect, now: int) -> None:
        """A CONNECT that we know: its answer again, and its route is there again (6.6)."""
        identity = known.identity
        if packet.source != identity.peer_id or (connect.resume and packet.destination != identity.own_id):
            payload = encode_rejected(Rejected(connect.route_key, RejectReason.GONE))
            self._endpoint.send(Packet(PacketType.REJECTED, packet.source, 0, 0, payload))
            return
        known.reopened(resume=connect.resume, now=now)
        self._endpoint.touch(known)

    def _refusal(self, connect: Connect) -> bytes | None:
        """Why this cannot be opened, as the payload of REJECTED; None if it can."""
        endpoint = self._endpoint
        reason: RejectReason | None = None
        options = Options()
        service = self._services.get(connect.target.host)
        if not common_version(connect.options.versions):
            reason, options = RejectReason.VERSION, Options(versions=VERSIONS)
        elif len(endpoint.connections) >= endpoint.config.connections_max:
            reason = RejectReason.BUSY
        elif connect.target.kind == TargetKind.TCP:
            reason = None if endpoint.config.exit else RejectReason.DENIED
        elif service is None:
            reason = RejectReason.NO_SUCH_SERVICE
        elif service.waiting >= service.backlog:
            reason = RejectReason.BUSY
        if reason is None:
            return None
        return encode_rejected(Rejected(connect.route_key, reason, "", options))

    def _open(self, packet: Packet, connect: Connect, route: RouteName, now: int) -> None:
        endpoint = self._endpoint
        identity = Identity(
            own_id=endpoint.new_id(),
            peer_id=packet.source,
            initiator=False,
            route_key=connect.route_key,
            target=connect.target,
            first_sequence=endpoint.new_sequence(),
            user=route[0],
        )
        connection = Connection(endpoint, identity, now)
        endpoint.connections[connection.id] = connection
        self._routes[route] = connection
        connection.receiver.opened_by((1 << 32) + packet.sequence, packet.attempt)
        connection.receiver.window.admit(EARLY_BYTES_MAX)
        connection.sender.window.peer_edge = connect.window
        connection.learn(connect.options)
        if connect.target.kind == TargetKind.SERVICE:
            self._services[connect.target.host].waiting += 1
            connection.accept(now)
        else:
            endpoint.emit(ConnectRequested(connection.id, connect.target, route[0]))
            endpoint.touch(connection)

    def forget(self, connection: Connection) -> None:
        """The connection has ended."""
        identity = connection.identity
        self._routes.pop((identity.user, identity.route_key), None)
        if connection.unseen and identity.target.kind == TargetKind.SERVICE:
            self.surfaced(identity.target.host)
