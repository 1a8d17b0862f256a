"""An append-only log: segment files of message sets, written by one thread, flushed in groups.

Appending puts bytes into a queue. The writer thread takes everything that waits, writes it with one call, and flushes
when enough was written or enough time has passed. It is woken only when there is a reason to write or flush: waking a
thread costs about as much as checking 100 messages. Readers see only flushed messages, so a message that was read never
disappears in a crash. Only the writer thread writes to the files, so there are no concurrent writes.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
import time
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from tunnel.messages.errors import LogError, OffsetOutOfRangeError
from tunnel.messages.kept.segments import INDEX_BYTES, Segment, SegmentSet, recover_segments, segment_base
from tunnel.messages.life import Closeable
from tunnel.messages.sets.message import encode_payloads
from tunnel.system.durable_files import make_directory, sync_directory

__all__ = ["Log", "LogConfig"]

_WRITEV_MAX = 512
_WRITE_BYTES = 256 * 1024  # the writer writes as soon as more appended bytes than this wait
_WRITE_S = 0.02  # fewer bytes are written after this time; until then, they are lost if the process is killed
_log = structlog.get_logger("tunnel.messages.kept.log")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """When to flush, when to start a new segment, and which segments to keep."""

    flush_messages: int = 1_000
    """Flush when this number of messages waits. Message-sets-and-senders.md only wants a regular flush; this default
    and that of `flush_s` are ours (docs/REFERENCES.md)."""
    flush_s: float = 1.0
    """Flush when the first waiting message has waited this long."""
    segment_bytes: int = 64 * 1024 * 1024
    """Start a new segment when the last one has reached this size."""
    retain_bytes: int | None = None
    """Remove the oldest segments while all together exceed this size; None keeps everything."""
    retain_s: float | None = None
    """Remove segments that were last written longer ago than this; None keeps everything."""
    pending_bytes_max: int = 64 * 1024 * 1024
    """`room` waits while more bytes than this, with those of their objects, are appended and not yet written."""


_APPEND_BYTES = 100  # of the objects of a set that waits to be written: 33 of bytes, 48 of `_Append`, 8 of its place


class _Append(msgspec.Struct, gc=False):
    data: bytes
    count: int


class Log(Closeable):
    """An append-only log in a directory. Open it with `Log.open`, in a thread if it is large, because that blocks.

    Every method may be called from any thread, and every coroutine from any event loop.

    One thing because one lock guards where the log ends, what waits to be written, and which segments there are: the
    writer thread moves messages from one to the next, and readers must never see them in neither or in both. What
    concerns a single file is `Segment`'s.
    """

    def __init__(self, directory: Path, config: LogConfig, segments: list[Segment], lock: int) -> None:
        self.directory = directory
        self.cut_bytes = 0  # size of the torn tail that was cut off when the log was opened
        self._config = config
        self._lock_file: int | None = lock
        self._segments = segments
        self._bases = array("Q", (segment.base for segment in segments))
        self._condition = threading.Condition()
        self._pending: deque[_Append] = deque()
        self._pending_bytes = 0
        self._pending_since = 0.0  # when the first pending set was appended
        self._is_waiting = False  # the writer thread waits to be woken
        self._next = self._end = segments[-1].end
        self._written = (segments[-1].count, segments[-1].size)  # (messages, bytes) of the last segment, flushed or not
        self._unflushed_since: float | None = None
        self._flush_to = 0
        self._closing = False
        self._must_roll = False
        self._retaining = threading.Lock()
        self._error: LogError | None = None
        self._waiters: list[tuple[int, asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._room_waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._thread = threading.Thread(target=self._run, name=f"tunnel-log {directory.name}", daemon=True)

    # life

    @classmethod
    def open(cls, directory: Path | str, config: LogConfig | None = None) -> Log:
        """Open or create a log. A tail that a crash tore is cut off.

        LogError if the log cannot be recovered, or if another process has it open.
        """
        place = Path(directory)
        make_directory(place)
        lock = os.open(place / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            bases = sorted(map(segment_base, place.glob("*.log")))
            segments = [Segment(place, base) for base in bases or [0]]
            if not bases:
                segments[0].writer()
            cut = recover_segments(segments)
            # Even if no segment is new: a killed process may have made files whose names are not on disk yet.
            sync_directory(place)
        except BlockingIOError:
            os.close(lock)
            raise LogError(f"{place} is open in another process: stop it first") from None
        except BaseException:
            os.close(lock)
            raise
        log = cls(place, config or LogConfig(), segments, lock)
        log.cut_bytes = cut
        if cut:
            _log.warning("cut the torn end of a log", directory=str(place), bytes=cut, end=log.end_offset)
        log._thread.start()
        return log

    def close(self) -> None:
        """Write and flush everything appended, then end the writer thread. `error` says if that failed."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        self._thread.join()
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def discard_unflushed(self) -> None:
        """Cut off messages that were written and not flushed: callers got an error for them. The log must be closed."""
        segment = self._segments[-1]
        descriptor = os.open(segment.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.ftruncate(descriptor, segment.size)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    # getters

    @property
    def error(self) -> LogError | None:
        """Why the log accepts no more messages; None if it does. Flushed messages can still be read."""
        return self._error

    @property
    def first_offset(self) -> int:
        """The offset of the oldest message in the log."""
        return self._segments[0].base

    @property
    def end_offset(self) -> int:
        """The offset after the newest message that readers may see."""
        return self._end

    @property
    def next_offset(self) -> int:
        """The offset that the next appended message will get."""
        return self._next

    @property
    def size_bytes(self) -> int:
        """The size on disk of the messages that readers may see."""
        with self._condition:
            return sum(segment.size for segment in self._segments)

    # appending

    def append(self, payloads: Sequence[bytes]) -> int:
        """Append messages. Return the offset of the first. They are readable and durable after `until_flushed`."""
        return self.append_set(encode_payloads(payloads), len(payloads))

    def append_set(self, data: bytes, count: int) -> int:
        """Append an encoded set of `count` messages, and return the offset of the first.

        The caller must have checked that the set is valid and ends with a whole message.
        """
        with self._condition:
            if self._error is not None:
                raise self._error.with_traceback(None)
            if self._closing:
                raise LogError(f"{self.directory} is closed: open the log again to append")
            offset = self._next
            self._next += count
            if count:
                if not self._pending:
                    self._pending_since = time.monotonic()
                was_idle = not self._pending and self._unflushed_since is None
                self._pending.append(_Append(data, count))
                self._pending_bytes += len(data) + _APPEND_BYTES
                if self._is_waiting and (was_idle or self._wait_s() == 0):
                    self._is_waiting = False
                    self._condition.notify_all()
            return offset

    @property
    def has_room(self) -> bool:
        """Whether `room` would return at once."""
        return self._pending_bytes <= self._config.pending_bytes_max

    async def room(self) -> None:
        """Wait until at most `pending_bytes_max` bytes wait to be written."""
        while not self.has_room:
            loop = asyncio.get_running_loop()
            waiter = loop.create_future()
            with self._condition:
                if self._error is not None:
                    raise self._error.with_traceback(None)
                if self.has_room:  # the writer has just made room, and may never wake a waiter that joins now
                    return
                self._room_waiters.append((loop, waiter))
            await waiter

    async def until_flushed(self, end: int, *, now: bool = False) -> None:
        """Wait until everything before this offset is on disk; LogError if it cannot be written.

        With `now`, the writer flushes at once instead of waiting for a group.
        """
        if self._end >= end:
            return
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        with self._condition:
            if self._error is not None:
                raise self._error.with_traceback(None)
            if self._end >= end:
                return
            self._waiters.append((end, loop, waiter))
            if now and self._flush_to < end:
                self._flush_to = end
                if self._wait_s() == 0:  # otherwise nothing can be flushed before more messages are appended
                    self._condition.notify_all()
        try:
            await waiter
        except asyncio.CancelledError:
            with self._condition:
                self._waiters = [each for each in self._waiters if each[2] is not waiter]
            raise

    def flush(self) -> None:
        """Block until everything appended is on disk."""
        with self._condition:
            end = self._next
            # A caller of `until_flushed` may wait for an offset after the present end.
            self._flush_to = max(self._flush_to, end)
            self._condition.notify_all()
            while self._end < end and self._error is None:
                self._condition.wait()
            if self._error is not None:
                raise self._error.with_traceback(None)

    # reading

    def read(self, offset: int, size_max: int = 1024 * 1024) -> SegmentSet:
        """Return messages from this offset on, all from one segment: about `size_max` bytes.

        The set may end within a message, but the first message is whole. At the end of the log the set is empty.
        OffsetOutOfRangeError if the offset is no longer, or not yet, in the log.
        """
        try:
            return self._from(offset)[0].read(offset, size_max)
        except FileNotFoundError:  # the segment has just been removed
            raise OffsetOutOfRangeError(offset, self.first_offset, self._end) from None

    def has_more_than(self, size: int, offset: int) -> bool:
        """Whether there are more bytes than this from an offset on, to the accuracy of the index."""
        segments = self._from(offset)
        found = -segments[0].about(offset)
        for segment in segments:
            found += segment.size
            if found > size:
                return True
        return False

    def is_cached(self, offset: int, size_max: int) -> bool | None:
        """Whether the bytes that `read` would return are in the page cache; see `FileMessageSet.is_cached`."""
        segment = self._from(offset)[0]
        start = segment.about(offset)
        try:
            return segment.messages(start, min(segment.size, start + size_max)).is_cached()
        except FileNotFoundError:  # the segment has just been removed
            return None

    def _from(self, offset: int) -> list[Segment]:
        """Return the segments from the one with this offset on. OffsetOutOfRangeError if no segment has it."""
        with self._condition:
            if not self.first_offset <= offset <= self._end:
                raise OffsetOutOfRangeError(offset, self.first_offset, self._end)
            return self._segments[bisect_right(self._bases, offset) - 1 :]

    # retention

    def trim(self, before: int) -> None:
        """Remove the segments that have only messages before this offset; the last segment is never removed."""
        with self._condition:
            count = bisect_right(self._bases, before) - 1
            if count <= 0:
                return
            removed, self._segments = self._segments[:count], self._segments[count:]
            self._bases = self._bases[count:]
        for segment in removed:
            segment.remove()

    def retain(self) -> None:
        """Remove messages that are too old, even if none are appended any more. May block on the disk.

        Call it now and then where `retain_s` is set. The log itself removes segments only when it starts a new one.
        """
        config = self._config
        if config.retain_s is None or self._error is not None:
            return
        last = self._segments[-1]
        if last.size and last.age_s() > config.retain_s:
            with self._condition:
                self._must_roll = True
                self._condition.notify_all()
        self._retain()

    def _retain(self) -> None:
        """Remove old segments, as `retain_bytes` and `retain_s` require."""
        with self._retaining:  # the writer thread and a caller of `retain` must not remove the same segments
            self._remove_old()

    def _remove_old(self) -> None:
        config = self._config
        sealed = self._segments[:-1]
        before = 0
        total = sum(segment.size for segment in self._segments)
        for segment in sealed:
            too_much = config.retain_bytes is not None and total > config.retain_bytes
            too_old = config.retain_s is not None and segment.age_s() > config.retain_s
            if not too_much and not too_old:
                break
            total -= segment.size
            before = segment.end
        self.trim(before)

    # the writer thread

    def _run(self) -> None:
        try:
            writer = self._segments[-1].writer()
            while True:
                batch = self._next_batch()
                if batch is None:
                    break
                if batch:
                    self._write(writer.number, batch)
                del batch  # it may hold half a million small sets, and the next one may be long in coming
                if self._must_flush():
                    os.fdatasync(writer.number)
                    self._publish()
                if self._must_roll_now():
                    writer = self._roll().writer()
                    sync_directory(self.directory)
        except Exception as error:
            # After a failed fsync it is unknown what is on disk. To continue could lose messages reported as durable.
            self._fail(LogError(f"{self.directory} cannot be written: {error}; mend this, then open the log again"))

    def _wait_s(self) -> float | None:
        """How long the writer may wait: 0 if it must write or flush now; None if there is nothing to write or flush."""
        if not self._pending and self._unflushed_since is None:
            return None
        config = self._config
        is_due = (
            self._closing
            or self._flush_to > self._end
            or self._next - self._end >= config.flush_messages
            or self._pending_bytes > min(_WRITE_BYTES, config.pending_bytes_max)
        )
        if is_due:
            return 0
        since = self._pending_since if self._unflushed_since is None else self._unflushed_since
        due = since + config.flush_s
        if self._pending:
            due = min(due, self._pending_since + _WRITE_S)
        return max(0, due - time.monotonic())

    def _next_batch(self) -> list[_Append] | None:
        """Wait for work. Return what to write; an empty list if only a flush or a new segment is due; None if the
        log is closing and all is done."""
        with self._condition:
            while (seconds := self._wait_s()) != 0:
                if seconds is None and self._closing:
                    return None
                if seconds is None and self._must_roll:
                    return []
                self._is_waiting = True
                self._condition.wait(seconds)
                self._is_waiting = False
            if self._unflushed_since is None and self._pending:
                self._unflushed_since = self._pending_since
            batch = list(self._pending)
            self._pending.clear()
            self._pending_bytes = 0
            roomers, self._room_waiters = self._room_waiters, []
        for loop, waiter in roomers:
            _wake(loop, waiter, None)
        return batch

    def _write(self, descriptor: int, batch: list[_Append]) -> None:
        segment = self._segments[-1]
        count, position = self._written
        for append in batch:
            segment.note(count, position)
            if len(append.data) > 2 * INDEX_BYTES:
                segment.note_inside(append.data, count, position)
            count += append.count
            position += len(append.data)
        self._written = count, position
        segment.written()
        buffers = [memoryview(append.data) for append in batch]
        start = 0
        while start < len(buffers):
            written = os.writev(descriptor, buffers[start : start + _WRITEV_MAX])
            while start < len(buffers) and written >= len(buffers[start]):
                written -= len(buffers[start])
                start += 1
            if written:
                buffers[start] = buffers[start][written:]

    def _must_flush(self) -> bool:
        if self._unflushed_since is None:
            return False
        waiting = self._written[0] - self._segments[-1].count
        late = time.monotonic() - self._unflushed_since >= self._config.flush_s
        # A closing log, or a caller that asked for a flush, does not wait for a group.
        return waiting >= self._config.flush_messages or late or self._closing or self._flush_to > self._end

    def _must_roll_now(self) -> bool:
        if self._unflushed_since is not None:
            return False  # only flushed segments are sealed
        size = self._segments[-1].size
        must_roll, self._must_roll = self._must_roll and size > 0, False
        return must_roll or size >= self._config.segment_bytes

    def _publish(self) -> None:
        """Let readers see what was written, now that it is on disk."""
        self._unflushed_since = None
        with self._condition:
            segment = self._segments[-1]
            # Set the size first: a reader that sees the new count must find the messages.
            segment.size = self._written[1]
            segment.count = self._written[0]
            segment.remember_end()
            self._end = segment.end
            done = [each for each in self._waiters if each[0] <= self._end]
            self._waiters = [each for each in self._waiters if each[0] > self._end]
            self._condition.notify_all()
        for _, loop, waiter in done:
            _wake(loop, waiter, None)

    def _roll(self) -> Segment:
        """Seal the last segment, and start a new one."""
        self._segments[-1].seal()
        segment = Segment(self.directory, self._end)
        segment.writer()
        with self._condition:
            self._segments.append(segment)
            self._bases.append(segment.base)
            self._written = (0, 0)
        self._retain()
        return segment

    def _fail(self, error: LogError) -> None:
        _log.error("a log failed", directory=str(self.directory), error=str(error))
        with self._condition:
            self._error = error
            waiters = [(loop, waiter) for _, loop, waiter in self._waiters] + self._room_waiters
            self._waiters, self._room_waiters = [], []
            self._condition.notify_all()
        for loop, waiter in waiters:
            _wake(loop, waiter, error)


def _wake(loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None], error: Exception | None) -> None:
    def wake() -> None:
        if not waiter.done():
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)

    if not loop.is_closed():
        loop.call_soon_threadsafe(wake)
