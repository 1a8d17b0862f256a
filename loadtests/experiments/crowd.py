"""Many connections at once through one `tunnel forward`: `python -m loadtests.experiments.crowd`.

The crowd is measured alone, and next to a stalled connection. The time from the start of a forward to its first byte
is measured, too.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from random import Random

import msgspec
from xxhash import xxh3_128_digest

from loadtests.harness.experiment import command, perform
from loadtests.harness.ports import hold_port
from loadtests.harness.processes import Process, python_command, says_event
from loadtests.harness.relays import RelayProcess, exit_process
from loadtests.harness.transfer import percentile

__all__ = ["Report", "main", "measure", "summary"]

LOOPBACK = "127.0.0.1"
START_GOAL_S = 1.0
SLOWER_GOAL = 1.5  # p99 next to a stalled connection, as a multiple of p99 alone
STARTS = 3
LIMIT_S = 120.0  # the most time for one connection of a crowd, and until a forward listens
_STILL_BYTES = 64 << 20  # more than all buffers on the path can hold
_STEP_BYTES = 4099
_KIB, _MIB = 1 << 10, 1 << 20


class Report(msgspec.Struct):
    """The results of a run. A connection's time is the time from its start to the last byte of its echo."""

    connections: int
    size_kib: int
    rounds: int
    carrier: str
    starts_s: list[float] = []  # from the start of a forward to the first byte through it
    moved_bytes: int = 0  # in both directions
    seconds: float = 0.0
    alone_p50_s: float = 0.0
    alone_p99_s: float = 0.0
    beside_p50_s: float = 0.0
    beside_p99_s: float = 0.0
    checked: int = 0  # connections whose digest was compared, in the rounds
    wrong: int = 0  # connections whose digest differed, or that broke
    failure: str = ""  # the error of the first of these

    @property
    def total(self) -> int:
        """The number of connections in all rounds."""
        return 2 * self.rounds * self.connections

    @property
    def is_right(self) -> bool:
        """Whether the digest of every connection was compared, and was right."""
        return not self.wrong and self.checked == self.total > 0

    @property
    def slower(self) -> float:
        """The p99 next to a stalled connection, as a multiple of the p99 alone."""
        return self.beside_p99_s / max(self.alone_p99_s, 1e-9)


class Crowd:
    """Connections that each send different bytes through an echo server, and check the echo."""

    def __init__(self, port: int, report: Report) -> None:
        self._port = port
        self._report = report
        self._size_bytes = report.size_kib * _KIB
        self._block = Random(1).randbytes(self._size_bytes + report.connections * _STEP_BYTES)

    async def round(self, count: int) -> list[float]:
        """Run `count` connections at once; return the seconds that each took."""
        return await asyncio.gather(*(self._one(number) for number in range(count)))

    async def _one(self, number: int) -> float:
        start = number * _STEP_BYTES
        payload = memoryview(self._block)[start : start + self._size_bytes]
        began = time.monotonic()
        try:
            async with asyncio.timeout(LIMIT_S):
                heard = await self._echoed(payload)
        except OSError as error:  # TimeoutError is an OSError, too
            self._wrong(f"{type(error).__name__}: {error}")
        else:
            if xxh3_128_digest(heard) != xxh3_128_digest(payload):
                self._wrong(f"{len(heard)} bytes came back, but not the {len(payload)} bytes that were sent")
            self._report.checked += 1
            self._report.moved_bytes += len(payload) + len(heard)
        return time.monotonic() - began

    async def _echoed(self, payload: memoryview) -> bytes:
        reader, writer = await asyncio.open_connection(LOOPBACK, self._port)
        try:
            writer.write(payload)
            writer.write_eof()
            return await reader.read(-1)
        finally:
            writer.close()

    def _wrong(self, text: str) -> None:
        self._report.wrong += 1
        self._report.failure = self._report.failure or text


@asynccontextmanager
async def standing_still(port: int) -> AsyncIterator[None]:
    """Hold a connection that sends as much as it can and never reads."""
    _, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.transport.pause_reading()  # type: ignore[attr-defined]  # transports of sockets have it
    writer.write(bytes(_STILL_BYTES))
    try:
        yield
    finally:
        writer.transport.abort()


async def measure(report: Report) -> Report:
    """Fill in the report, and return it. All but the crowd runs in separate processes."""
    with ExitStack() as stack:
        echo = stack.enter_context(
            Process(python_command("loadtests.harness.echo"), ready=lambda line: line.startswith("echo"))
        )
        relay = stack.enter_context(RelayProcess())
        stack.enter_context(exit_process(relay))
        target = f"{LOOPBACK}:{echo.ready_line.split()[1]}"
        port = stack.enter_context(hold_port())
        command = python_command(
            *(
                "tunnel_client",
                "forward",
                "--relay",
                relay.url,
                "--proxy",
                "",
                "--carrier",
                report.carrier,
                f"{port}:{target}",
            )
        )
        forward = Process(command, ready=says_event("listening"), environment={"TUNNEL_TOKEN": relay.tokens["client"]})
        for number in range(STARTS):
            began = time.monotonic()
            with forward.start():
                report.starts_s.append(await _first_byte(port) - began)
                if number == STARTS - 1:
                    await _crowds(Crowd(port, report), port, report)
    return report


async def _first_byte(port: int) -> float:
    """Wait for the first byte through a forward that is being started; return that moment."""
    ends = time.monotonic() + LIMIT_S
    while time.monotonic() < ends:
        try:
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
        except ConnectionRefusedError:
            await asyncio.sleep(0.005)
            continue
        writer.write(b"?")
        await reader.readexactly(1)
        writer.close()
        return time.monotonic()
    raise TimeoutError(f"the forward did not listen at port {port} within {LIMIT_S:.0f} s")


async def _crowds(crowd: Crowd, port: int, report: Report) -> None:
    """Measure crowds, alternately alone and next to a stalled connection, so that load on the machine affects both."""
    await crowd.round(min(20, report.connections))  # warm up
    report.moved_bytes = report.checked = 0
    times: dict[bool, list[float]] = {False: [], True: []}
    began = time.monotonic()
    for _ in range(report.rounds):
        for is_beside in (False, True):
            async with AsyncExitStack() as stack:
                if is_beside:
                    await stack.enter_async_context(standing_still(port))
                times[is_beside] += await crowd.round(report.connections)
    report.seconds = time.monotonic() - began
    report.alone_p50_s, report.alone_p99_s = (percentile(times[False], share) for share in (0.5, 0.99))
    report.beside_p50_s, report.beside_p99_s = (percentile(times[True], share) for share in (0.5, 0.99))


def summary(report: Report) -> str:
    """Return the report as text for people."""
    start = percentile(report.starts_s, 0.5)
    rate = report.moved_bytes / _MIB / max(report.seconds, 1e-9)
    lines = (
        f"start to first byte   p50 of {len(report.starts_s)}: {start:.2f} s{_goal(start, START_GOAL_S, ' s')}",
        f"crowd                 {report.connections} at once, {report.size_kib} KiB each way, carrier {report.carrier}",
        f"alone                 p50 {report.alone_p50_s:.2f} s, p99 {report.alone_p99_s:.2f} s",
        f"next to a stalled one p50 {report.beside_p50_s:.2f} s, p99 {report.beside_p99_s:.2f} s",
        f"ratio of the two p99  {report.slower:.2f}{_goal(report.slower, SLOWER_GOAL, '')}",
        f"moved                 {report.moved_bytes / _MIB:.0f} MiB in {report.seconds:.1f} s, {rate:.0f} MiB/s",
        f"OK: {report.total} connections, every digest right"
        if report.is_right
        else f"FAILED: {report.wrong} of {report.total} connections: {report.failure}"
        if report.wrong
        else f"FAILED: {report.checked} of {report.total} connections were checked, so the run proves nothing",
    )
    return "\n".join(lines)


def _goal(value: float, goal: float, unit: str) -> str:
    return f" (goal: at most {goal:g}{unit}{'' if value <= goal else ', MISSED'})"


def main(argv: list[str] | None = None) -> int:
    """Return 0 if every digest was right, 1 if not, and 3 without a result. The times do not affect the exit code."""
    parser = command("experiments.crowd", __doc__, "--connections 500 --size-kib 1024 --rounds 2")
    parser.add_argument("--connections", type=int, default=500, metavar="N", help="connections at once (default: 500)")
    parser.add_argument(
        "--size-kib", type=int, default=1024, metavar="N", help="size per connection and direction (default: 1024)"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=2,
        metavar="N",
        help="rounds alone, and as many next to a stalled connection (default: 2)",
    )
    parser.add_argument(
        "--carrier", choices=("auto", "poll", "link"), default="auto", help="carrier of the forward (default: auto)"
    )
    options = parser.parse_args(argv)
    report = Report(options.connections, options.size_kib, options.rounds, options.carrier)
    return perform(
        measure(report), verdict=lambda found: 0 if found.is_right else 1, text=summary, as_json=options.json
    )


if __name__ == "__main__":
    sys.exit(main())
