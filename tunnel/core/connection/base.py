"""The ground that the parts of a connection stand on: its ids, its shared state, and the endpoint that owns it.

These are plain base classes and not protocols: compiled code calls a method of a protocol six times slower (20 ns
against 3.5). The parts (`handshake`, `closing`, `outbound`) know this module; `connection` knows the parts.
"""

import msgspec

from tunnel.core.budget import WindowBudget
from tunnel.core.config import EndpointConfig
from tunnel.core.connection.liveness import Liveness
from tunnel.core.connection.state import Input, State
from tunnel.core.constants import EARLY_BYTES_MAX, NEVER_US
from tunnel.core.events import Event, LostReason
from tunnel.core.ports import CarrierView
from tunnel.core.receive.acks import Receiver
from tunnel.core.receive.window import ReceiveWindow
from tunnel.core.send.sender import Sender
from tunnel.core.send.window import SendWindow
from tunnel.core.stats import ConnectionStats
from tunnel.core.timers import TimerTable
from tunnel.wire import AbortReason, Packet, Target

__all__ = ["ConnectionBase", "ConnectionIdentity", "Owner", "QueuePlace"]


class ConnectionIdentity(msgspec.Struct):
    """The ids of a connection. Numbers are unbounded; the wire sees them mod 2**32."""

    own_id: int
    peer_id: int  # 0 until known
    initiator: bool
    route_key: bytes
    target: Target
    first_sequence: int
    user: str = ""  # stamped by the relay; known to the acceptor
    acceptor_endpoint: bytes | None = None  # endpoint id, for resume (6.5)


class QueuePlace:
    """Where a connection stands in the queues of its endpoint. Only the endpoint and its scheduler use it."""

    __slots__ = ("deficit", "queued", "scheduled_us")

    def __init__(self) -> None:
        self.queued = False  # among those that have packets to send
        self.deficit = 0  # bytes that it may still take in this round
        self.scheduled_us = NEVER_US  # the deadline that stands in the heap of timers


class Owner:
    """The endpoint, as every part of a connection sees it."""

    config: EndpointConfig
    budget: WindowBudget
    endpoint_id: bytes
    carrier: CarrierView

    def emit(self, event: Event) -> None:
        """Queue an event for the application."""
        raise NotImplementedError

    def send(self, packet: Packet) -> None:
        """Queue a packet that does not need its connection any more."""
        raise NotImplementedError

    def send_abort(self, own_id: int, peer_id: int) -> None:
        """Tell the endpoint that uses `peer_id` that there is no such connection here (3.9)."""
        raise NotImplementedError


class ConnectionBase:
    """The state that all parts of a connection share. `Connection` fills in the methods."""

    def __init__(self, owner: Owner, identity: ConnectionIdentity, now: int) -> None:
        config = owner.config
        self.identity = identity
        self.id = identity.own_id
        self.state = State.CONNECTING if identity.initiator else State.REQUESTED
        self.timers = TimerTable()
        self.stats = ConnectionStats()
        self.liveness = Liveness(self.timers, config.keepalive_us, config.user_timeout_us, now)
        first = identity.first_sequence + 1 if identity.initiator else identity.first_sequence
        window = SendWindow(first, config.send_buffer_bytes_max, EARLY_BYTES_MAX if identity.initiator else 0)
        self.sender = Sender(window, self.timers, self.stats, owner.carrier)
        self.receiver = Receiver(ReceiveWindow(config, owner.budget, 0), self.timers, self.stats)

    @property
    def complete(self) -> bool:
        """Everything of the peer has arrived and the peer wants nothing more: only our reader is behind. From now on
        nothing that happens to the path or the peer costs a byte (4.2, 5.5)."""
        return self.state is State.PEER_CLOSED and self.receiver.window.closed

    def apply(self, event: Input, now: int) -> bool:
        """Feed the state table and carry out the row's actions; False when the input changes nothing in this state."""
        raise NotImplementedError

    def fail(self, reason: LostReason, tell: AbortReason | None, now: int, text: str = "") -> None:
        """End with an error, as `Closing.fail` says."""
        raise NotImplementedError

    def all_received(self, now: int) -> None:
        """The peer has ended after our CLOSE reached it: everything arrived, though no ACK said so (5.7)."""
        raise NotImplementedError

    def route_resumed(self, now: int) -> None:
        """The route is bound again, and what may have been lost with the old one will leave (6.6)."""
        raise NotImplementedError
