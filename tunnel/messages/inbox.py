"""An inbox: what outboxes delivered, each message once, in order, durably.

Every record has the outbox, its epoch and the number of the message in front of the payload: message and progress are
on disk together or not at all. The log behind it is read like any other; an application that keeps the offset up to
which it has read together with its own data takes every message into effect once.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Awaitable, Iterator
from pathlib import Path

import msgspec

from tunnel.messages.calls import CallHandler
from tunnel.messages.errors import LogError, RemoteCallError
from tunnel.messages.life import Closeable
from tunnel.messages.log import Log, LogConfig
from tunnel.messages.outbox import FENCED, GAP, outbox_handlers
from tunnel.messages.segments import write_atomically

__all__ = ["Inbox", "InboxRecord"]

_HEADER = struct.Struct(">B16sQQ")  # kind, outbox, epoch, number
_MESSAGE, _EPOCH = 0, 1  # kinds of records: a message, or that an epoch begins before the message of that number
_LOG_CONFIG = LogConfig(flush_messages=1, flush_s=0.0)
_CHECKPOINT_RECORDS = 200_000  # between two notes of the progress: opening reads no more, which takes half a second
_SCAN_BYTES = 1024 * 1024


class InboxRecord(msgspec.Struct, frozen=True, gc=False):
    """A message as it was delivered. `offset` is its place in this inbox."""

    offset: int
    outbox: bytes
    epoch: int
    number: int
    payload: bytes


class _Progress(msgspec.Struct):
    """What `inbox.json` has: the state at an offset."""

    offset: int
    expected: dict[str, tuple[int, int]]


class Inbox(Closeable):
    """A directory of delivered messages. Open it with `Inbox.open`; `handlers` is what a CallChannel needs."""

    def __init__(self, log: Log, progress: _Progress, checkpoint_records: int) -> None:
        self.log = log
        self._noting = threading.Lock()
        self._checkpoint_records = checkpoint_records
        self._path = log.directory / "inbox.json"
        self._expected = {bytes.fromhex(key): value for key, value in progress.expected.items()}
        self._noted = progress.offset
        self.handlers: dict[int, CallHandler] = {**outbox_handlers(self._hello, self._accept)}

    @classmethod
    def open(
        cls,
        directory: Path | str,
        config: LogConfig | None = None,
        *,
        checkpoint_records: int = _CHECKPOINT_RECORDS,
    ) -> Inbox:
        """Open or make an inbox. LogError if another process has it, or it cannot be recovered."""
        place = Path(directory)
        log = Log.open(place, config or _LOG_CONFIG)
        try:
            path = place / "inbox.json"
            progress = _Progress(0, {})
            if path.exists():
                progress = msgspec.json.decode(path.read_bytes(), type=_Progress)
            if not log.first_offset <= progress.offset <= log.end_offset:
                raise LogError(
                    f"{path} speaks of {progress.offset}, the log has {log.first_offset} to {log.end_offset}"
                )
            inbox = cls(log, progress, checkpoint_records)
            for kind, record in inbox._records(progress.offset, None):
                number = record.number + 1 if kind == _MESSAGE else record.number
                inbox._expected[record.outbox] = (record.epoch, number)
        except (msgspec.DecodeError, struct.error) as error:
            log.close()
            raise LogError(f"{place} is no inbox: {error}") from error
        except BaseException:
            log.close()
            raise
        return inbox

    def close(self) -> None:
        """Flush, and let another process have it."""
        self.log.close()

    def expected(self, outbox: bytes) -> int:
        """The number of the next message from this outbox."""
        return self._expected.get(outbox, (0, 0))[1]

    # reading

    def read(self, offset: int, count_max: int | None = 1000) -> Iterator[InboxRecord]:
        """Messages from this offset on, of up to `count_max` records, or up to the end of now. Blocks for the disk.

        Go on behind the last offset that came. Offsets grow, but not always by one: the beginning of an epoch has one.
        """
        for kind, record in self._records(offset, count_max):
            if kind == _MESSAGE:
                yield record

    def _records(self, offset: int, count_max: int | None) -> Iterator[tuple[int, InboxRecord]]:
        end = self.log.end_offset if count_max is None else min(self.log.end_offset, offset + count_max)
        while offset < end:
            for payload in self.log.read(offset, _SCAN_BYTES).payloads():
                if offset >= end:
                    return
                kind, outbox, epoch, number = _HEADER.unpack_from(payload)
                yield kind, InboxRecord(offset, outbox, epoch, number, payload[_HEADER.size :])
                offset += 1

    def trim(self, before: int) -> None:
        """The application needs nothing before this offset any more: remove what can be removed. Blocks."""
        progress = self._progress()
        self.log.flush()
        self._note(progress)
        self.log.trim(before)

    # what outboxes ask

    def _check_epoch(self, outbox: bytes, epoch: int) -> int:
        known, number = self._expected.get(outbox, (0, 0))
        if epoch < known:
            raise RemoteCallError(FENCED, f"epoch {epoch} is over, {known} has begun")
        return number

    def _hello(self, outbox: bytes, epoch: int) -> Awaitable[int]:
        number = self._check_epoch(outbox, epoch)
        if self._expected.get(outbox, (0, 0))[0] < epoch:
            # On disk before the answer: who sends from an older copy is refused even if we die now.
            self.log.append([_HEADER.pack(_EPOCH, outbox, epoch, number)])
            self._expected[outbox] = (epoch, number)
        return self._durable(self.log.next_offset, number)

    def _accept(self, outbox: bytes, epoch: int, first: int, payloads: list[bytes]) -> Awaitable[int]:
        number = self._check_epoch(outbox, epoch)
        if first > number:
            raise RemoteCallError(GAP, f"message {first} instead of {number}")
        fresh = payloads[number - first :]
        pack = _HEADER.pack
        self.log.append(
            [pack(_MESSAGE, outbox, epoch, number + index) + payload for index, payload in enumerate(fresh)]
        )
        self._expected[outbox] = (epoch, number + len(fresh))
        # Also for repeats: their first delivery may not be on disk yet.
        return self._durable(self.log.next_offset, number + len(fresh))

    async def _durable(self, end: int, number: int) -> int:
        await self.log.flushed(end, now=True)
        if self.log.next_offset - self._noted > self._checkpoint_records:
            progress = self._progress()
            self._noted = progress.offset
            await self.log.flushed(progress.offset, now=True)
            await asyncio.to_thread(self._note, progress)
        return number

    def _progress(self) -> _Progress:
        """The state behind everything that was appended."""
        return _Progress(self.log.next_offset, {key.hex(): value for key, value in self._expected.items()})

    def _note(self, progress: _Progress) -> None:
        """Write the progress down, so that opening need not read everything. What it speaks of is on disk."""
        with self._noting:
            write_atomically(self._path, msgspec.json.encode(progress))
