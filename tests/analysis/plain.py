"""Small trace files, and an intake into tables that needs no Spark."""

from __future__ import annotations

from pathlib import Path

from tunnel.analysis.engines.folders import LocalFolder, local_path
from tunnel.analysis.kept.intake import Added, Append, add_new
from tunnel.analysis.kept.ledger import Intake, Ledger, open_ledger
from tunnel.traces import TraceEvent, TraceRecord
from tunnel.traces.jsonl import JsonLinesWriter
from tunnel.traces.salvage import examine
from tunnel.traces.writer import TraceWriter

__all__ = ["append_to", "compressed", "findings_and_rows", "plain", "rows_of"]


def plain(directory: Path, name: str, count: int = 3) -> Path:
    """Write a file of plain lines."""
    directory.mkdir(parents=True, exist_ok=True)
    with JsonLinesWriter(directory / name) as trace:
        for number in range(count):
            trace(TraceRecord(time_us=number, node="a", event=TraceEvent.ATTACHED))
    return directory / name


def compressed(directory: Path, name: str, count: int = 3) -> Path:
    """Write a compressed file, as the commands do."""
    before = set(directory.glob("*"))
    with TraceWriter(directory, name=name) as trace:
        for number in range(count):
            trace(TraceRecord(time_us=number, node=name, event=TraceEvent.ATTACHED))
    (path,) = set(directory.glob("*")) - before
    return path


def append_to(work: Path) -> Append:
    """Return a stand-in for Spark: it writes the lines of all files to a new folder, one file for each."""

    def append(files: list[str], data: str) -> dict[str, Added]:
        (work / data).mkdir(parents=True)
        added = {}
        for number, uri in enumerate(files):
            path = local_path(uri)
            assert path is not None
            lines = b"".join(examine(path)[1])
            (work / data / f"{number}{path.suffix}").write_bytes(lines)
            added[uri] = Added(uri, lines.count(b"\n"), [{"rows": lines.count(b"\n")}])
        return added

    return append


def findings_and_rows(directory: Path, work: Path) -> tuple[Intake, list[bytes]]:
    """Add what is new; return the findings, and all lines in the tables."""
    with open_ledger(LocalFolder(work)) as ledger:
        intake = add_new(LocalFolder(directory), ledger, append_to(work))
    return intake, rows_of(work)


def rows_of(work: Path) -> list[bytes]:
    """Return all lines in the tables, sorted."""
    paths = [path for folder in Ledger(LocalFolder(work)).data() for path in (work / folder).iterdir()]
    return sorted(line for path in paths for line in path.read_bytes().splitlines())
