"""`python -m loadtests.experiments.crowd`: many connections at once through one `tunnel forward`, alone and
beside one that stands still; and how long a forward takes from its start to the first byte."""

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from random import Random

import msgspec
from xxhash import xxh3_128_digest

from loadtests.harness.ports import hold_port
from loadtests.harness.processes import NotReadyError, Process, python_command, says_event
from loadtests.harness.relays import RelayProcess, exit_process
from loadtests.harness.transfer import percentile
from tunnel.event_loops import new_event_loop

__all__ = ["Report", "main", "measure", "summary"]

HERE = "127.0.0.1"
START_GOAL_S = 1.0
SLOWER_GOAL = 1.5  # p99 beside one that stands still, as a multiple of p99 alone
STARTS = 3
LIMIT_S = 120.0  # for one connection of a crowd
_STILL_BYTES = 64 << 20  # more than all buffers on the way hold
_STEP_BYTES = 4099
_KIB, _MIB = 1 << 10, 1 << 20


class Report(msgspec.Struct):
    """Times are from connecting to the end of what came back."""

    connections: int
    size_kib: int
    rounds: int
    carrier: str
    starts_s: list[float] = []
    moved_bytes: int = 0  # both ways
    seconds: float = 0.0
    alone_p50_s: float = 0.0
    alone_p99_s: float = 0.0
    beside_p50_s: float = 0.0
    beside_p99_s: float = 0.0
    wrong: int = 0  # connections whose digest differed, or that broke
    failure: str = ""  # of the first of these

    @property
    def slower(self) -> float:
        """What the one that stands still costs the others."""
        return self.beside_p99_s / max(self.alone_p99_s, 1e-9)


class Crowd:
    """Connections that each send bytes of their own through an echo."""

    def __init__(self, port: int, report: Report) -> None:
        self._port = port
        self._report = report
        self._size_bytes = report.size_kib * _KIB
        self._block = Random(1).randbytes(self._size_bytes + report.connections * _STEP_BYTES)

    async def round(self, count: int) -> list[float]:
        """So many at once; how long each took."""
        return await asyncio.gather(*(self._one(number) for number in range(count)))

    async def _one(self, number: int) -> float:
        start = number * _STEP_BYTES
        payload = memoryview(self._block)[start : start + self._size_bytes]
        began = time.monotonic()
        try:
            async with asyncio.timeout(LIMIT_S):
                heard = await self._echoed(payload)
        except OSError as error:  # a TimeoutError is one, too
            self._wrong(f"{type(error).__name__}: {error}")
        else:
            if xxh3_128_digest(heard) != xxh3_128_digest(payload):
                self._wrong(f"{len(heard)} bytes came back, and they are not those that were sent")
        self._report.moved_bytes += 2 * len(payload)
        return time.monotonic() - began

    async def _echoed(self, payload: memoryview) -> bytes:
        reader, writer = await asyncio.open_connection(HERE, self._port)
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
    """A connection that sends as much as it can, and never reads."""
    _, writer = await asyncio.open_connection(HERE, port)
    writer.transport.pause_reading()  # type: ignore[attr-defined]  # of a socket, it can
    writer.write(bytes(_STILL_BYTES))
    try:
        yield
    finally:
        writer.transport.abort()


async def measure(report: Report) -> None:
    """Fill the report in. Everything runs in processes of its own but the crowd."""
    with ExitStack() as stack:
        echo = stack.enter_context(
            Process(python_command("loadtests.harness.echo"), ready=lambda line: line.startswith("echo"))
        )
        relay = stack.enter_context(RelayProcess())
        stack.enter_context(exit_process(relay))
        target = f"{HERE}:{echo.ready_line.split()[1]}"
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


async def _first_byte(port: int) -> float:
    """When the first byte comes back through a forward that is being started."""
    ends = time.monotonic() + LIMIT_S
    while time.monotonic() < ends:
        try:
            reader, writer = await asyncio.open_connection(HERE, port)
        except ConnectionRefusedError:
            await asyncio.sleep(0.005)
            continue
        writer.write(b"?")
        await reader.readexactly(1)
        writer.close()
        return time.monotonic()
    raise TimeoutError(f"the forward does not listen at port {port}")


async def _crowds(crowd: Crowd, port: int, report: Report) -> None:
    """Alone and beside one that stands still by turns, so that a machine that gets slower does so for both."""
    await crowd.round(min(20, report.connections))  # warm
    report.moved_bytes = 0
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
    """For a person."""
    start = percentile(report.starts_s, 0.5)
    rate = report.moved_bytes / _MIB / max(report.seconds, 1e-9)
    total = 2 * report.rounds * report.connections
    lines = (
        f"start to first byte   p50 of {len(report.starts_s)}: {start:.2f} s{_goal(start, START_GOAL_S, ' s')}",
        f"crowd                 {report.connections} at once, {report.size_kib} KiB each way, carrier {report.carrier}",
        f"alone                 p50 {report.alone_p50_s:.2f} s, p99 {report.alone_p99_s:.2f} s",
        f"beside one that stops p50 {report.beside_p50_s:.2f} s, p99 {report.beside_p99_s:.2f} s",
        f"p99 beside / alone    {report.slower:.2f}{_goal(report.slower, SLOWER_GOAL, '')}",
        f"moved                 {report.moved_bytes / _MIB:.0f} MiB in {report.seconds:.1f} s, {rate:.0f} MiB/s",
        f"OK: {total} connections, every digest right"
        if not report.wrong
        else f"FAILED: {report.wrong} of {total} connections: {report.failure}",
    )
    return "\n".join(lines)


def _goal(value: float, goal: float, unit: str) -> str:
    return f" (goal: at most {goal:g}{unit}{'' if value <= goal else ', MISSED'})"


def main(argv: list[str] | None = None) -> int:
    """0 if every digest was right, 1 if not; how long it took decides nothing."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.experiments.crowd",
        description=__doc__,
        epilog="example: python -m loadtests.experiments.crowd --connections 500 --size-kib 1024 --rounds 2",
        allow_abbrev=False,
    )
    parser.add_argument("--connections", type=int, default=500, metavar="N", help="at once (default: 500)")
    parser.add_argument("--size-kib", type=int, default=1024, metavar="N", help="of each, each way (default: 1024)")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="of each kind (default: 2)")
    parser.add_argument("--carrier", choices=("auto", "poll", "link"), default="auto", help="default: auto")
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    options = parser.parse_args(argv)
    report = Report(options.connections, options.size_kib, options.rounds, options.carrier)
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(measure(report))
    except (OSError, EOFError, NotReadyError) as error:
        print(f"the crowd could not begin: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(msgspec.json.encode(report).decode() if options.json else summary(report))
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
