"""The measured cases: each is a coroutine that takes an attachment and returns rows."""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable

import msgspec

from loadtests.bench.messages.peer import CALLS, PACKETS, SINK
from loadtests.harness.processes import cpu_seconds, resident_bytes
from tunnel import Attachment
from tunnel.messages import (
    AsyncProducer,
    AsyncProducerConfig,
    CallChannel,
    Codec,
    MessageSession,
    Packet,
    SyncProducer,
)

__all__ = ["CpuWatch", "Row", "async_producer", "calls", "large_beside_pings", "sync_producer"]

MESSAGE_BYTES = 100
PING_EVERY_S = 0.01


class Row(msgspec.Struct):
    """One figure of the table."""

    name: str
    value: float
    unit: str


def payloads(count: int) -> list[bytes]:
    """Return messages of 100 bytes like those of applications: parts of them repeat."""
    texts = (
        b'{"order":%d,"item":"A-%04d","amount":%d,"note":"' % (number, number % 997, number * 7)
        for number in range(count)
    )
    return [text.ljust(MESSAGE_BYTES - 2, b"x") + b'"}' for text in texts]


async def _counted(attachment: Attachment, send: Callable[..., object]) -> tuple[int, float]:
    """Run `send(writer)`; return the number of messages that the receiver checked, and the seconds until its report."""
    reader, writer = await attachment.open_connection(SINK, timeout=20)
    start = time.perf_counter()
    await send(writer)  # type: ignore[misc]
    writer.write_eof()
    count = int.from_bytes(await reader.readexactly(8), "big")
    seconds = time.perf_counter() - start
    writer.close()
    await writer.wait_closed()
    return count, seconds


async def sync_producer(attachment: Attachment, seconds: float, *, acknowledged: bool) -> Row:
    """Send messages one by one. If `acknowledged`, wait for the acknowledgement of each before the next is sent."""
    messages = payloads(1000)

    async def send(writer: asyncio.StreamWriter) -> None:
        producer = SyncProducer(writer, acknowledged=acknowledged)
        end = time.perf_counter() + seconds
        number = 0
        while time.perf_counter() < end:
            await producer.send("orders", messages[number % 1000])
            number += 1
            if number % 100 == 0:
                await asyncio.sleep(0)

    count, took = await _counted(attachment, send)
    name = "sync, one by one, each acknowledged" if acknowledged else "sync, one by one"
    return Row(name, count / took, "messages/s")


async def async_producer(attachment: Attachment, codec: Codec, count: int, batch: int) -> Row:
    """Queue messages and send them in batches."""
    messages = payloads(count)

    async def send(writer: asyncio.StreamWriter) -> None:
        config = AsyncProducerConfig(batch_max=batch, enqueue_timeout_ms=-1)
        async with AsyncProducer(SyncProducer(writer, codec=codec), config) as producer:
            for message in messages:
                if not producer.offer("orders", message):
                    await producer.send("orders", message)

    taken, took = await _counted(attachment, send)
    assert taken == count, f"{count} messages were sent, {taken} arrived"
    return Row(f"async, batches of {batch}, {codec.name.lower()}", count / took, "messages/s")


async def calls(attachment: Attachment, callers: int, seconds: float) -> list[Row]:
    """Measure requests and responses of 100 bytes, with many callers on one connection."""
    body = payloads(1)[0]
    times: list[float] = []
    async with CallChannel(*await attachment.open_connection(CALLS, timeout=20)) as channel:
        end = time.perf_counter() + seconds

        async def call() -> None:
            while (start := time.perf_counter()) < end:
                await channel.call(1, body)
                times.append(time.perf_counter() - start)

        start = time.perf_counter()
        await asyncio.gather(*(call() for _ in range(callers)))
        took = time.perf_counter() - start
    times.sort()
    return [
        Row(f"calls, {callers} callers on one connection", len(times) / took, "calls/s"),
        Row("  their p50", statistics.median(times) * 1e3, "ms"),
        Row("  their p99", times[int(len(times) * 0.99)] * 1e3, "ms"),
    ]


class CpuWatch:
    """Measures the processor time of several processes since its creation."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = pids
        self._start = {name: cpu_seconds(pid) for name, pid in pids.items()}

    def row(self, count: float, unit: str) -> list[Row]:
        """Return the processor time per item, for `count` items, one row per process."""
        return [
            Row(f"  processor, {name}", (cpu_seconds(pid) - self._start[name]) / count * 1e6, unit)
            for name, pid in self._pids.items()
        ]


async def _after(seconds: float, session: MessageSession) -> int:
    await asyncio.sleep(seconds)
    return await session.ping()


async def large_beside_pings(attachment: Attachment, size: int, pids: dict[str, int]) -> list[Row]:
    """Send one large packet out of a file, with a ping every 10 ms on the same connection."""
    pings: list[int] = []
    rss: dict[str, list[int]] = {name: [resident_bytes(pid)] for name, pid in pids.items()}
    with tempfile.TemporaryFile() as file:
        file.truncate(size)
        async with MessageSession(*await attachment.open_connection(PACKETS, timeout=20)) as session:
            quiet = sorted([await _after(PING_EVERY_S, session) for _ in range(200)])
            sending = asyncio.ensure_future(session.send(Packet(file, 1)))
            start = time.perf_counter()
            due = start
            waiting: set[asyncio.Task[int]] = set()

            def note(task: asyncio.Task[int]) -> None:
                waiting.discard(task)
                pings.append(task.result())

            while not sending.done():
                task = asyncio.ensure_future(session.ping())
                waiting.add(task)
                task.add_done_callback(note)
                if len(pings) % 10 == 0:
                    for name, pid in pids.items():
                        rss[name].append(resident_bytes(pid))
                due += PING_EVERY_S
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await sending
            took = time.perf_counter() - start
            if waiting:
                await asyncio.wait(waiting)
            window = session.window.window_bytes
    pings.sort()
    name = f"{size >> 20} MiB in one packet"
    rows = [
        Row(f"{name}, from a file to the disk", size / took / 1e6, "MB/s"),
        Row("  pings without it, p50", quiet[100] / 1e3, "ms"),
        Row("  pings without it, p99", quiet[197] / 1e3, "ms"),
        Row(f"  pings during it, p50 (of {len(pings)})", pings[len(pings) // 2] / 1e3, "ms"),
        Row("  pings during it, p99", pings[int(len(pings) * 0.99)] / 1e3, "ms"),
        Row("  pings during it, longest", pings[-1] / 1e3, "ms"),
        Row("  window at the end", window / 1024, "KiB"),
    ]
    return rows + [
        Row(f"  growth in memory of the {name}", (max(seen) - seen[0]) / 2**20, "MiB") for name, seen in rss.items()
    ]
