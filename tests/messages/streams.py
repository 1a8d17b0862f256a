"""Streams for tests of messages: two ends of a socket in one loop, sessions on them, and a handler that waits."""

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tunnel.messages.calls.calls import CallHandler, Request, Response, serve_calls
from tunnel.messages.packets.session import MessageSession

__all__ = ["Gated", "Stream", "served", "session_pair", "stream_pair"]


class Gated:
    """A handler whose calls each wait at a gate, named by their body."""

    def __init__(self) -> None:
        self.gates: dict[bytes, asyncio.Event] = {}
        self.cancelled: list[bytes] = []
        self.came = asyncio.Event()

    def gate(self, body: bytes) -> asyncio.Event:
        return self.gates.setdefault(body, asyncio.Event())

    async def __call__(self, request: Request) -> Response:
        self.came.set()
        try:
            await self.gate(request.body).wait()
        except asyncio.CancelledError:
            self.cancelled.append(request.body)
            self.came.set()
            raise
        return Response(request.body.upper())


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def stream_pair() -> AsyncIterator[tuple[Stream, Stream]]:
    """Both ends of one connection, which is closed when the context ends."""
    sockets = socket.socketpair()
    ends: list[Stream] = []
    try:
        for each in sockets:
            ends.append(await asyncio.open_connection(sock=each))
        yield ends[0], ends[1]
    finally:
        for _, writer in ends:
            writer.transport.abort()
        for each in sockets[len(ends) :]:  # the caller was cancelled before this end had its streams
            each.close()
        await asyncio.sleep(0)


@asynccontextmanager
async def session_pair(**options: Any) -> AsyncIterator[tuple[MessageSession, MessageSession]]:
    """Two sessions that are connected to each other, not yet started."""
    async with stream_pair() as (near, far):
        sessions = MessageSession(*near, **options), MessageSession(*far, **options)
        try:
            yield sessions
        finally:
            for session in sessions:
                await session.close()


@asynccontextmanager
async def served(handlers: Mapping[int, CallHandler]) -> AsyncIterator[str]:
    """Answer calls over TCP; yield the address. The end of the context waits until all clients have disconnected."""
    serve = serve_calls(handlers)
    tasks: list[asyncio.Future[None]] = []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.ensure_future(serve(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield "{}:{}".format(*server.sockets[0].getsockname())
    finally:
        server.close()
        await asyncio.gather(*tasks)
        await server.wait_closed()
