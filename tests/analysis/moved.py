"""Three real relays on loopback that drain one after the other, so that open connections move twice."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import tunnel
from tests.servlet.rig import TOKENS, settings
from tests.support.loops import until
from tests.support.targets import echo
from tunnel.traces.writer import TraceWriter
from tunnel_servlet.web.running import RunningRelay

__all__ = ["CONNECTIONS", "RELAYS", "write_moves"]

RELAYS = 3
CONNECTIONS = 8
CHUNK = b"m" * 4_000
ROUNDS = 20  # of one chunk there and back, before each move and after the last one
WAIT_S = 120.0


async def _rounds(streams: list[tuple[tunnel.StreamReader, tunnel.StreamWriter]]) -> None:
    async def talk(reader: tunnel.StreamReader, writer: tunnel.StreamWriter) -> None:
        for _ in range(ROUNDS):
            writer.write(CHUNK)
            assert await reader.readexactly(len(CHUNK)) == CHUNK

    await asyncio.gather(*(talk(*each) for each in streams))


async def _drained(relay: RunningRelay) -> None:
    relay.drain(WAIT_S)
    await until(lambda: not relay.relay.host.switch.stats().routes)


async def _move(directory: Path) -> None:
    async with AsyncExitStack() as stack:
        traces = [stack.enter_context(TraceWriter(directory, name=name)) for name in ("service", "client")]
        relays = [await stack.enter_async_context(RunningRelay(settings(trace=str(directory)))) for _ in range(RELAYS)]
        first, *others = (f"http://{relay.addresses[0]}" for relay in relays)
        common: dict[str, Any] = {
            "proxy": None,
            "token": TOKENS["ann"],
            "further_relays": [(url, TOKENS["ann"]) for url in others],
        }
        service, client = [
            await stack.enter_async_context(tunnel.attach(first, **common, name=name, trace=trace, same_users=True))
            for name, trace in zip(("service", "client"), traces, strict=True)
        ]
        await service.start_server(echo, "reports")
        await until(lambda: all(relay.attached for relay in service.stats().relays))
        streams = [await client.open_connection("reports") for _ in range(CONNECTIONS)]
        for relay in relays[:-1]:
            await _rounds(streams)
            await _drained(relay)
        await _rounds(streams)
        for _, writer in streams:
            writer.close()
        await until(lambda: not service.stats().connections)


def write_moves(directory: Path) -> None:
    """Write the traces of all three relays and both ends to the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    asyncio.run(asyncio.wait_for(_move(directory), WAIT_S))
