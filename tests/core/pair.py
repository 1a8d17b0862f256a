"""Two endpoints in memory on a virtual clock, with a minimal relay between them.

Batches are encoded when they leave and parsed when they arrive. A test decides the fate of each batch (`pair.fate`)
and of each packet at the relay (`pair.lose`, `pair.hold`); nothing is random unless the test makes it so.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from tunnel.core import Connection, Endpoint, EndpointConfig, Event, Incoming, LostReason, State
from tunnel.core.constants import SECOND_US
from tunnel.core.events import Closed, Connected, ConnectRequested, Lost, Refused
from tunnel.core.send.window import SegmentState
from tunnel.traces.record import TraceSink
from tunnel.wire import (
    Dropped,
    DropReason,
    Packet,
    PacketType,
    Target,
    TargetKind,
    decode_connect,
    encode_dropped,
    encode_packets,
    parse_packets,
)

__all__ = ["ENDS", "GIVEN_UP", "LOST", "MS", "SERVICE", "TARGET", "Fate", "Pair", "Relay", "Side", "check_connection"]

MS = 1_000
SERVICE = Target(TargetKind.SERVICE, "s")
TARGET = Target(TargetKind.TCP, "db", 5432)
SPINS_MAX = 1_000  # rounds at one instant: correct endpoints need far fewer
ENDS = (Closed, Lost, Refused)
_E = TypeVar("_E", bound=Event)
_EARLY = frozenset({PacketType.DATA, PacketType.FINISH, PacketType.CLOSE})


@dataclass(frozen=True, slots=True)
class Fate:
    """The fate of a batch: when copies of it arrive, and when its sender learns the outcome (None: never)."""

    arrivals_us: tuple[int, ...] = (10 * MS,)
    done_us: int | None = 5 * MS
    ok: bool = True


LOST = Fate(arrivals_us=())
"""The relay queues the batch and then loses it."""
GIVEN_UP = Fate(arrivals_us=(), ok=False)
"""The batch does not arrive, and its sender's carrier reports that."""


@dataclass(slots=True)
class Relay:
    """A relay that holds early DATA, FINISH and CLOSE until the route is bound (3.6), and drops packets without a route
    (2.9, 6.7)."""

    bound: dict[tuple[str, int], int] = field(default_factory=dict)  # (side, own id) -> the other side's id
    early: dict[tuple[str, int], list[Packet]] = field(default_factory=dict)
    answering: bool = True  # whether it answers a packet without a route with DROPPED(no route)

    def restart(self) -> None:
        """Forget every route."""
        self.bound.clear()
        self.early.clear()

    def route(self, sender: "Side", packet: Packet) -> tuple[list[Packet], list[Packet]]:
        """Return the packets for the other side, and the packets that go back to the sender."""
        if packet.type == PacketType.CONNECT:
            self.early.setdefault((sender.name, packet.source), [])
            return [packet], []
        if packet.type == PacketType.REJECTED:
            self.early.pop((sender.other.name, packet.source), None)
            return [packet], []
        if packet.type == PacketType.ACCEPTED:
            initiator, acceptor = packet.source, packet.destination
            self.bound[sender.other.name, initiator] = acceptor
            self.bound[sender.name, acceptor] = initiator
            waiting = self.early.pop((sender.other.name, initiator), [])
            for held in waiting:
                held.destination = acceptor
            sender.pair.deliver(sender, waiting)
            return [packet], []
        if packet.type == PacketType.LISTEN_STATE:
            return [], [packet]  # the relay sends it back, which means that it agrees
        if packet.source == 0 or (sender.name, packet.source) in self.bound:
            if packet.source and not packet.destination:
                packet.destination = self.bound[sender.name, packet.source]
            return [packet], []
        if packet.type in _EARLY and (sender.name, packet.source) in self.early and not packet.destination:
            self.early[sender.name, packet.source].append(packet)
            return [], []
        if packet.type in (PacketType.SHUTDOWN, PacketType.ABORT) or not self.answering:
            return [], []
        payload = encode_dropped(Dropped(DropReason.NO_ROUTE, 0, 0, 0))
        return [], [Packet(PacketType.DROPPED, 0, packet.source, 0, payload)]


class Side:
    """One endpoint, its events and the packets that it sent."""

    def __init__(self, pair: "Pair", name: str, config: EndpointConfig, seed: int, trace: TraceSink | None) -> None:
        self.pair = pair
        self.name = name
        self.endpoint = Endpoint(config, Random(seed), endpoint_id=name.encode() * 16, name=name, trace=trace)
        self.other: Side = self
        self.events: list[Event] = []
        self.flying = 0
        self.frozen = False  # whether its carrier takes nothing
        self.sent: list[Packet] = []

    def take(self, kind: type[_E]) -> list[_E]:
        """Remove and return the events of that kind so far."""
        found: list[_E] = [event for event in self.events if isinstance(event, kind)]
        self.events = [event for event in self.events if not isinstance(event, kind)]
        return found

    def only(self, kind: type[_E]) -> _E:
        """Remove and return the only event of that kind."""
        (event,) = self.take(kind)
        return event

    def lost(self) -> LostReason:
        """Remove the only Lost event and return its reason."""
        return self.only(Lost).reason

    def types(self) -> list[PacketType]:
        """Return the types of the packets that it sent, in order."""
        return [PacketType(packet.type) for packet in self.sent]

    def of_type(self, packet_type: PacketType) -> list[Packet]:
        """Return the packets of that type that it sent."""
        return [packet for packet in self.sent if packet.type == packet_type]


class Pair:
    """`a` and `b`, and the path between them. `run` lets time pass; `settle` only delivers packets in flight."""

    def __init__(
        self,
        config_a: EndpointConfig | None = None,
        config_b: EndpointConfig | None = None,
        *,
        seed: int = 0,
        batch_bytes: int = 64 * 1024,
        lanes: int = 4,
        trace: TraceSink | None = None,
    ) -> None:
        self.now = SECOND_US
        self.batch_bytes = batch_bytes
        self.lanes = lanes
        self.relay = Relay()
        self.a = Side(self, "a", config_a or EndpointConfig(), 2 * seed + 1, trace)
        self.b = Side(self, "b", config_b or config_a or EndpointConfig(), 2 * seed + 2, trace)
        self.a.other, self.b.other = self.b, self.a
        self.sides = (self.a, self.b)
        self.fate: Callable[[Side, list[Packet]], Fate] = lambda side, packets: Fate()
        self.lose: Callable[[Side, Packet], bool] = lambda side, packet: False
        self.hold: Callable[[Side, Packet], bool] = lambda side, packet: False
        self.held: list[tuple[Side, Packet]] = []
        self.after_step: Callable[[], None] = lambda: None
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        for side in self.sides:
            side.endpoint.on_attached(True, 1 << 24, 1 << 30, self.now)
            side.endpoint.carrier_changed(lanes, 0, self.now)

    # setting up

    def open(self, target: Target = SERVICE) -> tuple[Connection, Connection]:
        """Open a connection from a to b and return both ends; the events of the opening are removed."""
        if target.kind == TargetKind.SERVICE:
            self.b.endpoint.listen(target.host, 100, self.now)
        connection = self.a.endpoint.connect(target, self.now)
        self.settle()
        for request in self.b.take(ConnectRequested):
            self.b.endpoint.accept(request.connection_id, self.now)
            self.settle()
        incoming = self.b.only(Incoming if target.kind == TargetKind.SERVICE else Connected)
        self.a.only(Connected)
        for side in self.sides:
            side.sent.clear()
        return connection, self.b.endpoint.connections[incoming.connection_id]

    def restart_relay(self) -> None:
        """Let the relay forget everything; both sides attach again."""
        self.relay.restart()
        for side in self.sides:
            side.endpoint.on_attached(True, 1 << 24, 1 << 30, self.now)

    def inject(self, side: Side, *packets: Packet) -> None:
        """Deliver packets to a side as one batch, now."""
        data = b"".join(encode_packets(packets))
        side.endpoint.receive_packets(parse_packets(data)[0], self.now)
        self._collect()

    def lose_first(self, packet_type: PacketType, times: int = 1, sender: Side | None = None) -> None:
        """Lose the next `times` packets of that type at the relay, from one sender or, without `sender`, from both."""
        left = times

        def lose(side: Side, packet: Packet) -> bool:
            nonlocal left
            if packet.type != packet_type or not left or sender not in (None, side):
                return False
            left -= 1
            return True

        self.lose = lose

    def release(self) -> None:
        """Deliver the held packets now, each alone, in the order in which they were held."""
        held, self.held = self.held, []
        for side, packet in held:
            self.deliver(side.other, [packet])
        self._pump()

    # time

    def settle(self) -> None:
        """Run until nothing is in flight and neither side wants to send; only timers that are due before then fire."""
        self._pump()
        while self._due:
            self._advance(self._next_due())

    def run(self, duration_us: int) -> None:
        """Let `duration_us` pass."""
        end = self.now + duration_us
        self._pump()
        while (due := self._next_due()) <= end:
            self._advance(due)
        self.now = end

    def run_until(self, reached: Callable[[], bool], limit_us: int = 600 * SECOND_US) -> None:
        """Run until the condition holds; fail if it does not within the limit."""
        end = self.now + limit_us
        self._pump()
        while not reached():
            due = self._next_due()
            assert due <= end, "the condition did not hold within the limit"
            self._advance(due)

    def _next_due(self) -> int:
        times = [self._due[0][0]] if self._due else []
        for side in self.sides:
            timeout = side.endpoint.next_timeout()
            if timeout is not None:
                times.append(timeout)
        return min(times, default=1 << 62)

    def _advance(self, due: int) -> None:
        self.now = max(self.now, due)
        while self._due and self._due[0][0] <= self.now:
            heapq.heappop(self._due)[2]()
        for side in self.sides:
            timeout = side.endpoint.next_timeout()
            if timeout is not None and timeout <= self.now:
                side.endpoint.handle_timeout(self.now)
                later = side.endpoint.next_timeout()
                assert later is None or later > self.now, "handle_timeout() left a timeout in the past"
        self._pump()

    def at(self, delay_us: int, action: Callable[[], None]) -> None:
        """Do something after a delay."""
        self._count += 1
        heapq.heappush(self._due, (self.now + delay_us, self._count, action))

    # the path

    def _pump(self) -> None:
        for _ in range(SPINS_MAX):
            if sum(self._send(side) for side in self.sides) == 0:
                break
        else:
            raise AssertionError("the endpoints send forever while the clock stands still")
        self._collect()
        for side in self.sides:
            for connection in side.endpoint.connections.values():
                check_connection(connection)
        self.after_step()

    def _collect(self) -> None:
        for side in self.sides:
            while (event := side.endpoint.poll_event()) is not None:
                side.events.append(event)

    def _send(self, side: Side) -> bool:
        endpoint = side.endpoint
        if side.frozen or side.flying >= self.lanes or not endpoint.wants_batch():
            return False
        batch = endpoint.next_batch(self.batch_bytes, self.now)
        if batch is None:
            return False
        assert batch.packets
        assert batch.size == sum(packet.size for packet in batch.packets)
        assert batch.size <= self.batch_bytes or len(batch.packets) == 1, "the batch is larger than asked for"
        side.flying += 1
        side.sent.extend(batch.packets)
        data = b"".join(encode_packets(batch.packets))
        fate = self.fate(side, batch.packets)
        for delay_us in fate.arrivals_us:
            self.at(delay_us, lambda: self._arrive(side, data))
        if fate.done_us is not None:
            self.at(fate.done_us, lambda: self._done(side, batch.token, fate.ok))
        return True

    def _done(self, side: Side, token: int, ok: bool) -> None:
        side.flying -= 1
        side.endpoint.batch_done(token, ok, self.now)

    def _arrive(self, sender: Side, data: bytes) -> None:
        packets, discarded = parse_packets(data)
        assert discarded is None
        passed: list[Packet] = []
        returned: list[Packet] = []
        for packet in packets:
            if self.lose(sender, packet):
                continue
            if self.hold(sender, packet):
                self.held.append((sender, packet))
                continue
            on, back = self.relay.route(sender, packet)
            passed += on
            returned += back
        self.deliver(sender.other, passed)
        self.deliver(sender, returned)

    def deliver(self, side: Side, packets: list[Packet]) -> None:
        """Deliver packets to a side at this instant."""
        if packets:
            side.endpoint.receive_packets(packets, self.now)

    def route_key(self, side: Side) -> bytes:
        """Return the route key of the last CONNECT that a side sent."""
        connect = decode_connect(side.of_type(PacketType.CONNECT)[-1].payload)
        assert connect is not None
        return connect.route_key


def check_connection(connection: Connection) -> None:
    """Assert what must hold between any two calls."""
    sending, receiving = connection.sender.window, connection.receiver.window
    charged = sum(segment.size for segment in sending.outstanding.values() if segment.charged)
    assert sending.edge_used == charged
    assert all(not item.charged for item in sending.outstanding.values() if item.state >= SegmentState.LOST)
    assert sending.lost_bytes == sum(
        item.size for item in sending.outstanding.values() if item.state is SegmentState.LOST
    )
    assert sending.acknowledged_offset <= sending.sent_offset <= sending.written_bytes
    assert sending.sent_offset <= max(sending.peer_edge, 0)
    assert receiving.pinned_bytes >= 0
    assert receiving.buffered_bytes >= 0
    assert receiving.discarding or receiving.received_offset - receiving.delivered_offset == receiving.buffered_bytes
    if not receiving.readable:
        assert receiving._ahead or receiving.pinned_bytes == 0
    if connection.state in (State.DRAIN, State.CLOSED):
        assert not sending.outstanding
        assert not receiving.readable
    if connection.state is State.DRAIN:
        assert connection.timers.next() < 1 << 62
