"""Servers that tests connect to, over TCP or a Unix socket."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

__all__ = ["Serve", "echo", "target", "unix_target"]

LOOPBACK = "127.0.0.1"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send back what comes, until it ends."""
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


@asynccontextmanager
async def target(serve: Serve) -> AsyncIterator[int]:
    """Run a TCP server; yields its port. Leaving the context waits for its connections to end."""
    async with _serving(serve, lambda run: asyncio.start_server(run, LOOPBACK, 0)) as server:
        yield server.sockets[0].getsockname()[1]


@asynccontextmanager
async def unix_target(serve: Serve, path: str) -> AsyncIterator[None]:
    """Run a server on a Unix socket. Leaving the context waits for its connections to end."""
    async with _serving(serve, lambda run: asyncio.start_unix_server(run, path)):
        yield


@asynccontextmanager
async def _serving(serve: Serve, start: Callable[[Serve], Awaitable[asyncio.Server]]) -> AsyncIterator[asyncio.Server]:
    tasks: list[asyncio.Task[None]] = []

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())  # type: ignore[arg-type]  # a coroutine runs in a task
        try:
            with suppress(ConnectionError):
                await serve(reader, writer)
        finally:
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    server = await start(run)
    try:
        yield server
    finally:
        server.close()
        await asyncio.gather(*tasks, return_exceptions=True)
