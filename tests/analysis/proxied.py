"""A real client, relay and fault proxy on loopback, all of them traced, and the faults that the proxy reports."""

from __future__ import annotations

import asyncio
from pathlib import Path

import tunnel
from loadtests.faultproxy import Drop, FaultProxy, FaultProxyOptions
from tests.servlet.rig import TOKENS, settings
from tests.support.targets import echo
from tunnel.traces.writer import TraceWriter
from tunnel_servlet.config import ListenAddress, RelayConfig
from tunnel_servlet.web.running import RunningRelay

__all__ = ["talk_through_faults"]

SIZE = 400_000
ROUNDS = 60
WAIT_S = 120.0


async def _talk(directory: Path) -> dict[str, int]:
    config: RelayConfig = settings(trace=str(directory))
    with TraceWriter(directory, name="client") as client_trace, TraceWriter(directory, name="proxy") as proxy_trace:
        async with RunningRelay(config) as relay:
            address: ListenAddress = relay.addresses[0]
            options = FaultProxyOptions(
                upstream=(address.host, address.port), drop_request=Drop(0.05), drop_response=Drop(0.05), seed=3
            )
            async with (
                FaultProxy(options, trace=proxy_trace) as proxy,
                tunnel.attach(
                    f"http://{address}", proxy=None, token=TOKENS["ann"], carrier="poll", trace=client_trace
                ) as service,
                tunnel.attach(
                    proxy.url, proxy=None, token=TOKENS["ann"], carrier="poll", name="faulty", trace=client_trace
                ) as client,
            ):
                await service.start_server(echo, "reports")
                reader, writer = await client.open_connection("reports")
                async with asyncio.timeout(WAIT_S):
                    for number in range(ROUNDS):
                        data = bytes([number % 251]) * (SIZE // ROUNDS)
                        writer.write(data)
                        assert await reader.readexactly(len(data)) == data
                    writer.close()
            return {name: count for name, count in proxy.counts.faults.items() if count}


def talk_through_faults(directory: Path) -> dict[str, int]:
    """Write the traces to the directory; return the number of faults by name."""
    directory.mkdir(parents=True, exist_ok=True)
    return asyncio.run(_talk(directory))
