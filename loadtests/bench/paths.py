"""Speed on long paths: `python -m loadtests.bench.paths --round-trips 100 --losses 0,1 --rates 100`.

Each contender of `bench.peers`, and a bare forwarder, carries one stream over each path: a round trip in milliseconds,
a rate in Mbit/s each way, and a percentage of HTTP exchanges whose request or answer is lost, with its connection. A
stream gets some seconds to find the rate; then its bytes are counted for as long, while another connection waits for
one echo after the other. A stream that ends early carries 0. The bare forwarder loses nothing: TCP hides losses from
it. All paths of the table take more than an hour; a program that is not installed is an error.
"""

import asyncio
import itertools
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import msgspec

from loadtests.bench.peers.contenders import CONTENDERS, LOOPBACK, Contender, Front
from loadtests.bench.peers.weather import losses
from loadtests.bench.programs import MissingPeerError
from loadtests.bench.road import machine
from loadtests.bench.road_paths import start_role
from loadtests.harness.experiment import NO_RESULT, command
from loadtests.harness.flow import FlowTarget, echo_on, move
from loadtests.harness.names import AddNames, chosen
from loadtests.harness.processes import NotReadyError
from loadtests.harness.transfer import percentile
from tunnel.process.command_line import may_escape
from tunnel.process.event_loops import new_event_loop

__all__ = ["Figures", "Path", "main", "measure", "table"]

BARE = "bare"
_WAYS = ("up", "down")
_PAUSE_S = 0.01  # from an echo to the next one
_Start = Callable[[ExitStack, int, Front], int]
"""Starts a contender for a target; returns its local port."""


class Path(msgspec.Struct, frozen=True):
    """A path: milliseconds there and back, percent of exchanges lost, Mbit/s each way."""

    round_trip_ms: float
    loss_percent: float
    rate_mbit_s: float

    def __str__(self) -> str:
        return f"{self.round_trip_ms:g} ms, {self.loss_percent:g} % lost, {self.rate_mbit_s:g} Mbit/s"

    @contextmanager
    def front(self, port: int) -> Iterator[int]:
        """Lead to this port through a forwarder with the delay and the rate, and a proxy that loses exchanges."""
        with ExitStack() as stack:
            slow = ("--delay-ms", str(self.round_trip_ms / 2), "--mb-s", str(self.rate_mbit_s / 8))
            if self.loss_percent:
                port = stack.enter_context(losses(port, self.loss_percent / 200))
            yield int(start_role(stack, "forward", "--port", str(port), *slow))


class Figures(msgspec.Struct):
    """What a contender carries on a path: MB/s each way, and the times of echoes beside each of the streams."""

    name: str
    path: Path
    mb_s: dict[str, float]
    echo_p50_ms: float
    echo_p99_ms: float  # with fewer than 100 echoes, the longest


def _starts(contenders: list[Contender]) -> dict[str, _Start]:
    def bare(stack: ExitStack, target: int, front: Front) -> int:
        return stack.enter_context(front(target))

    found: dict[str, _Start] = {BARE: bare}
    for one in contenders:
        found[one.name] = lambda stack, target, front, one=one: one.start(stack, target, front).local_port  # type: ignore[misc]
    return found


async def measure(name: str, start: _Start, path: Path, seconds: float) -> Figures:
    """Start a contender on a path for each way, so that nothing of the first stream waits before the second."""
    echoes_s: list[float] = []
    mb_s: dict[str, float] = {}
    front = (Path(path.round_trip_ms, 0, path.rate_mbit_s) if name == BARE else path).front
    for way in _WAYS:
        target = FlowTarget()
        with ExitStack() as stack:
            async with await asyncio.start_server(target.serve, LOOPBACK, 0) as served:
                local = await asyncio.to_thread(start, stack, served.sockets[0].getsockname()[1], front)
                mb_s[way] = await _flow(target, local, way, seconds, echoes_s)
    echoes_ms = [1000 * one for one in echoes_s] or [1000 * seconds]
    return Figures(name, path, mb_s, statistics.median(echoes_ms), percentile(echoes_ms, 0.99))


async def _flow(target: FlowTarget, port: int, way: str, seconds: float, echoes_s: list[float]) -> float:
    """Return the MB/s of a stream after its start; 0 if it has ended."""
    taken = [0]
    moving = asyncio.create_task(move(port, way, taken))
    await asyncio.sleep(seconds)
    echoing = asyncio.create_task(echo_on(port, echoes_s, _PAUSE_S))
    before = target.taken if way == "up" else taken[0]
    await asyncio.sleep(seconds)
    moved = (target.taken if way == "up" else taken[0]) - before
    has_ended = moving.done()
    for task in (moving, echoing):
        task.cancel()
    await asyncio.gather(moving, echoing, return_exceptions=True)
    return 0.0 if has_ended else moved / seconds / 1e6


def table(found: list[Figures]) -> str:
    """Return a table for each path. The ratio is that to the bare forwarder on the same path."""
    lines: list[str] = []
    for path, figures in itertools.groupby(found, key=lambda one: one.path):
        rows = list(figures)
        bare = rows[0]
        lines += [
            "",
            str(path),
            f"{'':<12}{'up MB/s':>9}{'x bare':>8}{'down MB/s':>11}{'x bare':>8}{'echo p50 ms':>13}{'p99':>8}",
        ]
        for one in rows:
            ways = [(one.mb_s[way], one.mb_s[way] / (bare.mb_s[way] or 1)) for way in _WAYS]
            (up, of_up), (down, of_down) = ways
            shown = f"{up:>9.2f}{of_up:>8.2f}{down:>11.2f}{of_down:>8.2f}"
            lines.append(f"{one.name:<12}{shown}{one.echo_p50_ms:>13.1f}{one.echo_p99_ms:>8.0f}")
    return "\n".join(lines)


def _medians(runs: list[Figures]) -> Figures:
    """Return the medians of runs of one contender on one path."""
    of = statistics.median
    mb_s = {way: of(run.mb_s[way] for run in runs) for way in _WAYS}
    echo_ms = of(run.echo_p50_ms for run in runs), of(run.echo_p99_ms for run in runs)
    return Figures(runs[0].name, runs[0].path, mb_s, *echo_ms)


def _measure_all(paths: list[Path], starts: dict[str, _Start], seconds: float, runs: int) -> list[Figures]:
    found = []
    for path in paths:
        of_path: dict[str, list[Figures]] = {name: [] for name in starts}
        for _, (name, start) in itertools.product(range(runs), starts.items()):
            if may_escape(sys.stderr):
                print(f"\r{path}: {name} ...\033[K", end="", file=sys.stderr, flush=True)
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                of_path[name].append(runner.run(measure(name, start, path, seconds)))
        found += [_medians(each) for each in of_path.values()]
    if may_escape(sys.stderr):
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    return found


def _numbers(text: str) -> list[float]:
    return [float(one) for one in text.split(",")]


def main(arguments: list[str] | None = None) -> int:
    """Measure, and print tables or JSON. Return 0, 2 if a program is missing, or 3 if a process did not start."""
    parser = command("bench.paths", __doc__, "--round-trips 100 --losses 0,1 --rates 100 --only tunnel,chisel")
    known = ",".join(one.name for one in CONTENDERS)
    parser.add_argument("--only", action=AddNames, default="", metavar="NAMES", help=f"compare only these, of {known}")
    parser.add_argument(
        "--round-trips", type=_numbers, default=[20.0, 100.0, 300.0], metavar="MS,...", help="default: 20,100,300"
    )
    parser.add_argument(
        "--losses", type=_numbers, default=[0.0, 1.0, 5.0], metavar="PERCENT,...", help="default: 0,1,5"
    )
    parser.add_argument(
        "--rates", type=_numbers, default=[10.0, 100.0, 1000.0], metavar="MBIT,...", help="default: 10,100,1000"
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="before bytes are counted, and while (default 5)")
    parser.add_argument("--runs", type=int, default=1, help="interleaved runs, of which medians are shown (default 1)")
    options = parser.parse_args(arguments)
    contenders = chosen(parser, options.only, CONTENDERS)
    paths = [Path(*one) for one in itertools.product(options.round_trips, options.losses, options.rates)]
    try:
        found = _measure_all(paths, _starts(contenders), options.seconds, max(1, options.runs))
    except MissingPeerError as error:
        print(f"paths: {error}", file=sys.stderr)
        return 2
    except NotReadyError as error:
        print(f"paths: {error}", file=sys.stderr)
        return NO_RESULT
    if options.json:
        print(msgspec.json.encode({"machine": machine(), "paths": found}).decode())
    else:
        print(machine() + table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
