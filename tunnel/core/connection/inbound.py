"""The handlers of incoming packets: small functions, and two tables with the handler of each packet type."""

from collections.abc import Callable

from tunnel.core.connection.connection import Connection
from tunnel.core.connection.state import Input, State
from tunnel.core.constants import NEVER_US
from tunnel.core.events import LostReason
from tunnel.wire import (
    FAREWELLS,
    PING_BYTES_MAX,
    AbortReason,
    DropReason,
    Packet,
    PacketType,
    decode_abort,
    decode_accepted,
    decode_ack,
    decode_dropped,
    decode_edge,
    decode_end,
    decode_option,
    decode_rejected,
)

__all__ = ["receive"]

_LOST_REASONS = {
    AbortReason.APPLICATION: LostReason.RESET,
    AbortReason.USER_TIMEOUT: LostReason.TIMEOUT,
    AbortReason.INTEGRITY: LostReason.INTEGRITY,
    AbortReason.NO_SUCH_CONNECTION: LostReason.UNKNOWN,
    AbortReason.PROTOCOL: LostReason.PROTOCOL,
    AbortReason.GONE: LostReason.GONE,
    AbortReason.SHUTTING_DOWN: LostReason.SHUTDOWN,
    AbortReason.DENIED: LostReason.DENIED,
}


def receive(connection: Connection, packet: Packet, now: int) -> None:
    """Process a packet by its type. Malformed packets, and those with the id of another peer, are discarded (3.8)."""
    connection.stats.packets_received += 1
    handler = _FROM_PEER.get(packet.type)
    if handler is not None:
        peer_id = connection.identity.peer_id
        if packet.source != peer_id or not peer_id:
            if peer_id:
                _discard(connection)
            else:
                connection.handshake.hold(packet)
            return
        connection.liveness.on_heard(now)
        if connection.handshake.suspended_since_us != NEVER_US and not connection.identity.initiator:
            connection.handshake.resume(now)  # the packet came over a bound route, so the route is not lost (6.7)
        # A packet that ends the connection does not count as the initiator's first packet (3.5).
        if connection.state is State.ACCEPTED and packet.type not in FAREWELLS:
            connection.apply(Input.PEER_HEARD, now)
    else:
        handler = _FROM_OTHERS.get(packet.type)
        if handler is None:
            _discard(connection)
            return
    handler(connection, packet, now)


def _discard(connection: Connection) -> None:
    connection.stats.packets_discarded += 1


def _on_end(connection: Connection, packet: Packet, now: int) -> None:
    end = decode_end(packet.payload)
    if end is None:
        _discard(connection)
    else:
        connection.handle_sequenced(packet, now, end)


def _on_option(connection: Connection, packet: Packet, now: int) -> None:
    option = decode_option(packet.payload)
    if option is None:
        _discard(connection)
        return
    connection.handle_sequenced(packet, now)
    connection.handshake.option_received(option)


def _on_ack(connection: Connection, packet: Packet, now: int) -> None:
    ack = decode_ack(packet.payload)
    if ack is None or not connection.handle_ack(ack, now):
        _discard(connection)


def _on_accepted(connection: Connection, packet: Packet, now: int) -> None:
    accepted = decode_accepted(packet.payload)
    if accepted is None or not _answers_ours(connection, accepted.route_key) or not packet.destination:
        _discard(connection)
        return
    for held in connection.handshake.handle_accepted(accepted, packet, now):
        if connection.state is not State.CLOSED:
            receive(connection, held, now)


def _on_rejected(connection: Connection, packet: Packet, now: int) -> None:
    rejected = decode_rejected(packet.payload)
    if rejected is None or not _answers_ours(connection, rejected.route_key):
        _discard(connection)
    else:
        connection.handshake.handle_rejected(rejected, now)


def _answers_ours(connection: Connection, route_key: bytes) -> bool:
    return connection.identity.initiator and route_key == connection.identity.route_key


def _on_abort(connection: Connection, packet: Packet, now: int) -> None:
    abort = decode_abort(packet.payload)
    if abort is None:
        _discard(connection)
        return
    reason = _LOST_REASONS.get(AbortReason(abort.reason)) if abort.reason in _KNOWN_ABORTS else None
    connection.fail(reason or LostReason.RESET, None, now, abort.text)


def _on_shutdown(connection: Connection, packet: Packet, now: int) -> None:
    connection.closing.peer_released(now)


def _on_ping(connection: Connection, packet: Packet, now: int) -> None:
    if len(packet.payload) <= PING_BYTES_MAX:
        connection.liveness.queue_pong(bytes(packet.payload))


def _on_pong(connection: Connection, packet: Packet, now: int) -> None:
    connection.liveness.pongs_received += 1


def _on_nothing(connection: Connection, packet: Packet, now: int) -> None:
    """Handle NOOP, which only shows that the peer is alive."""


def _on_probe(connection: Connection, packet: Packet, now: int) -> None:
    connection.receiver.request_ack(now)


def _on_dropped(connection: Connection, packet: Packet, now: int) -> None:
    dropped = decode_dropped(packet.payload)
    if dropped is None:
        _discard(connection)
    elif dropped.reason == DropReason.NO_ROUTE:
        connection.handshake.route_lost(now)
    elif dropped.reason == DropReason.GONE:
        connection.fail(LostReason.GONE, None, now)
    elif dropped.reason == DropReason.TOO_LARGE:
        connection.fail(LostReason.PROTOCOL, AbortReason.PROTOCOL, now, "a packet was too large for the relay")
    else:
        connection.sender.on_dropped(dropped.first, dropped.last, dropped.limit, now)


def _on_edge(connection: Connection, packet: Packet, now: int) -> None:
    edge = decode_edge(packet.payload)
    if edge is None:
        _discard(connection)
    else:
        connection.sender.edge(edge.sequence, edge.bytes, now)


_KNOWN_ABORTS = frozenset(int(reason) for reason in AbortReason)

_Handler = Callable[[Connection, Packet, int], None]

# Packets from the peer, whose id must be the one that the connection knows (3.8).
_FROM_PEER: dict[int, _Handler] = {
    PacketType.DATA: Connection.handle_sequenced,
    PacketType.CLOSE: _on_end,
    PacketType.FINISH: _on_end,
    PacketType.OPTION: _on_option,
    PacketType.ACK: _on_ack,
    PacketType.SHUTDOWN: _on_shutdown,
    PacketType.ABORT: _on_abort,
    PacketType.NOOP: _on_nothing,
    PacketType.PING: _on_ping,
    PacketType.PONG: _on_pong,
    PacketType.PROBE: _on_probe,
}

# ACCEPTED and REJECTED: the initiator's id finds the connection, and the route key shows that they belong to it (3.8).
# DROPPED and EDGE come from the relay.
_FROM_OTHERS: dict[int, _Handler] = {
    PacketType.ACCEPTED: _on_accepted,
    PacketType.REJECTED: _on_rejected,
    PacketType.DROPPED: _on_dropped,
    PacketType.EDGE: _on_edge,
}
