"""A peer that answers datagrams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

__all__ = ["Peer", "peer"]


class Peer(asyncio.DatagramProtocol):
    """A UDP socket on loopback; with `echoes` it answers each datagram."""

    def __init__(self, *, echoes: bool = False) -> None:
        self.heard: asyncio.Queue[tuple[bytes, Any]] = asyncio.Queue()
        self.echoes = echoes

    def connection_made(self, transport: Any) -> None:
        self.transport: asyncio.DatagramTransport = transport
        self.port: int = transport.get_extra_info("sockname")[1]

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.heard.put_nowait((data, addr))
        if self.echoes:
            self.transport.sendto(data.upper(), addr)

    def say(self, data: bytes, port: int) -> None:
        self.transport.sendto(data, ("127.0.0.1", port))


@asynccontextmanager
async def peer(**options: Any) -> AsyncIterator[Peer]:
    loop = asyncio.get_running_loop()
    transport, found = await loop.create_datagram_endpoint(lambda: Peer(**options), local_addr=("127.0.0.1", 0))
    try:
        yield found
    finally:
        transport.close()
