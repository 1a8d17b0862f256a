"""A broker, through which clients append to a log and fetch from it, and the replica that serves lagging readers.

A reader that is far behind reads from the disk, and would make live traffic wait for it. If there is a replica, the
broker redirects such a reader to it, and the replica sends the reader back when it has caught up. A replica pulls
batches of 1 MiB: it needs throughput rather than low latency, so lagging readers do it no harm. It waits for a batch,
and does not make its master flush.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import structlog

from tunnel.errors import TunnelError
from tunnel.messages.calls import CallHandler, Request, Response
from tunnel.messages.channels import ChannelTable
from tunnel.messages.errors import LogError, OffsetOutOfRangeError, RemoteCallError
from tunnel.messages.log import Log
from tunnel.messages.message import count_whole
from tunnel.messages.payers import FREE, Payer
from tunnel.messages.segments import SegmentSet

__all__ = [
    "APPEND",
    "BEHIND_BYTES",
    "BEHIND_MESSAGES",
    "CORRUPT",
    "FETCH",
    "MALFORMED",
    "BrokerConfig",
    "LogBroker",
    "Replica",
    "check_range",
    "count_messages",
    "place_fields",
]

APPEND = 120  # codes of requests
FETCH = 121
MALFORMED = 130  # codes of answers
CORRUPT = 131

BEHIND_MESSAGES = 10_000  # the threshold for a backlog in remoting-and-backlog.md (docs/REFERENCES.md)
BEHIND_BYTES = 64 * 1024 * 1024  # ours: a segment
_GATHER_MS = 1_000  # as long as the master waits, by default, until it flushes
_REPLICA_BATCH_BYTES = 1024 * 1024  # the batch that remoting-and-backlog.md proposes (docs/REFERENCES.md)
_FETCH_BYTES_MAX = 8 * 1024 * 1024
_WAIT_MS_MAX = 60_000
_COPIED_BYTES_MAX = 64 * 1024  # a larger answer is sent out of the file, without a copy
_logger = structlog.get_logger("tunnel.messages.broker")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """When readers are redirected, and where to."""

    replica: str = ""
    """The address of the replica; if empty, lagging readers are served here."""
    behind_bytes: int = BEHIND_BYTES
    """A reader that is more than this number of bytes behind is redirected to the replica. So is a reader of messages
    that are not in the page cache, where the file system tells."""
    master: str = ""
    """On a replica: the address to which readers return. A replica accepts no appends."""


def count_messages(data: bytes) -> int:
    """Return the number of messages in a set. CorruptMessageError if one is damaged, LogError if the last is cut."""
    count, end = count_whole(data)
    if end != len(data):
        raise LogError(f"the message set ends within a message, {len(data) - end} bytes into it: send whole messages")
    return count


def check_range(offset: int, response: Response) -> int:
    """Return the end of the log that answered a fetch. OffsetOutOfRangeError if that log lacks the offset."""
    fields = response.fields or {}
    first, end = int(fields["first"]), int(fields["max"])
    if not first <= offset <= end:
        raise OffsetOutOfRangeError(offset, first, end)
    return end


def place_fields(topic: str, partition: int) -> dict[str, str]:
    """Return the fields of a fetch that name the partition. The broker of a single log needs none."""
    return {"topic": topic, "partition": str(partition)} if topic else {}


class LogBroker:
    """Answers appends and fetches. Pass its `handlers` to a CallChannel or to `serve_calls`."""

    def __init__(self, log: Log, config: BrokerConfig | None = None) -> None:
        self.log = log
        self._config = config or BrokerConfig()
        self.handlers: dict[int, CallHandler] = {FETCH: self.fetch}
        if not self._config.master:
            self.handlers[APPEND] = self._append

    def _append(self, request: Request) -> Awaitable[Response] | Response:
        """Append the message set in the body, and answer with its offset. `durable=1` flushes it first."""
        try:
            count = count_messages(request.body)
        except TunnelError as error:
            raise RemoteCallError(CORRUPT, str(error)) from None
        offset = self.log.append_set(request.body, count)
        answer = Response(b"", {"offset": str(offset)})
        if (request.fields or {}).get("durable") == "1":
            return self._when_durable(offset + count, answer)
        return answer if self.log.has_room else self._when_room(answer)

    async def _when_durable(self, end: int, answer: Response) -> Response:
        await self.log.flushed(end, now=True)
        return answer

    async def _when_room(self, answer: Response) -> Response:
        await self.log.room()
        return answer

    async def fetch(
        self,
        request: Request,
        disk_reads: AbstractAsyncContextManager[object] | None = None,
        payer: Payer = FREE,
    ) -> Response:
        """Answer with messages from an offset on. `disk_reads` is held while the disk is read. A fetch that has waited
        for messages goes on when it is the turn of `payer`.

        The request has the fields `offset`, `bytes`, `wait_ms`, `stay` if it must not be redirected, and `gather` if it
        waits for `bytes` bytes and needs no flush. The answer has `first` and `max`, the bounds of the log, and perhaps
        `redirect`, the address to fetch from instead, and `next`, the offset after its messages.
        """
        fields = request.fields or {}
        try:
            offset = int(fields["offset"])
            size_max = min(_FETCH_BYTES_MAX, max(1, int(fields.get("bytes", "65536"))))
            wait_ms = min(_WAIT_MS_MAX, int(fields.get("wait_ms", "0")))
        except (KeyError, ValueError):
            raise RemoteCallError(
                MALFORMED, f"a fetch needs numbers as offset, bytes and wait_ms, not {fields}"
            ) from None
        log, config = self.log, self._config
        behind = log.end_offset - offset
        data: bytes | SegmentSet
        following: int | None = None
        try:
            is_removed = offset < log.first_offset  # the replica may have it still
            is_on_disk = behind > 0 and not is_removed and self._is_on_disk(offset, size_max)
            if "stay" not in fields:
                if config.replica and (is_removed or is_on_disk or log.has_more_than(config.behind_bytes, offset)):
                    return self._answer(b"", config.replica)
                if config.master and behind <= 0:
                    return self._answer(b"", config.master)
            if wait_ms > 0 and "gather" in fields:
                await self._gather(offset, size_max, wait_ms / 1000)
            elif wait_ms > 0 and behind == 0:
                await self._wait(offset + 1, wait_ms / 1000)
            await payer.turn()
            if is_on_disk:
                async with disk_reads or nullcontext():
                    data, following = await asyncio.to_thread(self._read, offset, size_max, warm=True)
            else:
                data, following = self._read(offset, size_max)
        except OffsetOutOfRangeError:
            data = b""  # the reader sees from the bounds in the answer that its offset is missing
        return self._answer(data, "", following)

    def _is_on_disk(self, offset: int, size_max: int) -> bool:
        """Whether a read would wait for the disk. Where the file system does not tell, a far one is taken to."""
        is_cached = self.log.is_cached(offset, size_max)
        return self.log.has_more_than(self._config.behind_bytes, offset) if is_cached is None else not is_cached

    def _answer(self, data: bytes | SegmentSet, redirect: str, following: int | None = None) -> Response:
        fields = {"max": str(self.log.end_offset), "first": str(self.log.first_offset)}
        if following is not None:
            fields["next"] = str(following)
        if redirect:
            fields["redirect"] = redirect
        return Response(data, fields)

    async def _wait(self, end: int, seconds: float) -> None:
        """Wait until the log has messages before `end`. A waiting reader demands a flush: it wants them now."""
        try:
            async with asyncio.timeout(seconds):
                await self.log.flushed(end, now=True)
        except TimeoutError:
            pass

    async def _gather(self, offset: int, size: int, seconds: float) -> None:
        """Wait until there are `size` bytes from this offset on, but demand no flush for them.

        A replica gets only what is on disk here. Otherwise it could have messages that a power failure takes from its
        master, which would then give their offsets to others.
        """
        try:
            async with asyncio.timeout(seconds):
                while not self.log.has_more_than(size, offset):
                    await self.log.flushed(self.log.end_offset + 1)
        except TimeoutError:
            pass

    def _read(self, offset: int, size_max: int, *, warm: bool = False) -> tuple[bytes | SegmentSet, int | None]:
        found = self.log.read(offset, size_max)
        if found.size_bytes <= _COPIED_BYTES_MAX:
            return found.load(), found.next_offset
        if warm:
            found.warm()
        return found, found.next_offset


class Replica:
    """Copies a master's log into its own log, with the same offsets, for as long as it runs.

    When its own log has failed, it stops and sets `error`: only the operator can help.
    """

    def __init__(
        self,
        log: Log,
        table: ChannelTable,
        master: str,
        *,
        batch_bytes: int = _REPLICA_BATCH_BYTES,
        topic: str = "",
        partition: int = 0,
    ) -> None:
        self.log = log
        self.error: LogError | None = None
        self._place = place_fields(topic, partition)
        self._table = table
        self._master = master
        self._batch_bytes = batch_bytes
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def wait(self) -> None:
        """Wait until the replica has stopped for good, and raise `error`."""
        assert self._task is not None
        await asyncio.wait([self._task])
        if self.error is not None:
            raise self.error.with_traceback(None)

    async def _run(self) -> None:
        while True:
            try:
                await self.pull()
            except (OSError, TunnelError, TimeoutError) as error:
                if self.log.error is not None:
                    self.error = self.log.error
                    _logger.error("a replica stopped", master=self._master, error=str(self.error))
                    return
                _logger.info("a replica waits for its master", master=self._master, error=str(error))
                await asyncio.sleep(0.5)

    async def pull(self) -> int:
        """Copy one batch, and return the number of its messages.

        Raises OffsetOutOfRangeError, a LogError, if the master no longer has the next message; another LogError if the
        own log has failed.
        """
        if self.log.error is not None:  # perhaps it failed after the last append, which did not report that
            raise self.log.error.with_traceback(None)
        fields = {
            **self._place,
            "offset": str(self.log.next_offset),
            "bytes": str(self._batch_bytes),
            "wait_ms": str(_GATHER_MS),
            "gather": "1",
            "stay": "1",
        }
        response = await self._table.call(self._master, FETCH, b"", fields)
        check_range(self.log.next_offset, response)
        data = response.data
        count, end = count_whole(data)
        if count:
            self.log.append_set(data[:end], count)
            await self.log.room()
        return count
