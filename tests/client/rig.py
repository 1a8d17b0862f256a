"""A relay and its targets in a thread of their own, so that tests call commands in the main thread."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.servlet.rig import TOKENS, settings
from tunnel_servlet.access.grants import Grant, GrantTable
from tunnel_servlet.access.rules import parse_rule
from tunnel_servlet.config import RelayConfig
from tunnel_servlet.switch.decisions import PacketFilter
from tunnel_servlet.web.running import RunningRelay

__all__ = ["TOKEN", "Background", "Rig", "connect", "echo", "greet"]

TOKEN = TOKENS["ann"]
_T = TypeVar("_T")
_WAIT_S = 60.0
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Background:
    """An event loop in a thread. `call` runs a coroutine there, `enter` keeps a context open until the end."""

    def __enter__(self) -> Self:
        self.loop = asyncio.new_event_loop()
        self._contexts = AsyncExitStack()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.call(self._contexts.aclose())
        self.call(self._cancel())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_WAIT_S)
        self.loop.close()

    def call(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the thread; return its result or raise its error."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(_WAIT_S)

    def enter(self, context: AbstractAsyncContextManager[_T]) -> _T:
        """Enter a context in the thread; return its value."""
        return self.call(self._contexts.enter_async_context(context))

    def serve(self, handler: Handler) -> int:
        """Start a TCP server on loopback; return its port."""

        async def start() -> int:
            server = await asyncio.start_server(handler, "127.0.0.1", 0)
            self._contexts.push_async_callback(_close, server)
            port: int = server.sockets[0].getsockname()[1]
            return port

        return self.call(start())

    async def _cancel(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # A closed server does not close what it has accepted: connections that are still in their TLS handshake, and
        # those whose handler was cancelled. The loop would warn of them in the middle of a later test.
        accepted: Mapping[int, asyncio.Transport] = getattr(self.loop, "_transports", {})
        for transport in list(accepted.values()):
            transport.abort()
        await asyncio.sleep(0)


async def _close(server: asyncio.Server) -> None:
    server.close()


class Rig(Background):
    """A Background with a relay. By default, ann may reach this machine and all services there, and listen as
    `reports`."""

    def __init__(self, config: RelayConfig | None = None, packet_filter: PacketFilter | None = None) -> None:
        allowed = tuple(map(parse_rule, ("127.0.0.0/8:*", "localhost:*", "nowhere.invalid:*")))
        policy = GrantTable({"ann": Grant(connect=allowed, services=("*",), listen=("reports",))})
        self._config = config or settings(exit="inline", grants=policy)
        self._packet_filter = packet_filter

    def __enter__(self) -> Self:
        super().__enter__()
        self.running: RunningRelay = self.call(self._start())
        self.url = f"http://{self.running.addresses[0]}"
        return self

    async def _start(self) -> RunningRelay:
        return await self._contexts.enter_async_context(RunningRelay(self._config, packet_filter=self._packet_filter))

    def environment(self) -> dict[str, str]:
        """The environment variables that a command needs."""
        return {"TUNNEL_RELAY": self.url, "TUNNEL_TOKEN": TOKEN}


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Echo until the end of the stream."""
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a greeting, end the stream at once, then read to the end."""
    try:
        writer.write(b"hello\n")
        writer.write_eof()
        await reader.read()
    except ConnectionError:
        pass
    finally:
        writer.close()


@contextlib.contextmanager
def connect(rig: Rig, target: str, *options: str, **streams: int) -> Iterator[subprocess.Popen[bytes]]:
    command: Sequence[str] = [sys.executable, "-m", "tunnel_client", "connect", target, *options]
    environment = {**os.environ, **rig.environment()}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    child = subprocess.Popen(command, env=environment, **pipes)  # type: ignore[call-overload]
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout, child.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
