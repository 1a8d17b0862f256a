"""Sources and stores for packet bodies: memory, or a file, which has no name when it is a received body.

Files are read and written in threads, so that nothing else on the connection waits for a disk.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, Protocol, TypeAlias

from tunnel.messages.errors import MessageError

__all__ = ["FileSource", "MemorySource", "Source", "SpoolWriter", "SpooledBody", "ThreadSpoolWriter"]

_READ_BYTES = 512 * 1024  # bytes of a file that are read at once; two such chunks are held
_FREE_IN_THREAD_BYTES = 8 << 20  # close larger files in a thread: the kernel took 90 ms to free 1 GiB, and pings waited
_WRITEV_MAX = 512  # pieces at once: below every system's IOV_MAX

Done: TypeAlias = Callable[[BaseException | None], None]


class Source(Protocol):
    """A body to send."""

    size: int

    def take(self, size_max: int) -> memoryview | None:
        """Return the next piece, of at most `size_max` bytes; None if it has not been read yet.

        Raises the error if the body cannot be read.
        """

    def close(self) -> None:
        """Release the body: nothing more is taken from it."""


class MemorySource:
    """A body in memory: parts are slices of the application's buffer, without a copy (option 1, see `assembler`)."""

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._view = memoryview(data).cast("B") if len(data) else memoryview(b"")
        self.size = len(self._view)
        self._position = 0

    def take(self, size_max: int) -> memoryview | None:
        piece = self._view[self._position : self._position + size_max]
        self._position += len(piece)
        return piece

    def close(self) -> None:
        self._view = memoryview(b"")


class FileSource:
    """A body in a file, read ahead in a thread. `ready` is called after each read, and when reading has failed."""

    def __init__(self, file: BinaryIO, ready: Callable[[], None]) -> None:
        self._descriptor = os.dup(file.fileno())  # so that the caller may close its file
        self.size = os.fstat(self._descriptor).st_size
        self._ready = ready
        self._read = 0
        self._chunks: deque[memoryview] = deque()
        self._error: BaseException | None = None
        self._reading: asyncio.Future[bytes] | None = None
        self._closed = False
        self._fetch()

    def take(self, size_max: int) -> memoryview | None:
        if not self._chunks:
            if self._error is not None:
                raise self._error.with_traceback(None)
            return None
        chunk = self._chunks[0]
        piece = chunk[:size_max]
        if len(piece) < len(chunk):
            self._chunks[0] = chunk[len(piece) :]
        else:
            self._chunks.popleft()
            self._fetch()
        return piece

    def _fetch(self) -> None:
        if self._reading is not None or self._closed or self._read >= self.size or len(self._chunks) > 1:
            return
        loop = asyncio.get_running_loop()
        size = min(_READ_BYTES, self.size - self._read)
        self._reading = loop.run_in_executor(None, os.pread, self._descriptor, size, self._read)
        self._reading.add_done_callback(self._fetched)

    def _fetched(self, future: asyncio.Future[bytes]) -> None:
        self._reading = None
        if self._closed:
            os.close(self._descriptor)
            if not future.cancelled():
                future.exception()
            return
        try:
            chunk = future.result()
            if not chunk:
                raise MessageError("the file became shorter while it was being sent: leave it unchanged until then")
        except (OSError, MessageError) as error:
            self._error = error
        else:
            self._read += len(chunk)
            self._chunks.append(memoryview(chunk))
            self._fetch()
        self._ready()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._chunks.clear()
            if self._reading is None:
                os.close(self._descriptor)


class SpooledBody:
    """A received body on disk, in a file without a name, which vanishes when it is closed or the process dies.

    `file` is positioned at its start. It is closed when the handler returns; the handler must read it, or `save` it
    under a name.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.file: BinaryIO = _nameless(directory)
        self.size = 0

    def write(self, pieces: Sequence[memoryview]) -> None:
        """Append these pieces. Raises OSError if the disk is full."""
        descriptor = self.file.fileno()
        waiting = deque(pieces)
        while waiting:
            written = os.writev(descriptor, [waiting[index] for index in range(min(len(waiting), _WRITEV_MAX))])
            self.size += written
            while waiting and written >= len(waiting[0]):
                written -= len(waiting.popleft())
            if waiting and written:
                waiting[0] = waiting[0][written:]

    def save(self, path: Path) -> None:
        """Give the file a name that no other file has. Blocks if the file has to be copied."""
        try:
            # os.link follows the link in /proc only if it gets a directory (`src_dir_fd`, see linkat(2))
            directory = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.link(f"/proc/self/fd/{self.file.fileno()}", path, src_dir_fd=directory, follow_symlinks=True)
            finally:
                os.close(directory)
        except FileExistsError:
            raise
        except OSError:
            self.file.seek(0)
            with open(path, "xb") as copy:
                shutil.copyfileobj(self.file, copy, _READ_BYTES)

    def close(self) -> None:
        """Remove the file, unless it was saved. The space of a large file is freed a moment later, in a thread."""
        if self.file.closed:
            return
        last = os.dup(self.file.fileno()) if self.size >= _FREE_IN_THREAD_BYTES else -1
        self.file.close()
        if last >= 0:
            threading.Thread(target=os.close, args=(last,), name="tunnel-free", daemon=True).start()


def _nameless(directory: Path | None) -> BinaryIO:
    place = directory or Path(tempfile.gettempdir())
    try:
        return os.fdopen(os.open(place, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600), "w+b", buffering=0)
    except (OSError, AttributeError):
        # Not every file system supports O_TMPFILE. Without it, the file has a name for an instant.
        return tempfile.TemporaryFile(dir=place, buffering=0)


class SpoolWriter(Protocol):
    """Writes to spooled bodies, in the order of the calls."""

    def write(self, body: SpooledBody, pieces: Sequence[memoryview], done: Done) -> None:
        """Append pieces to a body, then call `done` in the event loop, with the error if there was one."""

    def discard(self, body: SpooledBody) -> None:
        """Close a body once nothing writes to it any more."""

    def close(self) -> None:
        """Start no further write, and call no further `done`."""


class ThreadSpoolWriter:
    """Writes in one thread, which starts with the first large body; one call writes all that waits."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[SpooledBody, Sequence[memoryview], Done]] = deque()
        self._executor: ThreadPoolExecutor | None = None
        self._busy = False
        self._closed = False

    def write(self, body: SpooledBody, pieces: Sequence[memoryview], done: Done) -> None:
        self._waiting.append((body, pieces, done))
        self._next()

    def _next(self) -> None:
        if self._busy or self._closed or not self._waiting:
            return
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="tunnel-spool")
        batch, self._waiting = list(self._waiting), deque()
        self._busy = True
        self._executor.submit(self._write, batch)

    def _write(self, batch: list[tuple[SpooledBody, Sequence[memoryview], Done]]) -> None:
        """Write a batch. Runs in the thread."""
        outcomes: list[tuple[Done, BaseException | None]] = []
        for body, pieces, done in batch:
            try:
                body.write(pieces)
            except (OSError, ValueError) as error:  # ValueError: the body has been closed
                outcomes.append((done, error))
            else:
                outcomes.append((done, None))
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._written, outcomes)

    def _written(self, outcomes: list[tuple[Done, BaseException | None]]) -> None:
        self._busy = False
        if self._closed:
            return
        for done, error in outcomes:
            done(error)
        self._next()

    def discard(self, body: SpooledBody) -> None:
        # Close it in the thread: the system must not reuse its descriptor while the thread writes to it.
        if self._executor is None:
            body.close()
        else:
            self._executor.submit(body.close)

    def close(self) -> None:
        self._closed = True
        self._waiting.clear()
        if self._executor is not None:
            self._executor.shutdown(wait=False)
