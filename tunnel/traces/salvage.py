"""Reads the intact frames of trace files, and repairs the files that a crash left."""

import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zstandard

from tunnel.system.private_files import create_private
from tunnel.traces.record import TraceEvent, TraceRecord

__all__ = ["PLAIN_SUFFIX", "SUFFIX", "Findings", "examine", "frames_of", "is_being_written", "salvage_directory"]

SUFFIX = ".jsonl.zst"
PLAIN_SUFFIX = ".jsonl"
_MAGIC = b"\x28\xb5\x2f\xfd"  # RFC 8878 3.1.1
WINDOW_BYTES_MAX = 8 * 1024 * 1024  # RFC 8878 3.1.1.1.2: the size that every reader should support
# A file of another machine may be made to become very large. A writer packs a trace to about a tenth.
_UNPACKED_BYTES_LEAST = 128 << 20  # twice what a file of this program's own holds
_UNPACKED_RATIO_MAX = 100
_BLOCK_COST_BYTES = 64  # of the limit, for a block's header: the search after damage can look at each many times
_READ_BYTES = 1 << 20


@dataclass(slots=True)
class Findings:
    """The counts of intact and damaged frames in one file."""

    size_bytes: int = 0
    frames: int = 0
    corrupt_frames: int = 0
    is_truncated: bool = False
    """The file ends within a frame or a line."""

    @property
    def is_whole(self) -> bool:
        return not self.corrupt_frames and not self.is_truncated


class _Budget:
    """The number of bytes that may still be unpacked of a file."""

    def __init__(self, packed_bytes: int) -> None:
        self._left = max(_UNPACKED_BYTES_LEAST, packed_bytes * _UNPACKED_RATIO_MAX)

    @property
    def is_used_up(self) -> bool:
        return self._left < 0

    def take(self, count: int) -> bool:
        """Take bytes; return whether the limit allows them. Nothing is allowed after a refusal."""
        self._left = self._left - count if count <= self._left else -1
        return self._left >= 0


def frames_of(data: bytes, findings: Findings) -> Iterator[bytes]:
    """Yield the contents of the intact frames in order, skip damaged data, and count both in `findings`.

    Whatever is beyond the limit of unpacked bytes counts as one damaged frame.
    """
    budget = _Budget(len(data))
    position = 0
    while position < len(data):
        content, size = _frame(data, position, budget)
        if content is not None:
            findings.frames += 1
            position += size
            yield content
            continue
        following = _next_frame(data, position + 1, budget)
        if following < 0:
            # no intact frame follows: if the data ends within the frame at `position`, the file is truncated;
            # otherwise everything from there on counts as one corrupt frame
            if size or budget.is_used_up:
                findings.corrupt_frames += 1
            else:
                findings.is_truncated = True
            return
        findings.corrupt_frames += 1
        position = following


def _frame(data: bytes, position: int, budget: _Budget) -> tuple[bytes | None, int]:
    """Return content and size of the frame that begins there.

    The content is None if no intact frame begins there, or if the budget does not allow it. The size is then 0 if the
    data ends within a frame, and above 0 if not.
    """
    size = _frame_size(data, position, budget)
    if size <= 0:
        return None, 1 if size < 0 else 0
    chunks = []
    decompressor = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX)
    try:
        # A reader does not trust the content size in the header.
        with decompressor.stream_reader(memoryview(data)[position : position + size]) as reader:
            while chunk := reader.read(_READ_BYTES):
                if not budget.take(len(chunk)):
                    return None, size
                chunks.append(chunk)
    except zstandard.ZstdError:
        return None, size
    return b"".join(chunks), size


def _frame_size(data: bytes, position: int, budget: _Budget) -> int:
    """Return the size of the frame that begins there, by its headers (RFC 8878 3.1.1).

    Return 0 when the data ends within the frame, and -1 when no frame begins there.
    """
    if not data.startswith(_MAGIC, position):
        return 0 if _MAGIC.startswith(data[position : position + 4]) else -1
    if position + 5 > len(data):
        return 0
    descriptor = data[position + 4]
    is_single = descriptor >> 5 & 1
    content_size_bytes = (is_single, 2, 4, 8)[descriptor >> 6]
    at = position + 5 + (1 - is_single) + (0, 1, 2, 4)[descriptor & 3] + content_size_bytes
    while at + 3 <= len(data) and budget.take(_BLOCK_COST_BYTES):
        block = int.from_bytes(data[at : at + 3], "little")
        kind = block >> 1 & 3
        if kind == 3:
            return -1
        at += 3 + (1 if kind == 1 else block >> 3)
        if block & 1:
            at += 4 * (descriptor >> 2 & 1)  # the checksum
            return at - position if at <= len(data) else 0
    return 0


def _next_frame(data: bytes, start: int, budget: _Budget) -> int:
    """Return the position of the next intact frame, or -1. The magic alone may be a coincidence."""
    while not budget.is_used_up and (start := data.find(_MAGIC, start)) >= 0:
        if _frame(data, start, budget)[0] is not None:
            return start
        start += 1
    return -1


def examine(path: Path) -> tuple[Findings, list[bytes]]:
    """Return the findings in a file and its intact contents. A line without an end is left out."""
    data = path.read_bytes()
    findings = Findings(len(data))
    parts = list(frames_of(data, findings)) if path.name.endswith(SUFFIX) else [data] if data else []
    if parts and not parts[-1].endswith(b"\n"):
        findings.is_truncated = True
        parts[-1] = parts[-1][: parts[-1].rfind(b"\n") + 1]
    return findings, parts


def salvage_directory(directory: Path) -> list[Path]:
    """Salvage the files that dead processes left, whose names begin with `_`. Return the paths of the salvaged files.

    The intact frames of each file are kept, under the same name without the `_`, and a record is added that says that
    the process died. A file without an intact frame is deleted. Files that a running process writes are not touched. If
    another process is salvaging this directory, nothing is done.
    """
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        if not _lock(descriptor):
            return []
        left = [path for path in sorted(directory.glob(f"_*{SUFFIX}")) if not is_being_written(path)]
        return [target for path in left if (target := _salvage(path, descriptor)) is not None]
    finally:
        os.close(descriptor)  # this also ends the lock


def _lock(descriptor: int) -> bool:
    """Return False if another process holds the lock of this file or directory."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # the file system has no locks
    return True


def _salvage(path: Path, directory: int) -> Path | None:
    """Return the path of the salvaged file, or None if the file has no intact frame and was deleted."""
    parts = examine(path)[1]
    if not parts:
        path.unlink()
        return None
    target = path.with_name(path.name[1:])
    compressor = zstandard.ZstdCompressor(level=1, write_checksum=True)
    temporary = path.with_name(f".{target.name}")
    temporary.unlink(missing_ok=True)
    with open(create_private(temporary), "wb") as file:
        for part in (*parts, *_death(parts[-1])):
            file.write(compressor.compress(part))
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(target)
    os.fsync(directory)  # before `path` is removed: otherwise, after a crash of the machine, neither file might exist
    path.unlink()
    return target


def _death(last: bytes) -> list[bytes]:
    """Return the line that says that the writer's process died, after its last frame."""
    try:
        record = msgspec.json.decode(last[last.rfind(b"\n", 0, -1) + 1 :], type=TraceRecord)
    except msgspec.DecodeError:
        return []  # a line of another version
    if not record.writer:
        return []
    died = TraceRecord(
        time_us=record.time_us,
        node=record.writer,
        event=TraceEvent.PROCESS_DIED,
        writer=record.writer,
        number=record.number + 1,
    )
    return [msgspec.json.encode(died) + b"\n"]


def is_being_written(path: Path) -> bool:
    """Whether a process writes the file, of those whose name begins with `_`.

    A writer locks its file. Without locks, the PID in the file's name (`_NAME-PID-RANDOM-NUMBER` and the suffix) tells:
    if another process has taken that PID since, the answer is True although no process writes the file.
    """
    return _is_locked(path) or _is_alive(path.name)


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not _lock(descriptor)
    finally:
        os.close(descriptor)


def _is_alive(name: str) -> bool:
    parts = name.removesuffix(SUFFIX).rsplit("-", 3)
    if len(parts) != 4 or not parts[1].isdigit():
        return False
    try:
        os.kill(int(parts[1]), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
