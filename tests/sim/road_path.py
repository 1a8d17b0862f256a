"""The roads of one endpoint's path. Each behaves in a way of its own, and changes it until the faults heal."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from tests.sim.clock import Clock
from tests.sim.event_loop import VirtualLoop
from tests.sim.faults import FaultKind, FaultPlan
from tests.sim.line import RelaySide
from tests.sim.path import PathShape, Strike
from tests.sim.randomness import stream
from tests.sim.road_connection import ACCEPTED, EndpointSide, PathRoad, RoadConnection, RoadTransport
from tests.sim.roads import Mode, next_change_us
from tunnel.carriers.dialing.dialing import Dialing
from tunnel.carriers.links.openers import Opener
from tunnel.carriers.links.upgrade import UpgradeRefusedError

__all__ = ["Opened", "RoadPath"]


class Opened:
    """A connection on which 101 has come, as the carrier gets it."""

    def __init__(self, connection: RoadConnection) -> None:
        self.transport: RoadTransport = connection.transport
        self._connection = connection

    @property
    def early(self) -> bytes:
        """Bytes that came with the 101; those of a websocket stay with the connection."""
        return b"" if self._connection.road.is_websocket else self._connection.take_early()

    def on_lost(self, error: Exception | None) -> None:
        """Do nothing: there is no other owner of the connection."""

    async def close(self) -> None:
        self.transport.abort()


class RoadPath:
    """Opens connections for the carrier, one at a time; keeps them in `connections` until the endpoint learns of their
    end."""

    def __init__(
        self,
        clock: Clock,
        seed: int,
        shape: PathShape,
        plan: FaultPlan,
        strike: Strike,
        relay: RelaySide,
        names: Iterable[str],
        index: int,
    ) -> None:
        self.connections: list[RoadConnection] = []
        self.tries = 0
        self.wrong = ""  # a promise that the carrier has broken
        self._clock = clock
        self._seed = seed
        self._index = index
        self._random = stream(seed, "roads", index)
        self.roads = {name: PathRoad(name, self._random) for name in names}
        self._node: EndpointSide
        self._near_loop: VirtualLoop
        self._far_loop = VirtualLoop.of(lambda: relay.now_us, clock.after)
        self._is_opening = False
        self._connect = partial(RoadConnection, clock, shape, plan)
        self._strike, self._relay, self._end_us = strike, relay, plan.end_us
        self._numbers = 0

    def begin(self) -> None:
        """Let the behaviours change from now on."""
        left_us = self._end_us - self._clock.now_us
        until_us = self._clock.now_us + next_change_us(self.roads.values(), self._random, left_us)
        for road in self.roads.values():
            road.until_us = until_us
        self._clock.at(until_us, self._change)

    def _change(self) -> None:
        is_last = self._clock.now_us >= self._end_us
        for road in self.roads.values():
            before = road.mode
            road.change(self._random, is_last=is_last)
            if road.mode is not before:
                self._strike(FaultKind.ROAD_CHANGED, self._index, 0, f"{road.name}: {road.mode.value}")
        for connection in list(self.connections):
            connection.behaviour_changed()
        if not is_last:
            self.begin()

    @property
    def best(self) -> str:
        """The best road that works; empty if none does."""
        return next((road.name for road in self.roads.values() if road.mode is Mode.WORKS), "")

    # the endpoint's side

    def live(self, node: EndpointSide, loop: VirtualLoop) -> None:
        """A life of the endpoint begins."""
        self._node, self._near_loop, self._is_opening = node, loop, False

    def die(self) -> None:
        """The endpoint dies with all its connections."""
        for connection in list(self.connections):
            connection.cut_by_endpoint()
        self.connections.clear()

    def openers(self) -> dict[str, Opener]:
        """For each road, the function with which the carrier opens a connection."""
        return {name: partial(self._open, road) for name, road in self.roads.items()}

    async def _open(self, road: PathRoad, dialing: Dialing) -> Opened:
        if self._is_opening:  # no exception: the carrier would take one for a failure of the road
            self.wrong = f"node {self._index}: two connections are being opened at once"
        self._is_opening = True
        self.tries += 1
        road.tries.append(self._clock.now_us)
        self._numbers += 1
        random = stream(self._seed, "road", self._index, self._numbers)
        loops = self._near_loop, self._far_loop
        connection = self._connect(random, self._strike, self._relay, self._node, road, loops, self._ended)
        self.connections.append(connection)
        connection.open()
        try:
            head = await connection.answered
            if head != ACCEPTED:
                raise UpgradeRefusedError(f"{head!r} instead of an upgrade", 404, {})
        except BaseException:
            connection.transport.abort()
            raise
        finally:
            self._is_opening = False
        return Opened(connection)

    def _ended(self, connection: RoadConnection) -> None:
        if connection in self.connections:
            self.connections.remove(connection)
