"""The intake of trace files: it finds new files, checks them, and stages the parts that are to be added to the tables.

Every part of a file, that is, every frame or all plain lines, is known by the digest of its content. A part that the
tables contain is never added again, whatever the file is called that brings it: a copy, a file that has grown since,
or the repaired remains of a process that died.
"""

import os
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import zstandard
from xxhash import xxh3_64_hexdigest

from tunnel.analysis.ledger import Entry, Intake, Ledger, LedgerError, TraceFile, key_of
from tunnel.traces.salvage import PLAIN_SUFFIX, SUFFIX, Findings, examine

__all__ = ["Staged", "add_new", "compressed_bytes", "trace_files", "unfinished_files"]

_PLAIN_RATIO = 10  # the size of plain lines, relative to the same lines compressed with zstd
_BLANK = (b"\n\n", b"\n ", b"\n\t", b"\n\r")


@dataclass(frozen=True, slots=True)
class Staged:
    """What is to be added: compressed files of JSON lines in a folder, each named by the value of `source`."""

    folder: Path
    files: int
    rows: int
    """The number of lines in them."""


@dataclass(slots=True)
class _Look:
    """A file that was looked at."""

    path: Path
    entry: Entry
    rows: list[int]
    """The number of lines in each part."""
    is_finished: bool
    """It is a compressed file without damage: Spark can read it where it is."""


def trace_files(directory: Path) -> list[Path]:
    """Return the finished trace files in and below a directory.

    Names that begin with `_` are skipped: they are files that are still being written, and our own tables.
    """
    return [
        path
        for path in sorted(directory.rglob("*"))
        if path.name.endswith((SUFFIX, PLAIN_SUFFIX)) and not _is_hidden(path.relative_to(directory).parts)
    ]


def unfinished_files(directory: Path) -> list[Path]:
    """Return the files called `_NAME`, which are being written, or were left behind by a process that died."""
    return [
        path
        for path in sorted(directory.rglob(f"_*{SUFFIX}"))
        if not _is_hidden(path.relative_to(directory).parts[:-1])
    ]


def _is_hidden(parts: Iterable[str]) -> bool:
    return any(part.startswith(("_", ".")) for part in parts)


def compressed_bytes(directory: Path) -> int:
    """Return the total size of the trace files below `directory`. Plain files count as if they were compressed."""
    paths = trace_files(directory) + unfinished_files(directory)
    sizes = ((path.stat().st_size, path.name.endswith(SUFFIX)) for path in paths if path.exists())
    return sum(size if is_compressed else size // _PLAIN_RATIO for size, is_compressed in sizes)


def add_new(directory: Path, ledger: Ledger, append: Callable[[Staged, Path], None]) -> Intake:
    """Check the new files of `directory`, and add to the tables what they do not contain. Return all findings.

    `append` writes the staged rows into a new folder; it returns when all of them are written, and raises an error
    otherwise. Nothing is added then, and the next call begins again.
    """
    seen = {(entry.file.name, entry.file.size_bytes, entry.file.changed_ns) for entry in ledger.entries}
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:  # decompression releases the GIL
        paths = trace_files(directory) + unfinished_files(directory)
        found = list(pool.map(lambda path: _look(path, directory, seen), paths))
    looks = [look for look in found if look is not None]
    if looks:
        _add(looks, ledger, append)
    intake = ledger.intake
    intake.files = [file for file in intake.files if not _has_vanished(file, directory)]
    return intake


def _has_vanished(file: TraceFile, directory: Path) -> bool:
    """Whether nothing of a file was ever counted, and it no longer exists."""
    return file.problem == "open" and not file.frames and not (directory / file.name).exists()


def _look(path: Path, directory: Path, seen: set[tuple[str, int, int]]) -> _Look | None:
    """Check a file. Return None if it is known, or has just been renamed."""
    try:
        status = path.stat()
        file = TraceFile(str(path.relative_to(directory)), status.st_size, status.st_mtime_ns)
        if (file.name, file.size_bytes, file.changed_ns) in seen:
            return None
        findings, parts = examine(path)
    except FileNotFoundError:
        return None
    entry = Entry(file, parts=[xxh3_64_hexdigest(part) for part in parts])
    file.digest = xxh3_64_hexdigest("".join(entry.parts).encode()) if parts else ""
    file.frames, file.corrupt_frames = findings.frames, findings.corrupt_frames
    file.problem = _problem(path, findings)
    if path.name.endswith(PLAIN_SUFFIX):
        entry.plain_bytes = sum(map(len, parts))
    is_finished = not file.problem and not entry.plain_bytes and not _has_blank_lines(parts)
    return _Look(path, entry, [part.count(b"\n") for part in parts], is_finished)


def _has_blank_lines(parts: list[bytes]) -> bool:
    """Whether there may be lines without content, which Spark does not count."""
    return any(part[:1].isspace() or any(blank in part for blank in _BLANK) for part in parts)


def _problem(path: Path, findings: Findings) -> str:
    if path.name.startswith("_"):
        return "open"
    if not findings.size_bytes:
        return "empty"
    if findings.corrupt_frames:
        return "corrupt"
    return "truncated" if findings.is_truncated else ""


def _add(looks: list[_Look], ledger: Ledger, append: Callable[[Staged, Path], None]) -> None:
    owners = {part: entry.file.name for entry in ledger.entries for part in entry.parts}
    plain = {entry.file.name: entry for entry in ledger.entries if entry.plain_bytes}
    folder, data = ledger.begin()
    files, rows, linked = 0, 0, []
    for look in looks:
        file, entry = look.entry.file, look.entry
        new = [index for index, part in enumerate(entry.parts) if part not in owners]
        owner = next((owners[part] for part in entry.parts if part in owners), "")
        if entry.parts and not new and key_of(owner) != key_of(file.name):
            file.problem, file.same_as = "duplicate", owner
        owners |= {entry.parts[index]: file.name for index in new}
        if not any(look.rows[index] for index in new):
            continue
        entry.source = xxh3_64_hexdigest("".join(entry.parts[index] for index in new).encode())
        target = folder / f"{entry.source}{SUFFIX}"
        if look.is_finished and len(new) == len(entry.parts) and _link(look.path, target):
            linked.append(look)
            rows += sum(look.rows)
        else:
            rows += _copy(_contents(look, new, plain.get(file.name)), target)
        files += 1
    if rows:
        append(Staged(folder, files, rows), data)
        for look in linked:
            _require_unchanged(look)
    ledger.commit([look.entry for look in looks], data if rows else None, rows)
    shutil.rmtree(folder, ignore_errors=True)


def _link(path: Path, target: Path) -> bool:
    """Stage a finished file as a link. Return False if the file system has none."""
    try:
        target.symlink_to(path.resolve())
    except OSError:
        return False
    return True


def _contents(look: _Look, new: list[int], before: Entry | None) -> list[bytes]:
    """Return the content that is to be added: the new parts of a file, without empty lines."""
    contents = _as_looked_at(look)
    if look.entry.plain_bytes and before is not None:
        (lines,) = contents  # the lines of a plain file are one part: add those that it has gained since
        had = before.plain_bytes
        contents = [lines[had:] if xxh3_64_hexdigest(lines[:had]) == before.parts[0] else lines]
    chosen = [contents[index] for index in new]
    if not _has_blank_lines(chosen):
        return chosen
    return [b"".join(line + b"\n" for part in chosen for line in part.split(b"\n") if line.strip())]


def _as_looked_at(look: _Look) -> list[bytes]:
    """Return the parts that a file had when it was looked at. It may have grown since, or have lost its `_`."""
    path, parts = look.path, look.entry.parts
    if path.name.startswith("_") and not path.exists():
        path = path.with_name(path.name[1:])
    contents = [path.read_bytes()[: look.entry.plain_bytes]] if look.entry.plain_bytes else examine(path)[1]
    if [xxh3_64_hexdigest(part) for part in contents[: len(parts)]] != parts:
        raise _changed(look)
    return contents[: len(parts)]


def _copy(parts: list[bytes], target: Path) -> int:
    """Stage parts of a file, which may change meanwhile. Return the number of lines."""
    compressor = zstandard.ZstdCompressor(level=1, write_checksum=True)
    target.write_bytes(b"".join(compressor.compress(part) for part in parts))
    return sum(part.count(b"\n") for part in parts)


def _require_unchanged(look: _Look) -> None:
    """Raise LedgerError if a file changed while it was read: the tables might not contain what the record says."""
    try:
        status = look.path.stat()
        is_same = (status.st_size, status.st_mtime_ns) == (look.entry.file.size_bytes, look.entry.file.changed_ns)
    except FileNotFoundError:
        is_same = True  # it was deleted after it had been read: the number of rows is right
    if not is_same:
        raise _changed(look)


def _changed(look: _Look) -> LedgerError:
    return LedgerError(
        f"{look.path} changed while it was read, so nothing was added to the tables: run the command again when no "
        "program writes to it"
    )
