"""The intake of trace files: it finds new files, checks them, and stages the parts that Spark is to read.

Each file is checked once, when it is new. Whole files are staged as they are, and damaged files as a copy of their
whole parts; empty files and copies of other files are not staged. The findings are stored beside the tables, for the
report.
"""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import zstandard
from xxhash import xxh3_64_hexdigest

from tunnel.traces.salvage import PLAIN_SUFFIX, SUFFIX, examine

__all__ = ["Intake", "TraceFile", "compressed_bytes", "take_in", "trace_files"]

_MANIFEST = "intake.json"
_STAGED = "staged"
_PLAIN_RATIO = 10  # the size of plain lines, relative to the same lines compressed with zstd


class TraceFile(msgspec.Struct):
    """A trace file, and what was found in it."""

    name: str
    size_bytes: int
    changed_ns: int
    digest: str = ""
    frames: int = 0
    corrupt_frames: int = 0
    problem: str = ""
    """One of empty, truncated, corrupt, duplicate and open; an empty text if the file is whole."""
    same_as: str = ""


class Intake(msgspec.Struct):
    """The findings about all files so far."""

    files: list[TraceFile] = []

    @property
    def problems(self) -> list[TraceFile]:
        """The files with problems."""
        return [file for file in self.files if file.problem]


def trace_files(directory: Path) -> list[Path]:
    """Return the finished trace files in and below a directory.

    Names that begin with `_` are skipped: they are files that are still being written, and our own tables.
    """
    return [
        path
        for path in sorted(directory.rglob("*"))
        if path.name.endswith((SUFFIX, PLAIN_SUFFIX))
        and not any(part.startswith(("_", ".")) for part in path.relative_to(directory).parts)
    ]


def take_in(directory: Path, work: Path) -> tuple[Intake, Path | None]:
    """Check the new files of `directory`.

    Return the findings, and the folder from which Spark is to read the new files, or None if there are none. The caller
    must remove that folder after reading it.
    """
    work.mkdir(parents=True, exist_ok=True)
    manifest = work / _MANIFEST
    intake = msgspec.json.decode(manifest.read_bytes(), type=Intake) if manifest.exists() else Intake()
    known = {(file.name, file.size_bytes, file.changed_ns) for file in intake.files}
    new = [path for path in trace_files(directory) if _key(path, directory) not in known]
    staged = work / _STAGED
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir()
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:  # decompression releases the GIL
        found = list(pool.map(lambda path: _look(path, directory), new))
    first = {file.digest: file.name for file in intake.files if file.digest}
    for path, (file, parts) in zip(new, found, strict=True):
        if file.digest in first:
            file.problem, file.same_as = "duplicate", first[file.digest]
        elif file.digest:
            first[file.digest] = file.name
            _stage(path, file, parts, staged)
        intake.files.append(file)
    opened = {file.name for file in intake.files if file.problem == "open"}
    for path in sorted(directory.rglob(f"_*{SUFFIX}")):
        name = str(path.relative_to(directory))
        if not path.is_relative_to(work) and name not in opened:
            intake.files.append(TraceFile(name, path.stat().st_size, 0, problem="open"))
    intake.files = [file for file in intake.files if file.problem != "open" or (directory / file.name).exists()]
    manifest.write_bytes(msgspec.json.format(msgspec.json.encode(intake)))
    return intake, staged if any(staged.iterdir()) else None


def compressed_bytes(directory: Path) -> int:
    """Return the total size of the trace files below `directory`. Plain files count as if they were compressed."""
    sizes = ((path.stat().st_size, path.name.endswith(SUFFIX)) for path in trace_files(directory))
    return sum(size if is_compressed else size // _PLAIN_RATIO for size, is_compressed in sizes)


def _key(path: Path, directory: Path) -> tuple[str, int, int]:
    status = path.stat()
    return str(path.relative_to(directory)), status.st_size, status.st_mtime_ns


def _look(path: Path, directory: Path) -> tuple[TraceFile, list[bytes]]:
    """Check a file. Return the findings, and for a damaged file its whole parts."""
    file = TraceFile(*_key(path, directory))
    if not file.size_bytes:
        file.problem = "empty"
        return file, []
    file.digest = xxh3_64_hexdigest(path.read_bytes())
    findings, parts = examine(path)
    file.frames, file.corrupt_frames = findings.frames, findings.corrupt_frames
    if findings.is_whole:
        return file, []
    file.problem = "corrupt" if findings.corrupt_frames else "truncated"
    return file, parts


def _stage(path: Path, file: TraceFile, parts: list[bytes], staged: Path) -> None:
    """Put a file into the folder that Spark reads, with its digest as its name."""
    if file.problem:
        compressor = zstandard.ZstdCompressor(level=1)
        (staged / f"{file.digest}{SUFFIX}").write_bytes(b"".join(compressor.compress(part) for part in parts))
        return
    target = staged / f"{file.digest}{SUFFIX if path.name.endswith(SUFFIX) else PLAIN_SUFFIX}"
    try:
        target.symlink_to(path.resolve())
    except OSError:
        shutil.copyfile(path, target)
