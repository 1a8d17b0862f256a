"""Analyses of directories by an engine; DuckDB is opened here, Spark by its own job."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tunnel.analysis.engines.duck import DuckEngine
from tunnel.analysis.engines.engine import Engine
from tunnel.analysis.engines.folders import LocalFolder
from tunnel.analysis.engines.queries import query
from tunnel.analysis.kept.ingest import compact
from tunnel.analysis.kept.ledger import Intake, Ledger, open_ledger
from tunnel.analysis.results.analyse import analyse, begin, streams_kept
from tunnel.analysis.results.result import Analysis

__all__ = ["Rows", "analysis_of", "count_of", "differences", "duckdb", "grown", "measured", "take_in"]

Rows = list[dict[str, Any]]


@contextmanager
def duckdb() -> Iterator[DuckEngine]:
    """Yield an engine, and close it in the end."""
    with tempfile.TemporaryDirectory() as spill:
        engine = DuckEngine("1g", Path(spill))
        yield engine
        engine.close()


def _open(engine: Engine, work: Path) -> None:
    ledger = Ledger(LocalFolder(work))
    engine.read(ledger.folder, ledger.data())


def take_in(engine: Engine, directory: Path, work: Path) -> Intake:
    """Add what is new in the directory to the tables, and open these; return the findings."""
    with open_ledger(LocalFolder(work)) as ledger:
        intake = compact(engine, LocalFolder(directory), ledger)
    _open(engine, work)
    return intake


def count_of(engine: Engine, work: Path) -> int:
    """Return the number of events in the tables."""
    _open(engine, work)
    (row,) = engine.rows("select count(*) as n from stored")
    return int(row["n"])


def analysis_of(engine: Engine, directory: Path, work: Path) -> Analysis:
    """Return the analysis of a directory."""
    return analyse(engine, take_in(engine, directory, work))


def differences(one: Any, other: Any, place: str = "") -> list[str]:
    """Return the places at which two results differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        names = sorted(one.keys() | other.keys())
        return [each for name in names for each in differences(one.get(name), other.get(name), f"{place}.{name}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = zip(one, other, strict=True)
        return [each for number, pair in enumerate(pairs) for each in differences(*pair, f"{place}[{number}]")]
    return [] if one == other else [f"{place}: {one!r} and {other!r}"]


def grown(engine: Engine, directory: Path, base: Path) -> tuple[Analysis, Analysis]:
    """Return the analysis of a directory whose files came in two halves, with stored tables, and one without these."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    for half in (files[::2], files[1::2]):
        for path in half:
            target = base / "traces" / path.relative_to(directory)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
        intake = take_in(engine, base / "traces", base / "tables")
        result = analyse(engine, intake, ledger=Ledger(LocalFolder(base / "tables")))
    return result, analyse(engine, intake)


def measured(engine: Engine, intake: Intake) -> tuple[Rows, list[tuple[int, str]]]:
    """Return the figures of every stream in the opened tables, and stream and cause of every stall."""
    begin(engine, intake)
    with streams_kept(engine):
        engine.view("receipts", query("receipts"))
        streams = engine.rows("select * from streams")
        receipts = {row["stream"]: row for row in engine.rows("select * from receipts")}
        stalls = engine.rows("select stream, why from stalls order by stream, start_us")
    return [row | receipts.get(row["stream"], {}) for row in streams], [(row["stream"], row["why"]) for row in stalls]
