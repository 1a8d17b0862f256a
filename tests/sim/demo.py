"""`python -m tests.sim.demo`: one transfer in both directions through seven kinds of faults, drawn as a time line."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable

from xxhash import xxh3_128_hexdigest

from tests.sim.clock import MILLISECOND, SECOND
from tests.sim.faults import FaultKind, FaultPlan, Moment, Window
from tests.sim.node import NodeSpec
from tests.sim.path import PathShape
from tests.sim.scenario import Scenario
from tests.sim.streams import Ending, Flow, StreamSpec
from tests.sim.violation import Violation
from tests.sim.workload import Outcome, Party
from tests.sim.world import World
from tunnel.process.command_line import may_escape

__all__ = ["main"]

K = FaultKind
BARS = " ▁▂▃▄▅▆▇█"
WIDTH = 72  # columns of a time line
MARKS = {
    K.REQUEST_LOST: "×",
    K.RESPONSE_LOST: "×",
    K.REQUEST_RESET: "!",
    K.DUPLICATED: "2",
    K.RESPONSE_FLIPPED: "~",
    K.BLACKHOLE: "▒",
    K.RELAY_RESTART: "▲",
}


def demo_scenario(seed: int) -> Scenario:
    """4 MB up and 3 MB down at 1 MB/s, over a round trip of 80 ms, with lost, repeated and damaged exchanges, a
    blackhole of 5 s and a restart of the relay."""
    far = PathShape(40 * MILLISECOND, 40 * MILLISECOND, 10 * MILLISECOND, 1_000_000)
    near = PathShape(1 * MILLISECOND, 1 * MILLISECOND, 0, 100_000_000)
    rates = {
        K.REQUEST_LOST: 0.08,
        K.RESPONSE_LOST: 0.08,
        K.REQUEST_RESET: 0.05,
        K.DUPLICATED: 0.1,
        K.RESPONSE_FLIPPED: 0.05,
    }
    plan = FaultPlan(
        end_us=60 * SECOND,
        rates=rates,
        nodes=(0,),
        windows=(Window(K.BLACKHOLE, 7 * SECOND, 12 * SECOND, 0),),
        moments=(Moment(K.RELAY_RESTART, 4 * SECOND, -1, 300 * MILLISECOND),),
    )
    stream = StreamSpec(0, 0, 1, Flow(size=4_000_000), Flow(size=3_000_000), Ending.FINISH, label="demo")
    nodes = (NodeSpec("client", shape=far), NodeSpec("service", shape=near, services=("service",)))
    return Scenario(seed, nodes, (stream,), plan)


class Painter:
    """Adds colours on a terminal, and nothing elsewhere."""

    def __init__(self, colours: bool) -> None:
        self._colours = colours

    def __call__(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colours else text


class Picture:
    """The events of a run, sorted into columns of time."""

    def __init__(self, world: World, end_us: int) -> None:
        self.world = world
        self._end_us = max(end_us, 1)

    def column(self, time_us: int) -> int:
        return min(WIDTH - 1, time_us * WIDTH // self._end_us)

    def progress(self, up: bool) -> tuple[str, str]:
        """Two lines of bars: bytes per column, and bytes so far."""
        stream = self.world.streams[0]
        size = len(stream.up if up else stream.down)
        columns = [0] * WIDTH
        for time_us, to_acceptor, count in self.world.moves or ():
            if to_acceptor == up:
                columns[self.column(time_us)] += count
        highest = max(columns) or 1
        rate = "".join(BARS[-(-count * 8 // highest)] for count in columns)
        total, so_far = 0, ""
        for count in columns:
            total += count
            so_far += BARS[-(-total * 8 // size)]
        return rate, so_far

    def marks(self, kind: FaultKind) -> str:
        """The columns in which this kind struck."""
        line = [" "] * WIDTH
        for time_us, struck in self.world.strikes or ():
            if struck is kind:
                line[self.column(time_us)] = MARKS[kind]
        for window in self.world.scenario.plan.windows:
            if window.kind is kind and window.start_us < self._end_us:
                for index in range(self.column(window.start_us), self.column(min(window.end_us, self._end_us)) + 1):
                    line[index] = MARKS[kind]
        return "".join(line)


def draw(world: World, end_us: int, failure: str, paint: Painter) -> Iterable[str]:
    """The picture, line by line."""
    picture = Picture(world, end_us)
    stream = world.streams[0]
    far = world.scenario.nodes[0].shape
    yield paint("client ══ lossy HTTP ══▶ relay ◀══ HTTP ══ service", "1")
    yield paint(
        f"path of the client: {(far.up_us + far.down_us) / 1000:.0f} ms round trip, "
        f"{far.bytes_per_second / 1e6:.0f} MB/s; seed {world.scenario.seed}",
        "2",
    )
    yield ""
    seconds = f"{end_us / SECOND:.1f} s"
    yield f"{'':<18}" + paint("0 s" + f"{seconds:>{WIDTH - 3}}", "2")
    for name, up, colour in (("upload", True, "36"), ("download", False, "35")):
        rate, so_far = picture.progress(up)
        size = len(stream.up if up else stream.down)
        yield f"{name + ' rate':<18}" + paint(rate, colour)
        yield f"{'  so far':<18}" + paint(so_far, colour) + f"  {size / 1e6:.1f} MB"
    counts = Counter(kind for _, kind in world.strikes or ())
    for kind in FaultKind:
        if counts[kind] and kind in MARKS:
            yield f"{kind.value:<18}" + paint(picture.marks(kind), "31") + f"  {counts[kind]:>4}"
    yield ""
    yield from _tables(world)
    yield ""
    yield from _digests(world, paint)
    yield ""
    if failure:
        yield paint(f"FAILED: {failure}", "1;31")
    else:
        moved = len(stream.up) + len(stream.down)
        yield paint(f"OK: every byte of {moved / 1e6:.1f} MB arrived once, in order, after {seconds}", "1;32")


def _tables(world: World) -> Iterable[str]:
    path = world.nodes[0].path
    restarts = world.relay.restarts
    yield f"exchanges of the client: {path.exchanges}, of which repeats: {path.repeats}; relay restarts: {restarts}"
    for party in world.streams[0].parties:
        stats = party.connection.snapshot()
        causes = ", ".join(f"{cause} {count}" for cause, count in sorted(stats.resent_by_cause.items())) or "none"
        side = "client " if party.is_initiator else "service"
        yield (
            f"{side}: {stats.packets_sent} packets sent, resent {stats.packets_resent} ({causes}), "
            f"spurious {stats.packets_spurious}; RTT {stats.srtt_us / 1000:.0f} ms, RTO {stats.rto_us / 1000:.0f} ms"
        )


def _digests(world: World, paint: Painter) -> Iterable[str]:
    stream = world.streams[0]
    ways: list[tuple[str, bytes, Party | None]] = [
        ("upload", stream.up, stream.acceptor),
        ("download", stream.down, stream.initiator),
    ]
    for name, written, reader in ways:
        whole = reader is not None and reader.outcome is Outcome.CLEAN and reader.read == len(written)
        word = paint("= read", "32") if whole else paint("≠ read", "31")
        yield f"{name + ' digest':<18}{xxh3_128_hexdigest(written)}  written {word}"


def main(arguments: list[str] | None = None) -> int:
    """Return 0 only if every byte was right."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.demo", description=__doc__)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args(arguments)
    world = World(demo_scenario(options.seed))
    world.moves, world.strikes = [], []
    failure = ""
    try:
        world.run()
    except Violation as violation:
        failure = str(violation)
    end_us = world.moves[-1][0] if world.moves else world.clock.now_us
    paint = Painter(may_escape(sys.stdout))
    print("\n".join(draw(world, end_us, failure, paint)))
    return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(main())
