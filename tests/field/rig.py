"""Shared by the tests of the field: a TCP server in the loop of the test."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.field.messages import Head, encode, read_body, read_head
from tests.field.scripted import Behaviour, ScriptedProxy

__all__ = ["Client", "Connect", "a_front", "a_proxy", "answer_all", "serving"]

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


_WAIT_S = 20  # only a hanging proxy reaches it


async def answer_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer with the names of the request's fields, its version, and its body."""
    head = await read_head(reader)
    assert head is not None
    body = await read_body(reader, head, is_answer=False)
    fields = {"x-fields": " ".join(head.fields), "x-version": head.words[2]}
    writer.write(encode("HTTP/1.1 200 OK", fields, body, {}))
    await writer.drain()
    writer.close()


Connect = Callable[[], Awaitable["Client"]]


class Client:
    """A client's connection to the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, body: bytes = b"", fields: dict[str, str] | None = None) -> tuple[Head, bytes]:
        self.writer.write(encode("POST /x HTTP/1.1", {"host": "h", "authorization": "a", **(fields or {})}, body, {}))
        head = await read_head(self.reader)
        if head is None:
            raise ConnectionResetError
        return head, await read_body(self.reader, head, is_answer=True)

    async def statuses(self, count: int) -> str:
        return " ".join([(await self.ask())[0].words[1] for _ in range(count)])


@asynccontextmanager
async def a_front(behaviour: Behaviour, upstream: int) -> AsyncIterator[Connect]:
    """A proxy in front of that port; yields a function that connects a client. At the end no connection is left."""
    clients: list[Client] = []
    serving: list[asyncio.Task[Any] | None] = []
    proxy = ScriptedProxy(behaviour, upstream)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.current_task())
        await proxy.serve(reader, writer)

    front = await asyncio.start_server(serve, "127.0.0.1", 0)

    async def connect() -> Client:
        clients.append(Client(*await asyncio.open_connection("127.0.0.1", front.sockets[0].getsockname()[1])))
        return clients[-1]

    async with asyncio.timeout(_WAIT_S), front:
        try:
            yield connect
        finally:
            for client in clients:
                client.writer.close()
            await asyncio.gather(*[task for task in serving if task is not None])


@asynccontextmanager
async def a_proxy(behaviour: Behaviour, answer: Serve = answer_all) -> AsyncIterator[Connect]:
    """A proxy before an upstream that answers everything."""
    upstream = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with upstream, a_front(behaviour, upstream.sockets[0].getsockname()[1]) as connect:
        yield connect
