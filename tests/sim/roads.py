"""A ladder with roads that open, lie, stall and die at random, without a network: `python -m tests.sim.roads`.

Each seed is one attachment that sends batches. Its roads change their behaviour every few seconds, up to a time after
which each of them works or refuses. The checks are promises of the ladder, not of one scenario.
"""

from __future__ import annotations

import argparse
import enum
import heapq
import sys
from collections.abc import Callable, Iterable
from functools import partial
from random import Random

from tunnel.exchange import POLL, Ladder, Road, Step
from tunnel.exchange.roads.slow_road import Carried

__all__ = ["TRIES_MAX", "Broken", "Mode", "RoadWorld", "SimulatedRoad", "main", "next_change_us"]

MS = 1_000
SECOND = 1_000 * MS
KIB = 1024
FAULTS_US = 120 * SECOND  # after this time all roads keep their behaviour
END_US = FAULTS_US + 700 * SECOND  # a rest takes at most 600 s
# The most tries of one road after FAULTS_US: the rests between them double up to 600 s. The first takes 1 s, or 0.1 s
# after the road was in use.
TRIES_MAX = 24
PAUSE_US_MAX = 10 * SECOND  # the most time without a receipt: until the road is doubted and then a poll answered
BATCH_BYTES = 32 * KIB
PROBATION_BYTES = 64 * KIB
PROBE_BYTES = 24


class Broken(AssertionError):
    """The ladder broke a promise."""


class Mode(enum.Enum):
    """How a road behaves."""

    WORKS = "works"
    REFUSES = "refuses"
    SWALLOWS = "answers 101, and nothing comes"
    LIES = "passes the first message, and no data"
    STALLS = "passes nothing for a while"
    DIES = "connections end at a similar age"
    CUTS = "connections end at once"


class Connection:
    """One connection on a road."""

    def __init__(self, road: SimulatedRoad, at_us: int) -> None:
        self.road = road
        self.opened_us = at_us
        self.is_over = False
        self.unreceipted: list[tuple[int, int]] = []  # token and size
        self.receipted_bytes = 0
        self.lies = road.mode is Mode.LIES


class SimulatedRoad:
    """One road of the path."""

    def __init__(self, name: str, random: Random) -> None:
        self.name = name
        self.mode = random.choice(list(Mode))
        self.age_us = random.randrange(6, 30) * SECOND  # at which connections end while the mode is DIES
        self.tries: list[int] = []
        self.has_worked = False

    def change(self, random: Random, *, is_last: bool) -> None:
        """Draw a new behaviour. After the last change the road works, or refuses."""
        if is_last:
            self.mode = random.choice([Mode.WORKS, Mode.REFUSES])
        else:
            self.mode = random.choice(list(Mode))
            self.age_us = random.randrange(6, 30) * SECOND


def next_change_us(roads: Iterable[SimulatedRoad], random: Random, left_us: int) -> int:
    """The time until the roads change again. A path that stalls does so for a few seconds."""
    longest_s = 8 if any(road.mode is Mode.STALLS for road in roads) else 40
    return min(random.randrange(1, longest_s) * SECOND, max(1, left_us))


class RoadWorld:
    """One seed. `run` raises Broken if a promise is broken."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.now = 0
        self.roads = {name: SimulatedRoad(name, random) for name in ("link", "websocket", "third")[: 1 + seed % 3]}
        remembered = random.choice(["", POLL, *self.roads, "unheard of"])
        self.is_eager = random.random() < 0.2
        self.carried = Carried()
        roads = [Road(name) for name in self.roads]
        self.ladder = Ladder(roads, Random(seed + 1), carried=self.carried, remembered=remembered, eager=self.is_eager)
        self.is_shaped = Random(seed + 2).random() < 0.5  # the flow is steady, and receipts wait behind a queue
        self.leaves = 0
        self.first = next(iter(self.roads)) if self.is_eager or remembered not in (*self.roads, POLL) else remembered
        self.rtt_us = random.randrange(1, 300) * MS
        self.ladder.round_trip_us = self.rtt_us
        self.connection: Connection | None = None
        self.proven: Connection | None = None
        self.outstanding = 0  # tries without an outcome yet
        self.tokens = 0
        self.waiting: dict[int, str] = {}  # token -> road or poll, of each batch without a receipt
        self.moved_bytes = 0
        self.heard_us = 0  # when the last receipt came, or since when a batch has waited for one
        self.attached_us: int | None = None
        self.generation = 0
        self.decisions = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0

    def run(self) -> None:
        """Run to the end."""
        self._attach()
        self._change_modes()
        self._send()
        for _ in range(self.random.randrange(3)):
            self._after(self.random.randrange(int(FAULTS_US)), self._return)
        while self._events and self.now < END_US:
            due_us = self.ladder.next_timeout()
            at_us, _, act = self._events[0]
            if due_us is not None and due_us <= at_us:
                self.now = max(self.now, due_us)
                self.ladder.handle_timeout(self.now)
                if self.ladder.next_timeout() == due_us and not self.ladder.decisions:
                    raise Broken(f"at {self.now} us the ladder asks for a timeout that changes nothing")
            else:
                heapq.heappop(self._events)
                self.now = at_us
                act()
            self._obey()
        self._check_end()

    # the path

    def _after(self, delay_us: int, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + delay_us, self._count, act))

    def _change_modes(self) -> None:
        for road in self.roads.values():
            road.change(self.random, is_last=self.now >= FAULTS_US)
            connection = self.connection
            if connection is not None and connection.road is road:
                if road.mode in (Mode.CUTS, Mode.REFUSES):
                    self._after(0, partial(self._cut, connection))
                elif not connection.lies:
                    self._after(self.rtt_us, partial(self._receipt, connection))
        if self.now < FAULTS_US:
            self._after(next_change_us(self.roads.values(), self.random, FAULTS_US - self.now), self._change_modes)

    def _attach(self) -> None:
        self.attached_us = self.now
        self.ladder.on_attached(self.now)

    def _return(self) -> None:
        """The relay goes away, and comes back after some seconds."""
        self.ladder.on_detached()
        self.attached_us = None
        self.generation += 1
        self.first = self.ladder.road_to_remember
        self._drop(self.connection)
        self.connection = self.proven = None
        self.outstanding = 0
        self._after(self.random.randrange(5 * SECOND), self._come_back)

    def _come_back(self) -> None:
        if self.attached_us is None:
            self._attach()
            self.heard_us = self.now

    # the caller

    def _obey(self) -> None:
        while (decision := self.ladder.poll_decision()) is not None:
            self.decisions += 1
            road = self.roads[decision.road]
            if decision.step in (Step.TRY, Step.RENEW):
                self._open(road, is_renewal=decision.step is Step.RENEW)
            elif decision.step is Step.USE:
                before, self.connection = self.connection, self.proven
                if self.connection is None or self.connection.road is not road:
                    raise Broken(f"{road.name} must be used, but another road was proven")
                self._drop(before)
            elif decision.step is Step.PROBE:
                self._probe()
            elif decision.step is Step.YIELD:
                self._give_up(self.connection)
            elif decision.step is Step.LEAVE:
                self._leave()
            elif decision.step is Step.CLOSE:
                self._drop(self.connection)
                self.connection = None

    def _leave(self) -> None:
        """Close the road, on which the path is slow, and let exchanges carry."""
        if self.is_eager or not self.is_shaped or self.connection is None or self.outstanding:
            raise Broken("a road is left that is not slow, or while another one is tried")
        self.leaves += 1
        self._drop(self.connection)
        self.connection = None

    def _open(self, road: SimulatedRoad, *, is_renewal: bool) -> None:
        self.outstanding += 1
        if self.outstanding > 1:
            raise Broken("two roads are tried at once")
        if self.attached_us is None:
            raise Broken("a road is tried without an attachment")
        if not is_renewal:
            young = self.now < self.attached_us + 2 * SECOND and self.moved_bytes < 256 * KIB
            if young and road.name != self.first and self.attached_us == 0:
                raise Broken(f"{road.name} is tried on a young attachment")
            self._check_rest(road)
            road.tries.append(self.now)
        mode, generation = road.mode, self.generation
        if mode is Mode.REFUSES or (mode is Mode.CUTS and self.random.random() < 0.5):
            self._after(self.rtt_us, lambda: self._opened(road, None, generation, is_renewal))
        elif mode in (Mode.SWALLOWS, Mode.STALLS):
            self._after(self.ladder.proof_us, lambda: self._opened(road, None, generation, is_renewal))
        else:
            found = Connection(road, self.now)
            self._after(3 * self.rtt_us, lambda: self._opened(road, found, generation, is_renewal))

    def _check_rest(self, road: SimulatedRoad) -> None:
        """A road that never worked rests twice as long after each failure, less up to a quarter."""
        if self.is_eager or road.has_worked or self.generation or not road.tries:
            return
        least_us = min(2 ** (len(road.tries) - 1), 600) * SECOND * 3 // 4
        if self.now - road.tries[-1] < least_us:
            raise Broken(f"{road.name} is tried {self.now - road.tries[-1]} us after its failure, too soon")

    def _opened(self, road: SimulatedRoad, found: Connection | None, generation: int, is_renewal: bool) -> None:
        if generation != self.generation:
            return  # a carrier ignores the outcome of a try that began in an earlier generation
        self.outstanding -= 1
        if found is None or road.mode is Mode.REFUSES:
            self.ladder.on_failed(road.name, "it failed", self.now)
            self.ladder.not_renewed(self.now)
            return
        found.opened_us = self.now
        if road.mode is Mode.DIES:
            spread_us = self.random.randrange(SECOND)
            self._after(road.age_us + spread_us, lambda: self._cut(found))
        if is_renewal and self.connection is not None and self.connection.road is road:
            before, self.connection = self.connection, found
            self.ladder.on_renewed(self.now)
            self._drop(before)
            return
        self.proven = found
        road.has_worked = True
        self.ladder.on_proven(road.name, self.now)

    def _cut(self, connection: Connection) -> None:
        if connection is self.connection and not connection.is_over:
            self._drop(connection)
            self.connection = None
            self.ladder.on_lost(connection.road.name, "it was cut", self.now)

    def _drop(self, connection: Connection | None) -> None:
        if connection is not None:
            connection.is_over = True
            self._give_up(connection)

    def _give_up(self, connection: Connection | None) -> None:
        if connection is None:
            raise Broken("there is no connection to give up")
        for token, size in connection.unreceipted:
            if token in self.waiting:
                self._by_poll(token, size)
        connection.unreceipted = [(token, size) for token, size in connection.unreceipted if not connection.is_over]

    # batches

    def _send(self) -> None:
        """Send a batch wherever the ladder says, and another one later."""
        busy = self.now < FAULTS_US + 60 * SECOND
        pause_us = self.random.randrange(1, 200) * MS if busy else self.random.choice((5, 40)) * SECOND
        self._after(100 * MS if busy and self.is_shaped else pause_us, self._send)
        if self.attached_us is None:
            return
        if self.waiting and self.now - self.heard_us > PAUSE_US_MAX:
            raise Broken(f"at {self.now} us nothing was receipted for {self.now - self.heard_us} us")
        self.tokens += 1
        connection = self.connection
        if self.ladder.used_road == "" or self.ladder.is_doubted:
            self._by_poll(self.tokens, BATCH_BYTES)
            return
        if connection is None or connection.is_over or connection.road.name != self.ladder.used_road:
            raise Broken(f"{self.ladder.used_road} carries, but no connection is open on it")
        room = self.ladder.room(BATCH_BYTES)
        if room <= 0:
            return
        self._put(connection, room)

    def _probe(self) -> None:
        connection = self.connection
        if connection is None or any(token in self.waiting for token, _ in connection.unreceipted):
            raise Broken("a road is probed although it is not idle")
        self.tokens += 1
        self._put(connection, PROBE_BYTES)

    def _wait(self, token: int, way: str) -> None:
        if not self.waiting:
            self.heard_us = self.now
        self.waiting[token] = way

    def _put(self, connection: Connection, size: int) -> None:
        self._wait(self.tokens, connection.road.name)
        connection.unreceipted.append((self.tokens, size))
        unreceipted = sum(size for token, size in connection.unreceipted if token in self.waiting)
        if connection.receipted_bytes < PROBATION_BYTES and unreceipted > PROBATION_BYTES:
            raise Broken(f"{unreceipted} bytes are on a road that has not proven itself")
        self.ladder.on_sent(unreceipted, self.now)
        self._after(self.rtt_us, lambda: self._receipt(connection))

    def _receipt(self, connection: Connection) -> None:
        mute = connection.lies or connection.road.mode in (Mode.STALLS, Mode.LIES, Mode.SWALLOWS)
        if connection.is_over or mute or not connection.unreceipted:
            return
        size = sum(size for _, size in connection.unreceipted)
        for token, _ in connection.unreceipted:
            self.waiting.pop(token, None)
        connection.unreceipted.clear()
        connection.receipted_bytes += size
        self._heard(size)
        is_queued = self.is_shaped and connection.receipted_bytes > size
        self.ladder.on_receipted(size, 0, self.now, took_us=self.rtt_us + (400 * MS if is_queued else 0))

    def _by_poll(self, token: int, size: int) -> None:
        self._wait(token, POLL)
        self._after(2 * self.rtt_us, lambda: self._polled(token, size))

    def _polled(self, token: int, size: int) -> None:
        if self.waiting.get(token) == POLL:
            del self.waiting[token]
            self.ladder.on_moved(size)
            self.carried.up_bytes += size
            self._heard(size)

    def _heard(self, size: int) -> None:
        self.moved_bytes += size
        self.heard_us = self.now

    # the end

    def _check_end(self) -> None:
        working = [road.name for road in self.roads.values() if road.mode is Mode.WORKS]
        best = working[0] if working else ""
        if self.attached_us is None:
            raise Broken("the attachment never came back")
        if self.ladder.used_road != best or self.ladder.is_doubted:
            raise Broken(f"{best or POLL} works, but {self.ladder.used_road or POLL} carries: {self.ladder.reports()}")
        if self.ladder.road_to_remember not in (best, *(() if best else (POLL, *self.roads))):
            raise Broken(f"{self.ladder.road_to_remember!r} is remembered, but {best!r} works")
        for road in self.roads.values():
            late = [at_us for at_us in road.tries if at_us > FAULTS_US]
            if not self.is_eager and len(late) > TRIES_MAX:
                raise Broken(f"{road.name} was tried {len(late)} times after the last fault")


def main(arguments: list[str] | None = None) -> int:
    """Run seeds; return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.roads", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, metavar="N", help="the number of seeds (default 500)")
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="S", help="the first of them (default 0)")
    options = parser.parse_args(arguments)
    failed = decisions = 0
    for seed in range(options.first, options.first + options.seeds):
        world = RoadWorld(seed)
        try:
            world.run()
        except Exception as error:
            failed += 1
            print(f"seed {seed}: {error!r}; repeat: python -m tests.sim.roads --from {seed} --seeds 1")
        decisions += world.decisions
    print(f"{options.seeds} seeds, {decisions} decisions, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
