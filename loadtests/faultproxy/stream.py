"""One TCP connection with bounded buffers in both directions."""

import asyncio
import contextlib
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import cast

from loadtests.faultproxy.gate import Gate

__all__ = ["BUFFER_BYTES", "Stream"]

# Above this, the stream stops reading and drain() waits. In each direction, a connection thus holds at most this much
# plus one read of the event loop (256 KiB in asyncio and uvloop).
BUFFER_BYTES = 256 * 1024

SMALL_BYTES = 16 * 1024  # a system call costs more than copying this much

_LINGER_RESET = struct.pack("ii", 1, 0)  # struct linger: on, 0 seconds: close() sends RST


class Stream(asyncio.Protocol):
    """One connection, read through a gate: while the gate is shut, the reader sees neither bytes nor the end."""

    def __init__(self, gate: Gate, on_made: "Callable[[Stream], None]") -> None:
        self.gate = gate
        self.is_muted = False
        # Set by when_ended(). The owner may set it to None to cancel the callback.
        self.on_end: Callable[[], None] | None = None
        self.on_closed: Callable[[], object] | None = None
        self._on_made = on_made
        self._loop = asyncio.get_running_loop()
        self.moved_at = self._loop.time()  # when the last byte moved, in either direction
        self._transport: asyncio.Transport | None = None
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._small: list[bytes | bytearray] = []
        self._reading_paused = False
        self._writing_paused = False
        self._ended = False
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._closed: asyncio.Future[None] = self._loop.create_future()

    # Callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=BUFFER_BYTES)
        self._on_made(self)

    def data_received(self, data: bytes) -> None:
        if self.is_muted:
            return
        self.moved_at = self._loop.time()
        self._pieces.append(data)
        self._size += len(data)
        if self._size > BUFFER_BYTES and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()
        self._wake(self._reader)

    def eof_received(self) -> bool:
        self._end()
        return True  # the other direction goes on

    def connection_lost(self, exc: Exception | None) -> None:
        self._error = exc
        self._transport = None
        self._end()
        self._wake(self._writer)
        self._closed.set_result(None)
        if self.on_closed is not None:
            self.on_closed()

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self.moved_at = self._loop.time()
        self._wake(self._writer)

    def _end(self) -> None:
        self._ended = True
        self._wake(self._reader)
        if self.on_end is not None:
            on_end, self.on_end = self.on_end, None
            self.gate.call(on_end)

    @staticmethod
    def _wake(waiter: "asyncio.Future[None] | None") -> None:
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # Reading

    @property
    def has_ended(self) -> bool:
        """Whether the peer has ended its direction, or the connection has closed."""
        return self._ended

    @property
    def is_closed(self) -> bool:
        """Whether the event loop has closed the connection."""
        return self._closed.done()

    @property
    def buffered_bytes(self) -> int:
        """Number of bytes that have arrived and wait for read()."""
        return self._size

    async def read(self) -> bytes:
        """Return the next piece, or b"" at the end. Raise ConnectionError if the connection broke.

        Only one reader may wait at a time.
        """
        while not self._pieces and not self._ended:
            self._reader = self._loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        if not self.gate.is_open:
            await self.gate.passed()
        if self._pieces:
            piece = self._pieces.popleft()
            self._size -= len(piece)
            if self._reading_paused and self._size <= BUFFER_BYTES and self._transport is not None:
                self._reading_paused = False
                self._transport.resume_reading()
            return piece
        if self._error is not None:
            raise ConnectionResetError("the peer broke the connection") from self._error
        return b""

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Run the callback once, through the gate, when the peer has ended its direction or broken the connection."""
        if self._ended:
            self.gate.call(callback)
        else:
            self.on_end = callback

    def unread(self, data: bytes) -> None:
        """Put back bytes that were read ahead."""
        if data:
            self._pieces.appendleft(data)
            self._size += len(data)

    async def swallow(self) -> None:
        """Read and discard everything until the end."""
        while await self.read():
            pass

    # Writing

    def write(self, data: bytes | bytearray) -> None:
        """Queue bytes to send. Await drain() before the next call.

        Small writes are coalesced and leave in the next turn of the event loop.
        """
        if not data or self._transport is None or self.is_muted:
            return
        self.moved_at = self._loop.time()
        if len(data) < SMALL_BYTES:
            if not self._small:
                self._loop.call_soon(self._flush)
            self._small.append(data)
        else:
            self._flush()
            self._transport.write(data)

    def _flush(self) -> None:
        if self._small:
            small, self._small = self._small, []
            # The connection may have been muted, closed or broken since.
            if self._transport is not None and not self._transport.is_closing() and not self.is_muted:
                self._transport.write(b"".join(small))

    async def drain(self) -> None:
        """Wait until there is room to write. Raise ConnectionError if the connection has closed."""
        while self._writing_paused and self._transport is not None and not self.is_muted:
            self._writer = self._loop.create_future()
            try:
                await self._writer
            finally:
                self._writer = None
        if self._transport is None:
            raise ConnectionResetError("the connection has closed")

    def finish(self) -> None:
        """End our direction after everything written so far."""
        self._flush()
        if self._transport is not None and not self.is_muted and self._transport.can_write_eof():
            with contextlib.suppress(
                OSError
            ):  # the peer may have reset the connection, which the loop has not yet seen
                self._transport.write_eof()

    def mute(self) -> None:
        """Discard everything that arrives or is written from now on, without the peer noticing."""
        self.is_muted = True
        self._pieces.clear()
        self._size = 0
        self._wake(self._writer)
        if self._reading_paused and self._transport is not None:
            self._reading_paused = False
            self._transport.resume_reading()

    # Ending

    def close(self) -> None:
        """Close after everything written so far has been sent."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once; bytes that have not been sent yet are lost."""
        if self._transport is not None:
            self._transport.abort()

    def reset(self) -> None:
        """Close at once with a TCP reset (RST)."""
        if self._transport is not None:
            connection = cast("socket.socket", self._transport.get_extra_info("socket"))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
            self._transport.abort()

    async def wait_closed(self) -> None:
        """Wait until the event loop has closed the connection. Call close(), abort() or reset() first."""
        await asyncio.shield(self._closed)
