"""A broker that reports what its users cost it: `python -m loadtests.hostile.broker --dir DIR`.

It has a control port as `loadtests.hostile.relay` has one.
"""

import argparse
import asyncio
import gc
import sys
from pathlib import Path

import msgspec
import structlog

from loadtests.hostile.relay import Cost, memory_bytes
from tunnel.messages import Broker, TopicSpec
from tunnel.process.command_line import configure_log
from tunnel.process.event_loops import new_event_loop

__all__ = ["PINGS", "SHARED", "main"]

PINGS, SHARED = "pings", "shared"
"""Topics: the victim's messages are in the first, in memory; the second is on disk, for all."""

_log = structlog.get_logger("hostile")


def _cost(broker: Broker) -> Cost:
    users = broker.users
    peak_us, users.turns.peak_us = users.turns.peak_us, 0
    collector_s, users.collector.longest_s = users.collector.longest_s, 0.0
    gc.collect()  # tasks that were cancelled are cycles
    rss_bytes, used_bytes = memory_bytes()
    return Cost(
        turn_ms=peak_us / 1000,
        collector_ms=collector_s * 1000,
        rss_bytes=rss_bytes,
        used_bytes=used_bytes,
        users=len(users.connections.of_user),
        connections=users.connections.total,
        waiting_bytes=users.requests.total,
        held_bytes=broker.topics.memory_held_bytes,
    )


async def _run(directory: Path) -> None:
    topics = {PINGS: TopicSpec(storage="memory", messages_max=1000), SHARED: TopicSpec()}
    async with Broker(directory, topics=topics) as broker:

        async def control(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while await reader.readline():
                writer.write(msgspec.json.encode(_cost(broker)) + b"\n")
                await writer.drain()
            writer.close()

        async with await asyncio.start_server(control, "127.0.0.1", 0) as server:
            address = await broker.listen("127.0.0.1", 0)
            _log.info("costs", control=server.sockets[0].getsockname()[1], address=address)
            await asyncio.Event().wait()


def main(arguments: list[str] | None = None) -> int:
    """Run the broker until it is killed."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.hostile.broker", description=__doc__)
    parser.add_argument("--dir", required=True, type=Path, metavar="DIR")
    options = parser.parse_args(arguments)
    configure_log("info")
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_run(options.dir))
    return 0


if __name__ == "__main__":
    sys.exit(main())
