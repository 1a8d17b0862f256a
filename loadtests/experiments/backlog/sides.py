"""The processes of the measurement: `python -m loadtests.experiments.backlog.sides ROLE ...`, where ROLE is broker,
producer, consumer, reader or catchup.

A broker, which may be the replica of another one, serves until it is killed. The catchup role waits until a replica has
copied its master. Producers, consumers and readers work for some seconds. Each role but the broker ends with one line
of JSON. The processes use loopback TCP, since the log is measured and not the tunnel.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

import uvloop

from tunnel.messages import BrokerSettings, ChannelTable, Consumer, LogConfig, Replica, StoredPartition, serve_calls
from tunnel.messages.broker.protocol import APPEND, FETCH
from tunnel.messages.sets.message import encode_payloads

__all__ = ["MESSAGE_BYTES", "main"]

MESSAGE_BYTES = 1024
_BATCH = 100
_IN_FLIGHT = 8
_CATCHUP_S = 240.0  # a replica copies several hundred MB/s; must be below the 300 s that run.py waits for a process
_LOG = LogConfig(
    flush_messages=1000, flush_s=0.005
)  # live readers wait for flushes, and with the default interval they would wait longer


async def broker(port: int, directory: str, master: str, replica: str) -> None:
    """Serve a log. With `master`, serve as its replica; with `replica`, redirect readers that are far behind to it."""
    settings = BrokerSettings(log=_LOG, master=master, replica=replica)
    async with StoredPartition(directory, settings) as partition, ChannelTable() as table:
        server = await asyncio.start_server(serve_calls(partition.handlers), "127.0.0.1", port)
        print("ready", flush=True)
        async with server:
            if master:
                await Replica(table, master).follow(partition)
            await server.serve_forever()


async def producer(address: str, seconds: float, rate: float) -> dict[str, float]:
    """Append messages that carry the time, at `rate` messages per second or, if that is 0, as fast as possible."""
    sent = 0
    batch = _BATCH if not rate else max(1, round(rate / 200))
    async with ChannelTable() as table:
        channel = await table.channel(address)
        start = due = time.monotonic()
        waiting: set[asyncio.Task[object]] = set()
        while time.monotonic() < start + seconds:
            stamp = time.monotonic_ns().to_bytes(8, "big").ljust(MESSAGE_BYTES, b".")
            body = encode_payloads([stamp] * batch)
            waiting.add(asyncio.ensure_future(channel.call(APPEND, body)))
            sent += batch
            if rate:
                due += batch / rate
                await asyncio.sleep(max(0.0, due - time.monotonic()))
            elif len(waiting) >= _IN_FLIGHT:
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if waiting:
            await asyncio.wait(waiting)
        return {"per_second": sent / (time.monotonic() - start)}


async def consumer(address: str, seconds: float, offset: int) -> dict[str, float]:
    """Follow the log from an offset, or from its end (-1); return how long messages took from their producer."""
    times: list[float] = []
    async with ChannelTable() as table:
        if offset < 0:
            offset = await _end(table, address)
        live = Consumer(table, address, offset)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            messages = await live.fetch(wait_ms=200)
            now = time.monotonic_ns()
            times += [(now - int.from_bytes(message.payload[:8], "big")) / 1e6 for message in messages]
    times.sort()
    if not times:
        return {"p50_ms": 0.0, "p99_ms": 0.0}
    return {"p50_ms": times[len(times) // 2], "p99_ms": times[int(len(times) * 0.99)]}


async def reader(address: str, seconds: float) -> dict[str, float]:
    """Read the log from its beginning again and again, as a reader that catches up does."""
    count, redirected = 0, 0
    async with ChannelTable() as table:
        start = time.monotonic()
        far = Consumer(table, address, 0)
        while time.monotonic() < start + seconds:
            messages = await far.fetch(wait_ms=0)
            count += len(messages)
            redirected += far.address != address
            if far.lag < 10_000:
                far = Consumer(table, address, 0)
        return {"per_second": count / (time.monotonic() - start), "redirected": float(redirected > 0)}


async def catchup(master: str, replica: str) -> dict[str, float]:
    """Wait until the replica has all that the master had at the beginning; return how long that took."""
    start = time.monotonic()
    async with ChannelTable() as table:
        end = await _end(table, master)
        while await _end(table, replica) < end:
            if time.monotonic() > start + _CATCHUP_S:
                raise TimeoutError(f"after {_CATCHUP_S:.0f} s, the replica still lacked messages of the master")
            await asyncio.sleep(0.1)
    return {"seconds": time.monotonic() - start}


async def _end(table: ChannelTable, address: str) -> int:
    answer = await table.call(address, FETCH, b"", {"offset": "0", "bytes": "1", "stay": "1"})
    return int((answer.fields or {})["max"])


def main(arguments: list[str]) -> None:
    """Run one role."""
    side, *rest = arguments
    match side:
        case "broker":
            uvloop.run(broker(int(rest[0]), str(Path(rest[1])), rest[2], rest[3]))
            return
        case "producer":
            outcome = uvloop.run(producer(rest[0], float(rest[1]), float(rest[2])))
        case "consumer":
            outcome = uvloop.run(consumer(rest[0], float(rest[1]), int(rest[2])))
        case "catchup":
            outcome = uvloop.run(catchup(rest[0], rest[1]))
        case _:
            outcome = uvloop.run(reader(rest[0], float(rest[1])))
    print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
