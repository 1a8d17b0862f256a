"""The limit of the machine for a push: the same messages over bare TCP, through as many processes as a broker's."""

import asyncio
import time
from contextlib import ExitStack

from loadtests.bench.messages.cases import Row
from loadtests.harness.processes import Process, python_command

__all__ = ["bare_push", "shares"]

_MESSAGE_BYTES = 100
_LATE_S = 0.2  # the last messages come within this time, or do not count


def shares(times: list[float], skipped: int) -> tuple[float, float]:
    """Return median and 99th percentile in ms. The first of `skipped` equal parts of the times does not count."""
    counted = sorted(times[len(times) // skipped :])
    return counted[len(counted) // 2] * 1e3, counted[int(len(counted) * 0.99)] * 1e3


async def bare_push(rate: int, every_s: float, seconds: float, skipped: int) -> list[Row]:
    """Send messages to a forwarder, which sends them to an echo server, and take the time until they are back.

    So they pass client, forwarder, server and forwarder, as a push passes client, relay, broker and relay.
    """
    with ExitStack() as stack:
        command = python_command("loadtests.harness.echo")
        echo = stack.enter_context(Process(command, ready=lambda line: line.startswith("echo ")))
        command = python_command("loadtests.bench.road_peer", "forward", "--port", echo.ready_line.split()[1])
        forwarder = stack.enter_context(Process(command, ready=lambda line: line.startswith("ready ")))
        reader, writer = await asyncio.open_connection("127.0.0.1", int(forwarder.ready_line.split()[1]))
        times: list[float] = []
        reading = asyncio.ensure_future(_read(reader, times))
        each = int(rate * every_s)
        start = due = time.perf_counter()
        while due < start + seconds:
            writer.write((b"%.9f" % time.perf_counter()).ljust(_MESSAGE_BYTES) * each)
            due += every_s
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
        await asyncio.sleep(_LATE_S)
        reading.cancel()
        writer.close()
    median_ms, p99_ms = shares(times, skipped)
    return [
        Row(f"bare forwarder and echo, p50 at {rate:,} messages/s", median_ms, "ms"),
        Row("bare forwarder and echo, p99", p99_ms, "ms"),
    ]


async def _read(reader: asyncio.StreamReader, times: list[float]) -> None:
    while True:
        times.append(time.perf_counter() - float(await reader.readexactly(_MESSAGE_BYTES)))
