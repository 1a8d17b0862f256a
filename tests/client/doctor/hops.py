"""Hops that a test scripts request by request, in front of a real relay."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from tests.client.rig import Handler, Rig

__all__ = ["Request", "connections_at_most", "hop", "one_request_at_a_time", "opening_proxy", "says"]

_HEAD_BYTES_MAX = 1 << 20
_UPGRADE = re.compile(rb"(?im)^(?:upgrade|connection):[^\n]*\n")
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")


@dataclass
class Request:
    """A request at a hop. `number` counts the requests of a `hop` from 1; `relay` is the port of the relay."""

    number: int
    head: bytes
    body: bytes
    relay: int

    async def pass_on(self) -> tuple[bytes, bytes]:
        """Ask the relay, without a header that upgrades the connection; return head and body of its answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.relay, limit=_HEAD_BYTES_MAX)
        try:
            writer.write(_UPGRADE.sub(b"", self.head) + self.body)
            head, body = await _message(reader)
        finally:
            writer.close()
        return head, body


Script = Callable[[Request], Awaitable[bytes]]
"""Returns the bytes to answer; the hop ends the connection after an answer without a length."""


def says(status: str, body: bytes = b"", **headers: str) -> bytes:
    """Return an answer of the hop itself."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {text}" for name, text in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def hop(rig: Rig, script: Script, *, closes: bool = False) -> str:
    """Start a hop and return its URL. `closes`: it ends each connection after an answer, without saying so."""
    relay = rig.running.addresses[0].port
    count = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head, body = await _message(reader)
                count += 1
                answer = await script(Request(count, head, body, relay))
                writer.write(answer)
                await writer.drain()
                if closes or not _LENGTH.search(answer) or b"\r\nConnection: close\r\n" in answer:
                    break

    return f"http://127.0.0.1:{_listen(rig, serve)}"


def connections_at_most(rig: Rig, most: int, refusal: bytes = b"") -> str:
    """Start a hop that carries `most` connections at a time and resets any further one, or answers with `refusal`;
    return its URL."""
    relay = rig.running.addresses[0].port
    live = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal live
        if live >= most:
            if refusal:
                await _message(reader)
                writer.write(refusal)
                writer.close()
            else:
                writer.transport.abort()
            return
        live += 1
        try:
            there = await asyncio.open_connection("127.0.0.1", relay)
            await asyncio.gather(_pump(reader, there[1]), _pump(there[0], writer))
        finally:
            live -= 1

    return f"http://127.0.0.1:{_listen(rig, serve)}"


def one_request_at_a_time(rig: Rig, refusal: bytes, *, drops: bool) -> str:
    """Start a hop that carries one connection at a time, and one request on it; return its URL.

    It answers on any further connection with `refusal`, or resets it if that is empty. After the answer it ends the
    connection, or `drops` what comes on it until the client ends it.
    """
    relay = rig.running.addresses[0].port
    live = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal live
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            if live and not refusal:
                writer.transport.abort()
            if live:
                await _message(reader)
                writer.write(refusal)
                return
            live += 1
            try:
                request = Request(0, *await _message(reader), relay)
                asked, left = asyncio.ensure_future(request.pass_on()), asyncio.ensure_future(_ignore(reader))
                try:
                    await asyncio.wait([asked, left], return_when=asyncio.FIRST_COMPLETED)
                    if asked.done():  # else the client has left
                        writer.write(b"".join(asked.result()))
                        await writer.drain()
                        await asyncio.wait([left], timeout=None if drops else 0)
                finally:
                    asked.cancel()
                    left.cancel()
            finally:
                live -= 1

    return f"http://127.0.0.1:{_listen(rig, serve)}"


def opening_proxy(rig: Rig, tls: ssl.SSLContext, via: str) -> str:
    """Start a forward proxy that decrypts TLS: it shows the client the certificate of `tls`, and reads the requests.

    It adds `Via` to each answer. Return its URL.
    """
    relay = rig.running.addresses[0].port

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
            await writer.start_tls(tls)
            while True:
                head, body = await Request(0, *await _message(reader), relay).pass_on()
                writer.write(head[:-2] + f"Via: {via}\r\n\r\n".encode() + body)
                await writer.drain()

    return f"http://127.0.0.1:{_listen(rig, serve)}"


async def _ignore(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(1 << 16):
            pass


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = _LENGTH.search(head)
    return head, await reader.readexactly(int(length[1])) if length else b""


def _listen(rig: Rig, handler: Handler) -> int:
    """Start a server like `Rig.serve`, but with room for the large headers that the doctor sends."""
    tasks: set[asyncio.Task[None]] = set()

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            await handler(reader, writer)

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(connection(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    @contextlib.asynccontextmanager
    async def listening() -> AsyncIterator[int]:
        server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=_HEAD_BYTES_MAX)
        yield server.sockets[0].getsockname()[1]
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    return rig.enter(listening())
