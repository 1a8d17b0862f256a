"""Asynchronous standard input and output, for every kind of descriptor: pipes, files, terminals, sockets.

Each descriptor has a thread that blocks on it. The event loop could watch pipes but not files, and only with O_NONBLOCK
set, which a terminal would share with the shell that started us.
"""

import asyncio
import contextlib
import os
import select
import socket
import stat
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

__all__ = ["Blocking", "Input", "Output"]

READ_BYTES = 64 * 1024  # the capacity of a pipe
_T = TypeVar("_T")


class Blocking:
    """A daemon thread that runs blocking calls in turn. A call that never returns does not keep the process alive."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    async def call(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Run the function in the thread and return its result. Cancelling ends only the wait, not the call."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()

        def settle(result: _T | None, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]

        def work() -> None:
            result, failure = None, None
            try:
                result = function(*arguments)
            except BaseException as error:
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop is closed, so no caller waits
                loop.call_soon_threadsafe(settle, result, failure)

        self._calls.put(work)
        return await future

    def _run(self) -> None:
        while True:
            self._calls.get()()


class Input:
    """A descriptor to read from."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self._blocking = Blocking("input")

    @property
    def is_terminal(self) -> bool:
        """Whether the descriptor is a terminal."""
        return os.isatty(self._descriptor)

    async def read(self) -> bytes:
        """Return the next bytes, or empty bytes at the end of input. A read error counts as the end."""
        return await self._blocking.call(self._read)

    def _read(self) -> bytes:
        while True:
            try:
                return os.read(self._descriptor, READ_BYTES)
            except BlockingIOError:  # another process has set O_NONBLOCK on the shared descriptor
                select.select([self._descriptor], [], [])
            except OSError:
                return b""


class Output:
    """A descriptor to write to."""

    def __init__(self, descriptor: int = 1) -> None:
        self._descriptor = descriptor
        self._blocking = Blocking("output")

    async def write(self, data: bytes) -> None:
        """Write all of the data. Raises BrokenPipeError if the reader has closed its end."""
        await self._blocking.call(self._write, data)

    async def end(self) -> None:
        """End the output, so that its reader sees the end of file. The descriptor number stays in use."""
        await self._blocking.call(self._end)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._descriptor, view) :]
            except BlockingIOError:
                select.select([], [self._descriptor], [])

    def _end(self) -> None:
        if stat.S_ISSOCK(os.fstat(self._descriptor).st_mode):
            # The socket may be standard input as well, so only its writing direction ends.
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._descriptor)) as sock:
                sock.shutdown(socket.SHUT_WR)
            return
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._descriptor, inheritable=False)
        os.close(nowhere)
