"""Writes the lines of a log in a thread of its own, because the process must not wait for the reader of its log.

A pipe takes 64 KiB. If its reader stands still, a write to it does not return, and a process that writes from its event
loop stands still, too.
"""

import os
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import TextIO

__all__ = ["BYTES_MAX", "LineWriter", "Write", "write_to"]

BYTES_MAX = 1 << 20  # of lines that wait
_BATCH_BYTES = 64 * 1024  # of one write: what a pipe takes
# The thread waits for so long after a first line. To wake it costs the caller 120 us (relay) to 720 us (exit), which
# each line of a stream of connections paid.
_GATHER_S = 0.02
Write = Callable[[bytes], None]


def write_to(stream: TextIO) -> Write:
    """Return a function that writes bytes to the stream and returns when all are written. It may raise OSError.

    It uses the stream's descriptor, if there is one: a lock of the stream, held by a thread that hangs, would keep the
    interpreter from ending.
    """
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError, AttributeError):

        def write_text(data: bytes) -> None:
            stream.write(data.decode(errors="replace"))
            stream.flush()

        return write_text

    def write(data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(descriptor, rest) :]
            except BlockingIOError:  # another process has made the descriptor non-blocking
                waiting = select.poll()
                waiting.register(descriptor, select.POLLOUT)
                waiting.poll()

    return write


class LineWriter:
    """Writes lines in their order. `put` never waits; it drops lines if too many bytes wait, and counts them.

    After a first line the thread gathers others for `_GATHER_S`, unless a whole write waits: a line is written that
    much later, and the lines of that time wake the thread once.

    A payer may hold no more bytes than are free at that time, so that lines about one user leave room for those about
    others. The process itself, the payer "", may use all bytes.

    `lost(count)` returns the line that reports dropped lines; it is written after those that waited when the first of
    them was dropped. The thread calls `due()` at the latest after the number of seconds that the previous call
    returned, and after `look`.
    """

    def __init__(
        self,
        write: Write,
        lost: Callable[[int], bytes],
        due: Callable[[], float | None] = lambda: None,
        *,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        self.written = 0  # lines
        self.dropped = 0  # lines
        self._write = write
        self._lost = lost
        self._due = due
        self._bytes_max = bytes_max
        self._changed = threading.Condition()  # on an RLock: a finaliser may log while its thread is in `put`
        self._queue: deque[tuple[bytes, str]] = deque()
        self._held_bytes = 0  # including those that are being written
        self._bytes_of: dict[str, int] = {}
        self._put = 0  # lines, including those that are not written yet
        self._finished = 0  # of these, lines that were written, or whose write failed
        self._reported = 0  # number of dropped lines that were reported
        self._report_after: int | None = None  # report losses when that many lines are finished; None: no losses
        self._is_woken = False
        self._is_awake = True  # the thread takes new lines without a notice
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    @property
    def held_bytes(self) -> int:
        """The number of bytes that wait or are being written."""
        return self._held_bytes

    def fits(self, size: int, payer: str = "") -> bool:
        """Whether `put` would take a line of this many bytes now."""
        free = self._bytes_max - self._held_bytes - size
        return free >= (self._bytes_of.get(payer, 0) + size if payer else 0)

    def put(self, line: bytes, payer: str = "") -> bool:
        """Queue a line, which ends with a newline. Return False if it was dropped. May be called in any thread."""
        size = len(line)
        with self._changed:
            if self._is_closing or not self.fits(size, payer):
                self._drop(1)
                return False
            self._queue.append((line, payer))
            self._put += 1
            self._charge(payer, size)
            if not self._is_awake or self._held_bytes >= _BATCH_BYTES:
                self._changed.notify()
            return True

    def look(self) -> None:
        """Let the thread call `due` soon."""
        with self._changed:
            self._is_woken = True
            self._changed.notify()

    def close(self, seconds: float) -> bool:
        """Write what waits, for at most this time. Return whether all of it is written. Later lines are dropped."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _drop(self, count: int) -> None:
        self.dropped += count
        if self._report_after is None:
            self._report_after = self._put

    def _charge(self, payer: str, count: int) -> None:
        self._held_bytes += count
        held = self._bytes_of.get(payer, 0) + count
        if held:
            self._bytes_of[payer] = held
        else:
            del self._bytes_of[payer]

    # run by the thread

    def _run(self) -> None:
        while True:
            seconds = self._due()
            with self._changed:
                if not (self._queue or self._is_woken or self._is_closing):
                    self._is_awake = False
                    self._changed.wait(seconds)
                    self._is_awake = True
                if self._queue and self._held_bytes < _BATCH_BYTES and not self._is_closing:
                    self._changed.wait(_GATHER_S)
                self._is_woken = False
                is_last = self._is_closing
                batch = self._take()
            if batch:
                self._write_batch(batch)
            elif is_last:
                return

    def _take(self) -> list[tuple[bytes, str]]:
        batch: list[tuple[bytes, str]] = []
        size = 0
        while self._queue and (not batch or size + len(self._queue[0][0]) <= _BATCH_BYTES):
            batch.append(self._queue.popleft())
            size += len(batch[-1][0])
        return batch

    def _write_batch(self, batch: list[tuple[bytes, str]]) -> None:
        try:
            self._write(b"".join(line for line, _ in batch))
            is_written = True
        except (OSError, ValueError):  # the reader has gone, the disk is full, or the stream is closed
            is_written = False
        with self._changed:
            self._finished += len(batch)
            for line, payer in batch:
                self._charge(payer, -len(line))
            if is_written:
                self.written += len(batch)
            else:
                self._drop(len(batch))
            count = self.dropped - self._reported
            is_due = is_written and self._report_after is not None and self._finished >= self._report_after
        if is_due:
            self._report(count)

    def _report(self, count: int) -> None:
        try:
            self._write(self._lost(count))
        except (OSError, ValueError):
            return  # the report is tried again after the next lines
        with self._changed:
            self._reported += count
            self._report_after = None if self.dropped == self._reported else self._put
