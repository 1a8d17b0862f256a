"""The sender: a queue of messages, a byte buffer of 64 KiB, a socket, and the detection of a broken connection.

It moves messages from the queue to the buffer, and the buffer to the socket, as the client of the reference document
does. When the connection breaks, the buffer is lost with it; messages still in the queue go out over the next one.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

import structlog

from loadtests.experiments.message_loss.counting import Moved
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
        self._counting = road.counting(statistics, record)
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
                self._road.greeted()
                await self._use(reader, writer)
            except (ConnectionError, asyncio.IncompleteReadError) as error:
                _log.info("connection broken", error=str(error))
                self._counting.lost()
                self._road.broke(str(error))
            finally:
                writer.transport.abort()
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()

    async def _use(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read and write until either fails, and raise its error. Before that, wait until reading has failed, too: the
        reader tells the road why."""
        loop = asyncio.get_running_loop()
        reading, writing = loop.create_task(self._read(reader, writer)), loop.create_task(self._write(writer))
        try:
            done, _ = await asyncio.wait((reading, writing), return_when=asyncio.FIRST_EXCEPTION)
            writer.transport.abort()
            await asyncio.wait((reading,))
            for task in done:
                task.result()
        finally:
            for task in (reading, writing):
                task.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send CONNECT and PING, and read until the PONG."""
        self._put(writer, connect_line())
        while (frame := await read_frame(reader)) is not None:
            if frame.verb == "PONG":
                return
            if frame.verb == "-ERR":
                raise ProtocolError(" ".join(frame.words))
        raise ConnectionResetError("the broker ended the connection")

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (frame := await read_frame(reader)) is not None:
                if frame.verb == "PING":
                    self._put(writer, b"PONG\r\n")
            raise ConnectionResetError("the connection was closed")
        except ConnectionError as error:
            self._road.read_failed(str(error))
            raise

    def _put(self, writer: asyncio.StreamWriter, line: bytes) -> None:
        """Write a line that is not a message."""
        self._counting.moved(Moved(0, len(line)))
        writer.write(line)

    async def _write(self, writer: asyncio.StreamWriter) -> None:
        while True:
            await self._wanted.wait()
            writer.write(self._fill())
            await writer.drain()
            self._counting.taken()
            if not self._pending:
                self._wanted.clear()
                self._empty.set()

    def _fill(self) -> bytearray:
        """Move messages from the queue to a new byte buffer, and return it."""
        buffer = bytearray()
        while self._pending and (not buffer or len(buffer) + len(self._pending[0][1]) <= BUFFER_BYTES):
            number, message = self._pending.popleft()
            buffer += message
            self._counting.moved(Moved(number, len(message)))
        return buffer
