"""How the blocking classes use the loop thread of this process: they run coroutines there, and give it sockets."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from tunnel.messages import ChannelClosedError
from tunnel_client.sockets.loop_thread import is_inside, loop_thread, refuse_eventlet

__all__ = ["LINGER_S", "LoopRunner", "check_socket", "end_stream", "open_stream"]

LINGER_S = 10.0  # how long `close` waits until what was written is in the kernel's buffer

_T = TypeVar("_T")


class LoopRunner:
    """Runs coroutines in the loop thread of this process, for callers in any other of its threads."""

    def __init__(self) -> None:
        refuse_eventlet()
        self._thread = loop_thread()
        self._process = os.getpid()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that does the work."""
        return self._thread.loop

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the loop thread, and wait for its result. An interrupt cancels it."""
        self._check(coroutine)
        return self._thread.run(coroutine)

    def submit(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Run a coroutine in the loop thread without waiting. Cancelling the future cancels the coroutine."""
        self._check(coroutine)
        return self._thread.submit(coroutine)

    def _check(self, coroutine: Coroutine[Any, Any, _T]) -> None:
        if os.getpid() != self._process:
            coroutine.close()
            raise ChannelClosedError("this was opened before the fork, by the parent process: open a new one here")
        if is_inside():
            coroutine.close()
            raise RuntimeError("a thread of the tunnel itself must not wait for messages: call this from your threads")


def check_socket(sock: socket.socket) -> None:
    """Raise TypeError for a socket that an event loop cannot drive."""
    if isinstance(sock, ssl.SSLSocket):
        raise TypeError(
            "an SSLSocket must not be used by several threads at once: pass the socket below it, and let the tunnel "
            "encrypt (docs/ENCRYPTION.md)"
        )


async def open_stream(sock: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Let the loop drive a connected socket. From now on the stream owns it."""
    sock.setblocking(False)
    if sock.family == socket.AF_UNIX:
        return await asyncio.open_unix_connection(sock=sock)
    return await asyncio.open_connection(sock=sock)


async def end_stream(writer: asyncio.StreamWriter) -> None:
    """Close a stream, and wait until what was written is in the kernel's buffer, for at most LINGER_S."""
    writer.close()
    try:
        async with asyncio.timeout(LINGER_S):
            with suppress(OSError):  # the peer has gone; calls and sends have reported that
                await writer.wait_closed()
    except TimeoutError:
        writer.transport.abort()
