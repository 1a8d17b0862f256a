"""An endpoint, its lanes and perhaps its link, pumped as the driver would pump them, by short and simple code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from tests.sim.clock import Alarm, Clock
from tests.sim.faults import FaultKind
from tests.sim.link_path import LinkPath
from tests.sim.path import HttpPath, PathShape
from tests.sim.violation import Violation
from tests.sim.workload import Party
from tunnel.core import ConnectRequested, Endpoint, EndpointConfig, Event, Incoming, State
from tunnel.exchange import (
    Abandoned,
    AttachedEvent,
    AttachRefused,
    BatchDone,
    Detached,
    LaneConfig,
    LaneEvent,
    Lanes,
    LanesChanged,
    PacketsReceived,
)
from tunnel.traces import TraceSink
from tunnel.traces.exchanges import ExchangeTracer
from tunnel.traces.record import TraceEvent, TraceRecord
from tunnel.wire import SECRET_SIZE, Packet, attachment_id

__all__ = ["Application", "LadderSpec", "Mover", "Node", "NodeSpec"]

RELINK_US = 1_000_000  # between two attempts to open a link
BACKLOG = 1_024
ROUNDS_MAX = 1_000  # rounds of one pump


@dataclass(frozen=True, slots=True)
class LadderSpec:
    """The settings of an endpoint that moves between roads, as the carrier "auto" does."""

    roads: tuple[str, ...] = ("link", "websocket")
    remembered: str = ""
    eager: bool = False
    links: int = 1


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """The configuration of a node."""

    name: str
    user: str = "user"
    shape: PathShape = PathShape()
    endpoint: EndpointConfig = EndpointConfig()
    lanes: LaneConfig = LaneConfig()
    services: tuple[str, ...] = ()
    near_wrap: bool = False
    link: bool = False
    streams: bool = False
    ladder: LadderSpec | None = None


class Mover(Protocol):
    """Moves the batches of a node: the node's lanes, or a carrier that has lanes."""

    def poll_event(self) -> LaneEvent | None: ...

    def next_timeout(self) -> int | None: ...

    def handle_timeout(self, now: int) -> None: ...


class Application(Protocol):
    """Receives the events of connections that belong to no party yet, and reports of what parties do."""

    def asked(self, node: Node, event: ConnectRequested) -> None: ...

    def incoming(self, node: Node, event: Incoming) -> None: ...

    def struck(self, kind: FaultKind, node: Node, connection_id: int) -> None: ...

    def moved(self, party: Party, size: int) -> None: ...

    def ended(self, party: Party) -> None: ...


class Node:
    """One process behind the firewall, or beside a service. A run can pause it, advance its clock, or restart it."""

    def __init__(
        self,
        clock: Clock,
        index: int,
        spec: NodeSpec,
        path: HttpPath,
        make_random: Callable[[int], Random],
        make_link: Callable[[Node], LinkPath],
        application: Application,
        trace: TraceSink | None,
        check: Callable[[Node], None],
    ) -> None:
        self.clock = clock
        self.index = index
        self.spec = spec
        self.path = path
        self.lives = 0
        self.alive = False
        self.offset_us = 0
        self.paused_until_us = 0
        self.parties: dict[int, Party] = {}
        self.link: LinkPath | None = None
        self.attached = False
        self.touched: dict[int, None] = {}
        self.edge_used: dict[int, int] = {}  # of each connection, at its last check (invariants.py)
        self.pumped_at_us = -1
        self.spins = 0
        self._make_random = make_random
        self._make_link = make_link
        self._application = application
        self._trace = trace
        self._check = check  # called after every step
        self._exchange_trace: ExchangeTracer | None = None
        self._exchanges: dict[int, int] = {}  # request id -> the path's exchange id
        self._armed_us = -1
        self._pumping = False
        self._states: list[State] = []
        self._states_at = -1
        path.peer = self

    @property
    def now_us(self) -> int:
        return self.clock.now_us + self.offset_us

    @property
    def user(self) -> str:
        return self.spec.user

    @property
    def paused(self) -> bool:
        return self.clock.now_us < self.paused_until_us

    # life

    def start(self) -> None:
        """Start a new life: it remembers only its name and the names that it listens for."""
        self.lives += 1
        self.alive = True
        random = self._make_random(self.lives)
        secret = random.randbytes(SECRET_SIZE)
        self.endpoint = Endpoint(
            self.spec.endpoint, random, endpoint_id=attachment_id(secret), name=self.spec.name, trace=self._trace
        )
        if self._trace is not None:
            self._exchange_trace = ExchangeTracer(self._trace, self.spec.name)
            self._traced_carrier("poll")
        self._begin_life(secret, random)
        self.edge_used = {}
        self.attached = False
        self._armed_us = -1
        for service in self.spec.services:
            self.endpoint.listen(service, BACKLOG, self.now_us)
        self.pump()

    def _begin_life(self, secret: bytes, random: Random) -> None:
        spec = self.spec
        self.lanes = Lanes(spec.lanes, secret, random, endpoint_name=spec.name, streams=spec.streams)
        self.mover: Mover = self.lanes

    def die(self) -> None:
        """kill -9: every connection of this life ends without a notification."""
        self.alive = False
        self.path.forget_all()
        self._exchanges.clear()
        if self.link is not None:
            self.link.cut_by_endpoint()
            self.link = None
        for party in self.parties.values():
            party.die()
        self.parties.clear()

    def pause(self, length_us: int) -> None:
        """SIGSTOP: input and timers wait; the clock goes on."""
        self.paused_until_us = self.clock.now_us + length_us
        self.clock.at(self.paused_until_us, self._on_timer)

    def jump(self, amount_us: int) -> None:
        """The monotonic clock leaps ahead, as after a suspension."""
        self.offset_us += amount_us
        self._on_timer()

    def later(self, delay_us: int, action: Callable[[], None]) -> Alarm:
        """Run `action`, then pump, if this life still lasts. If the time falls into a pause, wait for its end."""
        life = self.lives
        return self.clock.after(delay_us, lambda: self._in_life(life, action))

    def _in_life(self, life: int, action: Callable[[], None]) -> None:
        if not self.alive or life != self.lives:
            return
        if self.paused:
            self.clock.at(self.paused_until_us, lambda: self._in_life(life, action))
            return
        action()
        self.pump()

    # the path's side

    def answered(self, request_id: int, status: int, body: bytes, retry_after_us: int) -> None:
        self._in_life(self.lives, lambda: self._answered(request_id, status, body, retry_after_us))

    def failed(self, request_id: int) -> None:
        self._in_life(self.lives, lambda: self._failed(request_id))

    def taken(self, request_id: int, size_bytes: int) -> None:
        if self.alive and not self.paused:
            self._taken(request_id, size_bytes)

    def _taken(self, request_id: int, size_bytes: int) -> None:
        self.lanes.on_opened(request_id)

    def _answered(self, request_id: int, status: int, body: bytes, retry_after_us: int) -> None:
        if self._exchange_trace is not None:
            self._exchange_trace.on_answered(request_id, status, len(body), self.now_us)
        self.lanes.on_answered(request_id, status, body, retry_after_us, self.now_us)

    def _failed(self, request_id: int) -> None:
        if self._exchange_trace is not None:
            self._exchange_trace.on_failed(request_id, self.now_us)
        self.lanes.on_failed(request_id, self.now_us)

    def received(self, request_id: int, piece: bytes) -> None:
        self._in_life(self.lives, lambda: self._received(request_id, piece))

    def answer_ended(self, request_id: int) -> None:
        self._in_life(self.lives, lambda: self._answer_ended(request_id))

    def _received(self, request_id: int, piece: bytes) -> None:
        self.lanes.on_received(request_id, piece, self.now_us)

    def _answer_ended(self, request_id: int) -> None:
        if self._exchange_trace is not None:
            self._exchange_trace.on_answered(request_id, 200, 0, self.now_us)
        self.lanes.on_ended(request_id, self.now_us)

    # the link's side

    def _open_link(self) -> None:
        if self.spec.link and self.attached and self.link is None:
            self.link = self._make_link(self)
            self.link.open()

    def link_opened(self, link: LinkPath) -> None:
        """From now on everything goes over the link."""
        self._in_life(self.lives, lambda: self._use_link(link, True))

    def link_lost(self, link: LinkPath, unreceipted: list[int]) -> None:
        """Batches without a receipt are given up (8.3); lanes take over, and another link is tried."""
        self._in_life(self.lives, lambda: self._give_link_up(link, unreceipted))

    def link_refused(self, link: LinkPath) -> None:
        """The relay is away, or does not know this attachment or its generation."""
        self._in_life(self.lives, lambda: self._give_link_up(link, []))

    def link_receipted(self, token: int) -> None:
        self.endpoint.batch_done(token, True, self.now_us)

    def link_packets(self, packets: list[Packet]) -> None:
        self._receive(packets)

    def _use_link(self, link: LinkPath, used: bool) -> None:
        if link is self.link:
            self.lanes.set_pulling(not used, self.now_us)
            lanes = 1 if used else self.lanes.lane_count
            self.endpoint.carrier_changed(lanes, 0 if used else self.lanes.pull_interval_us, self.now_us)
            self._traced_carrier("link" if used else "poll")

    def _traced_carrier(self, carrier: str) -> None:
        if self._trace is not None and self.endpoint.tracer is not None:
            self.endpoint.tracer.carrier = carrier
            event = TraceEvent.CARRIER_CHANGED
            self._trace(TraceRecord(time_us=self.now_us, node=self.spec.name, event=event, carrier=carrier))

    def _give_link_up(self, link: LinkPath, unreceipted: list[int]) -> None:
        if link is not self.link:
            return
        for token in unreceipted:
            self.endpoint.batch_done(token, False, self.now_us)
        self._use_link(link, False)
        self.link = None
        self.later(RELINK_US, self._open_link)

    # the pump

    def pump(self) -> None:
        """Move everything that can move; afterwards nothing is due now or in the past."""
        if self._pumping or not self.alive:
            return
        self._pumping = True
        rounds = 0
        while self._events() | self._batches() | self._requests() | self._timeouts():
            rounds += 1
            if rounds > ROUNDS_MAX:
                raise Violation(f"{self}: the pump always has something to do, and time stands still")
        self._pumping = False
        self._check(self)
        self._arm()

    def _events(self) -> bool:
        moved = False
        while (lane_event := self.mover.poll_event()) is not None:
            moved = True
            self._lane_event(lane_event)
        while (event := self.endpoint.poll_event()) is not None:
            moved = True
            self._event(event)
        return moved

    def _event(self, event: Event) -> None:
        self.touched[event.connection_id] = None
        if isinstance(event, ConnectRequested):
            self._application.asked(self, event)
        elif isinstance(event, Incoming):
            self._application.incoming(self, event)
        else:
            party = self.parties.get(event.connection_id)
            if party is not None:
                party.handle(event)

    def _lane_event(self, event: LaneEvent) -> None:
        now_us = self.now_us
        match event:
            case PacketsReceived(packets=packets):
                self._receive(packets)
            case BatchDone(token=token, ok=ok):
                self.endpoint.batch_done(token, ok, now_us)
            case AttachedEvent():
                self.attached = True
                if self._trace is not None:
                    record = TraceRecord(time_us=now_us, node=self.spec.name, event=TraceEvent.ATTACHED, text="relay")
                    self._trace(record)
                self._open_link()
                limits = event.packet_bytes_max, event.initial_edge_bytes
                self.endpoint.on_attached(event.fresh, *limits, now_us, packets_max=event.packets_max)
                self.endpoint.carrier_changed(self.lanes.lane_count, event.pull_interval_us, now_us)
            case LanesChanged(lanes=lanes, pull_interval_us=pull_interval_us):
                self.endpoint.carrier_changed(lanes, pull_interval_us, now_us)
            case Detached():
                self.attached = False
            case AttachRefused():
                raise Violation(f"{self}: {event}, although no relay refused it")
            case Abandoned(request_id=request_id):
                self._drop(request_id)
                if self._exchange_trace is not None:
                    self._exchange_trace.on_abandoned(request_id, now_us)

    def _receive(self, packets: list[Packet]) -> None:
        for packet in packets:
            self.touched[packet.destination] = None
        self.endpoint.receive_packets(packets, self.now_us)

    def _batches(self) -> bool:
        moved = False
        while self.endpoint.wants_batch():
            room = self._room()
            batch = self.endpoint.next_batch(room, self.now_us) if room > 0 else None
            if batch is None:
                break
            for packet in batch.packets:
                self.touched[packet.source] = None
            self._push(batch.packets, batch.token)
            moved = True
        return moved

    def _open_link_path(self) -> LinkPath | None:
        return self.link if self.link is not None and self.link.is_open else None

    def _room(self) -> int:
        link = self._open_link_path()
        return self.lanes.room(self.now_us) if link is None else link.room()

    def _push(self, packets: list[Packet], token: int) -> None:
        link = self._open_link_path()
        if link is None:
            self.lanes.push(packets, token, self.now_us)
        else:
            link.send(packets, token)

    def _requests(self) -> bool:
        moved = False
        while (request := self.lanes.poll_request(self.now_us)) is not None:
            body = b"".join(request.body)
            if self._exchange_trace is not None:
                kind = "attach" if request.lane < 0 else "pull" if request.pull else "push"
                self._exchange_trace.on_sent(
                    request.id, request.lane, request.number, request.repeat, kind, len(body), self.now_us
                )
            self._send(request.id, body, is_repeat=request.repeat > 0)
            moved = True
        return moved

    def _send(self, request_id: int, body: bytes, *, is_repeat: bool) -> None:
        self._exchanges[request_id] = self.path.send(request_id, body, is_repeat)

    def _drop(self, request_id: int) -> None:
        exchange_id = self._exchanges.pop(request_id, None)
        if exchange_id is not None:
            self.path.abandon(exchange_id)

    def _timeouts(self) -> bool:
        now_us = self.now_us
        moved = False
        for part in (self.endpoint, self.mover):
            due_us = part.next_timeout()
            if due_us is not None and due_us <= now_us:
                part.handle_timeout(now_us)
                moved = True
        return moved

    def _arm(self) -> None:
        times = [time for time in (self.endpoint.next_timeout(), self.mover.next_timeout()) if time is not None]
        if not times:
            return
        at_us = min(times) - self.offset_us
        if self._armed_us < 0 or at_us < self._armed_us:
            self._armed_us = at_us
            life = self.lives
            self.clock.at(at_us, lambda: self._timer(life, at_us))

    def _timer(self, life: int, at_us: int) -> None:
        if life == self.lives and self._armed_us == at_us:
            self._on_timer()

    def _on_timer(self) -> None:
        self._armed_us = -1
        if self.alive and not self.paused:
            self.pump()

    def states(self) -> list[State]:
        """The states of all connections at this moment."""
        if self._states_at != self.clock.steps:
            self._states_at = self.clock.steps
            self._states = [connection.state for connection in self.endpoint.connections.values()]
        return self._states

    def __str__(self) -> str:
        return f"node {self.index} ({self.spec.name})"

    # reports of parties

    def struck(self, kind: FaultKind, connection_id: int) -> None:
        self._application.struck(kind, self, connection_id)

    def moved(self, party: Party, size: int) -> None:
        self._application.moved(party, size)

    def ended(self, party: Party) -> None:
        self.parties.pop(party.connection.id, None)
        self._application.ended(party)
