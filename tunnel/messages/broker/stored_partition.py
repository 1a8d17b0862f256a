"""A partition on disk: a log that clients append to and fetch from, and that a replica may follow.

A reader that is far behind reads from the disk, and would make live traffic wait for it. If there is a replica, the
partition redirects such a reader to it, and the replica sends the reader back when it has caught up. A replica pulls
batches of 1 MiB: it needs throughput rather than low latency, so lagging readers do it no harm. It waits for a batch,
and does not make its master flush.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import structlog

from tunnel.messages.broker.disk_room import DiskRoom
from tunnel.messages.broker.long_work import unbroken
from tunnel.messages.broker.partition import Partition, ProduceOptions, fetch_fields
from tunnel.messages.broker.protocol import APPEND, CONFLICT, CORRUPT, FETCH, STORAGE, PartitionReport
from tunnel.messages.broker.settings import BrokerSettings
from tunnel.messages.calls.calls import CallHandler, Request, Response
from tunnel.messages.errors import CorruptMessageError, LogError, OffsetOutOfRangeError, RemoteCallError
from tunnel.messages.kept.log import Log
from tunnel.messages.kept.segments import SegmentSet, segment_path
from tunnel.messages.payers import FREE, Payer
from tunnel.messages.sets.message import count_whole
from tunnel.system.durable_files import make_directory, sync_directory

__all__ = ["StoredPartition"]

_REOPEN_S = 1.0  # between two attempts to open a failed log
_FETCH_BYTES_MAX = 8 * 1024 * 1024
_COPIED_BYTES_MAX = 64 * 1024  # a larger answer is sent out of the file, without a copy
_logger = structlog.get_logger("tunnel.broker")


class StoredPartition(Partition):
    """A log in a directory. A log that has failed is opened again, at most once a second, when it is needed.

    One thing because each of its calls, whether it appends, reads, waits, redirects or serves a replica, must see the
    log that is open now, and open it again after a failure.

    `settings` say how the log is kept, and where readers are redirected. Without a broker, use it in `async with`, and
    pass its `handlers` to a CallChannel or to `serve_calls`.
    """

    def __init__(
        self,
        directory: Path | str,
        settings: BrokerSettings | None = None,
        room: DiskRoom | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.directory = Path(directory)
        self.settings = settings or BrokerSettings()
        self._room = room or DiskRoom(self.directory, self.settings.disk_reserve_bytes)
        self._clock = clock
        self._log: Log | None = None
        self._opening = asyncio.Lock()
        self._failed_at = float("-inf")
        self._problem = ""
        self._closed = False

    # life

    async def __aenter__(self) -> StoredPartition:
        await self.open()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

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
                raise RemoteCallError(STORAGE, f"{self._name} is being closed: send again later")
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
        self._log = log

    @property
    def _name(self) -> str:
        return f"{self.directory.parent.name}/{self.directory.name}"

    def _open(self) -> Log:
        old = self._log
        if old is not None:
            self._fail(str(old.error))
            old.close()
            old.discard_unflushed()
        return Log.open(self.directory, self.settings.log)

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

    @property
    def first_offset(self) -> int:
        return self.log.first_offset

    @property
    def end_offset(self) -> int:
        return self.log.end_offset

    # appending

    @property
    def handlers(self) -> dict[int, CallHandler]:
        """The handlers of the calls that are answered without a broker. A replica takes no messages."""
        return {FETCH: self.fetch} if self.settings.master else {FETCH: self.fetch, APPEND: self._append}

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

    async def flush_before(self, end: int) -> None:
        await self._guarded(self.log.until_flushed(end, now=True))

    async def _guarded(self, waiting: Awaitable[None]) -> None:
        try:
            await waiting
        except LogError as error:
            self._problem = self._problem or str(error)
            raise self._refusal() from None

    async def _append(self, request: Request) -> Response:
        """Append the message set in the body, and answer with its offset. `durable=1` flushes it first."""
        data = request.body
        try:
            count, end = count_whole(data)
        except CorruptMessageError as error:
            raise RemoteCallError(CORRUPT, str(error)) from None
        if end != len(data):
            raise RemoteCallError(CORRUPT, f"the set ends within a message, {len(data) - end} bytes into it")
        await self.ready()
        offset = self.append(data, count, ProduceOptions())
        if (request.fields or {}).get("durable") == "1":
            await self.flush_before(offset + count)
        else:
            await self.room()
        return Response(b"", {"offset": str(offset)})

    # fetching

    async def fetch(self, request: Request, payer: Payer = FREE) -> Response:
        """Answer with messages from an offset on.

        The request has the fields `offset`, `bytes`, `wait_ms`, `stay` if it must not be redirected, and `gather` if it
        waits for `bytes` bytes and needs no flush. The answer has `first` and `max`, the bounds of the log, and perhaps
        `redirect`, the address to fetch from instead, and `next`, the offset after its messages.
        """
        self.fetches += 1
        try:
            return await self._fetch(self.log, request, payer)
        except LogError as error:  # the log failed while the request waited for messages
            raise RemoteCallError(STORAGE, f"{self._name} cannot be read: {error}") from None

    async def _fetch(self, log: Log, request: Request, payer: Payer) -> Response:
        """Answer from a log: after a failure, there is another one of the same messages."""
        offset, size_max, wait_s = fetch_fields(request, _FETCH_BYTES_MAX)
        fields, settings = request.fields or {}, self.settings
        behind = log.end_offset - offset
        data: bytes | SegmentSet
        following: int | None = None
        try:
            is_removed = offset < log.first_offset  # the replica may have it still
            is_on_disk = behind > 0 and not is_removed and self._is_on_disk(log, offset, size_max)
            if "stay" not in fields:
                if settings.replica and (is_removed or is_on_disk or log.has_more_than(settings.behind_bytes, offset)):
                    return _answer(log, redirect=settings.replica)
                if settings.master and behind <= 0:
                    return _answer(log, redirect=settings.master)
            if wait_s > 0 and (behind == 0 or "gather" in fields):
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await (_gather(log, offset, size_max) if "gather" in fields else _more(log))
            await payer.turn()
            if is_on_disk:
                async with payer.disk_reads:
                    data, following = await asyncio.to_thread(_read, log, offset, size_max, warm=True)
            else:
                data, following = _read(log, offset, size_max)
        except OffsetOutOfRangeError:
            data = b""  # the reader sees from the bounds in the answer that its offset is missing
        return _answer(log, data, following)

    def _is_on_disk(self, log: Log, offset: int, size_max: int) -> bool:
        """Whether a read would wait for the disk. Where the file system does not tell, a far one is taken to."""
        is_cached = log.is_cached(offset, size_max)
        return log.has_more_than(self.settings.behind_bytes, offset) if is_cached is None else not is_cached


def _answer(log: Log, data: bytes | SegmentSet = b"", following: int | None = None, *, redirect: str = "") -> Response:
    fields = {"max": str(log.end_offset), "first": str(log.first_offset)}
    if following is not None:
        fields["next"] = str(following)
    if redirect:
        fields["redirect"] = redirect
    return Response(data, fields)


async def _more(log: Log) -> None:
    """Wait until a reader at the end of the log has messages. It demands a flush: it wants them now."""
    await log.until_flushed(log.end_offset + 1, now=True)


async def _gather(log: Log, offset: int, size: int) -> None:
    """Wait until there are `size` bytes from this offset on, but demand no flush for them.

    A replica gets only what is on disk here. Otherwise it could have messages that a power failure takes from its
    master, which would then give their offsets to others.
    """
    while not log.has_more_than(size, offset):
        await log.until_flushed(log.end_offset + 1)


def _read(log: Log, offset: int, size_max: int, *, warm: bool = False) -> tuple[bytes | SegmentSet, int | None]:
    found = log.read(offset, size_max)
    if found.size_bytes <= _COPIED_BYTES_MAX:
        return found.load(), found.next_offset
    if warm:
        found.warm()
    return found, found.next_offset
