"""An endpoint that moves between roads: the product's carrier "auto", its ladder, links and lanes, on simulated paths.

Only the things that do I/O are simulated: what sends exchanges, what opens connections, and the event loop.
"""

from __future__ import annotations

from random import Random
from typing import Any

from tests.sim.event_loop import VirtualLoop
from tests.sim.node import Node
from tests.sim.road_accounts import RoadAccounts
from tests.sim.road_path import RoadPath
from tests.sim.violation import Violation
from tunnel.carriers.dialing.dialing import Dialing
from tunnel.carriers.exchanging import Outcomes
from tunnel.carriers.roads import RoadCarrier
from tunnel.exchange import BatchDone, LaneEvent, LanesChanged, Request, RoadReport
from tunnel.wire import Packet

__all__ = ["LadderNode"]

_DIALING = Dialing("http://127.0.0.1/", proxy=None)  # only names the relay


class _Exchanger:
    """Sends exchanges on the node's path."""

    description = "poll the simulated relay"
    is_ready = True
    waits_for = ""

    def __init__(self, node: LadderNode) -> None:
        self._node = node

    def start(self, outcomes: Outcomes) -> None:
        """Do nothing: the node tells its carrier what comes of each request."""

    def send(self, request: Request) -> None:
        self._node._send(request.id, b"".join(request.body), is_repeat=request.repeat > 0)

    def abandon(self, request_id: int) -> None:
        self._node._drop(request_id)

    async def close(self) -> None:
        """Do nothing: the simulator ends an endpoint only by killing it."""


class _Host:
    """The driver, as the carrier sees it."""

    def __init__(self, node: LadderNode) -> None:
        self._node = node

    def now(self) -> int:
        return self._node.now_us

    def pump(self) -> None:
        self._node.carrier_changed()
        self._node.pump()

    def deliver(self) -> None:
        self._node.due_changed()
        self._node.pump()

    def wrote(self, size_bytes: int) -> None:
        """Do nothing: only people need the number."""

    def trouble(self, text: str, *, final: bool = False) -> None:
        """Do nothing: only people need the text."""


class _Asked:
    """The carrier as the driver asks it: for its due time only after a change, and for events only if it has some."""

    def __init__(self, carrier: RoadCarrier) -> None:
        self._carrier = carrier
        self._due_us: int | None = None
        self.is_changed = self.is_called = True

    def poll_event(self) -> LaneEvent | None:
        had_events = self._carrier.has_events
        event = self._carrier.poll_event()
        if event is not None and not had_events:
            raise Violation(f"the carrier has said that it had no event, and has {event}")
        return event

    def next_timeout(self) -> int | None:
        due_us = self._carrier.next_timeout()
        if self.is_changed:
            self._due_us, self.is_changed = due_us, False
        elif due_us is not None and (self._due_us is None or due_us < self._due_us):
            raise Violation(f"the carrier is due at {due_us}, and was due at {self._due_us} when it last changed")
        return self._due_us

    def handle_timeout(self, now: int) -> None:
        self.is_changed = self.is_called = True
        self._carrier.handle_timeout(now)

    def advance(self, now: int) -> bool:
        """Start the exchanges that are due, if any can be."""
        if not self.is_called:
            due_us = self.next_timeout()
            if due_us is None or due_us > now:
                return False
        self.is_called = self._carrier.advance(now)
        self.is_changed = self.is_changed or self.is_called
        return self.is_called


class LadderNode(Node):
    """A node whose batches the real `RoadCarrier` moves. Each life remembers the last road that an earlier life
    reported."""

    def __init__(self, *arguments: Any, roads: RoadPath) -> None:
        super().__init__(*arguments)
        assert self.spec.ladder is not None
        self.roads = roads
        self.accounts: list[RoadAccounts] = []  # one for each life
        self._remembered = self.spec.ladder.remembered
        self._loop = VirtualLoop.of(lambda: self.now_us, self.later)

    # life

    def _begin_life(self, secret: bytes, random: Random) -> None:
        ladder = self.spec.ladder
        assert ladder is not None
        self._loop = VirtualLoop.of(lambda: self.now_us, self.later)
        self.roads.live(self, self._loop)
        self.carrier = RoadCarrier(
            _DIALING,
            secret,
            random,
            name=self.spec.name,
            config=self.spec.lanes,
            eager=ladder.eager,
            links=ladder.links,
            roads=ladder.roads,
            remembered=self._remembered,
            learned=self._learn,
            exchanger=_Exchanger(self),
            openers=self.roads.openers(),
        )
        self.carrier.exchange_trace = self._exchange_trace
        self.mover = self._asked = _Asked(self.carrier)
        self.lanes = self.carrier._lanes
        self.accounts.append(RoadAccounts(str(self), self.carrier, self.roads, ladder.links))
        with self._loop.running():
            self.carrier.start(_Host(self))

    def _learn(self, road: str, roads: list[RoadReport]) -> None:
        self._remembered = road

    def die(self) -> None:
        super().die()
        self.stop()

    def stop(self) -> None:
        """Let nothing of this life go on."""
        self.roads.die()
        self._loop.kill()

    def _in_life(self, life: int, action: Any) -> None:
        with self._loop.running():
            super()._in_life(life, action)

    # the path's side

    def _answered(self, request_id: int, status: int, body: bytes, retry_after_us: int) -> None:
        self.carrier.on_answered(request_id, status, body, retry_after_us)

    def _taken(self, request_id: int, size_bytes: int) -> None:
        self.carrier.on_opened(request_id)
        self.carrier.on_sent(size_bytes)

    def _failed(self, request_id: int) -> None:
        self.carrier.on_failed(request_id, "the connection failed")

    def _received(self, request_id: int, piece: bytes) -> None:
        self.carrier.on_received(request_id, piece)

    def _answer_ended(self, request_id: int) -> None:
        self.carrier.on_ended(request_id)

    # the pump

    def carrier_changed(self) -> None:
        """Ask the carrier again for its due time, and let it start exchanges."""
        self._asked.is_changed = self._asked.is_called = True

    def due_changed(self) -> None:
        """Ask the carrier again for its due time."""
        self._asked.is_changed = True

    def pump(self) -> None:
        if self._pumping or not self.alive:
            return
        with self._loop.running():
            super().pump()
        self.accounts[-1].check()

    def _lane_event(self, event: LaneEvent) -> None:
        if isinstance(event, BatchDone):
            self.accounts[-1].done(event.token)
        super()._lane_event(event)
        if isinstance(event, LanesChanged):
            self._traced_carrier(self.carrier.description.partition(" ")[0])

    def _room(self) -> int:
        return self.carrier.room(self.now_us)

    def _push(self, packets: list[Packet], token: int) -> None:
        self.accounts[-1].pushed(token)
        self._asked.is_changed = True
        if self.carrier.push(packets, token, self.now_us):
            self._asked.is_called = True

    def _requests(self) -> bool:
        return self._asked.advance(self.now_us)
