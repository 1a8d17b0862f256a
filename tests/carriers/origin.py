"""An HTTP server that gives every request the same answer, and records what reached it."""

import asyncio
import contextlib
import re
import ssl
from functools import partial
from typing import Any, Self

from tests.support.certificates import server_tls

__all__ = ["Origin", "answer", "optional_certificates"]

_HEAD_BYTES_MAX = 1 << 20


def answer(status: str, body: bytes = b"", **headers: str) -> bytes:
    """Return the bytes of a response, with the length of its body."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *(f"{key}: {text}" for key, text in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


def optional_certificates() -> ssl.SSLContext:
    """Return a server's TLS context that asks for a client certificate, but admits clients without one."""
    context = server_tls(client_certificates=True)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


class Origin:
    """`heads` and `ports`: the head of each request, and the client's port. `certificates`: the client's certificate
    of each connection, empty or None if it has none.

    `ended` receives the port of each connection that the client has ended.
    """

    def __init__(self, response: bytes, *, tls: ssl.SSLContext | None = None) -> None:
        self.response = response
        self.heads: list[str] = []
        self.ports: list[int] = []
        self.certificates: list[Any] = []
        self.ended: asyncio.Queue[int] = asyncio.Queue()
        self._tls = tls
        self._tasks: dict[asyncio.Task[None], None] = {}

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._tls, limit=_HEAD_BYTES_MAX)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks[task] = None
        task.add_done_callback(partial(self._end, writer))

    def _end(self, writer: asyncio.StreamWriter, task: asyncio.Task[None]) -> None:
        writer.close()  # the task may have been cancelled before its first step
        self._tasks.pop(task, None)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.certificates.append(writer.get_extra_info("peercert"))
        port = writer.get_extra_info("peername")[1]
        with contextlib.closing(writer):
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    head = (await reader.readuntil(b"\r\n\r\n")).decode()
                    self.heads.append(head)
                    self.ports.append(port)
                    length = re.search(r"(?i)\r\nContent-Length: (\d+)", head)
                    await reader.readexactly(int(length[1]) if length else 0)
                    await self.respond(writer)
            self.ended.put_nowait(port)

    async def respond(self, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        writer.write(self.response)
        await writer.drain()
