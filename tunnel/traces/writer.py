"""The writer of traces: takes records from a transport that must not wait, and writes them in a thread of its own.

Lines of JSON, one zstd frame for each flush: whatever is cut short loses its last frame, and nothing else. A file is
called `_name` while it is written, which those who read a directory skip, and loses the `_` when it is whole and on
disk. What the writer could not take it counts, and says so in the trace.
"""

import os
import secrets
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, BinaryIO, Self

import msgspec
import zstandard

from tunnel.traces.record import TraceEvent, TraceLevel, TraceRecord
from tunnel.traces.salvage import SUFFIX, salvage_directory

__all__ = ["TraceWriter"]

FLUSH_RECORDS = 4096
FLUSH_S = 0.25
FILE_BYTES = 64 * 1024 * 1024  # of lines, before compression
FILE_S = 60.0
QUEUE_RECORDS = 64 * FLUSH_RECORDS  # about a second of the fastest transport; beyond it records are dropped
_LEVEL = 1  # of zstd: a tenth of the size, at more than 1 GB/s


class TraceWriter:
    """A trace sink: call it with records from any thread, then close it (or use it in a `with`). It never blocks its
    caller and never raises at it: when the disk is slow or full records are dropped, and `dropped` counts them."""

    def __init__(
        self,
        directory: str | Path,
        *,
        level: TraceLevel = TraceLevel.PACKET,
        name: str = "",
        file_bytes: int = FILE_BYTES,
        file_s: float = FILE_S,
        queue_records: int = QUEUE_RECORDS,
    ) -> None:
        """Make the directory, mend what an earlier process left there. OSError when it cannot be written."""
        self.level = level
        self.writer = f"{name or 'trace'}-{os.getpid()}-{secrets.token_hex(4)}"
        self.dropped = 0  # records, from the beginning
        self.written = 0
        self.failure = ""  # why records are dropped now
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        salvage_directory(self._directory)
        self._file_bytes = file_bytes
        self._file_s = file_s
        self._queue_records = queue_records
        self._queue: deque[TraceRecord] = deque()
        self._append = self._queue.append
        self._refused = 0  # counted by those who call, told by the thread
        self._told = 0
        self._number = 1
        self._encoder = msgspec.json.Encoder()
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True, write_content_size=True)
        self._file: BinaryIO | None = None
        self._file_number = 0
        self._file_size = 0
        self._file_opened_s = 0.0
        self._open()  # now: a directory that cannot be written is told to the one who names it
        self._wake = threading.Event()
        self._woken = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="trace-writer", daemon=True)
        self._thread.start()

    # the transport's side

    def __call__(self, record: TraceRecord) -> None:
        """Take one record. It must not be given to another writer."""
        waiting = len(self._queue)
        if waiting >= self._queue_records or self._closed:
            self._refused += 1
            return
        self._append(record)
        if waiting >= FLUSH_RECORDS and not self._woken:
            self._woken = True
            self._wake.set()

    def close(self) -> None:
        """Write what waits and close the file. May be called again; records that come later are dropped."""
        self._closed = True
        self._wake.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # the thread's side

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
        """Write all that waits, a frame for every 4,096 records."""
        queue = self._queue
        while queue or self._refused != self._told:
            count = min(len(queue), FLUSH_RECORDS)
            records = [queue.popleft() for _ in range(count)]
            refused = self._refused - self._told
            self._told += refused
            try:
                self._write(records, refused)
            except OSError as error:
                self._failed(len(records), error)
                return

    def _write(self, records: list[TraceRecord], refused: int) -> None:
        self.dropped += refused
        if refused:
            records.append(self._confession(refused))
        writer, number, assign = self.writer, self._number, msgspec.structs.force_setattr
        for record in records:
            if record.event is TraceEvent.TRACE_DROPPED:
                number += record.count  # what was dropped had numbers, too
            assign(record, "writer", writer)
            assign(record, "number", number)
            number += 1
        self._number = number  # those that are not written are missed by their numbers
        lines = self._encoder.encode_lines(records)
        if self._file is None:
            self._open()
        assert self._file is not None
        self._file.write(self._compressor.compress(lines))
        self._file.flush()
        self.written += len(records)
        self.failure = ""
        self._file_size += len(lines)
        if self._file_size >= self._file_bytes:
            self._finish()

    def _confession(self, count: int) -> TraceRecord:
        return TraceRecord(
            time_us=time.monotonic_ns() // 1_000, node=self.writer, event=TraceEvent.TRACE_DROPPED, count=count
        )

    def _failed(self, count: int, error: OSError) -> None:
        """The disk is full, or gone: what waits is dropped, and the next flush tries a new file."""
        self.dropped += count
        self.failure = f"{self._directory}: {error.strerror or error}"
        file, self._file = self._file, None
        if file is not None:
            _close_anyhow(file)

    def _open(self) -> None:
        self._file_number += 1
        self._file_size = 0
        self._file_opened_s = time.monotonic()
        self._file = (self._directory / f"_{self._file_name()}").open("wb")

    def _file_name(self) -> str:
        return f"{self.writer}-{self._file_number:05d}{SUFFIX}"

    def _finish(self) -> None:
        """The file is whole: on disk first, then under its name."""
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
            _close_anyhow(file)


def _close_anyhow(file: Any) -> None:
    try:
        file.close()
    except OSError:
        return  # what it still held is lost, as was said
