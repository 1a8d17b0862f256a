"""The protocol state of an endpoint: its connections, its services and the packets for the relay.

How to drive it: after every call that may have changed something, take events (`poll_event`) and, while the carrier has
room, batches (`next_batch`). Report the result of each batch (`batch_done`), and call `handle_timeout` at
`next_timeout`. All calls take `now` in microseconds, from one clock that never goes back.
"""

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from random import Random

from tunnel.core.admission import Admission
from tunnel.core.attachment_options import AttachmentOptions
from tunnel.core.budget import BudgetShares, WindowBudget
from tunnel.core.config import EndpointConfig
from tunnel.core.connection.base import ConnectionIdentity
from tunnel.core.connection.closing import answer_shutdown
from tunnel.core.connection.connection import Connection
from tunnel.core.connection.inbound import receive
from tunnel.core.connection.state import State
from tunnel.core.constants import BATCH_PACKETS_MAX, MOVED_US, NEVER_US
from tunnel.core.errors import LocalProtocolError
from tunnel.core.events import Event, LostReason, Moved
from tunnel.core.moving import Moves, MovingOwner, Siblings, Stay
from tunnel.core.ports import CarrierView
from tunnel.core.scheduler import Batch, Scheduler
from tunnel.core.send.window import Segment
from tunnel.core.services import Services
from tunnel.core.stats import EndedTotals
from tunnel.core.tombstones import RouteName, Tombstones
from tunnel.core.tracer import Tracer
from tunnel.traces.record import TraceEvent, TraceLevel, TraceSink, level_of
from tunnel.wire import (
    TO_SOURCE,
    UNANSWERED,
    VERSION,
    Abort,
    AbortReason,
    Ack,
    Packet,
    PacketType,
    PublicPlace,
    RejectReason,
    Target,
    encode_abort,
)

__all__ = ["Batch", "Endpoint"]

STALE_TIMERS = 4  # the heap is swept when it holds more than this many deadlines per connection plus STALE_TIMERS_MIN
STALE_TIMERS_MIN = 64
_CONNECT = int(PacketType.CONNECT)
_LISTEN_STATE = int(PacketType.LISTEN_STATE)
_OPTION = int(PacketType.OPTION)


class Endpoint(MovingOwner):
    """All connections of an endpoint, with one timer and one queue of events.

    Idle connections, even 10,000, add nothing to the cost of a step. One thing because each method is an entrance, of
    the driver or of a connection; the work is done in the parts that it connects.
    """

    def __init__(
        self,
        config: EndpointConfig,
        random: Random,
        *,
        endpoint_id: bytes = bytes(16),
        name: str = "",
        trace: TraceSink | None = None,
    ) -> None:
        self.config = config
        self.random = random
        self.endpoint_id = endpoint_id
        self.name = name  # in traces
        self.tracer = None if level_of(trace) is TraceLevel.OFF or trace is None else Tracer(trace, name)
        self.is_traced = self.tracer is not None
        self.budget = WindowBudget(config.budget_bytes)
        self._shares = BudgetShares(self.budget)
        self.carrier = CarrierView()
        self.connections: dict[int, Connection] = {}
        self.ended = EndedTotals()
        self.packets_discarded = 0  # without a connection, or of a version that this endpoint does not speak
        self.services = Services(self.send)
        self.attachment_options = AttachmentOptions(self.send)
        self.tombstones = Tombstones()
        self._admission = Admission(self, self.services, self.tombstones)
        self._scheduler = Scheduler()
        self._receipted: dict[int, Connection] = {}  # connections whose timers must be set after a receipt
        self.events: deque[Event] = deque()  # that were not polled yet
        self._timers: list[tuple[int, int, Connection]] = []
        self._timer_count = 0
        self.further_ids: tuple[bytes, ...] | None = None
        self.is_in_domain = False
        self._seat: Moves | None = None  # if this process sits at other relays, too
        self._moves: deque[tuple[int, int]] = deque()  # to other relays, and when what does not follow is to end

    # getters

    def wants_batch(self) -> bool:
        """Return whether a batch should leave now."""
        scheduler = self._scheduler
        return bool(scheduler.control or scheduler.small or scheduler.bulk or scheduler.strays)

    def next_timeout(self) -> int | None:
        """Return when to call `handle_timeout`; None if no timer is set. A call with nothing due does no harm."""
        if self._receipted:
            self._arm_receipted()
        timers = self._timers
        while timers and timers[0][0] != timers[0][2].place.scheduled_us:
            heappop(timers)
        due_us = timers[0][0] if timers else NEVER_US
        if self.services.announcements.due_us < due_us:
            due_us = self.services.announcements.due_us
        if self.attachment_options.due_us < due_us:
            due_us = self.attachment_options.due_us
        if self._moves:
            due_us = min(due_us, self._leave_us())
        if self._seat is not None and self._seat.due_us < due_us:
            due_us = self._seat.due_us
        return None if due_us == NEVER_US else due_us

    def poll_event(self) -> Event | None:
        """Return the next event, in the order in which they happened; None if there is none."""
        return self.events.popleft() if self.events else None

    # commands

    def connect(self, target: Target, now: int, offer: bytes = b"") -> Connection:
        """Open a connection. Connected, Refused or Lost follows; up to 64 KiB of data may leave before that.

        With `offer`, a ClientHello, CONNECT offers encryption (3.13), and the caller must write nothing before
        Connected.
        """
        identity = ConnectionIdentity(
            own_id=self.new_id(),
            peer_id=0,
            initiator=True,
            route_key=self.random.getrandbits(128).to_bytes(16, "big"),
            target=target,
            first_sequence=self.new_sequence(),
        )
        connection = Connection(self, identity, now)
        connection.handshake.offer = offer
        self.adopt(connection)
        self.touch(connection)
        if self._seat is not None:
            self._seat.on_initiated(now)
        return connection

    def listen(self, name: str, backlog: int, now: int, public: PublicPlace | None = None) -> None:
        """Accept connections to a service. The relay hands on at most `backlog` CONNECTs that wait for an answer."""
        self.services.listen(name, backlog, now, public)

    def unlisten(self, name: str, now: int) -> None:
        """Accept no further connections to the service. Existing connections go on."""
        self.services.unlisten(name, now)

    def leave(self, now: int) -> None:
        """Tell the relay that this endpoint ends, so that an exit gets no further targets to dial (6.10). Open
        connections go on."""
        self.attachment_options.leave(now)

    def accept(self, connection_id: int, now: int, *, encrypted: bool = False) -> None:
        """Accept the connection of a ConnectRequested; `encrypted`: take up its initiator's offer to encrypt (3.13)."""
        self._requested(connection_id).accept(now, encrypted=encrypted)

    def refuse(self, connection_id: int, reason: RejectReason, text: str, now: int) -> None:
        """Answer a ConnectRequested with a refusal."""
        self._requested(connection_id).refuse(reason, text, now)

    def join(self, siblings: Siblings, place: int, wake: Callable[[], None]) -> None:
        """Move connections to and from the endpoints of this process at other relays from now on (6.11); see `Moves`.

        Call it before anything else.
        """
        self._seat = Moves(self, siblings, place, wake)
        siblings.add(self._seat)
        self.is_in_domain = siblings.is_one_domain
        if self.is_in_domain:
            if siblings.shares is None:
                siblings.shares = self._shares
            self._shares = siblings.shares

    def stays(self) -> dict[int, Stay]:
        """Return why connections are still here, by id: those that the relay, or their acceptor, does not serve."""
        seat = self._seat
        found = {} if seat is None else {number: seat.why_stays(one) for number, one in self.connections.items()}
        return {number: stay for number, stay in found.items() if stay is not None}

    def receive_packets(self, packets: list[Packet], now: int) -> None:
        """Process the packets of one batch that has come."""
        touched: dict[int, Connection] = {}
        last = None
        tracer = self.tracer
        for packet in packets:
            if packet.version != VERSION:
                if packet.type == _CONNECT:
                    self._receive_without_connection(packet, now)  # it is refused, since the relay awaits an answer
                else:
                    self._discard(packet, now)
                continue
            packet_type = packet.type
            connection = self.connections.get(packet.source if packet_type in TO_SOURCE else packet.destination)
            if connection is None or packet_type == _CONNECT:
                self._receive_without_connection(packet, now)
                continue
            if tracer is None:
                receive(connection, packet, now)
            else:
                tracer.receiving(packet, connection, now)
                receive(connection, packet, now)
                tracer.on_received(packet, connection, now)
            if connection is not last:
                touched[connection.id] = last = connection
        for connection in touched.values():
            self.touch(connection)
        if self._seat is not None:
            self._seat.on_packets(now)

    def next_batch(self, size_max: int, now: int) -> Batch | None:
        """Return the batch that leaves now: at most `size_max` bytes, or one larger packet; None when nothing waits.

        `size_max` must be more than 1 KiB: the control packets of a connection leave together and need that room.
        """
        batch = self._scheduler.fill(size_max, now)
        if batch is not None and self._seat is not None:
            self._seat.watch.on_batch(batch.token)
        if batch is not None and self.tracer is not None:
            self.tracer.batch_filled(batch, self.connections, now)
        return batch

    def batch_done(self, token: int, ok: bool, now: int) -> None:
        """Record that the batch is queued at the relay (`ok`), or that the carrier has given it up."""
        if self.tracer is not None:
            self.tracer.batch_done(token, ok, now)
        if self._seat is not None:
            self._seat.on_receipt(token, now, ok=ok)
        for connection in self._scheduler.done(token, ok, now):
            if connection.owner is not self:
                connection.owner.touch(connection)  # it has moved to another relay meanwhile
            elif ok:
                # A receipt gives nothing to send. Its packets are mostly acknowledged in the same step, so their
                # timers are set only at the end of the step.
                self._receipted[connection.id] = connection
            else:
                connection.sender.arm_after_receipts()
                self.touch(connection)

    def on_attached(
        self,
        fresh: bool,
        packet_bytes_max: int,
        initial_edge_bytes: int,
        now: int,
        *,
        packets_max: int = 0,
        moved: bool = False,
    ) -> None:
        """Record that the endpoint is attached. If `fresh`, resume all routes, and announce all services again (6.3).

        `packets_max` is the largest number of packets in a batch; 0: the relay has not announced it. `moved`: this is
        another relay than before, so that connections whose other end was not moved, too, end soon.
        """
        self._scheduler.packets_max = min(packets_max or BATCH_PACKETS_MAX, BATCH_PACKETS_MAX)
        self.carrier.packet_bytes_max = packet_bytes_max
        self.carrier.initial_edge_bytes = initial_edge_bytes
        away_us = max(0, now - self.carrier.absent_since_us)  # the other ends may have no relay, either
        self._moves = deque((moved_us, due_us + away_us) for moved_us, due_us in self._moves)
        self.carrier.absent_since_us = NEVER_US
        if fresh:
            self.services.announce_all(now)
            self.attachment_options.attached_afresh(now)
            for connection in list(self.connections.values()):
                connection.handshake.route_lost(now)
                self.touch(connection)
            self._scheduler.forget_leaves()
        if moved:
            self._moves.append((now, now + MOVED_US))
        if self._seat is not None:
            self._seat.on_relay(now, is_present=True)

    def on_detached(self, now: int) -> None:
        """Record that the attachment is lost or the relay is unreachable. This starts the user timeout (4.15)."""
        self.carrier.absent_since_us = min(self.carrier.absent_since_us, now)
        if self._seat is not None:
            self._seat.on_relay(now, is_present=False)

    def carrier_changed(self, lanes: int, pull_interval_us: int, now: int) -> None:
        """Record the number of lanes in use (1 on a link), and the interval of pulls."""
        self.carrier.lanes = lanes
        if pull_interval_us == self.carrier.pull_interval_us:
            return
        self.carrier.pull_interval_us = pull_interval_us
        for connection in list(self.connections.values()):
            connection.handshake.pull_interval_changed(now)
            self.touch(connection)

    def handle_timeout(self, now: int) -> None:
        """Handle every timer that is due. Early and late calls do no harm."""
        if self._receipted:
            self._arm_receipted()
        if self.services.announcements.due_us <= now:
            self.services.announcements.handle_timeout(now)
        self.attachment_options.handle_timeout(now)
        while self._moves and self._leave_us() <= now:
            self._leave_behind(now)
        if self._seat is not None and self._seat.due_us <= now:
            self._seat.handle_timeout(now)
        timers = self._timers
        while timers and timers[0][0] <= now:
            deadline, _, connection = heappop(timers)
            if deadline == connection.place.scheduled_us and connection.owner is self:
                connection.place.scheduled_us = NEVER_US
                if self.tracer is not None:
                    self.tracer.timer_expired(connection, deadline, now)
                connection.handle_timeout(now)
                connection.timers.next()
                self.touch(connection)
                if self._seat is not None and connection.sender.rtt.backoff:
                    self._seat.on_unanswered(now)

    def _leave_us(self) -> int:
        """Return when to end what has not followed the oldest move; NEVER_US while no relay answers."""
        return self._moves[0][1] if self.carrier.absent_since_us == NEVER_US else NEVER_US

    def _leave_behind(self, now: int) -> None:
        """End the connections that were not resumed since the oldest move."""
        moved_us, _ = self._moves.popleft()
        for connection in list(self.connections.values()):
            if connection.handshake.suspended_since_us <= moved_us:
                connection.fail(LostReason.MOVED, None, now)
                self.touch(connection)

    # calls from connections

    def emit(self, event: Event) -> None:
        """Queue an event for the application."""
        self.events.append(event)

    def touch(self, connection: Connection) -> None:
        """Queue and schedule a connection that may have something to send, or whose next deadline may have changed."""
        if connection.state is State.CLOSED:
            return
        self._scheduler.touch(connection)
        if connection.timers.earliest < connection.place.scheduled_us:
            self._schedule(connection)

    def enter_budget(self, user: str) -> WindowBudget:
        return self._shares.enter(user)

    def send(self, packet: Packet) -> None:
        """Queue a packet that belongs to no connection, or that must leave even if its connection ends first."""
        self._scheduler.add_unowned(packet)

    def send_abort(self, own_id: int, peer_id: int) -> None:
        """Answer with ABORT that there is no such connection. The number of such answers that wait is limited (3.9)."""
        payload = encode_abort(Abort(AbortReason.NO_SUCH_CONNECTION))
        self._scheduler.add_unowned(Packet(PacketType.ABORT, own_id, peer_id, 0, payload), is_answer=True)

    def forget(self, connection: Connection, now: int) -> None:
        """Forget a connection that has ended. A tombstone keeps its id and, at the acceptor, its answer for a while."""
        del self.connections[connection.id]
        self.ended.add(connection.snapshot())
        if self.tracer is not None:
            self.tracer.on_ended(connection, now)
        connection.place.scheduled_us = NEVER_US
        self._admission.forget(connection)
        identity = connection.identity
        connection.release_send_buffer()
        self._shares.leave(identity.user)
        self.tombstones.add(connection.id, now)
        if not identity.initiator:
            self.tombstones.add_answer((identity.user, identity.route_key), connection.handshake.last_answer(), now)

    def note(self, connection: Connection, event: TraceEvent, now: int) -> None:
        """Write a trace record of an event on a connection."""
        if self.tracer is not None:
            self.tracer.note(connection, event, now)

    def note_acknowledged(self, connection: Connection, ack: Ack, newly: list[Segment], now: int) -> None:
        if self.tracer is not None:
            self.tracer.on_acknowledged(connection, ack, newly, now)

    def note_read(self, connection: Connection, now: int) -> None:
        if self.tracer is not None:
            self.tracer.on_read(connection, now)

    def new_id(self) -> int:
        """Draw an id that is not 0, not in use and has no tombstone (3.1), nor at a sibling."""
        while True:
            number = self.random.getrandbits(32)
            if self._seat is not None and self._seat.siblings.knows(number):
                continue
            if number and number not in self.connections and not self.tombstones.has_id(number):
                return number

    def has_room(self) -> bool:
        return len(self.connections) < self.config.connections_max

    def adopt(self, connection: Connection) -> None:
        self.connections[connection.id] = connection

    # calls from siblings (6.11)

    def take_over(self, connection: Connection, now: int) -> bool:
        if self._seat is None or not self._seat.carries_all:
            return False
        events = connection.owner.hand_over(connection)
        connection.leave_for(self)
        self.adopt(connection)
        self._admission.adopt(connection)
        self.events.append(Moved(connection.id))
        self.events.extend(events)
        if connection.identity.initiator:
            self._seat.on_initiated(now)
        return True

    def hand_over(self, connection: Connection) -> list[Event]:
        del self.connections[connection.id]
        self._receipted.pop(connection.id, None)
        self._scheduler.remove(connection)
        self._admission.forget(connection)
        events = [event for event in self.events if event.connection_id == connection.id]
        for event in events:
            self.events.remove(event)
        return events

    def connection_of(self, route: RouteName) -> Connection | None:
        return self._admission.connection_of(route)

    def last_answer(self, route: RouteName, now: int) -> bytes | None:
        return self.tombstones.answer(route, now)

    def accepted_elsewhere(self, route: RouteName) -> Connection | None:
        return None if self._seat is None else self._seat.siblings.connection_of(route)

    def answer_elsewhere(self, route: RouteName, now: int) -> bytes | None:
        return None if self._seat is None else self._seat.siblings.last_answer(route, now)

    # draws

    def new_sequence(self) -> int:
        """Draw an unbounded first sequence number, far enough from 0 that no number near it is negative (1.6)."""
        return (1 << 32) + self.random.getrandbits(32)

    # helpers

    def _requested(self, connection_id: int) -> Connection:
        connection = self.connections.get(connection_id)
        if connection is None:
            raise LocalProtocolError(f"connection {connection_id} has ended: poll its last event")
        return connection

    def _schedule(self, connection: Connection) -> None:
        deadline = connection.timers.earliest
        if deadline < connection.place.scheduled_us and connection.state is not State.CLOSED:
            connection.place.scheduled_us = deadline
            self._timer_count += 1
            heappush(self._timers, (deadline, self._timer_count, connection))
            if len(self._timers) > STALE_TIMERS * len(self.connections) + STALE_TIMERS_MIN:
                self._sweep_timers()

    def _arm_receipted(self) -> None:
        for connection in self._receipted.values():
            connection.sender.arm_after_receipts()
            self._schedule(connection)
        self._receipted.clear()

    def _sweep_timers(self) -> None:
        """Remove the deadlines that earlier ones have replaced. A busy connection adds forty of them per second."""
        current = [connection for connection in self.connections.values() if connection.place.scheduled_us != NEVER_US]
        self._timers[:] = [
            (connection.place.scheduled_us, count, connection) for count, connection in enumerate(current)
        ]
        heapify(self._timers)

    def _receive_without_connection(self, packet: Packet, now: int) -> None:
        if packet.type == _CONNECT:
            self.packets_discarded += not self._admission.receive_connect(packet, now)
        elif packet.type == _LISTEN_STATE:
            self.packets_discarded += not self.services.receive_listen_state(packet)
        elif packet.type == _OPTION and not packet.source and not packet.destination:
            self.packets_discarded += not self.attachment_options.receive_option(packet)
            if self._seat is not None:
                self._seat.on_change(now)
        elif self._seat is not None and self._seat.receive(packet, now):
            self._discard(packet, now)
        elif (answer := answer_shutdown(packet)) is not None:
            self._scheduler.add_unowned(answer, is_answer=True)
        elif packet.destination and packet.type not in UNANSWERED:
            # Of the types that are answered, only ACCEPTED carries this endpoint's id as its source (2.2).
            own, peer = packet.destination, packet.source
            if packet.type in TO_SOURCE:
                own, peer = peer, own
            self.send_abort(own, peer)
            self._discard(packet, now)
        else:
            self._discard(packet, now)

    def _discard(self, packet: Packet, now: int) -> None:
        self.packets_discarded += 1
        if self.tracer is not None:
            self.tracer.on_discarded(packet, now)
