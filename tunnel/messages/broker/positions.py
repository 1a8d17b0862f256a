"""How far each group has read each partition. Positions are on disk before they are confirmed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import msgspec
import structlog

from tunnel.durable_files import write_atomically
from tunnel.messages.broker.disk_room import DiskRoom
from tunnel.messages.broker.in_parts import in_parts
from tunnel.messages.broker.partition import ProduceOptions, StoredPartition
from tunnel.messages.broker.protocol import LIMIT, STORAGE
from tunnel.messages.broker.unbroken import unbroken
from tunnel.messages.errors import LogError, RemoteCallError
from tunnel.messages.log import Log, LogConfig
from tunnel.messages.message import encode_payloads

__all__ = ["PositionKey", "Positions"]

PositionKey: TypeAlias = tuple[str, str, int]
"""Group, topic and partition."""

_CHECKPOINT_RECORDS = 50_000  # between checkpoints: opening reads at most about this many records
_LOG_CONFIG = LogConfig(flush_messages=1, flush_s=0.0, segment_bytes=4 * 1024 * 1024)
_OPTIONS = ProduceOptions()
_logger = structlog.get_logger("tunnel.broker")


class _Record(msgspec.Struct, array_like=True):
    group: str
    topic: str
    partition: int
    offset: int


class _Checkpoint(msgspec.Struct):
    """The positions that result from all records of the log before `offset`."""

    offset: int
    positions: list[_Record]


class Positions:
    """The positions of all groups, in a log of their changes and a checkpoint."""

    def __init__(
        self, directory: Path, positions_max: int, room: DiskRoom, *, checkpoint_records: int = _CHECKPOINT_RECORDS
    ) -> None:
        self._store = StoredPartition(directory, _LOG_CONFIG, room)
        self._file = directory / "positions.json"
        self._positions_max = positions_max
        self._checkpoint_records = checkpoint_records
        self._positions: dict[PositionKey, int] = {}
        # The positions on disk: for each, the offset of the log that had to be flushed for it, and the position itself.
        # The first is 0 for a position that was read from the log or the checkpoint.
        self._stored: dict[PositionKey, tuple[int, int]] = {}
        self._checked = 0  # the offset of the last checkpoint
        self._checkpointing = asyncio.Lock()
        self._read_from: Log | None = None  # the open log that the positions were read from
        self._recovering = asyncio.Lock()

    async def load(self) -> None:
        """Read the positions. LogError if another process has them, or they cannot be understood."""
        await self._store.open()
        try:
            await self._read()
        except BaseException:
            await self._store.close()
            raise

    async def _read(self) -> None:
        log = self._store.log
        self._checked, self._positions = await asyncio.to_thread(self._load, log)
        self._stored = {key: (0, offset) for key, offset in self._positions.items()}
        self._read_from = log

    def _load(self, log: Log) -> tuple[int, dict[PositionKey, int]]:
        """Return the offset of the checkpoint, and all positions."""
        try:
            checkpoint = _Checkpoint(0, [])
            if self._file.exists():
                checkpoint = msgspec.json.decode(self._file.read_bytes(), type=_Checkpoint)
            if not log.first_offset <= checkpoint.offset <= log.end_offset:
                raise LogError(
                    f"{self._file} has the offset {checkpoint.offset}, but the log beside it has {log.first_offset} "
                    f"to {log.end_offset}: restore both from one backup"
                )
            records = checkpoint.positions
            offset = checkpoint.offset
            while offset < log.end_offset:
                payloads = list(log.read(offset).payloads())
                records += [msgspec.json.decode(payload, type=_Record) for payload in payloads]
                offset += len(payloads)
        except (msgspec.DecodeError, ValueError) as error:
            raise LogError(f"{self._file.parent} does not hold positions: {error}; restore it") from error
        return checkpoint.offset, {(each.group, each.topic, each.partition): each.offset for each in records}

    def get(self, key: PositionKey) -> int:
        """Return the stored position of a group, from which it continues; 0 if it has none."""
        return self._stored.get(key, (0, 0))[1]

    def knows(self, key: PositionKey) -> bool:
        """Whether a group has a position in a partition."""
        return key in self._positions

    async def of_group(self, group: str = "") -> AsyncIterator[list[tuple[PositionKey, int]]]:
        """Yield the stored positions of one group, or of all groups if `group` is empty, in order and in parts."""
        async for part in in_parts(list(self._stored), (lambda key: key[0] == group) if group else None):
            yield [(key, self.get(key)) for key in part]

    def __len__(self) -> int:
        return len(self._positions)

    async def set(self, key: PositionKey, offset: int, *, force: bool = False) -> int:
        """Store a position, and return the one that holds now: a smaller one changes nothing, unless `force` is set."""
        while not self._is_current:
            await unbroken(self._recover())
        known = self._positions.get(key)
        if known is None and len(self._positions) >= self._positions_max:
            raise RemoteCallError(LIMIT, f"the broker keeps {self._positions_max} positions: use an existing group")
        if known is not None and not force:
            offset = max(offset, known)  # the known position may not be on disk yet: wait for it below
        end = self._store.log.next_offset
        if offset != known:
            record = encode_payloads([msgspec.json.encode(_Record(*key, offset))])
            end = self._store.append(record, 1, _OPTIONS) + 1
            self._positions[key] = offset
        await self._store.flushed(end)
        if end >= self._stored.get(key, (0, 0))[0]:
            self._stored[key] = end, offset
        if self._checkpoint_is_due:
            with suppress(RemoteCallError):  # a failed checkpoint does not concern this position: it is already on disk
                await unbroken(self._checkpoint())
        return offset

    @property
    def _checkpoint_is_due(self) -> bool:
        return self._is_current and self._store.log.next_offset - self._checked > self._checkpoint_records

    @property
    def _is_current(self) -> bool:
        """Whether the log can be written, and the positions in memory belong to it.

        Then the log has stored each of these positions, or is about to store it.
        """
        return self._store.is_ready and self._store.log is self._read_from

    async def _recover(self) -> None:
        """Open the log again, and forget the positions that it has not stored."""
        async with self._recovering:
            if not self._is_current:
                await self._store.ready()
                try:
                    await self._read()
                except (LogError, OSError) as error:
                    raise RemoteCallError(STORAGE, f"the broker cannot read its positions: {error}") from error

    async def _checkpoint(self) -> None:
        async with self._checkpointing:
            if not self._checkpoint_is_due:
                return  # another task has made the checkpoint, or the log failed and has not been read again yet
            log = self._store.log
            records = [_Record(*key, offset) for key, offset in self._positions.items()]
            checkpoint = _Checkpoint(log.next_offset, records)
            await self._store.flushed(checkpoint.offset)
            try:
                await asyncio.to_thread(write_atomically, self._file, msgspec.json.encode(checkpoint))
            except OSError as error:
                _logger.warning("no_checkpoint", text=f"positions are stored, but starting takes longer: {error}")
                return
            self._checked = checkpoint.offset
            await asyncio.to_thread(log.trim, checkpoint.offset)

    async def close(self) -> None:
        """Store everything."""
        await self._store.close()
