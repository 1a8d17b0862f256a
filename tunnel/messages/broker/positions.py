"""How far each group has read each partition. Positions are on disk before they are confirmed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import msgspec
import structlog

from tunnel.messages.broker.disk_room import DiskRoom
from tunnel.messages.broker.long_work import in_parts, unbroken
from tunnel.messages.broker.partition import ProduceOptions
from tunnel.messages.broker.protocol import LIMIT, STORAGE
from tunnel.messages.broker.settings import BrokerSettings
from tunnel.messages.broker.stored_partition import StoredPartition
from tunnel.messages.broker.users import OPERATOR, Holdings
from tunnel.messages.errors import LogError, RemoteCallError
from tunnel.messages.kept.log import Log, LogConfig
from tunnel.messages.sets.message import encode_payloads
from tunnel.system import clock
from tunnel.system.durable_files import write_atomically

__all__ = ["PositionKey", "Positions"]

PositionKey: TypeAlias = tuple[str, str, int]
"""Group, topic and partition."""

_CHECKPOINT_RECORDS = 50_000  # between checkpoints: opening reads at most about this many records
_SETTINGS = BrokerSettings(log=LogConfig(flush_messages=1, flush_s=0.0, segment_bytes=4 * 1024 * 1024))
_REMOVED_MAX = 1_000  # positions removed at once, while other clients wait
_OPTIONS = ProduceOptions()
_logger = structlog.get_logger("tunnel.broker")


class _Record(msgspec.Struct, array_like=True):
    """A position. `offset` is -1 if it was removed, `user` has added it, and `at` is when it was used last."""

    group: str
    topic: str
    partition: int
    offset: int
    user: str = OPERATOR
    at: int = 0


class _Checkpoint(msgspec.Struct):
    """The positions that result from all records of the log before `offset`."""

    offset: int
    positions: list[_Record]


class Positions:
    """The positions of all groups, in a log of their changes and a checkpoint."""

    def __init__(
        self,
        directory: Path,
        positions_max: int,
        room: DiskRoom,
        *,
        checkpoint_records: int = _CHECKPOINT_RECORDS,
    ) -> None:
        self._store = StoredPartition(directory, _SETTINGS, room)
        self._file = directory / "positions.json"
        self._checkpoint_records = checkpoint_records
        self._positions: dict[PositionKey, int] = {}
        # For each, who has added it, and when it was used last, by `clock.passed_s`.
        self._uses: dict[PositionKey, tuple[str, float]] = {}
        self._holdings = Holdings(positions_max)
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
        self._checked, records = await asyncio.to_thread(self._load, log)
        self._positions = {key: record.offset for key, record in records.items()}
        now = clock.passed_s()  # of positions that earlier versions have stored, too
        self._uses = {
            key: (record.user, now - clock.age_s(record.at) if record.at else now) for key, record in records.items()
        }
        self._holdings = Holdings(self._holdings.most)
        for user, count in Counter(record.user for record in records.values()).items():
            self._holdings.add(user, count)
        self._stored = {key: (0, offset) for key, offset in self._positions.items()}
        self._read_from = log

    def _load(self, log: Log) -> tuple[int, dict[PositionKey, _Record]]:
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
        found = {(each.group, each.topic, each.partition): each for each in records}
        return checkpoint.offset, {key: record for key, record in found.items() if record.offset >= 0}

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

    async def set(self, key: PositionKey, offset: int, *, force: bool = False, user: str = OPERATOR) -> int:
        """Store a position, and return the one that holds now: a smaller one changes nothing, unless `force` is set.

        `user` pays for the position if it is new.
        """
        while not self._is_current:
            await unbroken(self._recover())
        known = self._positions.get(key)
        problem = self._holdings.why_not(user, 1, "positions") if known is None else ""
        if problem:
            raise RemoteCallError(LIMIT, f"{problem}: use an existing group, or delete one")
        if known is not None and not force:
            offset = max(offset, known)  # the known position may not be on disk yet: wait for it below
        end = self._store.log.next_offset
        if offset != known:
            payer = self._uses[key][0] if known is not None else user
            record = encode_payloads([msgspec.json.encode(_Record(*key, offset, payer, int(clock.stored_now_s())))])
            end = self._store.append(record, 1, _OPTIONS) + 1
            self._positions[key] = offset
            self._uses[key] = payer, clock.passed_s()
            if known is None:
                self._holdings.add(payer)
        await self._store.flush_before(end)
        if key in self._positions and end >= self._stored.get(key, (0, 0))[0]:  # it may have been removed meanwhile
            self._stored[key] = end, offset
        if self._checkpoint_is_due:
            with suppress(RemoteCallError):  # a failed checkpoint does not concern this position: it is already on disk
                await unbroken(self._checkpoint())
        return offset

    def owner(self, key: PositionKey) -> str:
        """Return the user who has added a position that is known."""
        return self._uses[key][0]

    async def keys(self, is_wanted: Callable[[PositionKey], bool]) -> list[PositionKey]:
        """Return the positions that are wanted, in order. Lets other clients in now and then."""
        return [key async for part in in_parts(list(self._positions), is_wanted) for key in part]

    async def find_unused(self, seconds: float, is_used: Callable[[str, str], bool]) -> list[PositionKey]:
        """Return the positions that were not used for longer. `is_used(group, topic)`: they are used now."""
        now = clock.passed_s()

        def is_old(key: PositionKey) -> bool:
            if key not in self._uses:
                return False
            user, used = self._uses[key]
            if is_used(key[0], key[1]):
                self._uses[key] = user, now
                return False
            return now - used > seconds

        return await self.keys(is_old)

    async def remove(self, keys: Sequence[PositionKey]) -> int:
        """Remove positions, and return how many there were. Their groups begin with the oldest message again."""
        while not self._is_current:
            await unbroken(self._recover())
        known = [key for key in keys if key in self._positions]
        for start in range(0, len(known), _REMOVED_MAX):
            part = [key for key in known[start : start + _REMOVED_MAX] if key in self._positions]
            if not part:
                continue
            records = encode_payloads([msgspec.json.encode(_Record(*key, -1)) for key in part])
            end = self._store.append(records, len(part), _OPTIONS) + len(part)
            for key in part:
                del self._positions[key]
                self._stored.pop(key, None)
                self._holdings.add(self._uses.pop(key)[0], -1)
            await self._store.flush_before(end)
        return len(known)

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
            records = self._records()
            checkpoint = _Checkpoint(log.next_offset, records)
            await self._store.flush_before(checkpoint.offset)
            try:
                await asyncio.to_thread(write_atomically, self._file, msgspec.json.encode(checkpoint))
            except OSError as error:
                _logger.warning("no_checkpoint", text=f"positions are stored, but starting takes longer: {error}")
                return
            self._checked = checkpoint.offset
            await asyncio.to_thread(log.trim, checkpoint.offset)

    def _records(self) -> list[_Record]:
        """Return all positions, dated by the present clock: it may have been set since they were used."""
        start = clock.stored_now_s() - clock.passed_s()
        return [
            _Record(*key, offset, self._uses[key][0], int(start + self._uses[key][1]))
            for key, offset in self._positions.items()
        ]

    async def close(self) -> None:
        """Store everything."""
        await self._store.close()
