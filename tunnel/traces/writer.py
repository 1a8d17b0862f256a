"""The writer of trace files. It writes in its own thread, because the code that creates records must not wait.

Files hold JSON lines. Each flush adds one zstd frame, or several if many records wait, so a truncated file loses only
its last frame. A file is called `_name` while it is written, and readers of the directory skip it. It loses the `_`
when it is complete and on disk. The writer counts the records that it could not take and adds the count to the trace.
"""

import errno
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Self

import msgspec
import zstandard

from tunnel.system.clock import now_us
from tunnel.traces.folder import FOLDER_BYTES_MAX, TraceFolder
from tunnel.traces.record import TraceEvent, TraceLevel, TraceRecord
from tunnel.traces.salvage import SUFFIX, salvage_directory

__all__ = ["TraceWriter"]

FLUSH_RECORDS = 4096
FLUSH_S = 0.25
FILE_BYTES = 64 * 1024 * 1024  # of JSON lines, before compression
FILE_S = 60.0
_FILES_MIN = 8  # a file ends at 1/8 of the folder's limit: its removal takes only a small part of the trace with it
_CLOSE_S = 10.0  # how long `close` waits for the last records to be written, if the disk hangs
QUEUE_RECORDS = 64 * FLUSH_RECORDS  # about one second of the fastest transport; further records are dropped
_LEVEL = 1  # zstd level: a tenth of the size, at more than 1 GB/s
_MIB = 1 << 20


class TraceWriter:
    """A trace sink: call it with records from any thread, then close it (or use it in a `with`).

    A call never blocks and never raises. When the disk is slow or full, it drops records and counts `records_dropped`.
    When the trace files of the directory, of whichever process, reach `bytes_max`, the oldest are removed. `tell` is
    called in another thread with a sentence for the log, once when files are first removed, and once when writing first
    fails.

    One thing because the numbers of records must show every loss: refused in the queue, or failed on the way to the
    file. Half of its attributes are the settings and tools that it was made with.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        level: TraceLevel = TraceLevel.PACKET,
        name: str = "",
        file_bytes: int = FILE_BYTES,
        file_s: float = FILE_S,
        queue_records: int = QUEUE_RECORDS,
        bytes_max: int = FOLDER_BYTES_MAX,
        tell: Callable[[str], None] = lambda text: None,
        reads_clock: bool = False,
    ) -> None:
        """Create the directory and salvage what earlier processes left in it. Raise OSError if it cannot be written.

        With `reads_clock`, each file begins with the wall clock. The times of all records must then be those of
        `tunnel.system.clock`.
        """
        self.level = level
        self.writer = f"{name or 'trace'}-{os.getpid()}-{secrets.token_hex(4)}"
        self.written = 0
        self.failure = ""  # why records are dropped at present; empty if they are not
        self._directory = Path(directory)
        self._folder = TraceFolder(self._directory, bytes_max, tell)
        self._tell = tell
        self._has_told_failure = False
        salvage_directory(self._directory)
        self._folder.look()
        self._file_bytes = file_bytes
        self._file_s = file_s
        self._queue_records = queue_records
        self._reads_clock = reads_clock
        self._queue: deque[TraceRecord] = deque()
        self._append = self._queue.append
        self._refused = 0  # records refused so far; callers count, the thread reports
        self._lost = 0  # records that were queued and could not be written
        self._told = 0  # how many of the refused records were reported in the trace
        self._number = 1
        self._encoder = msgspec.json.Encoder()
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True, write_content_size=True)
        self._file: BinaryIO | None = None
        self._file_number = 0
        self._file_size = 0
        self._file_disk_bytes = 0
        self._file_opened_s = 0.0
        self._open()  # at once, so that the caller gets the error if the directory cannot be written
        self._wake = threading.Event()
        self._woken = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="trace-writer", daemon=True)
        self._thread.start()

    # called by the transport

    def __call__(self, record: TraceRecord) -> None:
        """Queue one record. The caller must not give it to another writer."""
        waiting = len(self._queue)
        if waiting >= self._queue_records or self._closed:
            self._refused += 1
            return
        self._append(record)
        if waiting >= FLUSH_RECORDS and not self._woken:
            self._woken = True
            self._wake.set()

    def close(self) -> None:
        """Write the queued records and close the file; later records are dropped. A second call has no effect.

        On a disk that hangs, it returns after 10 s.
        """
        self._closed = True
        self._wake.set()
        self._thread.join(_CLOSE_S)

    @property
    def records_dropped(self) -> int:
        """The number of records that were dropped since the start, those after `close` included."""
        return self._refused + self._lost

    @property
    def removed_files(self) -> int:
        """The number of files that were removed because the directory was full."""
        return self._folder.removed_files

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # run by the thread

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(FLUSH_S)
            self._wake.clear()
            self._woken = False
            self._flush()
            if self._file is not None and time.monotonic() - self._file_opened_s >= self._file_s:
                self._finish()
        self._flush()
        self._finish()

    def _flush(self) -> None:
        """Write all queued records, with one frame for every 4,096 of them."""
        queue = self._queue
        while queue or self._refused != self._told:
            count = min(len(queue), FLUSH_RECORDS)
            records = [queue.popleft() for _ in range(count)]
            refused = self._refused - self._told
            self._told += refused
            try:
                self._write(records, refused)
            except OSError as error:
                self._failed(count, error)
                return

    def _write(self, records: list[TraceRecord], refused: int) -> None:
        if refused:
            records.append(self._dropped_record(refused))
        if self._reads_clock and (self._file is None or not self._file_size):
            records.insert(0, self._clock_record())
        writer, number, assign = self.writer, self._number, msgspec.structs.force_setattr
        for record in records:
            if record.event is TraceEvent.TRACE_DROPPED:
                number += record.count  # dropped records have numbers, too
            assign(record, "writer", writer)
            assign(record, "number", number)
            number += 1
        self._number = number  # even if writing fails: the gap in the numbers then shows the loss
        lines = self._encoder.encode_lines(records)
        frame = self._compressor.compress(lines)
        if self._file is None:
            self._folder.look()
        if not self._folder.takes(len(frame)):
            self._finish()  # a finished file is complete, so that it can be removed if necessary
            if not self._folder.takes(len(frame)):
                text = (
                    f"the trace files have reached their limit of {self._folder.bytes_max / _MIB:g} MiB, and removing "
                    "the complete ones would not make enough room: raise the limit, or let fewer processes write there"
                )
                raise OSError(errno.EDQUOT, text)
        if self._file is None:
            self._open()
        assert self._file is not None
        self._file.write(frame)
        self._file.flush()
        self.written += len(records)
        self.failure = ""
        self._file_size += len(lines)
        self._file_disk_bytes += len(frame)
        if self._file_size >= self._file_bytes or self._file_disk_bytes >= self._folder.bytes_max // _FILES_MIN:
            self._finish()

    def _dropped_record(self, count: int) -> TraceRecord:
        return TraceRecord(time_us=now_us(), node=self.writer, event=TraceEvent.TRACE_DROPPED, count=count)

    def _clock_record(self) -> TraceRecord:
        return TraceRecord(
            time_us=now_us(), node=self.writer, event=TraceEvent.CLOCK_READ, wall_us=time.time_ns() // 1_000
        )

    def _failed(self, count: int, error: OSError) -> None:
        """Drop records that could not be written, as when the disk is full. The next flush tries a new file."""
        self._lost += count
        self.failure = f"{self._directory}: {error.strerror or error}"
        if not self._has_told_failure:
            self._has_told_failure = True
            self._tell(f"trace records are lost, because they cannot be written: {self.failure}")
        file, self._file = self._file, None
        if file is not None:
            _close_quietly(file)
            written = self._directory / f"_{self._file_name()}"
            with suppress(OSError):
                if not written.stat().st_size:  # on a full disk, each attempt would leave an empty file
                    written.unlink()

    def _open(self) -> None:
        self._file_number += 1
        self._file_size = 0
        self._file_disk_bytes = 0
        self._file_opened_s = time.monotonic()
        self._file = self._folder.create(f"_{self._file_name()}")

    def _file_name(self) -> str:
        return f"{self.writer}-{self._file_number:05d}{SUFFIX}"

    def _finish(self) -> None:
        """Complete the file: sync it to disk, then rename it."""
        file, self._file = self._file, None
        if file is None:
            return
        written = self._directory / f"_{self._file_name()}"
        try:
            if not self._file_size:
                file.close()
                written.unlink()
                return
            file.flush()
            os.fsync(file.fileno())
            file.close()
            written.rename(self._directory / self._file_name())
        except OSError as error:
            self._failed(0, error)
            _close_quietly(file)


def _close_quietly(file: Any) -> None:
    try:
        file.close()
    except OSError:
        return  # the loss of its buffered bytes has been reported
