"""Trace files as frames: reading them as far as they are whole, and mending what a crash left behind."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import zstandard

__all__ = ["PLAIN_SUFFIX", "SUFFIX", "Findings", "examine", "frames_of", "salvage_directory"]

SUFFIX = ".jsonl.zst"
PLAIN_SUFFIX = ".jsonl"
_MAGIC = b"\x28\xb5\x2f\xfd"  # RFC 8878 3.1.1
WINDOW_BYTES_MAX = 8 * 1024 * 1024  # RFC 8878 3.1.1.1.2: what every reader should have


@dataclass(slots=True)
class Findings:
    """What was found in one file."""

    size_bytes: int = 0
    frames: int = 0
    corrupt_frames: int = 0
    is_truncated: bool = False
    """It ends within a frame or a line."""

    @property
    def is_whole(self) -> bool:
        return not self.corrupt_frames and not self.is_truncated


def frames_of(data: bytes, findings: Findings) -> Iterator[bytes]:
    """The contents of the whole frames, in order. What is damaged is skipped, up to where the next frame begins."""
    position = 0
    while position < len(data):
        content, size = _frame(data, position)
        if content is not None:
            findings.frames += 1
            position += size
            yield content
            continue
        following = _next_frame(data, position + 1)
        if following < 0:
            # nothing whole comes after it: it was cut short, unless all its bytes are there
            if size:
                findings.corrupt_frames += 1
            else:
                findings.is_truncated = True
            return
        findings.corrupt_frames += 1
        position = following


def _frame(data: bytes, position: int) -> tuple[bytes | None, int]:
    """The content of the frame that begins there and its size; None when it is damaged, size 0 when it has no end."""
    size = _frame_size(data, position)
    if size <= 0:
        return None, 1 if size < 0 else 0
    try:
        # piece by piece: a header is not believed how much room it asks for
        decompressor = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX).decompressobj()
        content = decompressor.decompress(memoryview(data)[position : position + size])
        return (content if decompressor.eof else None), size
    except zstandard.ZstdError:
        return None, size


def _frame_size(data: bytes, position: int) -> int:
    """Bytes from there to the end of the frame, by its headers (RFC 8878 3.1.1); 0 when the data ends before, -1 when
    no frame begins there."""
    if not data.startswith(_MAGIC, position):
        return 0 if _MAGIC.startswith(data[position : position + 4]) else -1
    if position + 5 > len(data):
        return 0
    descriptor = data[position + 4]
    is_single = descriptor >> 5 & 1
    content_size_bytes = (is_single, 2, 4, 8)[descriptor >> 6]
    at = position + 5 + (1 - is_single) + (0, 1, 2, 4)[descriptor & 3] + content_size_bytes
    while at + 3 <= len(data):
        block = int.from_bytes(data[at : at + 3], "little")
        kind = block >> 1 & 3
        if kind == 3:
            return -1
        at += 3 + (1 if kind == 1 else block >> 3)
        if block & 1:
            at += 4 * (descriptor >> 2 & 1)  # the checksum
            return at - position if at <= len(data) else 0
    return 0


def _next_frame(data: bytes, start: int) -> int:
    """Where the next whole frame begins; -1 when there is none. The magic alone may be a coincidence."""
    while (start := data.find(_MAGIC, start)) >= 0:
        if _frame(data, start)[0] is not None:
            return start
        start += 1
    return -1


def examine(path: Path) -> tuple[Findings, list[bytes]]:
    """What a file holds, as far as it is whole, with what was found. Content that ends within a line loses the line."""
    data = path.read_bytes()
    findings = Findings(len(data))
    parts = list(frames_of(data, findings)) if path.name.endswith(SUFFIX) else [data] if data else []
    if parts and not parts[-1].endswith(b"\n"):
        findings.is_truncated = True
        parts[-1] = parts[-1][: parts[-1].rfind(b"\n") + 1]
    return findings, parts


def salvage_directory(directory: Path) -> list[Path]:
    """Give what dead processes left as `_name` its name, up to its last whole frame; the files that became of it.
    What a living process writes is not touched."""
    salvaged = []
    for path in sorted(directory.glob(f"_*{SUFFIX}")):
        if _is_written(path.name):
            continue
        findings, parts = examine(path)
        if not parts:
            path.unlink(missing_ok=True)
            continue
        target = path.with_name(path.name[1:])
        if findings.is_whole:
            path.rename(target)
        else:
            compressor = zstandard.ZstdCompressor(level=1, write_checksum=True)
            temporary = path.with_name(f".{target.name}")
            with temporary.open("wb") as file:
                for part in parts:
                    file.write(compressor.compress(part))
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(target)
            path.unlink()
        salvaged.append(target)
    return salvaged


def _is_written(name: str) -> bool:
    """Whether the process of the name (NAME-PID-RANDOM-NUMBER) is alive. Its number may have come round to another
    one: then the file waits for the next start, which costs nothing."""
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
