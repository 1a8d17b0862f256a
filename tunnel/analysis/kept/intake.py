"""The intake of trace files: it finds new files, checks them, and says what is to be added to the tables.

Each new file is read once here. The engine then reads whole files where they lie. Of other files (damaged ones, those
that are being written, and those of which the tables contain a part) it reads a mended copy, which is staged beside the
tables. Content that the tables have is never added again, whatever the name of the file that brings it.

Many files are added in several commits. So what an engine sorts and what a kill undoes is bounded.
"""

import os
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
import zstandard

from tunnel.analysis.engines.failures import SetupError
from tunnel.analysis.engines.folders import FileStatus, Folder, is_hidden, local_path
from tunnel.analysis.kept.known import Known, part_of
from tunnel.analysis.kept.ledger import Entry, Intake, Ledger, Part, TraceFile, key_of
from tunnel.traces.salvage import PLAIN_SUFFIX, SUFFIX, Findings, examine, is_being_written

__all__ = [
    "PORTION_BYTES",
    "Added",
    "Append",
    "add_new",
    "compressed_bytes",
    "intake_of_all",
    "packed_bytes",
    "trace_files",
    "unfinished_files",
]

Rows = list[dict[str, Any]]

_PLAIN_RATIO = 10  # the size of plain lines, relative to the same lines compressed with zstd
PORTION_BYTES = 32_000_000
"""Files of this compressed size are added together: up to about two million events."""
_CLOCK = b'"clock_read"'
_WALL_US_MAX = 253_402_300_800_000_000  # the year 10000, which no longer has four digits
_BLANK = (b"\n\n", b"\n ", b"\n\t", b"\n\r")
_THREADS = min(4, os.cpu_count() or 1)  # decompression releases the GIL


class Added(NamedTuple):
    """The rows of a file that an engine added."""

    source: str
    """The value of the column `source` in its rows."""
    rows: int
    found: Rows
    """The rows of the query `health` for them."""


Append = Callable[[list[str], str], dict[str, Added]]
"""Takes the URIs of files and the name of a new folder beside the ledger, and writes the files' lines into the folder.

When all lines are written, it returns what it added of each file, by URI. Otherwise, it raises an error.
"""


class _ClockRead(msgspec.Struct):
    wall_us: int = 0


@dataclass(slots=True)
class _Look:
    """A file that was looked at."""

    status: FileStatus
    findings: Findings
    contents: list[bytes]
    parts: list[Part]
    day: str


@dataclass(slots=True)
class _Batch:
    """Files that are added together."""

    entries: list[Entry] = field(default_factory=list)
    expected: dict[str, int] = field(default_factory=dict)
    """The number of rows to expect of each URI that the engine is to read."""
    entry_of: dict[str, Entry] = field(default_factory=dict)
    """The entry to which each such URI belongs."""
    in_place: dict[str, FileStatus] = field(default_factory=dict)
    """The files among them that are read where they lie, as they were when they were looked at."""


def trace_files(folder: Folder) -> list[FileStatus]:
    """Return the finished trace files in and below a folder.

    Names that begin with `_` are skipped: they are files that are still being written, and our own tables.
    """
    files = (file for file in folder.walk() if file.name.endswith((SUFFIX, PLAIN_SUFFIX)))
    return [file for file in files if not is_hidden(_base(file))]


def unfinished_files(folder: Folder) -> list[FileStatus]:
    """Return the files called `_NAME`, which are being written, or were left behind by a process that died."""
    return [file for file in folder.walk() if _base(file).startswith("_") and file.name.endswith(SUFFIX)]


def compressed_bytes(folder: Folder) -> int:
    """Return the total size of the trace files below a folder. Plain files count as if they were compressed."""
    return sum(map(packed_bytes, trace_files(folder) + unfinished_files(folder)))


def packed_bytes(file: FileStatus) -> int:
    """Return the size that a file has, or would have, when it is compressed."""
    return file.size_bytes if file.name.endswith(SUFFIX) else file.size_bytes // _PLAIN_RATIO


def add_new(traces: Folder, ledger: Ledger, append: Append) -> Intake:
    """Check the new files of a folder, and add to the tables what they do not contain. Return all findings.

    Nothing is added if `append` raises an error, or if it added more or fewer rows of a file than there are, which
    raises SetupError. The next call then begins again. A file that changes while it is read is looked at again, and a
    copy of it is read.
    """
    for files in _portions(_new_files(traces, ledger)):
        restless: set[str] = set()
        while changed := _add(traces, ledger, append, files, restless):
            restless |= changed
            names = {file.name for file in files}
            files = [file for file in _new_files(traces, ledger) if file.name in names]
    return _present(traces, ledger)


def _portions(files: list[FileStatus]) -> Iterator[list[FileStatus]]:
    """Divide files into those that are added together."""
    portion: list[FileStatus] = []
    left = PORTION_BYTES
    for file in files:
        size_bytes = packed_bytes(file)
        if portion and size_bytes > left:
            yield portion
            portion, left = [], PORTION_BYTES
        portion.append(file)
        left -= size_bytes
    if portion:
        yield portion


def _add(traces: Folder, ledger: Ledger, append: Append, files: list[FileStatus], restless: set[str]) -> set[str]:
    """Add files in one commit. Return the names of those that changed meanwhile; then nothing was added."""
    staged, data = ledger.begin()
    batch = _batch(traces, ledger, staged, files, restless)
    added: dict[str, Added] = {}
    days: dict[str, list[str]] = defaultdict(list)
    for uri, entry in batch.entry_of.items():
        days[entry.day].append(uri)
    for day, uris in sorted(days.items()):
        added |= append(uris, f"{data}/{day}")
    changed = {file.name for file in batch.in_place.values() if _has_changed(traces, file)}
    if not changed:
        _require_all(batch, added, ledger)
        for uri, entry in batch.entry_of.items():
            entry.source, entry.found = added[uri].source, added[uri].found
        if batch.entries:
            ledger.commit(batch.entries, [f"{data}/{day}" for day in sorted(days)], sum(batch.expected.values()))
    ledger.folder.remove(staged)
    if changed:
        ledger.folder.remove(data)
    return changed


def intake_of_all(traces: Folder, ledger: Ledger) -> Intake | None:
    """Return all findings if no file is new and none has changed. Return None otherwise."""
    return None if _new_files(traces, ledger) else _present(traces, ledger)


def _new_files(traces: Folder, ledger: Ledger) -> list[FileStatus]:
    seen = {(entry.file.name, entry.file.size_bytes, entry.file.changed_ns) for entry in ledger.entries}
    return [file for file in trace_files(traces) + unfinished_files(traces) if file not in seen]


def _present(traces: Folder, ledger: Ledger) -> Intake:
    intake = ledger.intake
    intake.files = [_with_state(file, traces) for file in intake.files if not _has_vanished(file, traces)]
    return intake


def _with_state(file: TraceFile, traces: Folder) -> TraceFile:
    """Return the finding about an unfinished file as it is now: its process may have died since."""
    path = local_path(traces.place(file.name))
    if file.problem != "open" or path is None or not path.exists() or is_being_written(path):
        return file
    return msgspec.structs.replace(file, problem="died")


def _batch(traces: Folder, ledger: Ledger, staged: str, files: list[FileStatus], restless: set[str]) -> _Batch:
    """Look at files one after the other, and decide what the engine is to read of each."""
    batch = _Batch()
    known = Known(ledger.entries, lambda name, content: _contains(traces, name, content))
    for look in _looks(traces, files):
        name = look.status.name
        pieces = [piece for each in zip(look.contents, look.parts, strict=True) for piece in known.pieces(*each)]
        new = [piece.content for piece in pieces if not piece.owner]
        owner = next((piece.owner for piece in pieces if piece.owner), "")
        file = TraceFile(*look.status, look.findings.frames, look.findings.corrupt_frames, _problem(look))
        if pieces and not new and key_of(owner) != key_of(name):
            file.problem, file.same_as = "duplicate", owner
        for piece in pieces:
            known.add(piece.part, piece.owner or name)
        entry = Entry(file, parts=[piece.part for piece in pieces], day=look.day)
        batch.entries.append(entry)
        is_whole = not file.problem and not owner and not any(map(_has_blank_lines, new))
        lines = new if is_whole else list(map(_without_blank_lines, new))
        rows = sum(content.count(b"\n") for content in lines)
        if not rows:
            continue
        if is_whole and name not in restless:
            uri = traces.uri(name)
            batch.in_place[uri] = look.status
        else:
            uri = _stage(ledger.folder, f"{staged}/{len(batch.entries):06d}{SUFFIX}", lines)
        batch.expected[uri], batch.entry_of[uri] = rows, entry
    return batch


def _looks(traces: Folder, files: list[FileStatus]) -> Iterator[_Look]:
    """Read the files on several threads, a few of them ahead. Files that have been renamed or removed are left out."""
    waiting: deque[Future[_Look | None]] = deque()
    with ThreadPoolExecutor(_THREADS) as pool:
        for file in files:
            waiting.append(pool.submit(_look, traces, file))
            look = waiting.popleft().result() if len(waiting) > _THREADS else None
            if look is not None:
                yield look
        yield from (look for each in waiting if (look := each.result()) is not None)


def _look(traces: Folder, status: FileStatus) -> _Look | None:
    try:
        with traces.local_copy(status.name) as path:
            findings, contents = examine(path)
    except FileNotFoundError:
        return None
    return _Look(status, findings, contents, [part_of(content) for content in contents], _day(status, contents))


def _day(status: FileStatus, contents: list[bytes]) -> str:
    """Return the day on which a file was written: by the first time of the wall clock in it, or else by its status."""
    ns = status.changed_ns
    for content in contents:
        at = content.find(_CLOCK)
        if at >= 0:
            line = content[content.rfind(b"\n", 0, at) + 1 : content.find(b"\n", at)]
            with suppress(msgspec.DecodeError, OverflowError):
                wall_us = msgspec.json.decode(line, type=_ClockRead).wall_us
                ns = wall_us * 1_000 if 0 < wall_us < _WALL_US_MAX else ns
            break
    return datetime.fromtimestamp(ns / 1e9, UTC).strftime("%Y-%m-%d")


def _contains(traces: Folder, name: str, content: bytes) -> bool:
    try:
        with traces.local_copy(name) as path:
            return any(content in part for part in examine(path)[1])
    except FileNotFoundError:
        return False


def _stage(folder: Folder, name: str, contents: list[bytes]) -> str:
    """Write lines to a new compressed file. Return its URI."""
    compressor = zstandard.ZstdCompressor(level=1, write_checksum=True)
    folder.write(name, b"".join(compressor.compress(content) for content in contents))
    return folder.uri(name)


def _require_all(batch: _Batch, added: dict[str, Added], ledger: Ledger) -> None:
    """Raise SetupError if the engine added fewer rows of any file than it has, or more."""
    if {uri: each.rows for uri, each in added.items()} != batch.expected:
        rows = sum(each.rows for each in added.values())
        raise SetupError(
            f"{rows} of {sum(batch.expected.values())} events were written, so nothing was added to the tables in "
            f"{ledger.place}: check that no program changes the traces, and that Spark's driver and workers, if it "
            "runs, have the traces and the tables under the same path, and run the command again"
        )


def _has_changed(traces: Folder, before: FileStatus) -> bool:
    try:
        return traces.status(before.name) != before
    except FileNotFoundError:
        return (
            False  # it was deleted after it had been read; the number of rows tells whether the engine read all of it
        )


def _has_vanished(file: TraceFile, traces: Folder) -> bool:
    """Return whether nothing of a file was ever counted, and it no longer exists."""
    if file.problem != "open" or file.frames:
        return False
    try:
        return not traces.status(file.name)
    except FileNotFoundError:
        return True


def _problem(look: _Look) -> str:
    findings = look.findings
    if is_hidden(_base(look.status)):
        return "open"
    if not findings.size_bytes:
        return "empty"
    if findings.corrupt_frames:
        return "corrupt"
    return "truncated" if findings.is_truncated else ""


def _base(file: FileStatus) -> str:
    return file.name.rpartition("/")[2]


def _has_blank_lines(content: bytes) -> bool:
    """Return whether there may be lines without content, which Spark does not count."""
    return content[:1].isspace() or any(blank in content for blank in _BLANK)


def _without_blank_lines(content: bytes) -> bytes:
    if not _has_blank_lines(content):
        return content
    return b"".join(line + b"\n" for line in content.split(b"\n") if line.strip())
