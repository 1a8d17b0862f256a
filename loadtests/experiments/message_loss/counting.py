"""Two ways to count messages as buffered and as written: at a socket of our own, and in a tunnel's attachment."""

import abc
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from loadtests.experiments.message_loss.records import Recorder
from loadtests.experiments.message_loss.statistics import PhaseStatistics

__all__ = ["Counting", "Moved", "SocketCounting", "TunnelCounting"]


@dataclass(frozen=True, slots=True)
class Moved:
    """A message that the sender moved from its queue to the byte buffer, with its bytes as they are on the wire."""

    number: int  # 0 for a message of the protocol, which is not counted
    size_bytes: int


class Counting(abc.ABC):
    """Counts each numbered message once as buffered and once as written."""

    def __init__(self, statistics: PhaseStatistics, record: Recorder) -> None:
        self._statistics = statistics
        self._record = record

    @abc.abstractmethod
    def moved(self, message: Moved) -> None:
        """Note that the sender moved a message to the buffer, in the order of the stream."""

    @abc.abstractmethod
    def taken(self) -> None:
        """Note that the stream took the whole buffer."""

    @abc.abstractmethod
    def lost(self) -> None:
        """Note that the stream has ended, and with it the buffer."""

    def _buffered(self, message: Moved) -> None:
        self._statistics.increment_out_bytes(message.size_bytes)
        self._record.buffered(message.number, message.size_bytes)

    def _written(self, messages: list[Moved]) -> None:
        self._statistics.register_write(len(messages), sum(message.size_bytes for message in messages))
        for message in messages:
            self._record.written(message.number, message.size_bytes)


class SocketCounting(Counting):
    """A message is buffered when the sender moves it, and written when the socket has taken the buffer."""

    def __init__(self, statistics: PhaseStatistics, record: Recorder) -> None:
        super().__init__(statistics, record)
        self._unwritten: list[Moved] = []

    def moved(self, message: Moved) -> None:
        if message.number:
            self._buffered(message)
            self._unwritten.append(message)

    def taken(self) -> None:
        written, self._unwritten = self._unwritten, []
        if written:
            self._written(written)

    def lost(self) -> None:
        self._unwritten = []


@dataclass(slots=True)
class _Batch:
    """A batch of the tunnel: its size, and the messages whose last byte it was the first to carry."""

    size_bytes: int
    messages: list[Moved] = field(default_factory=list)


class TunnelCounting(Counting):
    """The statistics collector of an attachment: it counts the bytes of batches, and each message in them once.

    A message is buffered when a batch has its last byte, and written when that batch has been written to an HTTP
    connection. `carried` returns how many bytes of the stream were in any batch. This number grows only when a byte is
    in a batch for the first time, so a batch with repeats alone moves no message. The collector assumes that each write
    was that of the oldest unwritten batch that fits into the write; if no batch fits, it counts no message.
    """

    def __init__(self, statistics: PhaseStatistics, record: Recorder, carried: Callable[[], int]) -> None:
        super().__init__(statistics, record)
        self.out_bytes = 0
        self.written_bytes = 0
        self._carried = carried
        self._position = 0  # the place in the stream after everything that the sender has moved
        self._waiting: deque[tuple[int, Moved]] = deque()  # where a message ends in the stream, and the message
        self._unwritten: deque[_Batch] = deque()

    def moved(self, message: Moved) -> None:
        self._position += message.size_bytes
        if message.number:
            self._waiting.append((self._position, message))

    def taken(self) -> None:
        """Do nothing: the tunnel has the bytes now, and calls the methods below when they leave."""

    def lost(self) -> None:
        """Do nothing: a stream through the tunnel survives the path, so no message is lost."""

    # the methods of tunnel.StatisticsCollector

    def increment_out_bytes(self, size_bytes: int) -> None:
        self.out_bytes += size_bytes
        batch = _Batch(size_bytes)
        carried = self._carried()
        while self._waiting and self._waiting[0][0] <= carried:
            _, message = self._waiting.popleft()
            self._buffered(message)
            batch.messages.append(message)
        self._unwritten.append(batch)

    def register_write(self, size_bytes: int) -> None:
        self.written_bytes += size_bytes
        # A write has a header besides its batch, so the oldest batch that fits is the one that was written.
        batch = next((batch for batch in self._unwritten if batch.size_bytes <= size_bytes), None)
        if batch is not None:
            self._unwritten.remove(batch)
            if batch.messages:
                self._written(batch.messages)
