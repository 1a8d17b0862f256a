"""The speed of the tunnel and of its peers between real processes: `python -m loadtests.bench.road`.

Every path is started as a user would start it. A client moves bytes up, then down, then sends echoes of 64 bytes one
after the other. Runs of all paths are interleaved; the results are medians. For comparison there are bare forwarders
of one and of two hops (the limit of the machine), socat and GNU httptunnel. Paths named "compiled" run the compiled
build (make compiled), all others run the sources. A missing peer or build is an error.
"""

import json
import os
import platform
import statistics
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import msgspec

from loadtests.bench.programs import MissingPeerError
from loadtests.bench.road_paths import ROADS, Road, Way
from loadtests.faultproxy.grammar import parse_size_bytes
from loadtests.harness.compiled import NotCompiledError
from loadtests.harness.experiment import command
from loadtests.harness.names import AddNames
from loadtests.harness.processes import NotReadyError, Process, python_command

__all__ = ["Row", "machine", "main", "measure", "render"]

CLIENT_S = 300.0  # limit for one run
_MB = 1e6


class Row(msgspec.Struct):
    """One path: medians over the runs, and their ratios to the paths that `bare` and `beside` name."""

    name: str
    topology: str
    bare: str
    size_bytes: int
    up_mb_s: float
    down_mb_s: float
    echo_p50_us: float
    echo_p99_us: float
    up_of_bare: float | None = None
    down_of_bare: float | None = None
    echo_of_bare: float | None = None
    beside: str = ""
    up_of_beside: float | None = None
    down_of_beside: float | None = None
    echo_of_beside: float | None = None


class _Run(msgspec.Struct):
    """The output of a client: bytes per second, the seconds of each echo, and its seconds of processor time."""

    up: float
    down: float
    echo: list[float]
    cpu_s: float


def measure(roads: Iterable[Road], size: int, echoes: int, runs: int) -> list[Row]:
    """Start every path, run the clients in turns, and return the medians."""
    found: dict[str, list[_Run]] = {}
    with ExitStack() as stack:
        started = [(road, road.start(stack)) for road in roads]
        for _ in range(runs):
            for road, way in started:
                run = _client(way, size // road.share, max(1, echoes // road.echo_share))
                found.setdefault(road.name, []).append(run)
        rows = [_row(road, found[road.name], size // road.share) for road, _ in started]
    _compare(rows)
    return rows


def _client(way: Way, size: int, echoes: int) -> _Run:
    arguments = ("client", *way.arguments, "--size", str(size), "--echoes", str(echoes))
    command = python_command("loadtests.bench.road_peer", *arguments)
    client = Process(
        command, ready=lambda line: line.startswith("{"), environment={**way.environment, "TUNNEL_TOKEN": way.token}
    )
    with client.start():
        client.wait_ready(CLIENT_S)
        return msgspec.json.decode(client.ready_line, type=_Run)


def _row(road: Road, runs: list[_Run], size: int) -> Row:
    def echo_us(percent: int) -> float:
        return statistics.median(_percentile(run.echo, percent) for run in runs) * 1e6

    return Row(
        name=road.name,
        topology=road.topology,
        bare=road.bare,
        beside=road.beside,
        size_bytes=size,
        up_mb_s=statistics.median(run.up for run in runs) / _MB,
        down_mb_s=statistics.median(run.down for run in runs) / _MB,
        echo_p50_us=echo_us(50),
        echo_p99_us=echo_us(99),
    )


def _percentile(values: list[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def _compare(rows: list[Row]) -> None:
    named = {row.name: row for row in rows}
    for row in rows:
        if (base := named.get(row.bare)) is not None:
            row.up_of_bare, row.down_of_bare, row.echo_of_bare = _ratios(row, base)
        if (base := named.get(row.beside)) is not None:
            row.up_of_beside, row.down_of_beside, row.echo_of_beside = _ratios(row, base)


def _ratios(row: Row, base: Row) -> tuple[float, float, float]:
    return row.up_mb_s / base.up_mb_s, row.down_mb_s / base.down_mb_s, row.echo_p50_us / base.echo_p50_us


def machine() -> str:
    """Describe processor, system and Python of this machine."""
    processor = platform.processor() or "unknown processor"
    cpuinfo = Path("/proc/cpuinfo")
    for line in cpuinfo.read_text().splitlines() if cpuinfo.exists() else ():
        if line.startswith("model name"):
            processor = line.split(":", 1)[1].strip()
            break
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return f"{processor}, {os.cpu_count()} CPUs, {system}"


def _share(value: float | None, *, times: bool = False) -> str:
    return "" if value is None else f"{value:.1f}x" if times else f"{value:.0%}"


def _beside(row: Row) -> str:
    if row.echo_of_beside is None:
        return ""
    up, down = _share(row.up_of_beside), _share(row.down_of_beside)
    return f" (of {row.beside}: {up} up, {down} down, echo {row.echo_of_beside:.2f}x)"


def render(rows: list[Row], head: list[str]) -> str:
    """Return the table as text for people."""
    lines = [*head, ""]
    columns = f"{'path':<20}{'up MB/s':>9}{'of bare':>9}{'down MB/s':>11}{'of bare':>9}"
    lines.append(columns + f"{'echo p50 us':>13}{'of bare':>9}{'p99 us':>9}  topology")
    for row in rows:
        lines.append(
            f"{row.name:<20}{row.up_mb_s:>9,.0f}{_share(row.up_of_bare):>9}{row.down_mb_s:>11,.0f}"
            f"{_share(row.down_of_bare):>9}{row.echo_p50_us:>13,.0f}{_share(row.echo_of_bare, times=True):>9}"
            f"{row.echo_p99_us:>9,.0f}  {row.topology}{_beside(row)}"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Measure, and print the table or JSON.

    Return 0 if all was measured, 2 if a peer or the compiled build is missing, and 3 if a process did not start or a
    client did not end. A usage error exits with 2.
    """
    names = [road.name for road in ROADS]
    parser = command("bench.road", __doc__, "--size 64MiB --only bare-1,link-service")
    parser.add_argument(
        "--size", default="256MiB", help="bytes per direction and run (default 256MiB); slow paths move less"
    )
    parser.add_argument("--runs", type=int, default=3, help="runs of each path; the results are medians (default 3)")
    parser.add_argument("--echoes", type=int, default=1000, help="echoes per run (default 1000)")
    parser.add_argument(
        "--only", action=AddNames, default="", metavar="NAMES", help=f"measure only these, of {','.join(names)}"
    )
    options = parser.parse_args(arguments)
    wanted = options.only.split(",") if options.only else names
    if unknown := set(wanted) - set(names):
        parser.error(f"there is no path named {', '.join(sorted(unknown))}: choose from {', '.join(names)}")
    try:
        size = parse_size_bytes(options.size)
    except ValueError as error:
        parser.error(f"--size: {error}")
    roads = [road for road in ROADS if road.name in wanted]
    load_before = os.getloadavg()[0]
    try:
        rows = measure(roads, size, options.echoes, options.runs)
    except (MissingPeerError, NotCompiledError) as error:
        print(f"road: {error}", file=sys.stderr)
        return 2
    except NotReadyError as error:
        print(f"road: {error}", file=sys.stderr)
        return 3
    if options.json:
        found = {"machine": machine(), "load_before": load_before, "runs": options.runs}
        print(json.dumps({**found, "rows": [msgspec.to_builtins(row) for row in rows]}))
        return 0
    sizes = (
        f"{options.size} each way, {options.echoes} echoes (slow paths less of both), "
        f"medians of {options.runs} interleaved runs"
    )
    head = [machine(), sizes, f"one direction at a time, on loopback; load average before: {load_before:.2f}"]
    print(render(rows, head))
    return 0


if __name__ == "__main__":
    sys.exit(main())
