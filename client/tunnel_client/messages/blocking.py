"""How a class for threads is made of one for asyncio: its methods run in the loop thread of this process."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from functools import wraps
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, TypeVar

from tunnel.messages import ChannelClosedError
from tunnel_client.sockets.loop_thread import is_inside, loop_thread, refuse_eventlet

__all__ = [
    "LINGER_S",
    "Blocking",
    "LoopRunner",
    "Shown",
    "blocking",
    "check_socket",
    "end_stream",
    "open_stream",
    "submitting",
]

LINGER_S = 10.0  # how long `close` waits until what was written is in the kernel's buffer

_T = TypeVar("_T")
_P = ParamSpec("_P")
_Inner = TypeVar("_Inner")


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


class Blocking(Generic[_Inner]):
    """A class for threads. `inner` is the object of asyncio that does its work in the loop of `runner`."""

    runner: LoopRunner
    inner: _Inner


def blocking(
    method: Callable[Concatenate[_Inner, _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate[Blocking[_Inner], _P], _T]:
    """Return a method that runs one of `inner`, and waits for its result. An interrupt cancels it."""

    @wraps(method)
    def run(self: Blocking[_Inner], /, *arguments: _P.args, **options: _P.kwargs) -> _T:
        return self.runner.run(method(self.inner, *arguments, **options))

    return run


def submitting(
    method: Callable[Concatenate[_Inner, _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate[Blocking[_Inner], _P], Future[_T]]:
    """Return a method that runs one of `inner` without waiting. Cancelling its future cancels that method."""

    @wraps(method)
    def submit(self: Blocking[_Inner], /, *arguments: _P.args, **options: _P.kwargs) -> Future[_T]:
        return self.runner.submit(method(self.inner, *arguments, **options))

    return submit


class Shown(Generic[_Inner, _T]):
    """An attribute that shows one of `inner`."""

    def __init__(self, get: Callable[[_Inner], _T]) -> None:
        self._get = get

    def __get__(self, face: Blocking[_Inner], owner: type) -> _T:
        return self._get(face.inner)

    def __set__(self, face: Blocking[_Inner], value: object) -> NoReturn:
        raise AttributeError("this attribute can only be read")


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
