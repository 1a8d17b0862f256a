"""Paths that shape each TCP connection: `python -m loadtests.experiments.shaped --seconds 30`.

A `tunnel forward` reaches a relay through a shaper, which passes the bytes of each TCP connection on at a fixed rate.
One connection moves bytes one way for as long as a run lasts, and another sends a byte and waits for its echo, again
and again. Prints the bytes per second that arrived after a start of a third of the time, and the median and longest
time of an echo. With `--cut`, one of the shaper's TCP connections is reset in the middle of the run.
"""

import asyncio
import json
import statistics
import sys

import msgspec

from loadtests.harness.experiment import command
from loadtests.harness.flow import FlowTarget, echo_on, move
from loadtests.harness.processes import NotReadyError, Process, python_command, relay_command, says_event
from tests.field.shaper import shape
from tunnel.process.event_loops import new_event_loop

__all__ = ["WAYS", "Figures", "main", "measure"]

WAYS = ("up", "down")
_KIB = 1024
_PAUSE_S = 0.2  # from an echo to the next one


class Figures(msgspec.Struct):
    """The results of a run. `kib_s`: what arrived of the flow; `connections`: TCP connections that the shaper saw."""

    carrier: str
    links: int
    way: str
    kib_s: float
    echo_p50_s: float
    echo_max_s: float
    connections: int


class _Shaper:
    """The path: a port before the relay."""

    def __init__(self, upstream: int, bytes_per_s: int) -> None:
        self.connections = 0
        self._upstream, self._bytes_per_s = upstream, bytes_per_s
        self._open: dict[asyncio.StreamWriter, asyncio.Event] = {}  # the oldest first, each with its end

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        ended = self._open[writer] = asyncio.Event()
        await shape(reader, writer, self._upstream, self._bytes_per_s)
        writer.transport.abort()
        del self._open[writer]
        ended.set()

    def cut(self) -> None:
        """Reset the oldest connection."""
        for writer in list(self._open)[:1]:
            writer.transport.abort()

    async def close(self) -> None:
        """Return when every connection has ended."""
        for writer, ended in list(self._open.items()):
            writer.transport.abort()
            await ended.wait()


async def measure(carrier: str, links: int, way: str, seconds: float, kib_s: int, *, cut: bool = False) -> Figures:
    """Start all processes, run for this time, and stop everything."""
    target = FlowTarget()
    relay = Process(relay_command("serve", "--open", "--listen", "127.0.0.1:0"), ready=says_event("listening"))
    async with relay, await asyncio.start_server(target.serve, "127.0.0.1", 0) as served:
        shaper = _Shaper(int(json.loads(relay.ready_line)["url"].rsplit(":", 1)[1]), kib_s * _KIB)
        async with await asyncio.start_server(shaper.serve, "127.0.0.1", 0, limit=64 * _KIB) as path:
            url = f"http://127.0.0.1:{path.sockets[0].getsockname()[1]}"
            options = ("--relay", url, "--carrier", carrier, "--links", str(links), "--wait", "forever")
            to = f"0:127.0.0.1:{served.sockets[0].getsockname()[1]}"
            command = python_command("tunnel_client", "forward", "--json", *options, to)
            forward = Process(command, ready=says_event("listening")).start()
            try:
                await forward.ready(30)
                port = int(json.loads(forward.ready_line)["bind"].rpartition(":")[2])
                return await _flow(target, shaper, port, (carrier, links, way), seconds, cut=cut)
            finally:
                await asyncio.to_thread(forward.kill)
                await shaper.close()


async def _flow(
    target: FlowTarget, shaper: _Shaper, port: int, setup: tuple[str, int, str], seconds: float, *, cut: bool
) -> Figures:
    taken, echoes_s = [0], list[float]()
    way = setup[2]
    tasks = [asyncio.create_task(move(port, way, taken)), asyncio.create_task(echo_on(port, echoes_s, _PAUSE_S))]
    try:
        await asyncio.sleep(seconds / 3)
        before = target.taken if way == "up" else taken[0]
        await asyncio.sleep(seconds / 3)
        if cut:
            shaper.cut()
        await asyncio.sleep(seconds / 3)
        moved = (target.taken if way == "up" else taken[0]) - before
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    rate = moved / (seconds * 2 / 3) / _KIB
    echoes_s = echoes_s or [seconds]
    return Figures(*setup, rate, statistics.median(echoes_s), max(echoes_s), shaper.connections)


def _line(found: Figures) -> str:
    return (
        f"| {found.carrier} | {found.links} | {found.way} | {found.kib_s:.0f} KiB/s | {found.echo_p50_s:.2f} s "
        f"| {found.echo_max_s:.2f} s | {found.connections} |"
    )


def main(arguments: list[str] | None = None) -> int:
    """Print a table. Return 0, or 3 if a process did not start."""
    parser = command("experiments.shaped", __doc__, "--setups link:1,link:4 --ways down --seconds 60")
    parser.add_argument(
        "--setups", default="link:1,link:4,poll:1", help="carriers, each with its links (default: link:1,link:4,poll:1)"
    )
    parser.add_argument("--ways", default=",".join(WAYS), help=f"of {', '.join(WAYS)} (default: both)")
    parser.add_argument("--rate", type=int, default=64, help="KiB/s of each TCP connection, each way (default: 64)")
    parser.add_argument("--seconds", type=float, default=30.0, help="time of each run (default: 30)")
    parser.add_argument("--cut", action="store_true", help="reset one TCP connection after two thirds of the time")
    options = parser.parse_args(arguments)
    if not options.json:
        print("| carrier | links | way | flow | echo, median | echo, longest | connections |\n"
              "|---|---|---|---|---|---|---|")  # fmt: skip
    for setup in options.setups.split(","):
        carrier, _, links = setup.partition(":")
        for way in options.ways.split(","):
            run = measure(carrier, int(links or 1), way, options.seconds, options.rate, cut=options.cut)
            try:
                with asyncio.Runner(loop_factory=new_event_loop) as runner:
                    found = runner.run(run)
            except NotReadyError as error:
                print(f"shaped: {error}", file=sys.stderr)
                return 3
            print(json.dumps(msgspec.to_builtins(found)) if options.json else _line(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
