"""The processor time that bytes, echoes and new connections take in all processes of a contender together."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack

import msgspec

from loadtests.bench.peers.contenders import LOOPBACK, Contender
from loadtests.bench.peers.weather import WEATHERS
from loadtests.bench.road_paths import start_target
from loadtests.bench.road_peer import Client
from loadtests.harness.processes import cpu_seconds

__all__ = ["Cost", "cost", "table"]

_GIB = 1024**3
_WARM_BYTES = 4 * 1024 * 1024
_WARM_ECHOES = 50
_QUIET_S = 0.3  # after a part: late ACKs, and the ends of connections, belong to it
_PART_S = 240.0


class Cost(msgspec.Struct):
    """Seconds of processor time for a GiB each way, and microseconds for an echo and for a connection, which is opened,
    echoes 64 bytes and is closed. None: the contender failed at it."""

    name: str
    up_s_per_gib: float | None = None
    down_s_per_gib: float | None = None
    echo_us: float | None = None
    connection_us: float | None = None


def cost(contender: Contender, size_bytes: int, echoes: int, connections: int) -> Cost:
    """Return what a contender costs, without faults on the path."""
    with ExitStack() as stack:
        target = int(start_target(stack))
        started = contender.start(stack, target, WEATHERS[0].front)
        pids = [process.pid for process in (started.server, *started.others)]
        return asyncio.run(_cost(contender.name, started.local_port, pids, size_bytes, echoes, connections))


async def _cost(name: str, port: int, pids: list[int], size_bytes: int, echoes: int, connections: int) -> Cost:
    async def connect() -> Client:
        _, client = await asyncio.get_running_loop().create_connection(Client, LOOPBACK, port)
        return client

    async def one_connection(count: int) -> None:
        for _ in range(count):
            client = await connect()
            await client.echo(1)
            client.close()

    found = Cost(name)
    client = await connect()
    for part in (client.up, client.down):
        await part(_WARM_BYTES)
    found.up_s_per_gib = await _seconds(pids, client.up, size_bytes, _GIB)
    found.down_s_per_gib = await _seconds(pids, client.down, size_bytes, _GIB)
    await client.echo(_WARM_ECHOES)
    client.close()
    client = await connect()
    found.echo_us = await _seconds(pids, client.echo, echoes, 1_000_000)
    client.close()
    found.connection_us = await _seconds(pids, one_connection, connections, 1_000_000)
    return found


async def _seconds(pids: list[int], part: Callable[[int], Awaitable[object]], count: int, of: int) -> float | None:
    """Return the processor time of `part(count)`, for `of` times one; None if it failed."""
    began_s = sum(map(cpu_seconds, pids))
    try:
        async with asyncio.timeout(_PART_S):
            await part(count)
    except OSError:  # includes TimeoutError
        return None
    await asyncio.sleep(_QUIET_S)
    return (sum(map(cpu_seconds, pids)) - began_s) * of / count


def table(costs: Iterable[Cost]) -> str:
    """Return the costs as text for people."""
    columns = ("s per GiB up", "s per GiB down", "us per echo", "us per connection")
    lines = [f"{'processor time':<16}" + "".join(f"{column:>19}" for column in columns)]
    for one in costs:
        values = (one.up_s_per_gib, one.down_s_per_gib, one.echo_us, one.connection_us)
        shown = ["-" if value is None else f"{value:,.{2 if value < 100 else 0}f}" for value in values]
        lines.append(f"{one.name:<16}" + "".join(f"{text:>19}" for text in shown))
    return "\n".join(lines)
