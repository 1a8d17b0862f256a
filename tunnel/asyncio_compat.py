"""Two operations that asyncio does not export: filling a BufferedProtocol, and TLS over any transport."""

import asyncio
from asyncio import base_events
from ssl import SSLContext
from typing import cast

__all__ = ["fill", "start_tls"]


def fill(protocol: asyncio.BufferedProtocol, data: memoryview) -> None:
    """Copy bytes into the buffers of a BufferedProtocol."""
    while len(data):
        buffer = memoryview(protocol.get_buffer(len(data))).cast("B")
        size = min(len(buffer), len(data))
        if not size:
            raise RuntimeError("get_buffer() returned an empty buffer")
        buffer[:size] = data[:size]
        data = data[size:]
        protocol.buffer_updated(size)


async def start_tls(
    transport: asyncio.Transport,
    protocol: asyncio.BaseProtocol,
    context: SSLContext,
    *,
    server_side: bool = False,
    server_hostname: str | None = None,
    ssl_handshake_timeout: float | None = None,
    ssl_shutdown_timeout: float | None = None,
) -> asyncio.Transport:
    """Upgrade a transport to TLS as `loop.start_tls` does, on any event loop.

    uvloop's own `start_tls` accepts only transports of uvloop.
    """
    loop = asyncio.get_running_loop()
    upgraded = await base_events.BaseEventLoop.start_tls(
        cast(base_events.BaseEventLoop, loop),
        transport,
        protocol,
        context,
        server_side=server_side,
        server_hostname=server_hostname,
        ssl_handshake_timeout=ssl_handshake_timeout,
        ssl_shutdown_timeout=ssl_shutdown_timeout,
    )
    assert upgraded is not None
    return upgraded
