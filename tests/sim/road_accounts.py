"""The promises of a carrier that moves between roads: about its batches, its connections and its choice."""

from __future__ import annotations

from tests.sim.clock import SECOND
from tests.sim.road_path import RoadPath
from tests.sim.roads import TRIES_MAX, Mode
from tests.sim.violation import Violation
from tunnel.carriers.links.open_link import OpenLink
from tunnel.carriers.roads import RoadCarrier

__all__ = ["CLIMBED_US", "RoadAccounts"]

CLIMBED_US = 620 * SECOND  # after the last fault: a rest takes at most 600 s, and a try at most 10 s


class RoadAccounts:
    """Counts the uses of roads in one life, and raises Violation when the carrier breaks a promise."""

    def __init__(self, name: str, carrier: RoadCarrier, path: RoadPath, links: int) -> None:
        self.used = 0
        self.left = 0
        self._name = name
        self._carrier = carrier
        self._path = path
        self._links = links
        self._batches: dict[int, OpenLink | None] = {}  # token of a batch -> its connection; None: on lanes
        self._line: OpenLink | None = None

    def pushed(self, token: int) -> None:
        """A batch leaves now."""
        if token in self._batches:
            raise Violation(f"{self._name}: batch {token} leaves twice")
        carrier = self._carrier
        used = None if carrier._ladder.is_doubted else carrier._links.in_use
        self._batches[token] = used if used is None else carrier._links.next_line(used)

    def done(self, token: int) -> None:
        """A batch is receipted or given up."""
        if self._batches.pop(token, self) is self:
            raise Violation(f"{self._name}: batch {token} ended twice: it was given up, and receipted")

    def check(self) -> None:
        """Check what must be so whenever everything is drained."""
        if self._path.wrong:
            raise Violation(self._path.wrong)
        self._follow()
        self._check_connections()
        streams = self._carrier._streams
        if streams is not None and streams.is_streaming and not self._carrier._ladder.keeps_streams:
            raise Violation(f"{self._name}: one streamed answer carries what several connections should")
        for token, line in self._batches.items():
            if line is not None and line.link not in self._carrier._links.all:
                raise Violation(f"{self._name}: batch {token} was on a {line.road} that ended, and is not given up")

    def _follow(self) -> None:
        before, line, used = self._line, self._carrier._links.in_use, self._carrier._ladder.used_road
        if line is not None and line.road != used:
            raise Violation(f"{self._name}: a {line.road} carries, but the ladder takes it for a {used or 'poll'}")
        if line is before:
            return
        self._line = line
        self.used += line is not None
        if before is None:
            return
        self.left += 1
        is_trial = self._carrier._ladder._slow.is_left  # of exchanges, on a slow path
        if line is None and self._carrier._attached and not is_trial and not self._was_lost(before):
            raise Violation(f"{self._name}: left a {before.road} that worked, and uses no other road")

    def _was_lost(self, line: OpenLink) -> bool:
        """Whether the path has ended the connection, or was silent on it for as long as the ladder waits."""
        why = next(report.why for report in self._carrier.roads() if report.name == line.road)
        broken = line.link._transport.get_extra_info("is_broken")
        return bool(broken or line.link.state.closed or why.startswith("the relay sent no receipt"))

    def _check_connections(self) -> None:
        """Open connections are the one in use, its spares, one that is being opened, and replaced ones that drain."""
        links, live = self._carrier._links, len(self._path.connections)
        most = 2 * self._links + 1
        if live > min(most, len(links.all) + 1):
            raise Violation(f"{self._name}: {live} connections are open, but the carrier knows fewer, or needs fewer")
        idle = len(links.all) - (links.in_use is not None) - len(links.spares) - len(links.draining)
        if idle > 0:
            raise Violation(f"{self._name}: {idle} open connections have no purpose")

    @property
    def has_climbed(self) -> bool:
        """Whether the best road that works carries."""
        ladder = self._carrier._ladder
        return ladder.used_road == self._path.best and not ladder.is_doubted

    def check_climbed(self) -> None:
        """Long after the last fault, the best road that works carries; other roads have only connections that drain."""
        best, ladder = self._path.best, self._carrier._ladder
        if not self.has_climbed:
            used, reports = ladder.used_road or "poll", self._carrier.roads()
            raise Violation(f"{self._name}: {best or 'no road'} works, but {used} carries: {reports}")
        lines = [line for line in self._carrier._links.all.values() if line not in self._carrier._links.draining]
        open_roads = {line.road for line in lines}
        if open_roads - {best}:
            raise Violation(f"{self._name}: {best or 'poll'} carries, but connections on {sorted(open_roads)} are open")

    def check_rests(self, since_us: int) -> None:
        """A road that refuses is tried less and less often: at most TRIES_MAX times after the last fault."""
        for road in self._path.roads.values():
            late = sum(at_us > since_us for at_us in road.tries)
            if road.mode is Mode.REFUSES and late > TRIES_MAX:
                raise Violation(f"{self._name}: {road.name} was tried {late} times after the last fault")
