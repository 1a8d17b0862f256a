"""What each type of packet does to a connection: one small function per type, and the table that finds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tunnel.core.connection.closing import all_received
from tunnel.core.connection.state import Input, State
from tunnel.core.constants import EARLY_PACKETS_MAX, HELD_BYTES_MAX, NEVER_US
from tunnel.core.events import LostReason, Refused
from tunnel.core.receive.window import Arrival
from tunnel.wire import (
    HEADER_SIZE,
    PING_BYTES_MAX,
    AbortReason,
    DropReason,
    Packet,
    PacketType,
    RejectReason,
    decode_abort,
    decode_accepted,
    decode_ack,
    decode_dropped,
    decode_edge,
    decode_end,
    decode_option,
    decode_rejected,
    unwrap,
)

if TYPE_CHECKING:
    from tunnel.core.connection.connection import Connection

__all__ = ["receive"]

PONGS_MAX = 4  # answers that wait; further PINGs are answered by these

_FAREWELLS = frozenset({int(PacketType.ABORT), int(PacketType.SHUTDOWN)})  # who says only that is no peer (3.5)
_END_TYPES = frozenset({int(PacketType.FINISH), int(PacketType.CLOSE)})

_LOST_REASONS = {
    AbortReason.APPLICATION: LostReason.RESET,
    AbortReason.USER_TIMEOUT: LostReason.TIMEOUT,
    AbortReason.INTEGRITY: LostReason.INTEGRITY,
    AbortReason.NO_SUCH_CONNECTION: LostReason.UNKNOWN,
    AbortReason.PROTOCOL: LostReason.PROTOCOL,
    AbortReason.GONE: LostReason.GONE,
    AbortReason.SHUTTING_DOWN: LostReason.SHUTDOWN,
}


def receive(connection: Connection, packet: Packet, now: int) -> None:
    """Let the packet do what its type does. Malformed ones and strangers' are discarded and counted (3.8)."""
    connection.stats.packets_received += 1
    handler = _FROM_PEER.get(packet.type)
    if handler is not None:
        peer_id = connection.identity.peer_id
        if packet.source != peer_id or not peer_id:
            if peer_id:
                connection.stats.packets_discarded += 1
            else:
                _hold(connection, packet)
            return
        connection.liveness.heard(now)
        if connection.suspended_since_us != NEVER_US and not connection.identity.initiator:
            connection.resume(now)  # it came over a bound route: what said that there is none is out of date (6.7)
        if connection.state is State.ACCEPTED and packet.type not in _FAREWELLS:
            connection.apply(Input.PEER_HEARD, now)
    else:
        handler = _FROM_OTHERS.get(packet.type)
        if handler is None:
            connection.stats.packets_discarded += 1
            return
    handler(connection, packet, now)


def _hold(connection: Connection, packet: Packet) -> None:
    """Before ACCEPTED what the peer sent after it may already be here: lanes overtake each other (3.7)."""
    held = connection.held_packets
    if len(held) < EARLY_PACKETS_MAX and connection.held_bytes + len(packet.payload) <= HELD_BYTES_MAX:
        packet.payload = bytes(packet.payload)  # a slice would keep its whole body
        held.append(packet)
        connection.held_bytes += len(packet.payload)
    else:
        connection.stats.packets_discarded += 1


def _on_sequenced(connection: Connection, packet: Packet, now: int) -> None:
    if len(packet.payload) + HEADER_SIZE > connection.owner.config.packet_bytes_max:
        connection.stats.packets_discarded += 1  # 1.3
        return
    end = None
    if packet.type in _END_TYPES:
        end = decode_end(packet.payload)
        if end is None:
            connection.stats.packets_discarded += 1
            return
    window = connection.receiver.window
    was_readable = window.readable
    sequence = unwrap(packet.sequence, window.next_sequence)
    arrival = connection.receiver.insert(sequence, packet.attempt, packet.type, packet.payload, end, now)
    if arrival is Arrival.MISMATCH:
        connection.fail(LostReason.INTEGRITY, AbortReason.INTEGRITY, now)
        return
    if arrival is Arrival.REFUSED or arrival is Arrival.DUPLICATE:
        return
    if packet.type == PacketType.CLOSE and end is not None:
        connection.peer_closing(end, now)
    connection.arrived(was_readable, now)


def _on_option(connection: Connection, packet: Packet, now: int) -> None:
    option = decode_option(packet.payload)
    if option is None:
        connection.stats.packets_discarded += 1
        return
    _on_sequenced(connection, packet, now)
    if option.version > connection.option_version:
        connection.option_version = option.version
        connection.learn(option.options)


def _on_ack(connection: Connection, packet: Packet, now: int) -> None:
    ack = decode_ack(packet.payload)
    if ack is None or not connection.acknowledged(ack, now):
        connection.stats.packets_discarded += 1


def _on_accepted(connection: Connection, packet: Packet, now: int) -> None:
    accepted = decode_accepted(packet.payload)
    identity = connection.identity
    if accepted is None or not identity.initiator or accepted.route_key != identity.route_key or not packet.destination:
        connection.stats.packets_discarded += 1
        return
    if identity.peer_id and identity.peer_id != packet.destination:
        connection.replaced(packet.destination, now)
        return
    connection.liveness.heard(now)
    connection.answered(accepted, packet, now)


def _on_rejected(connection: Connection, packet: Packet, now: int) -> None:
    rejected = decode_rejected(packet.payload)
    identity = connection.identity
    if rejected is None or not identity.initiator or rejected.route_key != identity.route_key:
        connection.stats.packets_discarded += 1
        return
    if connection.state in (State.CONNECTING, State.CLOSED_EARLY):
        reason = RejectReason(rejected.reason) if rejected.reason in _KNOWN_REFUSALS else RejectReason.REFUSED
        connection.owner.emit(Refused(connection.id, reason, rejected.text))
        connection.apply(Input.REJECTED, now)
    elif connection.suspended_since_us == NEVER_US:
        return  # out of date
    elif rejected.reason == RejectReason.FINISHED and connection.state is State.CLOSING:
        all_received(connection, now)
    elif rejected.reason in _FINAL_REFUSALS:
        connection.fail(LostReason.GONE, None, now, rejected.text)


def _on_abort(connection: Connection, packet: Packet, now: int) -> None:
    abort = decode_abort(packet.payload)
    if abort is None:
        connection.stats.packets_discarded += 1
        return
    reason = _LOST_REASONS.get(AbortReason(abort.reason)) if abort.reason in _KNOWN_ABORTS else None
    connection.fail(reason or LostReason.RESET, None, now, abort.text)


def _on_shutdown(connection: Connection, packet: Packet, now: int) -> None:
    connection.peer_shut = True
    if connection.state is State.DRAIN:
        connection.apply(Input.SHUTDOWN, now)
    elif connection.state is State.CLOSING:
        all_received(connection, now)  # else it would not be at its end without a CLOSE of its own
    elif not connection.complete:
        connection.fail(LostReason.RESET, None, now, "the peer released the route before the end")


def _on_ping(connection: Connection, packet: Packet, now: int) -> None:
    if len(packet.payload) <= PING_BYTES_MAX and len(connection.pongs) < PONGS_MAX:
        connection.pongs.append(bytes(packet.payload))


def _on_nothing(connection: Connection, packet: Packet, now: int) -> None:
    """PONG and NOOP: that they came was all."""


def _on_probe(connection: Connection, packet: Packet, now: int) -> None:
    connection.receiver.owe_ack(now)


def _on_dropped(connection: Connection, packet: Packet, now: int) -> None:
    dropped = decode_dropped(packet.payload)
    if dropped is None:
        connection.stats.packets_discarded += 1
    elif dropped.reason == DropReason.NO_ROUTE:
        connection.route_lost(now)
    elif dropped.reason == DropReason.GONE:
        connection.fail(LostReason.GONE, None, now)
    elif dropped.reason == DropReason.TOO_LARGE:
        connection.fail(LostReason.PROTOCOL, AbortReason.PROTOCOL, now, "a packet was too large for the relay")
    else:
        connection.sender.dropped(dropped.first, dropped.last, dropped.limit, now)


def _on_edge(connection: Connection, packet: Packet, now: int) -> None:
    edge = decode_edge(packet.payload)
    if edge is None:
        connection.stats.packets_discarded += 1
    else:
        connection.sender.edge(edge.sequence, edge.bytes, now)


_KNOWN_REFUSALS = frozenset(int(reason) for reason in RejectReason)
_FINAL_REFUSALS = frozenset({RejectReason.GONE, RejectReason.DENIED, RejectReason.FINISHED})  # of a resume (6.8)
_KNOWN_ABORTS = frozenset(int(reason) for reason in AbortReason)

_Handler = Callable[["Connection", Packet, int], None]

# From the peer, whose id must be the one that we know (3.8).
_FROM_PEER: dict[int, _Handler] = {
    PacketType.DATA: _on_sequenced,
    PacketType.CLOSE: _on_sequenced,
    PacketType.FINISH: _on_sequenced,
    PacketType.OPTION: _on_option,
    PacketType.ACK: _on_ack,
    PacketType.SHUTDOWN: _on_shutdown,
    PacketType.ABORT: _on_abort,
    PacketType.NOOP: _on_nothing,
    PacketType.PING: _on_ping,
    PacketType.PONG: _on_nothing,
    PacketType.PROBE: _on_probe,
}

# These find the connection by our own id and are checked by the route key, or are the relay's own.
_FROM_OTHERS: dict[int, _Handler] = {
    PacketType.ACCEPTED: _on_accepted,
    PacketType.REJECTED: _on_rejected,
    PacketType.DROPPED: _on_dropped,
    PacketType.EDGE: _on_edge,
}
