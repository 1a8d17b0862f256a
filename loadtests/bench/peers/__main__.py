"""Compares the tunnel with other tunnels over HTTP, in faults and in speed: `python -m loadtests.bench.peers`.

Every contender is set up as its documentation shows, and leads from a local port to a target. First, one connection
goes through each contender under each kind of fault: bytes up at a steady pace, then bytes down, all of them checked.
Only the contender may repeat anything. Then the speed without faults is measured, and compared with two bare
forwarders, and the processor time of all processes of each contender for bytes, echoes and new connections. A program
that is not installed is an error.
"""

import asyncio
import json
import os
import socket
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

import msgspec

from loadtests.bench.peers.contenders import CONTENDERS, LOOPBACK, Contender, Started
from loadtests.bench.peers.costs import cost, table
from loadtests.bench.peers.journey import PACE_BYTES_S, Journey, Outcome
from loadtests.bench.peers.picture import picture
from loadtests.bench.peers.weather import WEATHERS, Weather
from loadtests.bench.programs import MissingPeerError
from loadtests.bench.road import machine, measure, render
from loadtests.bench.road_paths import Road, Way, bare, start_target
from loadtests.faultproxy.grammar import parse_size_bytes
from loadtests.harness.experiment import command
from loadtests.harness.names import AddNames, chosen
from loadtests.harness.processes import NotReadyError
from tunnel.process.command_line import may_escape

__all__ = ["main", "survive"]


def survive(contender: Contender, weather: Weather, size_bytes: int) -> Outcome:
    """Send one checked connection through a contender under one kind of fault; return its outcome."""
    journey = Journey(size_bytes)
    with ExitStack() as stack, socket.create_server((LOOPBACK, 0)) as listening:
        started = contender.start(stack, listening.getsockname()[1], weather.front)
        return asyncio.run(_survive(journey, listening, started, kills=weather.kills))


async def _survive(journey: Journey, listening: socket.socket, started: Started, *, kills: bool) -> Outcome:
    helpers: list[asyncio.Task[None]] = []

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Accept only the first connection: a second one would be a different stream to the application."""
        if journey.has_begun:
            writer.close()
        else:
            helpers.append(asyncio.create_task(journey.serve(reader, writer)))

    async with await asyncio.start_server(connected, sock=listening):
        if kills:
            helpers.append(asyncio.create_task(_kill(journey, started)))
        outcome = await journey.travel(started.local_port)
        for helper in helpers:
            helper.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)
        return outcome


async def _kill(journey: Journey, started: Started) -> None:
    await journey.up.reach(journey.up.size_bytes // 2)
    started.server.kill()
    started.server.start()


def _roads(contenders: Iterable[Contender]) -> list[Road]:
    """Return the paths for the measurement of speed."""
    direct = WEATHERS[0].front

    def through(contender: Contender) -> Callable[[ExitStack], Way]:
        def start(stack: ExitStack) -> Way:
            started = contender.start(stack, int(start_target(stack)), direct)
            return Way(("--port", str(started.local_port)))

        return start

    ours = [Road(contender.name, contender.what, "bare-2", through(contender)) for contender in contenders]
    return [Road("bare-2", "2 uvloop forwarders", "bare-2", bare(2)), *ours]


def _survivors(contenders: list[Contender], weathers: list[Weather], size_bytes: int) -> dict[str, dict[str, Outcome]]:
    found: dict[str, dict[str, Outcome]] = {}
    for contender in contenders:
        for weather in weathers:
            if may_escape(sys.stderr):
                print(f"\r{contender.name}, {weather.name} ...\033[K", end="", file=sys.stderr, flush=True)
            found.setdefault(contender.name, {})[weather.name] = survive(contender, weather, size_bytes)
    if may_escape(sys.stderr):
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    return found


def _table(found: dict[str, dict[str, Outcome]], weathers: list[Weather]) -> str:
    lines = [f"{weather.name:<9} {weather.what}" for weather in weathers]
    lines += ["", f"{'':<13}" + "".join(f"{weather.name:<22}" for weather in weathers)]
    for name, outcomes in found.items():
        lines.append(f"{name:<13}" + "".join(f"{outcomes[weather.name]!s:<22}" for weather in weathers).rstrip())
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Measure, and print both tables or JSON.

    Return 0 if all was measured, 2 if a program is missing, and 3 if a process of this project did not start. A usage
    error exits with 2.
    """
    parser = command("bench.peers", __doc__, "--only tunnel,httptunnel --weather nginx,cuts --runs 0")
    known = ",".join(contender.name for contender in CONTENDERS)
    parser.add_argument("--only", action=AddNames, default="", metavar="NAMES", help=f"compare only these, of {known}")
    kinds = ",".join(weather.name for weather in WEATHERS)
    parser.add_argument(
        "--weather", action=AddNames, default="", metavar="NAMES", help=f"only these kinds of faults, of {kinds}"
    )
    parser.add_argument(
        "--size", default="32MiB", help="bytes per direction of a connection under faults (default 32MiB)"
    )
    parser.add_argument("--fast-size", default="128MiB", help="bytes per direction for the speed (default 128MiB)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each for the speed; 0: none (default 3)")
    parser.add_argument("--echoes", type=int, default=1000, help="echoes per run (default 1000)")
    parser.add_argument(
        "--connections", type=int, default=200, help="new connections for the processor time; 0: none (default 200)"
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the processor time into this file")
    options = parser.parse_args(arguments)
    contenders = chosen(parser, options.only, CONTENDERS)
    weathers = chosen(parser, options.weather, WEATHERS)
    if options.svg is not None and options.connections < 1:
        parser.error("--svg draws the processor time, which --connections 0 does not measure")
    try:
        size_bytes, fast_bytes = parse_size_bytes(options.size), parse_size_bytes(options.fast_size)
    except ValueError as error:
        parser.error(str(error))
    load_before = os.getloadavg()[0]
    try:
        found = _survivors(contenders, weathers, size_bytes)
        rows = measure(_roads(contenders), fast_bytes, options.echoes, options.runs) if options.runs else []
        measured = contenders if options.connections > 0 else []
        costs = [cost(one, fast_bytes, options.echoes, options.connections) for one in measured]
    except MissingPeerError as error:
        print(f"peers: {error}", file=sys.stderr)
        return 2
    except NotReadyError as error:
        print(f"peers: {error}", file=sys.stderr)
        return 3
    if options.svg is not None:
        options.svg.write_text(picture(costs), encoding="utf-8")
    if options.json:
        survived = {name: {kind: _plain(outcome) for kind, outcome in one.items()} for name, one in found.items()}
        shown = {"fast": msgspec.to_builtins(rows), "costs": msgspec.to_builtins(costs)}
        print(json.dumps({"machine": machine(), "survived": survived, **shown}))
        return 0
    how = f"{options.size} up and {options.size} down through one connection, {PACE_BYTES_S >> 20} MiB/s"
    print("\n".join([machine(), f"{how}; load average before: {load_before:.2f}", "", _table(found, weathers)]))
    if rows:
        text = f"without faults: {options.fast_size} each way, {options.echoes} echoes, medians of {options.runs} runs"
        print("\n" + render(rows, [text]))
    if costs:
        print("\n" + table(costs))
    return 0


def _plain(outcome: Outcome) -> dict[str, object]:
    return {"end": outcome.end.value, "share": outcome.share, "seconds": outcome.seconds}


if __name__ == "__main__":
    sys.exit(main())
