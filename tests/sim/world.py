"""One run: builds a scenario's world, lets faults strike, heals it, and demands that everything completes."""

from __future__ import annotations

import itertools
from random import Random

from tests.sim.clock import SECOND, Clock
from tests.sim.coverage import Cells
from tests.sim.encrypted import EncryptedParty, offer, take_up
from tests.sim.faults import TRACE_FAULTS, FaultKind, Moment, Window
from tests.sim.guests import Guests
from tests.sim.invariants import check_node_step, check_nothing_left, check_quiet, check_relay_step, check_routes
from tests.sim.judge import judge
from tests.sim.ladder_node import LadderNode
from tests.sim.link_path import LinkPath
from tests.sim.node import Node, NodeSpec
from tests.sim.path import HttpPath
from tests.sim.randomness import NearWrap, chance, stream
from tests.sim.relay import RelayHost
from tests.sim.road_accounts import CLIMBED_US
from tests.sim.road_path import RoadPath
from tests.sim.scenario import Scenario
from tests.sim.streams import Ending, StreamSpec
from tests.sim.violation import Violation
from tests.sim.workload import Outcome, Party, Stream
from tunnel.core import Connection, ConnectRequested, Incoming
from tunnel.traces import TraceEvent, TraceRecord, TraceSink
from tunnel.wire import Frame, RejectReason, Target, TargetKind
from tunnel_servlet.switch.decisions import Decision, Deny, Hand, HandTo
from tunnel_servlet.switch.switch import Switch

__all__ = ["World"]

HEALING_US = 330 * SECOND  # the user timeout and a little: a party that has lost its peer for good learns of it by then
LOOK_US = 5 * SECOND  # between two looks whether the best roads carry
# A run waits this long after its last stream has ended: a packet still in flight may show an acceptor its connection.
SETTLING_US = 2 * SECOND
# After healing, or after the last pause for a ban that has begun by then: by then every endpoint is attached again, and
# its services are found. A pause for a ban is up to 84 s long (7.9).
REFUSALS_US = 20 * SECOND
QUIET_US = 90 * SECOND  # one minute after the first SHUTDOWN has arrived, the relay has no route left (5.7, 9.5)
EXIT_PORT = 1000  # plus the number of the stream
RETRY_US = SECOND
# By then the relay has forgotten all. The time covers late copies of requests (a minute), the attachment timeout (9.6)
# and a hold.
FORGOTTEN_US = 480 * SECOND
DENIED_HOST = "denied.example"


class World:
    """Owns all objects of one run. `run()` raises Violation when a promise was broken."""

    def __init__(self, scenario: Scenario, trace: TraceSink | None = None) -> None:
        self.scenario = scenario
        self.clock = Clock()
        self.cells = Cells()
        self.trace = trace
        self.streams = {spec.number: Stream(scenario.seed, spec) for spec in scenario.streams}
        self.open_streams = dict.fromkeys(self.streams)
        self.delivered_bytes = 0
        self._paused_us = 0  # until when an endpoint pauses for a ban that has begun before healing
        self.moves: list[tuple[int, bool, int]] | None = None
        """(when, whether up, bytes) of every delivery, if a caller asked for them."""
        self.strikes: list[tuple[int, FaultKind]] | None = None
        """(when, kind) of every strike, if a caller asked for them."""
        self.deaths: list[int] = []
        """Nodes that died."""
        self._link_numbers = itertools.count()
        self._by_route_key: dict[bytes, Stream] = {}
        plan = scenario.plan
        seed = scenario.seed
        self._packet_loss = stream(seed, "packets")
        relay_random = stream(seed, "relay")
        self.relay = RelayHost(
            self.clock, plan, relay_random, self._make_switch, self.strike, check_relay_step, scenario.front
        )
        self.nodes = [self._make_node(index, spec) for index, spec in enumerate(scenario.nodes)]
        self.guests = Guests(scenario, self.clock, self.relay, self.nodes)

    # building

    def _make_switch(self) -> Switch:
        random = stream(self.scenario.seed, "switch", self.relay.restarts if hasattr(self, "relay") else 0)
        return Switch(
            self.scenario.switch,
            random,
            self._authorise,
            may_listen=self.scenario.may_listen,
            packet_filter=self._packet_arrives,
            trace=self.trace,
            started_us=self.clock.now_us,
            has_short_way=self.scenario.short_way,
        )

    def _make_node(self, index: int, spec: NodeSpec) -> Node:
        seed = self.scenario.seed
        random = stream(seed, "path", index)
        path = HttpPath(self.clock, spec.shape, self.scenario.plan, random, index, self.strike, self.relay)
        path.user, path.is_exit = spec.user, spec.endpoint.exit

        def make_random(life: int) -> Random:
            kind = NearWrap if spec.near_wrap else Random
            return kind(f"{seed}/node/{index}/{life}")

        def make_link(node: Node) -> LinkPath:
            link_random = stream(seed, "link", index, node.lives, next(self._link_numbers))
            plan = self.scenario.plan
            return LinkPath(self.clock, spec.shape, plan, link_random, self.strike, self.relay, node)

        parts = self.clock, index, spec, path, make_random, make_link, self, self.trace, check_node_step
        if spec.ladder is None:
            return Node(*parts)
        names, plan = spec.ladder.roads, self.scenario.plan
        roads = RoadPath(self.clock, seed, spec.shape, plan, self.strike, self.relay, names, index)
        return LadderNode(*parts, roads=roads)

    def _authorise(self, user: str, target: Target) -> Decision:
        if target.host == DENIED_HOST:
            return Deny(RejectReason.DENIED, "no rule allows it")
        if target.kind == TargetKind.SERVICE:
            return Hand(HandTo.SERVICE)
        return Hand(HandTo.EXIT, target.host)

    # running

    def run(self) -> None:
        """Faults first, then healing; every stream must end as it should, and leave no state."""
        self.begin()
        deadline_us = max(self.scenario.plan.healed_us, self.scenario.natural_end_us()) + HEALING_US
        while self.open_streams:
            if not self.clock.step(deadline_us):
                raise Violation("not complete after healing: " + "; ".join(self._unfinished()))
            if not self.open_streams:
                self._settle(SETTLING_US)  # an acceptor may see its connection only now
        for each in self.streams.values():
            judge(each, self._touched_by_death(each))
        self.guests.stop()
        self._climb()
        if self.scenario.seed % 4 == 0:
            self._fall_quiet()
        self._leave()

    def _leave(self) -> None:
        """When every endpoint has gone, the relay keeps nothing of any of them: all accounts are exactly zero."""
        self._settle(max(0, self.scenario.plan.healed_us - self.clock.now_us))  # a dead endpoint may still come back
        for node in self.nodes:
            node.die()
        self._settle(FORGOTTEN_US)
        check_nothing_left(self.relay)

    @property
    def ladder_nodes(self) -> list[LadderNode]:
        """The endpoints that move between roads."""
        return [node for node in self.nodes if isinstance(node, LadderNode)]

    def _climb(self) -> None:
        """Some time after healing, the best road that works carries.

        With some seeds the run then goes on: other roads must rest longer each time, and the best one must still carry.
        """
        nodes = self.ladder_nodes
        if not nodes:
            return
        healed_us = max(self.scenario.plan.healed_us, self.clock.now_us)
        is_long = self.scenario.seed % 8 == 0
        while self.clock.now_us < healed_us + CLIMBED_US:
            self._settle(LOOK_US)
            if not is_long and self.clock.now_us >= healed_us and all(node.accounts[-1].has_climbed for node in nodes):
                break
        for node in nodes:
            node.accounts[-1].check_climbed()
            if is_long and node.spec.ladder is not None and not node.spec.ladder.eager:
                node.accounts[-1].check_rests(healed_us)

    def _fall_quiet(self) -> None:
        """If both ends exist and know each other, they release their routes soon (5.7). An endpoint that waits for a
        peer that will never come back gives up at the user timeout. An endpoint that drains (5.7) waits for the same
        time, and begins it again after a resume."""
        self._settle(max(0, self.scenario.plan.healed_us - self.clock.now_us) + QUIET_US)
        refused = any(each.refusals for each in self.streams.values())
        orphans = bool(self.deaths or self.relay.restarts or refused or self.scenario.hostiles)
        if not orphans:
            check_routes(self.relay.switch)
        self._settle((1 + orphans) * HEALING_US)
        check_quiet(self.nodes, self.relay.switch)

    def begin(self) -> None:
        """Start every node; schedule streams and faults."""
        for node in self.nodes:
            node.start()
        for node in self.ladder_nodes:
            node.roads.begin()
        self.guests.start()
        for each in self.streams.values():
            self.clock.at(each.spec.start_us, lambda each=each: self._open(each))  # type: ignore[misc]
        self.clock.at(self.scenario.plan.end_us, self._healed)
        for window in self.scenario.plan.windows:
            self.clock.at(window.start_us, lambda window=window: self._window_begins(window))  # type: ignore[misc]
        for moment in self.scenario.plan.moments:
            self.clock.at(moment.time_us, lambda moment=moment: self._moment(moment))  # type: ignore[misc]

    def _settle(self, length_us: int) -> None:
        until_us = self.clock.now_us + length_us
        while self.clock.step(until_us):
            pass

    def _unfinished(self) -> list[str]:
        words = []
        for number in list(self.open_streams)[:5]:
            each = self.streams[number]
            for party in each.parties:
                state = party.connection.state.name if party.outcome is None else party.outcome.value
                words.append(f"{party}: {state}, read {party.read}, wrote {party.written}")
            if not each.parties:
                words.append(f"{each}: never opened")
        return words

    # streams

    def _open(self, each: Stream) -> None:
        spec = each.spec
        node = self.nodes[spec.initiator]
        if node.alive and not node.paused:
            node.later(0, lambda: self._connect(node, each))
        else:
            self.clock.after(RETRY_US, lambda: self._open(each))

    def _connect(self, node: Node, each: Stream) -> None:
        spec = each.spec
        party: Party
        if spec.encrypted:
            tls, client_hello = offer()
            connection = node.endpoint.connect(self._target(spec), node.now_us, client_hello)
            party = EncryptedParty(node, each, True, connection, tls)
        else:
            connection = node.endpoint.connect(self._target(spec), node.now_us)
            party = Party(node, each, True, connection)
        each.initiator = party
        node.parties[connection.id] = party
        self._by_route_key[connection.identity.route_key] = each
        if spec.ending in (Ending.MIDWAY, Ending.ABORT):
            node.later(spec.moment_us, lambda: self._midway(each))
        party.act()

    def _target(self, spec: StreamSpec) -> Target:
        acceptor = self.scenario.nodes[spec.acceptor]
        if acceptor.services:
            host = DENIED_HOST if spec.ending is Ending.REFUSED else acceptor.services[0]
            return Target(TargetKind.SERVICE, host, 0)
        host = DENIED_HOST if spec.ending is Ending.REFUSED and not spec.dial_us else acceptor.name
        return Target(TargetKind.TCP, host, EXIT_PORT + spec.number)

    def _midway(self, each: Stream) -> None:
        """Both sides close now, or one aborts now, whatever is in flight."""
        for party in each.parties:
            node = self.nodes[party.host.index]
            if each.spec.ending is Ending.MIDWAY or party.is_initiator == bool(each.spec.number % 2):
                node.later(0, party.strike_midway)

    # reports of nodes (Application)

    def asked(self, node: Node, event: ConnectRequested) -> None:
        """A CONNECT has reached an exit, or a service that decides on each CONNECT."""
        if self.guests.owns(event.user):
            self.guests.asked(node, event.connection_id)
            return
        if event.target.kind == TargetKind.SERVICE:
            self._decide(node, event, self._stream_of(node, node.endpoint.connections[event.connection_id]))
            return
        each = self.streams[event.target.port - EXIT_PORT]
        node.later(each.spec.dial_us, lambda: self._decide(node, event, each))

    def _decide(self, node: Node, event: ConnectRequested, each: Stream) -> None:
        connection = node.endpoint.connections.get(event.connection_id)
        if connection is None:
            return  # the initiator gave up in the meantime
        if each.spec.ending is Ending.REFUSED or not self._is_current(each, connection):
            node.endpoint.refuse(event.connection_id, RejectReason.REFUSED, "refused by the target", node.now_us)
        else:
            node.endpoint.accept(event.connection_id, node.now_us, encrypted=each.spec.encrypted)
            self._accepted(node, connection, each, event.offer)

    def incoming(self, node: Node, event: Incoming) -> None:
        """A service has a new connection; the route key names its stream."""
        connection = node.endpoint.connections.get(event.connection_id)
        if connection is None:
            return  # it ended before its application saw it
        if self.guests.owns(event.user):
            self.guests.incoming(node, event.connection_id)
            return
        each = self._stream_of(node, connection)
        if self._is_current(each, connection):
            self._accepted(node, connection, each)
        else:
            connection.abort(node.now_us)

    def _stream_of(self, node: Node, connection: Connection) -> Stream:
        each = self._by_route_key.get(connection.identity.route_key)
        if each is None or each.spec.acceptor != node.index:
            raise Violation(f"{node}: a connection that no initiator opened to it, peer {connection.identity.peer_id}")
        return each

    def _is_current(self, each: Stream, connection: Connection) -> bool:
        """Whether the connection belongs to the initiator's present try. An earlier try was refused."""
        initiator = each.initiator
        if initiator is None or initiator.outcome is Outcome.REFUSED:
            return False
        return initiator.connection.identity.route_key == connection.identity.route_key

    def _accepted(self, node: Node, connection: Connection, each: Stream, client_hello: bytes = b"") -> None:
        if each.acceptor is not None:
            if each.acceptor.outcome is not Outcome.DIED:
                raise Violation(f"{each}: accepted twice")
            each.dead_acceptors.append(each.acceptor)
        party: Party
        if each.spec.encrypted:
            party = encrypted = EncryptedParty(node, each, False, connection, take_up())
        else:
            party, encrypted = Party(node, each, False, connection), None
        each.acceptor = party
        self.open_streams[each.spec.number] = None
        node.parties[connection.id] = party
        if encrypted is not None:
            encrypted.encrypted.begin(client_hello, node.now_us)
        party.act()

    def moved(self, party: Party, size: int) -> None:
        self.delivered_bytes += size
        if self.moves is not None:
            self.moves.append((self.clock.now_us, not party.is_initiator, size))

    def ended(self, party: Party) -> None:
        """One side has ended. The stream has ended when both sides have."""
        each = party.stream
        refused = party.outcome is Outcome.REFUSED and each.spec.ending is not Ending.REFUSED
        if refused and not each.aborted_unheard:
            self._try_again(party, each)
        elif all(one.outcome is not None for one in each.parties):
            self.open_streams.pop(each.spec.number, None)

    def _try_again(self, party: Party, each: Stream) -> None:
        """Open the stream again: the relay refuses while the acceptor's endpoint is away, as after a restart of the
        relay. If the acceptor has a connection of the refused try, abort it: it would last until the user timeout."""
        if self.clock.now_us > max(self.scenario.plan.healed_us, self._paused_us) + REFUSALS_US:
            raise Violation(f"{party}: refused long after healing: {party.text}")
        each.refusals += 1
        stray, each.acceptor = each.acceptor, None
        if stray is not None and stray.outcome is None:
            node = self.nodes[stray.host.index]
            node.parties.pop(stray.connection.id)
            node.later(0, lambda: stray.connection.abort(node.now_us))
        self.clock.after(RETRY_US, lambda: self._open(each))

    def struck(self, kind: FaultKind, node: Node, connection_id: int) -> None:
        self._note(kind, node.index, 0, "", connection_id)
        self.cells.strike(kind, [node.endpoint.connections[connection_id].state])

    # faults

    def _packet_arrives(self, frame: Frame) -> bool:
        """Return whether this packet reaches the switch. Packets are lost one by one, not in whole batches."""
        plan = self.scenario.plan
        rate = plan.rates.get(FaultKind.PACKET_LOST, 0.0)
        if not rate or self.clock.now_us >= plan.end_us or not chance(self._packet_loss, rate):
            return True
        sender = next((node.index for node in self.nodes if frame.source in node.endpoint.connections), -1)
        self.strike(FaultKind.PACKET_LOST, sender, frame.size, f"type {frame.type}")
        return False

    def strike(self, kind: FaultKind, node: int, size: int, text: str) -> None:
        """A fault struck one node's path, or all paths (-1)."""
        self._note(kind, node, size, text, 0)
        for struck in self.nodes if node < 0 else (self.nodes[node],):
            self.cells.strike(kind, struck.states())

    def _note(self, kind: FaultKind, node: int, size: int, text: str, connection_id: int) -> None:
        if self.strikes is not None:
            self.strikes.append((self.clock.now_us, kind))
        if self.trace is not None:
            name = "relay" if node < 0 else self.scenario.nodes[node].name
            self.trace(
                TraceRecord(
                    time_us=self.clock.now_us,
                    node=name,
                    event=TraceEvent.FAULT_INJECTED,
                    cause=TRACE_FAULTS[kind],
                    size_bytes=size,
                    connection=connection_id,
                    text=f"{kind.value} {text}".strip(),
                )
            )

    def _healed(self) -> None:
        pauses_us = [node.lanes.path.backoff.next_us - node.now_us for node in self.nodes if node.alive]
        self._paused_us = self.clock.now_us + max(pauses_us, default=0)
        if self.trace is not None:
            self.trace(TraceRecord(time_us=self.clock.now_us, node="world", event=TraceEvent.FAULTS_HEALED))

    def _window_begins(self, window: Window) -> None:
        self.strike(window.kind, window.node, 0, f"until {window.end_us} us")

    def _moment(self, moment: Moment) -> None:
        if moment.node < 0:
            strike = self.relay.restart if moment.kind is FaultKind.RELAY_RESTART else self.relay.jump
            strike(moment.amount_us)
            return
        node = self.nodes[moment.node]
        if not node.alive:
            return
        self.strike(moment.kind, moment.node, 0, f"{moment.amount_us} us")
        if moment.kind is FaultKind.PAUSED:
            node.pause(moment.amount_us)
        elif moment.kind is FaultKind.CLOCK_JUMP:
            node.jump(moment.amount_us)
        else:
            self._kill(node, moment.amount_us)

    def _touched_by_death(self, each: Stream) -> bool:
        return any(node in (each.spec.initiator, each.spec.acceptor) for node in self.deaths)

    def _kill(self, node: Node, absence_us: int) -> None:
        self.deaths.append(node.index)
        parties = list(node.parties.values())
        node.die()
        for party in parties:
            self.ended(party)
        self.clock.after(absence_us, node.start)
