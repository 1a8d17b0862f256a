"""Shared by the tests of the field: a TCP server in the loop of the test."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

__all__ = ["serving"]

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[int]:
    """Serve at a port; wait for the end of every connection."""
    tasks: list[asyncio.Task[Any] | None] = []

    async def tracked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        await serve(reader, writer)

    server = await asyncio.start_server(tracked, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        await asyncio.gather(*[task for task in tasks if task is not None])
