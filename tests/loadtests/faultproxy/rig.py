"""A fault proxy between real sockets in one event loop: an origin that records its requests, and bare clients."""

import asyncio
import contextlib
import functools
import socket
import struct
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ParamSpec, Self

from loadtests.faultproxy import FaultProxy, FaultProxyOptions
from tunnel.traces.record import TraceRecord

__all__ = [
    "Answer",
    "Client",
    "Handler",
    "Origin",
    "Received",
    "Rig",
    "ended",
    "in_loop",
    "read_body",
    "read_head",
    "reset",
]

STREAM_BYTES_MAX = 1 << 20
DEADLINE_S = 60  # only a hanging test reaches it

P = ParamSpec("P")


@dataclass
class Received:
    """A request as the origin received it. `complete`: whether it came to its end."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes = b""
    complete: bool = False
    connection: int = 0


@dataclass
class Answer:
    """A response as a client received it. `complete`: whether it came to its end."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    complete: bool = False


Handler = Callable[[Received, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def in_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run the test in a loop of its own; fail it also for errors that only the loop's exception handler sees."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        problems: list[dict[str, Any]] = []

        async def watched() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
            async with asyncio.timeout(DEADLINE_S):
                await test(*args, **kwargs)

        asyncio.run(watched())
        assert problems == []

    return run


async def read_head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]]:
    """Read the first line and the headers, names in lower case. Raise IncompleteReadError at the end of the stream."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
    return first, {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}


async def read_body(
    reader: asyncio.StreamReader, headers: dict[str, str], *, to_end: bool = False
) -> tuple[bytes, bool]:
    """Read a body; return the bytes that arrived, and whether it was complete."""
    body = b""
    try:
        if headers.get("transfer-encoding") == "chunked":
            while size := int(await reader.readuntil(b"\r\n"), 16):
                body += await reader.readexactly(size)
                await reader.readexactly(2)
            await reader.readuntil(b"\r\n")
        elif to_end and "content-length" not in headers:
            body = await reader.read(-1)
        else:
            body = await reader.readexactly(int(headers.get("content-length", "0")))
    except asyncio.IncompleteReadError as error:
        return body + error.partial, False
    except ConnectionError:
        return body, False
    return body, True


async def ended(reader: asyncio.StreamReader) -> bytes | None:
    """Return all data until the peer's end of stream, or None if it resets the connection."""
    try:
        return await reader.read(-1)
    except ConnectionError:
        return None


def reset(writer: asyncio.StreamWriter) -> None:
    """Close the connection with RST."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def echo(request: Received, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The default handler of an origin: answer with the body of the request."""
    body = request.body or b"nothing"
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nX-Target: {request.target}\r\n\r\n"
    writer.write(head.encode() + (b"" if request.method == "HEAD" else body))


class Origin:
    """A web server. `received` has every request, also those that were cut; `arrivals` yields them as they end, and one
    that waits for 100 Continue when its head has come."""

    def __init__(self, handler: Handler = echo) -> None:
        self.handler = handler
        self.received: list[Received] = []
        self.arrivals: asyncio.Queue[Received] = asyncio.Queue()
        self.connections = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=STREAM_BYTES_MAX)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._server.sockets[0].getsockname()
        return host, port

    @property
    def url(self) -> str:
        return "http://{}:{}".format(*self.address)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._tasks.append(asyncio.ensure_future(self._serve(reader, writer, self.connections)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int) -> None:
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while not writer.is_closing():
                    await self._request(reader, writer, connection)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int) -> None:
        first, headers = await read_head(reader)
        method, target, _ = first.split(" ")
        request = Received(method, target, headers, connection=connection)
        self.received.append(request)
        if "expect" not in headers:
            request.body, request.complete = await read_body(reader, headers)
        self.arrivals.put_nowait(request)
        if request.complete or "expect" in headers:
            await self.handler(request, reader, writer)
            await writer.drain()


class Client:
    """A bare client connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        """Send these bytes. A broken connection shows when the test reads."""
        self.writer.write(data)
        with contextlib.suppress(ConnectionError):
            await self.writer.drain()

    async def request(self, method: str = "POST", target: str = "/", body: bytes | None = None, **headers: str) -> None:
        """Send a request, with Content-Length if it has a body. Underscores in names of headers stand for hyphens."""
        lines = [f"{method} {target} HTTP/1.1", "Host: origin.test"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        await self.send("\r\n".join([*lines, "", ""]).encode() + (body or b""))

    async def chunked(self, *chunks: bytes, target: str = "/", end: bool = True) -> None:
        """Send a POST request with these chunks; the final chunk only if `end`."""
        await self.send(f"POST {target} HTTP/1.1\r\nHost: origin.test\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        for chunk in chunks:
            await self.send(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        if end:
            await self.send(b"0\r\n\r\n")

    async def answer(self, *, bodiless: bool = False) -> Answer:
        """Return the next response. Raise IncompleteReadError if the connection ends before it."""
        first, headers = await read_head(self.reader)
        status = int(first.split(" ")[1])
        if bodiless or status < 200:
            return Answer(status, headers, complete=True)
        body, complete = await read_body(self.reader, headers, to_end=True)
        return Answer(status, headers, body, complete)

    async def post(self, body: bytes, target: str = "/", **headers: str) -> Answer:
        """Send a request and return its response."""
        await self.request("POST", target, body, **headers)
        return await self.answer()

    async def ended(self) -> bytes | None:
        """Return all data until the proxy ends the connection, or None if it resets it."""
        return await ended(self.reader)

    async def ended_or_answered(self) -> None:
        """Wait for the end of the connection or for a whole answer, whichever comes first."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await self.answer()

    async def close(self) -> None:
        """Close the connection."""
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


class Rig:
    """An origin, a proxy in front of it with these options, and the records of what the proxy did."""

    def __init__(self, handler: Handler = echo, **options: Any) -> None:
        self.origin = Origin(handler)
        self.records: list[TraceRecord] = []
        self._options = options
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.origin)
        options = FaultProxyOptions(**{"upstream": self.origin.address, "seed": 1, **self._options})
        self.proxy = await self._stack.enter_async_context(FaultProxy(options, trace=self.records.append))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def connect(self, address: tuple[str, int] | None = None) -> Client:
        """Return a new client of the proxy, or of the server at `address`. The rig closes it at its own end."""
        host, port = address or self.proxy.address
        client = Client(*await asyncio.open_connection(host, port, limit=STREAM_BYTES_MAX))
        self._stack.push_async_callback(client.close)
        return client

    async def turns(self, count: int = 30) -> None:
        """Let time pass: make `count` round trips to another server; the proxy gets turns of the loop meanwhile."""
        async with Origin() as other:
            client = await self.connect(other.address)
            for _ in range(count):
                await client.post(b"tick")

    @property
    def faults(self) -> list[tuple[str, int, str]]:
        """The cause (or else the event), exchange and text of every record."""
        return [(record.cause or record.event, record.exchange, record.text) for record in self.records]
