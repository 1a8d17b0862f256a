"""What the rows of the state table do to a connection, and what a connection asks of its owner."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from tunnel.core.connection.state import Action, Input
from tunnel.core.constants import BACKOFF_MAX_US, DRAIN_US, NEVER_US
from tunnel.core.events import Closed, Connected, Event, Incoming
from tunnel.core.send.window import NO_EDGE
from tunnel.core.timers import Timer
from tunnel.wire import Packet, PacketType, TargetKind

if TYPE_CHECKING:
    from tunnel.core.budget import WindowBudget
    from tunnel.core.config import EndpointConfig
    from tunnel.core.connection.connection import Connection
    from tunnel.core.ports import CarrierView
    from tunnel.core.tracer import Tracer
    from tunnel.traces.record import TraceEvent

__all__ = ["ACTIONS", "Owner", "all_received", "drain_anew", "drain_over", "repeat_farewell"]

ATTEMPT_MAX = 255  # one byte (1.1); 0 would say that no answer is awaited (5.7)


class Owner(Protocol):
    """The endpoint, as its connections see it."""

    config: EndpointConfig
    budget: WindowBudget
    endpoint_id: bytes
    carrier: CarrierView
    tracer: Tracer | None

    def emit(self, event: Event) -> None:
        """Queue an event for the application."""

    def touch(self, connection: Connection) -> None:
        """The connection may have something to send, or another deadline."""

    def send(self, packet: Packet) -> None:
        """Queue a packet that does not need its connection any more."""

    def send_abort(self, own_id: int, peer_id: int) -> None:
        """Tell whoever has that id that there is no such connection here (3.9)."""

    def receive(self, connection: Connection, packet: Packet, now: int) -> None:
        """Let a packet that was held reach its connection."""

    def forget(self, connection: Connection, now: int) -> None:
        """Free the connection; its ids and route key rest."""

    def note(self, connection: Connection, event: TraceEvent, now: int) -> None:
        """Trace that something happened to the connection."""


def _send_accepted(connection: Connection, now: int) -> None:
    connection.sender.insert(PacketType.ACCEPTED, connection.outbound.accepted_payload(resumed=False), now)


def _send_rejected(connection: Connection, now: int) -> None:
    connection.owner.send(connection.outbound.rejection())


def _begin(connection: Connection, now: int) -> None:
    connection.sender.window.ends_held = False
    connection.outbound.open_due = False
    connection.timers.clear(Timer.OPEN)
    connection.liveness.begin(now)
    if connection.identity.initiator:
        # what was sent early may be on its way: nothing is lost by that, and the edge goes on counting
        connection.sender.suspended = False
        connection.sender.window.edge_bytes = connection.owner.carrier.initial_edge_bytes
        connection.sender.rtt.progressed()  # nobody could acknowledge what went early: that silence meant nothing
        connection.sender.arm(now)
        connection.owner.emit(Connected(connection.id))
    else:
        connection.sender.resume(connection.owner.carrier.initial_edge_bytes, now)


def _surface(connection: Connection, now: int) -> None:
    identity = connection.identity
    connection.unseen = False
    if identity.target.kind == TargetKind.SERVICE:
        connection.owner.emit(Incoming(connection.id, identity.target.host, identity.user))
    else:
        connection.owner.emit(Connected(connection.id))


def _discard_received(connection: Connection, now: int) -> None:
    if connection.identity.peer_id:
        connection.sender.window.close_received = connection.receiver.window.next_sequence - 1
    connection.receiver.window.discard()


def _queue_close(connection: Connection, now: int) -> None:
    connection.finished_writing = True
    connection.sender.end(PacketType.CLOSE, now)


def _junk_send(connection: Connection, now: int) -> None:
    connection.junk_send()


def _report_closed(connection: Connection, now: int) -> None:
    if connection.unseen and connection.identity.target.kind == TargetKind.SERVICE:
        return  # the application never heard of it (3.5)
    connection.owner.emit(connection.report_end() or Closed(connection.id))


def _send_shutdown(connection: Connection, now: int) -> None:
    if connection.identity.peer_id:
        _say_farewell(connection, 0, now)


def repeat_farewell(connection: Connection, now: int) -> None:
    """SHUTDOWN was not answered, or neither has said it, since each waits for an ACK of the CLOSEs that crossed: the
    relay keeps the route for nothing (5.7). While the route is gone nobody would hear it."""
    if connection.suspended_since_us == NEVER_US:
        _say_farewell(connection, connection.outbound.farewells, now)


def _say_farewell(connection: Connection, attempt: int, now: int) -> None:
    identity = connection.identity
    packet = Packet(PacketType.SHUTDOWN, identity.own_id, identity.peer_id, 0, attempt=min(attempt, ATTEMPT_MAX))
    connection.owner.send(packet)
    connection.outbound.farewells = attempt + 1
    _await_farewell(connection, now)


def _await_farewell(connection: Connection, now: int) -> None:
    doublings = max(0, connection.outbound.farewells - 1)
    interval_us = min(connection.sender.rtt.base_rto_us() << doublings, BACKOFF_MAX_US)
    connection.timers.set(Timer.FAREWELL, now + interval_us)


def _start_drain(connection: Connection, now: int) -> None:
    connection.outbound.finished()
    connection.sender.stop()
    connection.timers.clear(Timer.KEEPALIVE)
    connection.receiver.window.discard()
    if connection.peer_shut:
        connection.apply(Input.SHUTDOWN, now)
        return
    drain_anew(connection, now)


def all_received(connection: Connection, now: int) -> None:
    """The peer has ended after our CLOSE came to it: everything arrived, though no ACK said so (5.7)."""
    window = connection.sender.window
    window.acknowledge(window.next_sequence - 1, [])
    connection.apply(Input.CLOSE_ACKED, now)


def drain_anew(connection: Connection, now: int) -> None:
    """Late repeats are acknowledged until the peer says SHUTDOWN, or would have given up itself (5.7)."""
    connection.timers.set(Timer.DRAIN, now + max(DRAIN_US, connection.liveness.user_timeout_us))
    if connection.outbound.farewells or connection.sender.window.close_sequence != NO_EDGE:
        _await_farewell(connection, now)


def drain_over(connection: Connection, now: int) -> None:
    """The drain time is over. While the route is gone it goes on, as long as the user timeout: who repeats cannot be
    heard, and would be left with a timeout although everything was read."""
    given_up_us = connection.suspended_since_us + connection.liveness.user_timeout_us
    if connection.suspended_since_us != NEVER_US and now < given_up_us:
        connection.timers.set(Timer.DRAIN, given_up_us)
    else:
        connection.apply(Input.DRAINED, now)


def _forget(connection: Connection, now: int) -> None:
    connection.sender.stop()
    connection.receiver.window.discard()
    connection.timers.clear_all()
    connection.owner.forget(connection, now)


ACTIONS: dict[Action, Callable[[Connection, int], None]] = {
    Action.SEND_ACCEPTED: _send_accepted,
    Action.SEND_REJECTED: _send_rejected,
    Action.BEGIN: _begin,
    Action.SURFACE: _surface,
    Action.DISCARD_RECEIVED: _discard_received,
    Action.QUEUE_CLOSE: _queue_close,
    Action.JUNK_SEND: _junk_send,
    Action.REPORT_CLOSED: _report_closed,
    Action.SEND_SHUTDOWN: _send_shutdown,
    Action.START_DRAIN: _start_drain,
    Action.FORGET: _forget,
}
