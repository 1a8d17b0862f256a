"""Requests and responses over blocking sockets: a channel for one socket, and a table with one channel per address."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeAlias

from tunnel.messages import CallChannel, CallHandler, ChannelTable, Request, Response, split_address
from tunnel.messages.calls.channels import CONNECT_TIMEOUT_S
from tunnel.messages.life import Closeable
from tunnel_client.messages.blocking import (
    Blocking,
    LoopRunner,
    Shown,
    blocking,
    check_socket,
    end_stream,
    open_stream,
    submitting,
)
from tunnel_client.sockets.tunnel_socket import create_connection

__all__ = ["BlockingChannel", "BlockingHandler", "BlockingTable", "Connect"]

_THREADS = 8  # for handlers: at most this many requests of one peer are handled at once
_DIALS = 8  # addresses that one table dials at once, at most

BlockingHandler: TypeAlias = Callable[[Request], Response | None]
"""A function that answers requests, in a thread. It raises RemoteCallError to answer with an error code."""

Connect: TypeAlias = Callable[[str], socket.socket]
"""Opens a blocking socket to an address. It should take no longer than the `connect_timeout` of the table."""


class BlockingChannel(Closeable, Blocking[CallChannel]):
    """Requests and responses over one connected socket, which it owns from now on. Close it, or use it in `with`.

    Any number of threads may call at once; an opaque id matches each response to its call. `handlers` maps request
    codes to the functions that answer the peer's requests, in at most `threads` threads. `call` waits for the response,
    `submit` returns its future; cancelling that, a timeout and an interrupt cancel the peer's handler. They raise
    ChannelClosedError if the connection ends, or another thread closes it.
    """

    is_open = Shown[CallChannel, bool](lambda channel: channel.is_open)
    error = Shown[CallChannel, Exception | None](lambda channel: channel.error)
    call = blocking(CallChannel.call)
    submit = submitting(CallChannel.call)
    send = blocking(CallChannel.send)

    def __init__(
        self,
        sock: socket.socket,
        handlers: Mapping[int, BlockingHandler] | None = None,
        *,
        threads: int = _THREADS,
    ) -> None:
        self.runner = LoopRunner()
        check_socket(sock)
        self._pool = ThreadPoolExecutor(threads, "tunnel-handler")
        self.inner, self._writer = self.runner.run(self._open(sock, handlers or {}))

    async def _open(
        self, sock: socket.socket, handlers: Mapping[int, BlockingHandler]
    ) -> tuple[CallChannel, asyncio.StreamWriter]:
        reader, writer = await open_stream(sock)
        channel = CallChannel(reader, writer, {code: self._in_thread(handler) for code, handler in handlers.items()})
        channel.start()
        return channel, writer

    def _in_thread(self, handler: BlockingHandler) -> CallHandler:
        # A request that the peer cancels is not handled if it still waits for a thread; a thread cannot be stopped.
        return lambda request: self.runner.loop.run_in_executor(self._pool, handler, request)

    def wait_closed(self, timeout: float | None = None) -> bool:
        """Wait until the connection has ended; return False if it has not ended within `timeout` seconds."""
        return self.runner.run(self._wait_closed(timeout))

    async def _wait_closed(self, seconds: float | None) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.inner.wait_closed()
        return not self.inner.is_open

    def close(self) -> None:
        """End the connection. Calls that wait in other threads fail with ChannelClosedError. Harmless when repeated."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.runner.run(self._close())

    async def _close(self) -> None:
        await self.inner.close()
        await end_stream(self._writer)


class BlockingTable(Closeable, Blocking[ChannelTable]):
    """One channel per address, shared by all threads: dialled once, and again when it has ended. Use it in `with`.

    `connect` opens the sockets; without it, a TunnelSocket connects to the address: "host:port", or the name of a
    service. `call` sends a request to an address; the time to connect does not count towards its `timeout`.
    """

    call = blocking(ChannelTable.call)

    def __init__(self, connect: Connect | None = None, *, connect_timeout: float = CONNECT_TIMEOUT_S) -> None:
        self.runner = LoopRunner()
        self._connect = connect or (lambda address: create_connection(split_address(address), connect_timeout))
        # `connect` must not run in the loop's own threads: it may need one of them to resolve the relay's name.
        self._dials = ThreadPoolExecutor(_DIALS, "tunnel-dial")
        self.inner = ChannelTable(self._dial, connect_timeout=connect_timeout)

    async def _dial(self, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        dialling = self._dials.submit(self._connect, address)
        try:
            sock = await asyncio.wrap_future(dialling)
        except asyncio.CancelledError:
            dialling.add_done_callback(_close_late)
            raise
        check_socket(sock)
        return await open_stream(sock)

    def close(self) -> None:
        """Close every channel. Calls that wait in other threads fail with ChannelClosedError."""
        self.runner.run(self.inner.close())
        self._dials.shutdown(wait=False, cancel_futures=True)


def _close_late(dialling: Future[socket.socket]) -> None:
    """Close a socket that was connected after its caller had given up."""
    if not dialling.cancelled() and dialling.exception() is None:
        dialling.result().close()
