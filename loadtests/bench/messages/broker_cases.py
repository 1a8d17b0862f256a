"""The measured cases of a broker: storing, fetching, and the time from a send to a listener."""

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from pathlib import Path

from loadtests.bench.messages.bare import bare_push, shares
from loadtests.bench.messages.cases import CpuWatch, Row, payloads
from tunnel import Attachment
from tunnel.messages import (
    AsyncProducer,
    AsyncProducerConfig,
    BrokerClient,
    ChannelTable,
    DeliveredMessage,
    GroupConsumer,
    ListenerConfig,
    SyncProducer,
    TopicSpec,
)

__all__ = ["BROKER", "BROKER_PARTS", "broker_cases", "disk_times"]

BROKER = "broker"
BROKER_PARTS = ("store", "fetch", "push")
_IN_FLIGHT = 8  # sends that wait for their answers at once
_PUSH_RATE = 10_000  # messages a second
_PUSH_EVERY_S = 0.001
_CATCH_UP_S = 0.01
_DISK_WRITES, _DISK_BYTES, _DISK_PAUSE_S = 200, 3_000, 0.002  # about what the broker writes during the case "push"
_SETTLE = 5  # the first fifth of the times does not count: meanwhile the listener joins, and files are made


async def broker_cases(
    attachment: Attachment, parts: Collection[str], count: int, batch: int, seconds: float, pids: dict[str, int]
) -> AsyncIterator[Row]:
    """Measure `parts`, some of BROKER_PARTS, with a broker that is a service at the relay.

    After each case come rows with the processor time of the processes. The messages that are stored and fetched are
    made before the time begins.
    """

    async def dial(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await attachment.open_connection(address, timeout=20)

    topic = f"bench-{time.time_ns()}"
    messages = payloads(count)
    async with ChannelTable(dial, connect_timeout=20) as table:
        client = BrokerClient(table, BROKER)
        cases: list[Callable[[], Awaitable[Row]]] = []
        if "store" in parts:
            cases += [
                lambda: _plain(attachment, topic, messages, batch),
                lambda: _answered(client, f"{topic}-accepted", messages, batch, durable=False),
                lambda: _answered(client, f"{topic}-durable", messages, batch, durable=True),
            ]
        elif "fetch" in parts:
            await _plain(attachment, topic, messages, batch)
        if "fetch" in parts:
            cases.append(lambda: _fetch(client, topic, count))
        for case in cases:
            watch = CpuWatch(pids)
            yield await case()
            for row in watch.row(count, "us/message"):
                yield row
        if "push" in parts:
            for row in await bare_push(_PUSH_RATE, _PUSH_EVERY_S, seconds, _SETTLE):
                yield row
        for storage in ("log", "memory") if "push" in parts else ():
            watch = CpuWatch(pids)
            rows = await _push(attachment, client, f"{topic}-{storage}", storage, seconds)
            for row in rows + watch.row(_PUSH_RATE * seconds, "us/message"):
                yield row


def disk_times(directory: Path) -> list[Row]:
    """Measure the fdatasync that a broker waits for before it confirms a durable send: no such send is faster."""
    times: list[float] = []
    with tempfile.TemporaryFile(dir=directory) as file:
        for _ in range(_DISK_WRITES):
            os.write(file.fileno(), bytes(_DISK_BYTES))
            start = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - start)
            time.sleep(_DISK_PAUSE_S)
    times.sort()
    return [
        Row("disk of the broker, fdatasync, p50", times[len(times) // 2] * 1e3, "ms"),
        Row("disk of the broker, fdatasync, p99", times[int(len(times) * 0.99)] * 1e3, "ms"),
    ]


async def _plain(attachment: Attachment, topic: str, messages: list[bytes], batch: int) -> Row:
    """Queue messages and send them in batches, without answers; the broker closes when all are on its disk."""
    reader, writer = await attachment.open_connection(BROKER, timeout=20)
    start = time.perf_counter()
    config = AsyncProducerConfig(batch_max=batch, enqueue_timeout_ms=-1)
    async with AsyncProducer(SyncProducer(writer), config) as producer:
        for message in messages:
            if not producer.offer(topic, message):
                await producer.send(topic, message)
    writer.write_eof()
    await reader.read()
    took = time.perf_counter() - start
    writer.close()
    return Row(f"broker, store, no answers, batches of {batch}", len(messages) / took, "messages/s")


async def _answered(client: BrokerClient, topic: str, messages: list[bytes], batch: int, *, durable: bool) -> Row:
    """Send batches that the broker answers, several at once."""
    producer = client.producer(durable=durable)
    await producer.send(topic, messages[0])
    starts = iter(range(0, len(messages), batch))

    async def send() -> None:
        for first in starts:
            await producer.send(topic, *messages[first : first + batch])

    start = time.perf_counter()
    await asyncio.gather(*(send() for _ in range(_IN_FLIGHT)))
    took = time.perf_counter() - start
    kind = "on disk" if durable else "accepted"
    return Row(f"broker, store, answered when {kind}, {_IN_FLIGHT} at once", len(messages) / took, "messages/s")


async def _fetch(client: BrokerClient, topic: str, count: int) -> Row:
    consumer = client.consumer(topic)
    found = 0
    start = time.perf_counter()
    while found < count:
        found += len(await consumer.fetch())
    return Row("broker, fetch", count / (time.perf_counter() - start), "messages/s")


async def _push(attachment: Attachment, client: BrokerClient, topic: str, storage: str, seconds: float) -> list[Row]:
    """Send 10,000 messages a second, and measure the time until the listener's handler is called."""
    await client.create_topic(topic, TopicSpec(storage=storage))
    times: list[float] = []

    def handle(message: DeliveredMessage) -> None:
        times.append(time.perf_counter() - float(message.payload))

    _, writer = await attachment.open_connection(BROKER, timeout=20)
    producer = SyncProducer(writer)
    each = int(_PUSH_RATE * _PUSH_EVERY_S)
    consumer = GroupConsumer(client.table, client.address, "bench", topic, config=ListenerConfig(commit_s=0.5))
    async with consumer.register_message_listener(handle):
        start = due = time.perf_counter()
        sent = 0
        while due < start + seconds:
            stamp = b"%.9f" % time.perf_counter()
            await producer.send(topic, *[stamp.ljust(100)] * each)
            sent += each
            # On a machine that is too busy for this rate, the rate falls. A sender that made up for all of its delay
            # would send in bursts, and the waits within a burst would count as if the push took that time.
            due = max(due + _PUSH_EVERY_S, time.perf_counter() - _CATCH_UP_S)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
        rate = sent / (time.perf_counter() - start)
        while len(times) < sent:  # noqa: ASYNC110 - the handler must do as little as it can
            await asyncio.sleep(0.01)
    writer.close()
    median_ms, p99_ms = shares(times, _SETTLE)
    name = f"broker, push from a {storage} topic"
    return [Row(f"{name}, p50 at {rate:,.0f} messages/s", median_ms, "ms"), Row(f"{name}, p99", p99_ms, "ms")]
