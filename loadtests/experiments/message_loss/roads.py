"""The sender's two ways to its broker: TCP connections or a stream through the tunnel, both over the same path."""

import abc
import asyncio
from types import TracebackType
from typing import Self

from loadtests.experiments.message_loss.counting import Counting, SocketCounting, TunnelCounting
from loadtests.experiments.message_loss.records import Recorder
from loadtests.experiments.message_loss.signs import Signs
from loadtests.experiments.message_loss.statistics import PhaseStatistics
from tunnel import Attachment, attach

__all__ = ["RawRoad", "Road", "TunnelRoad"]

_RETRY_S = 0.05
_LOOPBACK = "127.0.0.1"


class Road(abc.ABC):
    """A way to the broker. Inside its `async with` block, open() returns a stream; `signs` has the signs of breaks."""

    def __init__(self) -> None:
        self.signs = Signs(lambda: self.is_connected)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return

    @property
    @abc.abstractmethod
    def is_connected(self) -> bool:
        """The status of the connection, which can be asked for at any time."""

    @abc.abstractmethod
    def counting(self, statistics: PhaseStatistics, record: Recorder) -> Counting:
        """Return the counter of this road's messages. Call it once, before the first stream is opened."""

    @abc.abstractmethod
    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a new stream, as soon as that is possible."""

    @abc.abstractmethod
    def greeted(self) -> None:
        """Note that the broker has answered on the new stream."""

    @abc.abstractmethod
    def read_failed(self, text: str) -> None:
        """Note that reading from the stream has failed."""

    @abc.abstractmethod
    def broke(self, text: str) -> None:
        """Note that the stream was given up."""

    async def healed(self) -> None:
        """Wait until the road can be used again after a break. Bytes in the old stream may be lost."""
        if not self.is_connected:
            await self.signs.connection.back.wait()


class RawRoad(Road):
    """A plain TCP connection. A stream that broke is replaced by a new one."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port
        self._connected = False

    @property
    def is_connected(self) -> bool:
        return self._connected

    def counting(self, statistics: PhaseStatistics, record: Recorder) -> Counting:
        return SocketCounting(statistics, record)

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect, and retry until the path accepts."""
        while True:
            try:
                reader, writer = await asyncio.open_connection(_LOOPBACK, self._port)
            except OSError:
                await asyncio.sleep(_RETRY_S)
                continue
            # Without a buffer in the transport, drain() returns only when the socket has taken everything.
            writer.transport.set_write_buffer_limits(high=0)
            return reader, writer

    def greeted(self) -> None:
        self._connected = True
        self.signs.connection.reconnected()

    def read_failed(self, text: str) -> None:
        self.signs.error.read_closed(text)

    def broke(self, text: str) -> None:
        self._connected = False
        self.signs.connection.disconnected(text)


class TunnelRoad(Road):
    """A stream through a relay, which survives breaks of the path. The attachment reports them; the stream does not."""

    def __init__(self, relay_port: int, port: int, carrier: str) -> None:
        super().__init__()
        self._port = port
        self._attachment: Attachment = attach(f"http://{_LOOPBACK}:{relay_port}", proxy=None, carrier=carrier)

    async def __aenter__(self) -> Self:
        self._attachment.add_connection_listener(self.signs.connection)
        self._attachment.add_error_listener(self.signs.error)
        await self._attachment.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._attachment.close()

    @property
    def is_connected(self) -> bool:
        return self._attachment.is_attached

    def counting(self, statistics: PhaseStatistics, record: Recorder) -> Counting:
        counting = TunnelCounting(statistics, record, self._carried)
        self._attachment.set_statistics_collector(counting)
        return counting

    def _carried(self) -> int:
        """Return how many bytes of the only stream have been in a batch."""
        return sum(each.bytes_written - each.bytes_buffered for each in self._attachment.stats().connections.values())

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open the only stream of the run."""
        return await self._attachment.open_connection(_LOOPBACK, self._port, timeout=30)

    def greeted(self) -> None:
        """Do nothing: the attachment was connected before the stream was opened."""

    def read_failed(self, text: str) -> None:
        raise ConnectionError(f"the stream through the tunnel broke, which must not happen here: {text}")

    def broke(self, text: str) -> None:
        raise ConnectionError(f"the stream through the tunnel broke, which must not happen here: {text}")
