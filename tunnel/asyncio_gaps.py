"""What asyncio keeps to itself: filling a BufferedProtocol, and TLS over a transport that is not the loop's own."""

import asyncio
from asyncio import base_events
from ssl import SSLContext
from typing import cast

__all__ = ["fill", "start_tls"]


def fill(protocol: asyncio.BufferedProtocol, data: memoryview) -> None:
    """Hand bytes to a protocol that brings its own buffers."""
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
    """What `loop.start_tls` does, on every loop: that of uvloop takes none but its own transports."""
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
