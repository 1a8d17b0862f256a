"""Requests under limits: `python -m loadtests.experiments.limits --limits 429,ban --seconds 60`.

A `tunnel forward` reaches a relay through a proxy that limits its client, and four TCP connections of it send a byte
each second and wait for its echo. Prints the requests in each minute, the most in one second, the new TCP connections,
and the echoes that came back.
"""

import asyncio
import contextlib
import itertools
import json
import sys

import msgspec

from loadtests.harness.experiment import command
from loadtests.harness.limiter import LIMITS, Limit, Limiter
from loadtests.harness.processes import NotReadyError, Process, python_command, relay_command, says_event
from tunnel.process.event_loops import new_event_loop

__all__ = ["CARRIERS", "Figures", "main", "measure"]

CARRIERS = ("link", "poll", "auto")  # auto: both
_CONNECTIONS = 4
_PAUSE_S = 1.0


class Figures(msgspec.Struct):
    """The results of a run. `silence_s` is the longest time between two echoes, or from an end of the run to one."""

    limit: str
    carrier: str
    seconds: float
    requests: list[int]  # in each minute
    busiest: int  # the most requests in one second
    refused: int
    connections: list[int]  # new TCP connections in each minute
    echoes: int
    silence_s: float
    first_echo_s: float | None


async def measure(name: str, carrier: str, seconds: float, *, limit: Limit | None = None) -> Figures:
    """Start all processes, run for this time under this limit, and stop everything."""
    relay = Process(relay_command("serve", "--open", "--listen", "127.0.0.1:0"), ready=says_event("listening"))
    echo = Process(python_command("loadtests.harness.echo"), ready=lambda line: line.startswith("echo "))
    async with relay, echo:
        port = int(json.loads(relay.ready_line)["url"].rsplit(":", 1)[1])
        async with Limiter(limit or LIMITS[name](), port) as limiter:
            target = f"0:127.0.0.1:{echo.ready_line.split()[1]}"
            options = ("--relay", f"http://127.0.0.1:{limiter.port}", "--carrier", carrier, "--wait", "forever")
            listens = says_event("listening")
            command = python_command("tunnel_client", "forward", "--json", *options, target)
            forward = Process(command, ready=listens).start()
            try:
                echoes_s = await _echoes(forward, limiter, seconds)
            finally:
                await asyncio.to_thread(forward.kill)
            return _figures(name, carrier, seconds, limiter, echoes_s)


async def _echoes(forward: Process, limiter: Limiter, seconds: float) -> list[float]:
    """Send bytes through the command for this time. Return when their echoes came."""
    came_s: list[float] = []
    with contextlib.suppress(TimeoutError, NotReadyError):
        async with asyncio.timeout(seconds):
            await forward.ready(seconds)
            port = int(json.loads(forward.ready_line)["bind"].rpartition(":")[2])
            await asyncio.gather(*(_client(port, limiter, came_s) for _ in range(_CONNECTIONS)))
    return came_s


async def _client(port: int, limiter: Limiter, came_s: list[float]) -> None:
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            while True:
                writer.write(b"?")
                if not await reader.read(1):
                    break
                came_s.append(limiter.elapsed_s)
                await asyncio.sleep(_PAUSE_S)
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()
        await asyncio.sleep(_PAUSE_S)


def _figures(name: str, carrier: str, seconds: float, limiter: Limiter, echoes_s: list[float]) -> Figures:
    minutes = range(max(1, round(seconds / 60)))
    each_second = [int(at_s) for at_s in limiter.requests_s]
    marks = [0.0, *echoes_s, seconds]
    return Figures(
        name,
        carrier,
        seconds,
        [sum(minute == int(at_s // 60) for at_s in limiter.requests_s) for minute in minutes],
        max(map(each_second.count, set(each_second)), default=0),
        limiter.refused,
        [sum(minute == int(at_s // 60) for at_s in limiter.connections_s) for minute in minutes],
        len(echoes_s),
        max(after_s - before_s for before_s, after_s in itertools.pairwise(marks)),
        min(echoes_s, default=None),
    )


def _line(figures: Figures) -> str:
    words = LIMITS[figures.limit]().words
    requests = " ".join(map(str, figures.requests))
    connections = " ".join(map(str, figures.connections))
    first = "-" if figures.first_echo_s is None else f"{figures.first_echo_s:.1f} s"
    return (
        f"| {words} | {figures.carrier} | {requests} | {figures.busiest} | {figures.refused} | {connections} "
        f"| {figures.echoes} | {first} | {figures.silence_s:.0f} s |"
    )


def main(arguments: list[str] | None = None) -> int:
    """Print a table. Return 0, or 3 if a process did not start."""
    parser = command("experiments.limits", __doc__, "--limits 429 --carriers poll --seconds 300")
    parser.add_argument("--limits", default=",".join(LIMITS), help=f"of {', '.join(LIMITS)} (default: all)")
    parser.add_argument("--carriers", default=",".join(CARRIERS), help=f"of {', '.join(CARRIERS)} (default: all)")
    parser.add_argument("--seconds", type=float, default=90.0, help="time of each run (default: 90)")
    options = parser.parse_args(arguments)
    limits, carriers = options.limits.split(","), options.carriers.split(",")
    for what, found, known in (("limit", limits, LIMITS), ("carrier", carriers, CARRIERS)):
        if not set(found) <= set(known):
            parser.error(f"there is no {what} {', '.join(set(found) - set(known))}: name some of {', '.join(known)}")
    if not options.json:
        print("| limit | carrier | requests a minute | in the busiest second | refused | connections a minute "
              "| echoes | first echo | longest silence |\n|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    for limit in limits:
        for carrier in carriers:
            try:
                with asyncio.Runner(loop_factory=new_event_loop) as runner:
                    figures = runner.run(measure(limit, carrier, options.seconds))
            except NotReadyError as error:
                print(f"limits: {error}", file=sys.stderr)
                return 3
            print(json.dumps(msgspec.to_builtins(figures)) if options.json else _line(figures), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
