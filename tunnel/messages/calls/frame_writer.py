"""The sending half of a channel: frames leave in order, small ones together, and files without a copy.

A file goes to a TCP socket with `os.sendfile`. A stream without a descriptor, such as a tunnel's or one with TLS, gets
a view of the mapped file.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from tunnel.messages.errors import ChannelClosedError
from tunnel.messages.sets.file_sets import FileMessageSet

__all__ = ["Buffer", "FrameWriter"]

Buffer: TypeAlias = bytes | bytearray | memoryview

_FILE_BYTES = 1024  # about what a queued file costs in memory


class FrameWriter:
    """Writes frames to a stream, to which nothing else may write. Calls `lost` when the stream turns out to be lost."""

    def __init__(self, writer: asyncio.StreamWriter, lost: Callable[[Exception], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._writer = writer
        self._lost = lost
        self._loss = ""  # why the stream was lost
        self._out: list[Buffer] = []
        self._queued_bytes = 0  # bytes in memory that are not yet written to the stream
        self._files: deque[tuple[FileMessageSet, list[Buffer]]] = deque()  # each with the buffers that follow it
        self._sending: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def waiting_bytes(self) -> int:
        """The bytes in memory that wait for the peer. Those of files do not count, but each file counts as 1 KiB."""
        return self._writer.transport.get_write_buffer_size() + self._queued_bytes + _FILE_BYTES * len(self._files)

    async def drain(self) -> None:
        """Wait until the stream takes data. Raises ChannelClosedError if the connection is lost."""
        if not self._loss:
            try:
                await self._writer.drain()
                return
            except OSError as error:
                # asyncio raises one exception for all who wait, and it would keep the frames of each of them.
                error.__traceback__ = None
                self._loss = f"the connection has ended: {error}"
                self._lost(error)
        raise ChannelClosedError(self._loss)

    async def room(self, size_max: int) -> None:
        """Wait until the stream takes data, and at most about `size_max` bytes wait for the peer.

        Returns also after `close`. Raises ChannelClosedError if the connection is lost.
        """
        while not self._closed:
            await self.drain()
            waiting = self.waiting_bytes
            if waiting <= size_max:
                return
            if self._sending is not None:
                await asyncio.wait([self._sending])
                continue
            self.flush()
            if self.waiting_bytes == waiting and waiting <= self._writer.transport.get_write_buffer_limits()[1]:
                return  # the limit of the stream itself is above the caller's

    def put(self, buffers: list[Buffer]) -> None:
        """Queue buffers; everything queued during one iteration of the event loop is written together."""
        if self._closed:
            return
        self._queued_bytes += sum(map(len, buffers))
        if self._files:
            self._files[-1][1].extend(buffers)
            return
        if not self._out:
            self._loop.call_soon(self.flush)
        self._out += buffers

    def put_file(self, buffers: list[Buffer], body: FileMessageSet) -> None:
        """Queue the start of a frame, and a file that is its body."""
        if self._closed:
            return
        self.put(buffers)
        self._files.append((body, []))
        if self._sending is None:
            self._sending = self._loop.create_task(self._send_files())

    def flush(self) -> None:
        """Write the buffers before the first file that waits."""
        if self._out and not self._closed:
            self._write(self._out)
        self._out = []

    def close(self) -> None:
        """Write the queued buffers before the first file, drop everything after them, and accept nothing more."""
        self.flush()
        self._closed = True
        self._files.clear()
        if self._sending is not None:
            self._sending.cancel()

    async def wait_closed(self) -> None:
        """Wait until no file is being sent."""
        if self._sending is not None:
            await asyncio.gather(self._sending, return_exceptions=True)

    async def _send_files(self) -> None:
        try:
            while self._files:
                self.flush()
                body, after = self._files[0]
                await self._send_file(body)
                self._files.popleft()
                self._write(after)
        except OSError:
            self._writer.transport.abort()  # the frame is cut: the peer must not take what follows for its body
        finally:
            self._sending = None

    def _write(self, buffers: list[Buffer]) -> None:
        data = b"".join(buffers)
        self._queued_bytes -= len(data)
        if not self._writer.is_closing():  # uvloop raises for a write after the end; the reader reports that end
            self._writer.write(data)

    async def _send_file(self, body: FileMessageSet) -> None:
        sock = self._writer.get_extra_info("socket")
        if sock is None or self._writer.get_extra_info("sslcontext") is not None:
            body.write_to(self._writer)
            await self._writer.drain()
            return
        transport = self._writer.transport
        transport.set_write_buffer_limits(0)  # `drain` then waits until everything before the file has left
        try:
            await self._writer.drain()
            descriptor = os.dup(sock.fileno())  # event loops refuse to watch a descriptor that a transport uses
            try:
                sent, size = 0, body.size_bytes
                while sent < size:
                    if transport.is_closing():
                        raise ChannelClosedError("the connection has ended within a file")
                    took = body.write_to(descriptor, sent)
                    sent += took
                    if not took:
                        await self._writable(descriptor)
            finally:
                os.close(descriptor)
        finally:
            transport.set_write_buffer_limits()

    async def _writable(self, descriptor: int) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_writer(descriptor, _settle, future)
        try:
            await future
        finally:
            self._loop.remove_writer(descriptor)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
