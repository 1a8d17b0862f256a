"""The sender: a queue of messages, a byte buffer of 64 KiB, a socket, and the detection of a broken connection.

It moves messages from the queue to the buffer, and the buffer to the socket, as the client of the reference document
does. When the connection breaks, the buffer is lost with it; messages still in the queue go out over the next one.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

import structlog

from loadtests.experiments.message_loss.protocol import MAIN, ProtocolError, connect_line, publish, read_frame
from loadtests.experiments.message_loss.records import Recorder
from loadtests.experiments.message_loss.roads import Road
from loadtests.experiments.message_loss.statistics import PhaseStatistics

__all__ = ["Sender"]

_log = structlog.get_logger("sender")
BUFFER_BYTES = 64 * 1024  # as in the document


class Sender:
    """Publishes messages over a road until it is closed."""

    def __init__(self, road: Road, statistics: PhaseStatistics, record: Recorder, size_bytes: int) -> None:
        self.last_id = 0
        self._road = road
        self._statistics = statistics
        self._record = record
        self._payload = bytes(i * 7 % 251 for i in range(size_bytes))
        self._pending: deque[tuple[int, bytes]] = deque()  # id (0 for a message without a number) and bytes
        self._wanted = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # For the experiment

    async def start(self) -> None:
        """Start to connect, and return when the broker has answered."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        ready = asyncio.ensure_future(self._ready.wait())
        await asyncio.wait({self._task, ready}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._task.done():
            self._task.result()

    async def close(self) -> None:
        """Stop at once; queued messages are lost."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def publish_next(self) -> None:
        """Queue the next numbered message of the run."""
        self.last_id += 1
        self._statistics.published[self._statistics.phase].add(1, len(self._payload))
        self._record.published(self.last_id, len(self._payload))
        self._queue(self.last_id, publish(MAIN, self.last_id, self._payload))

    def publish_to(self, subject: str) -> None:
        """Queue a message without a number to another subject."""
        self._queue(0, publish(subject, 0, b"-"))

    async def emptied(self) -> None:
        """Wait until no message is pending."""
        await self._empty.wait()

    async def publish_at(self, rate: int, until: Callable[[], bool]) -> None:
        """Publish `rate` messages per second until `until` returns true; log the number sent in each second."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        first, second, logged = self.last_id, 0, self.last_id
        while not until():
            elapsed_s = loop.time() - start
            while self.last_id - first < elapsed_s * rate:
                self.publish_next()
            if int(elapsed_s) > second:
                second = int(elapsed_s)
                _log.info("publish second", second=second, messages=self.last_id - logged)
                logged = self.last_id
            await asyncio.sleep(0.005)

    # Internals

    def _queue(self, number: int, message: bytes) -> None:
        self._pending.append((number, message))
        self._empty.clear()
        self._wanted.set()

    async def _run(self) -> None:
        """Open one connection after the other, and write the queue to each until it breaks."""
        while True:
            reader, writer = await self._road.open()
            try:
                await self._greet(reader, writer)
                self._ready.set()
                self._road.signs.reconnected()
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._read(reader, writer))
                    group.create_task(self._write(writer))
            except* (ConnectionError, asyncio.IncompleteReadError) as errors:
                text = "; ".join(str(error) for error in errors.exceptions)
                _log.info("connection broken", error=text)
                self._statistics.forget_unwritten()
                self._road.signs.back.clear()
                self._road.signs.read_closed(text)
                self._road.signs.disconnected(text)
            finally:
                writer.transport.abort()
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send CONNECT and PING, and read until the PONG."""
        writer.write(connect_line())
        while (frame := await read_frame(reader)) is not None:
            if frame.verb == "PONG":
                return
            if frame.verb == "-ERR":
                raise ProtocolError(" ".join(frame.words))
        raise ConnectionResetError("the broker ended the connection")

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (frame := await read_frame(reader)) is not None:
            if frame.verb == "PING":
                writer.write(b"PONG\r\n")
        raise ConnectionResetError("the connection was closed")

    async def _write(self, writer: asyncio.StreamWriter) -> None:
        while True:
            await self._wanted.wait()
            buffer, ids = self._fill()
            writer.write(buffer)
            await writer.drain()
            for number in ids:
                self._record.written(number)
            if ids:
                self._statistics.register_write(len(self._payload) * len(ids))
            if not self._pending:
                self._wanted.clear()
                self._empty.set()

    def _fill(self) -> tuple[bytearray, list[int]]:
        """Move messages from the queue to a new byte buffer; return it and the ids of the numbered ones."""
        buffer, ids = bytearray(), []
        while self._pending and (not buffer or len(buffer) + len(self._pending[0][1]) <= BUFFER_BYTES):
            number, message = self._pending.popleft()
            buffer += message
            if number:
                ids.append(number)
                self._statistics.increment_out_bytes(len(self._payload))
                self._record.buffered(number, len(self._payload))
        return buffer, ids
