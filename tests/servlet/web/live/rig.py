"""A relay with an admin listener, and connections through it that stay open until the test ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.servlet.rig import LOOPBACK, TOKENS, relay, settings
from tests.servlet.web.rig import SECRET
from tunnel import Attachment, StreamReader, StreamWriter, attach
from tunnel_servlet.access.grants import Grant, GrantTable
from tunnel_servlet.access.rules import parse_rule
from tunnel_servlet.web.running import RunningRelay

__all__ = ["Opener", "Streams", "attached", "echo", "inline", "opener", "reports"]

ANY = Grant(connect=(parse_rule("127.0.0.0/8:*"),), services=("*",), listen=("*",))


def inline() -> RunningRelay:
    grants = GrantTable({"ann": ANY, "bob": ANY, "exits": Grant(exit=True)})
    return relay(settings(exit="inline", admin=LOOPBACK, admin_secret=SECRET, grants=grants, switch={"settle_us": 0}))


def attached(running: RunningRelay, user: str, **options: Any) -> Any:
    return attach(f"http://{running.addresses[0]}", token=TOKENS[user], proxy=None, linger=0.1, **options)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(1 << 16):
        writer.write(chunk)
        await writer.drain()


Streams = tuple[StreamReader, StreamWriter]


class Opener:
    """Opens connections to a target that echoes."""

    def __init__(self) -> None:
        self._opened: list[Streams] = []

    async def __call__(self, client: Attachment, port: int, size: int = 5) -> Streams:
        """Open a connection and let `size` bytes come back."""
        streams = await client.open_connection("127.0.0.1", port)
        self._opened.append(streams)
        await self.echo(streams, size)
        return streams

    @staticmethod
    async def echo(streams: Streams, size: int = 5) -> None:
        reader, writer = streams
        writer.write(bytes(size))
        assert await reader.readexactly(size) == bytes(size)

    async def close(self) -> None:
        for _, writer in self._opened:
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)


@asynccontextmanager
async def opener() -> AsyncIterator[Opener]:
    """Yield an opener whose connections end with the context."""
    made = Opener()
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def reports(client: Attachment) -> AsyncIterator[None]:
    """Offer the service `reports`."""

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        writer.close()

    async with await client.start_server(serve, "reports"):
        yield
