"""A minimal upstream HTTP proxy: CONNECT, and plain requests with an absolute URL."""

import asyncio
import base64
import contextlib
from functools import partial
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

__all__ = ["UpstreamProxy", "splice"]


class UpstreamProxy:
    """`heads`: the first request of each connection. With `user`, the proxy demands Basic credentials."""

    def __init__(self, *, user: str = "", port: int = 0) -> None:
        self.heads: list[bytes] = []
        self.port = port
        self.demand(user)
        self._tasks: dict[asyncio.Task[None], None] = {}

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def demand(self, user: str) -> None:
        """Demand these credentials (USER:PASSWORD) from now on; none if the text is empty."""
        self._credentials = base64.b64encode(user.encode()) if user else b""

    def cut(self) -> None:
        """Cut all connections. New ones are accepted."""
        for task in list(self._tasks):
            task.cancel()

    async def dial(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a target."""
        return await asyncio.open_connection(host, port)

    def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._connection(reader, writer))
        self._tasks[task] = None
        task.add_done_callback(partial(self._end, writer))

    def _end(self, writer: asyncio.StreamWriter, task: asyncio.Task[None]) -> None:
        writer.close()  # the task may have been cancelled before its first step
        self._tasks.pop(task, None)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            if self._credentials and b"Proxy-Authorization: Basic " + self._credentials not in head:
                writer.write(b"HTTP/1.1 407 Who are you\r\nContent-Length: 0\r\n\r\n")
                await writer.drain()
                return
            method, target, _ = head.split(b" ", 2)
            host, port = urlsplit(target if b"://" in target else b"//" + target).netloc.rsplit(b":", 1)
            far_reader, far_writer = await self.dial(host.decode(), int(port))
            with contextlib.closing(far_writer):
                if method == b"CONNECT":
                    writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
                else:
                    far_writer.write(head)
                await asyncio.gather(splice(reader, far_writer), splice(far_reader, writer))


async def splice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on until they end."""
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()
