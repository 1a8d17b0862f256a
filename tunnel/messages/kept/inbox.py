"""An inbox: a durable log of the messages that outboxes deliver, each once and in order.

In every record, the outbox's id, its epoch and the message's number precede the payload. Message and progress are
therefore on disk together or not at all. The inbox is read by offset, like any log. An application that stores the
offset up to which it has read together with its own data processes every message exactly once.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Awaitable, Iterator
from pathlib import Path

import msgspec

from tunnel.messages.calls.calls import CallHandler
from tunnel.messages.errors import LogError, RemoteCallError
from tunnel.messages.kept.log import Log, LogConfig
from tunnel.messages.kept.outbox import FENCED, GAP, outbox_handlers
from tunnel.messages.life import Closeable
from tunnel.system.durable_files import write_atomically

__all__ = ["Inbox", "InboxRecord"]

_HEADER = struct.Struct(">B16sQQ")  # kind, outbox, epoch, number
_MESSAGE, _EPOCH = 0, 1  # kinds of records: a message, or the start of an epoch, with the number of its first message
_LOG_CONFIG = LogConfig(flush_messages=1, flush_s=0.0)
_CHECKPOINT_RECORDS = 200_000  # between checkpoints: opening reads at most about this many records, in half a second
_SCAN_BYTES = 1024 * 1024


class InboxRecord(msgspec.Struct, frozen=True, gc=False):
    """A delivered message. `offset` is its position in this inbox."""

    offset: int
    outbox: bytes
    epoch: int
    number: int
    payload: bytes


class _Progress(msgspec.Struct):
    """The content of `inbox.json`, a checkpoint: for each outbox, the epoch and next number expected at an offset."""

    offset: int
    expected: dict[str, tuple[int, int]]


class Inbox(Closeable):
    """A directory of delivered messages. Open it with `Inbox.open`, and pass its `handlers` to a CallChannel."""

    def __init__(self, log: Log, progress: _Progress, checkpoint_records: int) -> None:
        self.log = log
        self._noting = threading.Lock()
        self._checkpoint_records = checkpoint_records
        self._path = log.directory / "inbox.json"
        self._expected = {bytes.fromhex(key): value for key, value in progress.expected.items()}
        self._noted = progress.offset
        self._checkpoint = progress.offset  # offset of the checkpoint on disk
        self._is_closed = False
        self.handlers: dict[int, CallHandler] = {**outbox_handlers(self._hello, self._accept)}

    @classmethod
    def open(
        cls,
        directory: Path | str,
        config: LogConfig | None = None,
        *,
        checkpoint_records: int = _CHECKPOINT_RECORDS,
    ) -> Inbox:
        """Open or create an inbox. LogError if another process has it open, or it cannot be recovered."""
        place = Path(directory)
        log = Log.open(place, config or _LOG_CONFIG)
        try:
            path = place / "inbox.json"
            progress = _Progress(0, {})
            if path.exists():
                progress = msgspec.json.decode(path.read_bytes(), type=_Progress)
            if not log.first_offset <= progress.offset <= log.end_offset:
                raise LogError(
                    f"{path} has the offset {progress.offset}, but the log beside it has {log.first_offset} to "
                    f"{log.end_offset}: restore both from one backup"
                )
            inbox = cls(log, progress, checkpoint_records)
            for kind, record in inbox._records(progress.offset, None):
                number = record.number + 1 if kind == _MESSAGE else record.number
                inbox._expected[record.outbox] = (record.epoch, number)
        except (msgspec.DecodeError, struct.error) as error:
            log.close()
            raise LogError(
                f"{place} is not an inbox: {error}; name the directory of an inbox, or an empty one"
            ) from error
        except BaseException:
            log.close()
            raise
        return inbox

    def close(self) -> None:
        """Flush the inbox, and release it for other processes."""
        with self._noting:  # wait for a checkpoint in progress: if it ended later, it would replace the next owner's
            self._is_closed = True
        self.log.close()

    def next_number(self, outbox: bytes) -> int:
        """Return the number of the next message expected from this outbox."""
        return self._expected.get(outbox, (0, 0))[1]

    # reading

    def read(self, offset: int, count_max: int | None = 1000) -> Iterator[InboxRecord]:
        """Yield the messages among `count_max` records from this offset on; None reads up to the current end.

        Blocks on the disk. To continue, read from the last offset plus 1. Offsets are not always consecutive: the
        start of an epoch has an offset, too.
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
        """Remove records before this offset, as far as whole segments allow. Blocks on the disk.

        Call it when the application no longer needs them.
        """
        progress = self._progress()
        self.log.flush()
        self._note(progress)
        self.log.trim(before)

    # requests of outboxes

    def _check_epoch(self, outbox: bytes, epoch: int) -> int:
        known, number = self._expected.get(outbox, (0, 0))
        if epoch < known:
            raise RemoteCallError(FENCED, f"epoch {epoch} is over, epoch {known} has begun")
        return number

    def _hello(self, outbox: bytes, epoch: int) -> Awaitable[int]:
        number = self._check_epoch(outbox, epoch)
        if self._expected.get(outbox, (0, 0))[0] < epoch:
            # The epoch is on disk before the answer, so that older copies are refused even after a crash.
            self.log.append([_HEADER.pack(_EPOCH, outbox, epoch, number)])
            self._expected[outbox] = (epoch, number)
        return self._durable(self.log.next_offset, number)

    def _accept(self, outbox: bytes, epoch: int, first: int, payloads: list[bytes]) -> Awaitable[int]:
        number = self._check_epoch(outbox, epoch)
        if first > number:
            raise RemoteCallError(GAP, f"got message {first} instead of {number}")
        fresh = payloads[number - first :]
        pack = _HEADER.pack
        self.log.append(
            [pack(_MESSAGE, outbox, epoch, number + index) + payload for index, payload in enumerate(fresh)]
        )
        self._expected[outbox] = (epoch, number + len(fresh))
        # Repeats wait, too: their first delivery may not be on disk yet.
        return self._durable(self.log.next_offset, number + len(fresh))

    async def _durable(self, end: int, number: int) -> int:
        await self.log.until_flushed(end, now=True)
        if self.log.next_offset - self._noted > self._checkpoint_records:
            progress = self._progress()
            self._noted = progress.offset
            await self.log.until_flushed(progress.offset, now=True)
            await asyncio.to_thread(self._note, progress)
        return number

    def _progress(self) -> _Progress:
        """Return the state after everything that was appended."""
        offset = self.log.next_offset
        # A copy, since `trim` may be called from any thread while messages arrive. If one of them comes between these
        # lines, `next_number` knows it already, and opening the inbox takes its record again, which changes nothing.
        return _Progress(offset, {key.hex(): value for key, value in list(self._expected.items())})

    def _note(self, progress: _Progress) -> None:
        """Write a checkpoint, so that opening need not read all records. The records before it must be on disk.

        An older checkpoint than that on disk is not written: the records after it may have been removed.
        """
        with self._noting:
            if progress.offset > self._checkpoint and not self._is_closed:
                write_atomically(self._path, msgspec.json.encode(progress))
                self._checkpoint = progress.offset
