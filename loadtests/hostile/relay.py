"""A relay that reports what its users cost it: `python -m loadtests.hostile.relay -c FILE`.

Each line that comes to the control port is answered with a line of JSON (`Cost`): the state at that moment, and in
`turn_ms` and `collector_ms` the longest ones since the line before.
"""

import argparse
import asyncio
import os
import re
import sys
import tempfile
from pathlib import Path

import msgspec
import structlog

from tunnel.process.command_line import configure_log
from tunnel.process.event_loops import new_event_loop
from tunnel.process.malloc import give_back_freed_memory
from tunnel_servlet.command.files import load_config
from tunnel_servlet.web.running import RunningRelay

__all__ = ["Cost", "ask_cost", "main", "memory_bytes"]

_log = structlog.get_logger("hostile")


class Cost(msgspec.Struct, frozen=True):
    """Memory and counts that the relay keeps for its users, the most processor time of one user in one turn of its
    event loop, and the processor time of the longest run of Python's collector, for which no user pays."""

    turn_ms: float
    collector_ms: float
    rss_bytes: int
    used_bytes: int  # `rss_bytes` less what malloc has returned, and less what is free in Python's own allocator
    users: int
    connections: int
    waiting_bytes: int  # of unfinished bodies and batches, and of unread answers
    held_bytes: int  # of packets in mailboxes


async def ask_cost(port: int) -> Cost:
    """Ask a relay at its control port."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"\n")
        return msgspec.json.decode(await reader.readline(), type=Cost)
    finally:
        writer.close()
        await writer.wait_closed()


def memory_bytes() -> tuple[int, int]:
    """Return the memory of this process, and the part that is in use once malloc has returned what is free."""
    rss_bytes = _rss_bytes()
    give_back_freed_memory()
    return rss_bytes, _rss_bytes() - _free_bytes()


def _rss_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def _free_bytes() -> int:
    """Return the bytes that are free in the arenas of Python's own allocator, which returns a MiB only when no object
    is left in it. The allocator reports its free bytes only on standard error."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as file:
        error = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            sys._debugmallocstats()  # noqa: SLF001 - nothing else tells it
        finally:
            os.dup2(error, 2)
            os.close(error)
        file.seek(0)
        report = file.read().decode()
    arenas = re.search(r"arenas \* \d+ bytes/arena *= *([\d,]+)", report)
    used = re.search(r"bytes in allocated blocks *= *([\d,]+)", report)
    if arenas is None or used is None:  # with PYTHONMALLOC=malloc there are no arenas
        return 0
    return int(arenas[1].replace(",", "")) - int(used[1].replace(",", ""))


def _cost(running: RunningRelay) -> Cost:
    host, connections = running.relay.host, running.connections
    stats, (rss_bytes, used_bytes) = host.switch.stats(), memory_bytes()
    peak_us, host.turns.peak_us = host.turns.peak_us, 0
    collector_s, host.collector.longest_s = host.collector.longest_s, 0.0
    return Cost(
        turn_ms=peak_us / 1000,
        collector_ms=collector_s * 1000,
        rss_bytes=rss_bytes,
        used_bytes=used_bytes,
        users=stats.users,
        connections=connections.total,
        waiting_bytes=connections.held_bytes,
        held_bytes=stats.bytes_held,
    )


async def _run(file: str) -> None:
    async with RunningRelay(load_config(file)) as running:

        async def control(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while await reader.readline():
                writer.write(msgspec.json.encode(_cost(running)) + b"\n")
                await writer.drain()
            writer.close()

        async with await asyncio.start_server(control, "127.0.0.1", 0) as server:
            _log.info("costs", control=server.sockets[0].getsockname()[1])
            await running.stopped.wait()


def main(arguments: list[str] | None = None) -> int:
    """Run the relay until it is killed."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.hostile.relay", description=__doc__)
    parser.add_argument("-c", "--config", required=True, metavar="FILE")
    options = parser.parse_args(arguments)
    configure_log("info")
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_run(options.config))
    return 0


if __name__ == "__main__":
    sys.exit(main())
