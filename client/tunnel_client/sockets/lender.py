"""Lends the tunnel of `tunnel run` to the programs that it runs. `borrowed/borrower.py` describes the protocol."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, closing, nullcontext, suppress
from typing import Any, TypeAlias

from tunnel import Attachment
from tunnel.system.tasks import KeptTasks
from tunnel_client.borrowed.pair import PAIR_TIMEOUT_S, listen_near, name_of
from tunnel_client.sockets.connector import errno_of
from tunnel_client.sockets.runtime import Runtime, connecting
from tunnel_client.status import serve_status

__all__ = ["Lender"]


Telling: TypeAlias = Callable[[Callable[[], tuple[str, str] | None]], AbstractAsyncContextManager[None]]
"""Tells a person, during a block, what `Connector.look` returns."""


class Lender:
    """Serves borrowers, the programs that use the tunnel, on a Unix socket in a folder that only this user may enter.

    Use it as a context manager. `telling` runs while it attaches.
    """

    def __init__(
        self,
        runtime: Runtime,
        command: str = "",
        loaded: Callable[[str, int], None] = lambda client, pid: None,
        telling: Telling | None = None,
    ) -> None:
        self.greeted: set[int] = set()  # ids of processes that have announced themselves as borrowers
        self.opened = 0  # connections that went through the tunnel
        self.failed = 0  # and those that could not be opened
        self._loaded = loaded  # called with the name of a client in C, and the process that has loaded it
        self._connector, self._thread = connecting(runtime).use()
        self._connector.wait = False
        self._folder = tempfile.mkdtemp(prefix="tunnel-run-")
        self._server: asyncio.Server | None = None
        self._tasks = KeptTasks()
        self._command = command  # for `tunnel status`; without arguments, which may contain secrets
        self._status = AsyncExitStack()
        self._telling = telling

    @property
    def path(self) -> str:
        """The path of the Unix socket."""
        return os.path.join(self._folder, "socket")

    def __enter__(self) -> Lender:
        try:
            attachment = self._thread.run(self._attach())
            self._thread.run(self._start(attachment))
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._thread.run(self._stop())
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _attach(self) -> Attachment:
        async with nullcontext() if self._telling is None else self._telling(self._connector.look):
            return await self._connector.attach()

    async def _start(self, attachment: Attachment) -> None:
        await self._status.enter_async_context(serve_status(attachment, f"run {self._command}".rstrip()))
        self._server = await asyncio.start_unix_server(self._serve, self.path)

    async def _stop(self) -> None:
        await self._status.aclose()
        if self._server is not None:
            self._server.close()
        await self._tasks.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.keep(task)
        # The borrower may have ended, or may send bytes that are not a request.
        with closing(writer), suppress(OSError, ValueError, KeyError, TypeError):
            question = await _read(reader)
            if "open" in question:
                await self._lend(reader, writer, question)
                return
            if "loaded" in question:
                self._loaded(str(question["loaded"]), int(question["process"]))
            else:
                self.greeted.add(int(question["hello"]))
            _write(writer, {})

    async def _lend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, question: dict[str, Any]) -> None:
        host, port = question["open"]
        with listen_near() as listener:
            listener.setblocking(False)
            _write(writer, {"port": listener.getsockname()[1]})
            claim = await _read(reader)
            near = await _accept(listener, claim["name"])
        try:
            await self._connector.open_and_join(host, port, question["timeout"], near, claim["skip"])
            self.opened += 1
            _write(writer, {})
        except OSError as error:
            self.failed += 1
            _write(writer, {"kind": _kind(error), "errno": _number(error), "text": error.strerror or str(error)})


async def _accept(listener: socket.socket, name: str) -> socket.socket:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(PAIR_TIMEOUT_S):
        while True:
            near, peer = await loop.sock_accept(listener)
            if name_of(peer) == name:
                return near
            near.close()


async def _read(reader: asyncio.StreamReader) -> dict[str, Any]:
    return dict(json.loads(await reader.readline()))


def _write(writer: asyncio.StreamWriter, value: dict[str, Any]) -> None:
    writer.write(json.dumps(value).encode() + b"\n")


def _kind(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "gaierror"
    return "timeout" if isinstance(error, TimeoutError) else "os"


def _number(error: OSError) -> int:
    """Return the error number, or 0 for a timeout without one: Python's own timeouts of sockets have none, either."""
    return 0 if isinstance(error, TimeoutError) and not error.errno else errno_of(error)
