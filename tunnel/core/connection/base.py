"""The base of a connection's parts: its ids, its shared state, and the interface of the endpoint that owns it.

These are plain base classes and not protocols, since compiled code calls a method of a protocol six times slower
(20 ns against 3.5). The parts (`handshake`, `closing`, `outbound`) import this module; `connection` imports the parts.
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
    """The ids of a connection and the values that identify its route.

    `first_sequence` is unbounded; the wire carries it mod 2**32.
    """

    own_id: int
    peer_id: int  # 0 until known
    initiator: bool
    route_key: bytes
    target: Target
    first_sequence: int
    user: str = ""  # added by the relay; known to the acceptor only
    acceptor_endpoint: bytes | None = None  # the acceptor's endpoint id, which a resume must name (6.5)
    further_ids: tuple[bytes, ...] | None = None  # of the acceptor at other relays, to which the connection may move
    move: int = 0  # the number that resumes at the present relay have (6.11); at the acceptor, of the last answered one
    tried_move: int = 0  # at the initiator, the highest number that a try to move has had


class QueuePlace:
    """The place of a connection in the queues of its endpoint. Only the endpoint and its scheduler use it."""

    __slots__ = ("deficit", "queued", "scheduled_us")

    def __init__(self) -> None:
        self.queued = False  # whether it is in a queue of connections with segments to send
        self.deficit = 0  # bytes that the connection may still send in this round
        self.scheduled_us = NEVER_US  # its deadline in the endpoint's heap of timers


class Owner:
    """The attributes and methods of the endpoint that every part of a connection may use."""

    config: EndpointConfig
    endpoint_id: bytes
    carrier: CarrierView
    further_ids: tuple[bytes, ...] | None  # of this endpoint at other relays, to which what it accepts may move (6.11)

    def enter_budget(self, user: str) -> WindowBudget:
        """Return the budget of a new connection. `user` has opened it; empty: this endpoint opens it."""
        raise NotImplementedError

    def emit(self, event: Event) -> None:
        """Queue an event for the application."""
        raise NotImplementedError

    def send(self, packet: Packet) -> None:
        """Queue a packet that is sent even if its connection ends first."""
        raise NotImplementedError

    def send_abort(self, own_id: int, peer_id: int) -> None:
        """Answer the endpoint that uses `peer_id` with ABORT: there is no such connection here (3.9)."""
        raise NotImplementedError


_SERVED_BUFFER_BYTES = 256 * 1024
"""The send buffer of a connection that a user has opened to this endpoint, until a write fills it: it then grows as far
as the budget, in which each user has a share, allows. A user may open thousands of them and read nothing. It is as much
as the first window of a peer (`EndpointConfig.window_bytes_start`) lets leave."""


class ConnectionBase:
    """The state that all parts of a connection share. `Connection` implements the methods."""

    def __init__(self, owner: Owner, identity: ConnectionIdentity, now: int) -> None:
        config = owner.config
        self.identity = identity
        self.id = identity.own_id
        self.state = State.CONNECTING if identity.initiator else State.REQUESTED
        self.timers = TimerTable()
        self.stats = ConnectionStats()
        self.liveness = Liveness(self.timers, config.keepalive_us, config.user_timeout_us, now)
        first = identity.first_sequence + 1 if identity.initiator else identity.first_sequence
        buffer_bytes = config.send_buffer_bytes_max
        if identity.user:
            buffer_bytes = min(buffer_bytes, _SERVED_BUFFER_BYTES)
        window = SendWindow(first, buffer_bytes, EARLY_BYTES_MAX if identity.initiator else 0)
        self.sender = Sender(window, self.timers, self.stats, owner.carrier)
        self.budget = owner.enter_budget(identity.user)
        self.receiver = Receiver(ReceiveWindow(config, self.budget, 0), self.timers, self.stats, self.round_trip_us)

        self._carrier = owner.carrier

    def use_carrier(self, carrier: CarrierView) -> None:
        """Use another carrier from now on."""
        self._carrier = carrier
        self.sender.use_carrier(carrier)

    def round_trip_us(self) -> int:
        """Return an estimate of the time from this endpoint to the peer and back; 0: unknown.

        SRTT counts from receipts (4.5), so it lacks the round trip to the relay, which the carrier measures.
        """
        return self._carrier.round_trip_us + self.sender.rtt.srtt_us

    @property
    def complete(self) -> bool:
        """Whether the peer's whole stream and its CLOSE have arrived, and only the reader has not reached the end.

        From then on, no fault of the path or the peer can lose a byte (4.2, 5.8).
        """
        return self.state is State.PEER_CLOSED and self.receiver.window.closed

    def apply(self, event: Input, now: int) -> bool:
        """Look up the input in the state table and carry out its actions. Return False if it has no row."""
        raise NotImplementedError

    def fail(self, reason: LostReason, tell: AbortReason | None, now: int, text: str = "") -> None:
        """End the connection with an error, as `Closing.fail` describes."""
        raise NotImplementedError

    def all_received(self, now: int) -> None:
        """Treat everything sent as received: the peer has ended, which only our CLOSE can have caused (5.7)."""
        raise NotImplementedError

    def route_resumed(self, now: int) -> None:
        """React to a route that is bound again: start a running drain again (5.7), and write a trace record."""
        raise NotImplementedError
