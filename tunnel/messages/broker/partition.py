"""A partition of a topic: a log on disk that is opened when it is needed and again after a failure, or a backlog."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import structlog

from tunnel.durable_files import make_directory, sync_directory
from tunnel.messages.backlog import DiscardPolicy, MemoryBacklog
from tunnel.messages.broker.disk_room import DiskRoom
from tunnel.messages.broker.log_broker import BrokerConfig, LogBroker
from tunnel.messages.broker.protocol import CONFLICT, DISCARDED, LIMIT, STORAGE, PartitionReport, number_field
from tunnel.messages.broker.readers import Readers
from tunnel.messages.broker.settings import TopicSpec
from tunnel.messages.broker.unbroken import unbroken
from tunnel.messages.calls import Request, Response
from tunnel.messages.errors import LogError, RemoteCallError
from tunnel.messages.log import Log, LogConfig
from tunnel.messages.message import LENGTH_BYTES
from tunnel.messages.payers import FREE, Payer
from tunnel.messages.segments import segment_path
from tunnel.printable import counted

__all__ = ["MemoryPartition", "Partition", "ProduceOptions", "StoredPartition"]

_REOPEN_S = 1.0  # between two attempts to open a failed log
_FETCH_BYTES_MAX = 64 * 1024  # largest answer from a partition in memory
_WAIT_MS_MAX = 60_000
_SET_MESSAGES_MAX = 2_000  # of a set for a partition in memory: it is stored as a whole, while other clients wait
_REMOVED_MAX = 1_000  # messages removed from memory at once, while other clients wait: about 1 ms
_logger = structlog.get_logger("tunnel.broker")


@dataclass(frozen=True, slots=True)
class ProduceOptions:
    """The wishes in the fields of a produce request."""

    at: int | None = None
    """The offset that the first message must get; with any other, nothing is stored."""
    priority: int = 0
    ttl_s: float | None = None


class Partition:
    """The common part of both kinds of partitions. `appended` counts messages, `fetches` counts requests."""

    def __init__(self) -> None:
        self.appended = 0
        self.appended_bytes = 0
        self.fetches = 0

    async def ready(self) -> None:
        """Wait until the partition can be used. RemoteCallError STORAGE if it cannot."""

    @property
    def is_ready(self) -> bool:
        """Whether `ready` would return at once."""
        return True

    async def readable(self) -> None:
        """Wait until the partition can be read. It may refuse new messages all the same."""

    @property
    def is_failed(self) -> bool:
        """Whether messages are refused for now."""
        return False

    @property
    def first_offset(self) -> int:
        raise NotImplementedError

    @property
    def end_offset(self) -> int:
        """The offset after the newest message that readers may see."""
        raise NotImplementedError

    def check(self, data: bytes, count: int) -> None:
        """Raise RemoteCallError if this set of `count` messages can never be appended, whatever the partition has."""

    def append(self, data: bytes, count: int, options: ProduceOptions) -> int:
        """Append a checked set of `count` messages, and return the offset of the first."""
        raise NotImplementedError

    async def room(self) -> None:
        """Wait until there is room for more messages."""

    async def flushed(self, end: int) -> None:
        """Have the messages before this offset stored at once, and wait until they are."""

    async def fetch(
        self,
        request: Request,
        disk_reads: AbstractAsyncContextManager[object] | None = None,
        payer: Payer = FREE,
    ) -> Response:
        """Answer a FETCH. `disk_reads` is held while the disk is read. After a wait, it goes on at the payer's turn."""
        raise NotImplementedError

    def report(self, number: int) -> PartitionReport:
        raise NotImplementedError

    def retain(self) -> None:
        """Remove messages that are too old. May block."""

    async def sweep(self) -> None:
        """Remove messages from memory that are no longer needed."""

    async def close(self) -> None:
        """Store everything, and accept nothing more."""


class StoredPartition(Partition):
    """A log in a directory. A log that has failed is opened again, at most once a second, when it is needed."""

    def __init__(
        self,
        directory: Path,
        config: LogConfig,
        room: DiskRoom,
        serving: BrokerConfig | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.directory = directory
        self._config = config
        self._room = room
        self._serving = serving or BrokerConfig()
        self._clock = clock
        self._log: Log | None = None
        self._broker: LogBroker | None = None
        self._opening = asyncio.Lock()
        self._failed_at = float("-inf")
        self._problem = ""
        self._closed = False

    @property
    def is_ready(self) -> bool:
        return self._log is not None and self._log.error is None

    async def readable(self) -> None:
        if self._log is None:
            await self.ready()

    @property
    def is_failed(self) -> bool:
        return bool(self._problem)

    @property
    def log(self) -> Log:
        """The open log. Call `ready` first."""
        if self._log is None:
            raise RemoteCallError(STORAGE, f"{self._name} is not open yet: send again")
        return self._log

    async def ready(self) -> None:
        if not self.is_ready:
            await unbroken(self._make_ready())

    async def _make_ready(self) -> None:
        async with self._opening:
            if self.is_ready:
                return
            if self._closed:
                raise RemoteCallError(STORAGE, "the broker is closing: send again when it has started")
            if self._clock() - self._failed_at < _REOPEN_S:
                raise self._refusal()
            try:
                await self._open_again()
            except (LogError, OSError) as error:
                self._fail(str(error))
                raise self._refusal() from None

    async def open(self) -> None:
        """Open the log. LogError or OSError if it cannot be opened."""
        async with self._opening:
            await self._open_again()

    async def _open_again(self) -> None:
        log = await asyncio.to_thread(self._open)
        if self._problem:
            _logger.warning("storage_recovered", partition=self._name, end=log.end_offset)
        self._problem = ""
        self._log, self._broker = log, LogBroker(log, self._serving)

    @property
    def _name(self) -> str:
        return f"{self.directory.parent.name}/{self.directory.name}"

    def _open(self) -> Log:
        old = self._log
        if old is not None:
            self._fail(str(old.error))
            old.close()
            old.discard_unflushed()
        return Log.open(self.directory, self._config)

    async def restart_at(self, offset: int) -> None:
        """Remove all messages, and go on from this offset: for a replica whose master no longer has older ones."""
        await unbroken(self._restart_at(offset))

    async def _restart_at(self, offset: int) -> None:
        async with self._opening:
            await asyncio.to_thread(self._restart, offset)

    def _restart(self, offset: int) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None
        make_directory(self.directory)
        for path in [*self.directory.glob("*.log"), *self.directory.glob("*.index")]:
            path.unlink()
        segment_path(self.directory, offset).touch(0o600)
        sync_directory(self.directory)

    def _fail(self, problem: str) -> None:
        if problem != self._problem:
            _logger.error("storage_failed", partition=self._name, text=problem)
        self._problem, self._failed_at = problem, self._clock()

    def _refusal(self) -> RemoteCallError:
        return RemoteCallError(
            STORAGE, f"{self._name} cannot be written: {self._problem}; nothing was stored: send again later"
        )

    @property
    def first_offset(self) -> int:
        return self.log.first_offset

    @property
    def end_offset(self) -> int:
        return self.log.end_offset

    def append(self, data: bytes, count: int, options: ProduceOptions) -> int:
        log = self.log
        if options.at is not None and options.at != log.next_offset:
            raise RemoteCallError(
                CONFLICT, f"the next offset of {self._name} is {log.next_offset}, not {options.at}: nothing was stored"
            )
        self._room.take(len(data))
        try:
            offset = log.append_set(data, count)
        except LogError as error:
            self._problem = self._problem or str(error)
            raise self._refusal() from None
        self.appended += count
        self.appended_bytes += len(data)
        return offset

    async def room(self) -> None:
        if not self.log.has_room:
            await self._guarded(self.log.room())

    async def flushed(self, end: int) -> None:
        await self._guarded(self.log.flushed(end, now=True))

    async def _guarded(self, waiting: object) -> None:
        try:
            await waiting  # type: ignore[misc]
        except LogError as error:
            self._problem = self._problem or str(error)
            raise self._refusal() from None

    async def fetch(
        self,
        request: Request,
        disk_reads: AbstractAsyncContextManager[object] | None = None,
        payer: Payer = FREE,
    ) -> Response:
        assert self._broker is not None, "call `ready` before"
        self.fetches += 1
        try:
            return await self._broker.fetch(request, disk_reads, payer)
        except LogError as error:  # the log failed while the request waited for messages
            raise RemoteCallError(STORAGE, f"{self._name} cannot be read: {error}") from None

    def report(self, number: int) -> PartitionReport:
        if self._log is None:
            size = sum(path.stat().st_size for path in self.directory.glob("*.log"))
            return PartitionReport(number, 0, 0, size, self._problem or "not open yet")
        log = self._log
        return PartitionReport(number, log.first_offset, log.end_offset, log.size_bytes, self._problem)

    def retain(self) -> None:
        if self._log is not None:
            self._log.retain()

    async def close(self) -> None:
        async with self._opening:
            self._closed = True
            if self._log is not None:
                await asyncio.to_thread(self._log.close)


class MemoryPartition(Partition):
    """A backlog in memory, from which messages are removed that all groups have read.

    Messages that are discarded after they were stored keep their offsets, so that a reader sees from a jump how many it
    missed. `first` is the offset of the first message.
    """

    def __init__(self, spec: TopicSpec, *, name: str = "the topic", first: int = 0) -> None:
        super().__init__()
        self._spec = spec
        self._name = name
        self._readers = Readers()
        self._backlog = MemoryBacklog(
            DiscardPolicy(spec.policy), messages_max=spec.messages_max, bytes_max=spec.bytes_max, first=first
        )
        self._waiters: set[asyncio.Future[None]] = set()

    @property
    def messages(self) -> int:
        """The number of messages that are kept."""
        return len(self._backlog)

    @property
    def size_bytes(self) -> int:
        return self._backlog.size_bytes

    @property
    def discarded(self) -> int:
        """The number of messages that were discarded."""
        return self._backlog.discarded_count

    @property
    def first_offset(self) -> int:
        return self._backlog.first_number

    @property
    def end_offset(self) -> int:
        return self._backlog.next_number

    # the groups that read it

    def joined(self, group: str) -> int:
        """Return the position of a group that has stored none: the oldest message when it joined first.

        From now on, messages are kept for the group.
        """
        position = self._readers.position(group)
        if position is None:
            position = self.first_offset
            self._readers.put(group, position)
        return position

    def has_read(self, group: str, position: int) -> None:
        """Note the stored position of a group. Messages that all groups have read may be removed from now on."""
        self._backlog.begin_at(position)  # only after a restart with a clock that is wrong is it after the end
        self._readers.put(group, position)
        self._free()

    def left(self, group: str) -> None:
        """Forget a group that has no stored position."""
        self._readers.remove(group)
        self._free()

    def _free(self) -> None:
        last = self._readers.last
        if last is not None:
            self._backlog.free(last[0])

    async def sweep(self) -> None:
        """Remove messages that all groups have read, and expired ones. Lets other clients in now and then."""
        while self._backlog.sweep(_REMOVED_MAX):  # noqa: ASYNC110 - it waits for nothing, it lets others run
            await asyncio.sleep(0)

    # messages

    def check(self, data: bytes, count: int) -> None:
        spec = self._spec
        most = min(spec.messages_max, _SET_MESSAGES_MAX)
        if count > most or len(data) > spec.bytes_max:
            raise RemoteCallError(
                LIMIT,
                f"the set has {counted(count, 'message')} of {len(data)} bytes, and {self._name} takes sets of up to "
                f"{counted(most, 'message')} and {spec.bytes_max} bytes: send smaller sets",
            )

    def append(self, data: bytes, count: int, options: ProduceOptions) -> int:
        offset = self._backlog.next_number
        if options.at is not None and options.at != offset:
            raise RemoteCallError(CONFLICT, f"the next offset is {offset}, not {options.at}: nothing was stored")
        self.check(data, count)
        if not self._backlog.put_all(_split(data), priority=options.priority, ttl=options.ttl_s):
            raise RemoteCallError(DISCARDED, self._why_discarded(count))
        self.appended += count
        self.appended_bytes += len(data)
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        return offset

    async def fetch(
        self,
        request: Request,
        disk_reads: AbstractAsyncContextManager[object] | None = None,
        payer: Payer = FREE,
    ) -> Response:
        """Answer with messages from an offset on. The field `offset` says where they begin: others were discarded."""
        self.fetches += 1
        wanted = number_field(request, "offset")
        size_max = min(_FETCH_BYTES_MAX, number_field(request, "bytes", _FETCH_BYTES_MAX, 1))
        wait_ms = min(_WAIT_MS_MAX, number_field(request, "wait_ms", 0))
        found: list[bytes] = []
        first = end = self.end_offset
        if wanted < end:
            first, found = self._backlog.peek(wanted, size_max)
        if not found and wait_ms and wanted <= end:
            await self._wait(wait_ms / 1000)
            await payer.turn()  # a set wakes all fetches that wait
            first, found = self._backlog.peek(wanted, size_max)
        fields = {"max": str(self.end_offset), "first": str(self.first_offset)}
        if wanted <= self.end_offset:
            # The reader may go on from `wanted`, even if the messages from there to `offset` are discarded.
            fields |= {"offset": str(first), "first": str(min(wanted, self.first_offset))}
        return Response(b"".join(found), fields)

    def _why_discarded(self, count: int) -> str:
        last = self._readers.last
        if last is not None and last[0] < self.end_offset:
            holder = f"it keeps messages for the group {last[1]}, whose position is {last[0]}"
        else:
            holder = "no group has read them"
        return (
            f"{self._name} is full ({counted(len(self._backlog), 'message')}, {self._backlog.size_bytes} bytes; "
            f"{holder}), and by its policy, {self._spec.policy}, it discards the {counted(count, 'message')} of this "
            "set: nothing of it was stored; send it again when there is room, or choose another policy"
        )

    async def _wait(self, seconds: float) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(seconds):
                await waiter
        except TimeoutError:
            pass
        finally:
            self._waiters.discard(waiter)

    def report(self, number: int) -> PartitionReport:
        problem = f"{self.discarded} discarded" if self.discarded else ""
        return PartitionReport(number, self.first_offset, self.end_offset, self._backlog.size_bytes, problem)


def _split(data: bytes) -> list[bytes]:
    """Return the messages of a checked set, each with its header."""
    messages: list[bytes] = []
    position = 0
    while position < len(data):
        end = position + LENGTH_BYTES + int.from_bytes(data[position : position + LENGTH_BYTES], "big")
        messages.append(data[position:end])
        position = end
    return messages
