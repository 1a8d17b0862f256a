"""Tables whose rows are the lines of trace files, and an engine without SQL: it starts at once, and a process may fork.

`python -m tests.analysis.upkeep DIRECTORY` kills `optimise` and `expire` at every single step, and completes them. The
test runs it in a process of its own.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from tests.analysis.killed import survives
from tests.analysis.plain import append_to
from tunnel.analysis.engines.engine import Engine, Rows
from tunnel.analysis.engines.folders import Folder, LocalFolder
from tunnel.analysis.kept import ledger as ledger_module
from tunnel.analysis.kept.intake import add_new
from tunnel.analysis.kept.ledger import Ledger, open_ledger
from tunnel.analysis.kept.upkeep import expire, optimise

__all__ = ["LinesEngine", "add", "lines_of", "main", "record_of"]


class LinesEngine:
    """The part of an engine that upkeep needs."""

    def __init__(self) -> None:
        self.lost = 0  # lines that a merge loses
        self._rows = 0

    def merge(self, folders: list[str], folder: Folder, data: str) -> None:
        folder.make(data)
        lines = b"".join(_content(folder, name) for name in folders).splitlines(keepends=True)
        folder.write(f"{data}/merged.jsonl", b"".join(lines[self.lost :]))

    def read(self, folder: Folder, folders: list[str]) -> None:
        self._rows = sum(_content(folder, name).count(b"\n") for name in folders)

    def rows(self, text: str) -> Rows:
        assert text == "select count(*) as n from stored"
        return [{"n": self._rows}]

    def failure_of(self, error: Exception, result: str) -> Exception:
        return RuntimeError(f"{error}, and {result}")

    @property
    def engine(self) -> Engine:
        return cast(Engine, self)


def _content(folder: Folder, name: str) -> bytes:
    return b"".join(folder.read(f"{name}/{file}") for file in folder.names(name))


def record_of(name: str, day: str) -> bytes:
    """Return a line that was written at noon of a day."""
    wall_us = int(datetime.fromisoformat(f"{day}T12:00").replace(tzinfo=UTC).timestamp()) * 1_000_000
    return f'{{"event":"clock_read","wall_us":{wall_us},"node":"{name}"}}\n'.encode()


def add(traces: Path, tables: Path, name: str, day: str) -> None:
    """Add a file with the line of a day to the traces and to the tables."""
    traces.mkdir(exist_ok=True)
    (traces / f"{name}.jsonl").write_bytes(record_of(name, day))
    with open_ledger(LocalFolder(tables)) as ledger:
        add_new(LocalFolder(traces), ledger, append_to(tables))


def lines_of(ledger: Ledger) -> list[bytes]:
    """Return all lines in the tables, sorted."""
    return sorted(b"".join(_content(ledger.folder, name) for name in ledger.data()).splitlines())


def _killed(base: Path, change: Callable[[Ledger], object], seen: set[int]) -> int:
    """Kill a change at each step. A reader then sees one of these numbers of lines. Return the number of steps."""
    step, ended = 0, False
    while not ended:
        step += 1
        tables = base / f"tables{step}"
        shutil.copytree(base / "tables", tables)

        def work(tables: Path = tables) -> None:
            with open_ledger(LocalFolder(tables)) as ledger:
                change(ledger)

        ended = survives(work, step, tables)
        assert len(lines_of(Ledger(LocalFolder(tables)))) in seen, step
        work()
        found = lines_of(Ledger(LocalFolder(tables)))
        assert len(found) == len(set(found)) == min(seen), (step, found)
        days = sorted(path.name for path in (tables / "events").glob("*/*"))
        assert days == sorted(name.rpartition("/")[2] for name in Ledger(LocalFolder(tables)).data()), (step, days)
        shutil.rmtree(tables)
    return step - 1


def main(base: Path) -> None:
    """Print the number of steps at which each change was killed."""
    ledger_module.FOLD = 3  # so that a checkpoint is among the steps
    for number, day in enumerate(("2026-11-01", "2026-11-01", "2026-11-02", "2026-11-02", "2026-11-03")):
        add(base / "traces", base / "tables", f"f{number}", day)
    print(_killed(base, lambda ledger: optimise(LinesEngine().engine, ledger), {5}))
    print(_killed(base, lambda ledger: expire(ledger, "2026-11-03"), {5, 1}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
