"""The table of engines and scenarios: what both publish, how much of it is equal, and how many diagnoses are right.

`python -m tests.analysis.compared DIRECTORY` runs the two jobs of the tests in DIRECTORY, if they have not been run
there, and prints the table. Exit code 1: the engines differ, a figure is off by more than one per cent of what plain
Python counts, or fewer than 28 diagnoses are right.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from loadtests.diagnosis.cases import EVERY
from tests.analysis.engines import differences
from tests.analysis.job import SCENARIOS
from tests.analysis.recount import Recount, recount
from tests.analysis.spark_job import CASES, SparkFound
from tunnel.analysis.results.result import Analysis
from tunnel.analysis.verdicts.blame import blames, explained_us, life_us

__all__ = ["count_of_values", "deviating", "figures_of", "main", "right_diagnoses"]

RIGHT_MIN = 28
SHARE = 0.01
_TOTALS = (
    "streams", "both_ends", "packets", "needless", "judged", "lost", "payload_bytes", "useful_bytes", "known_bytes",
    "never_arrived", "busy_us",
)  # fmt: skip
_COUNTED_AGAIN = ("truth", "proxied", "moves", CASES)
"""Scenarios whose files are those of a TraceWriter, whole, and by one clock: others say themselves what is right."""


def count_of_values(one: Any) -> int:
    """Return the number of values in a result, in all of its rows."""
    if isinstance(one, dict):
        return sum(map(count_of_values, one.values()))
    return sum(map(count_of_values, one)) if isinstance(one, list) else 1


def figures_of(of: Analysis, counted: Recount) -> dict[str, tuple[float, float]]:
    """Return the published figures, each with what plain Python counts."""
    repeats = of.totals["packets"] - of.totals["unique_packets"]
    explained = counted.limited_us + counted.stalled_us + counted.unread_us - counted.unread_limited_us
    return {name: (of.totals[name], getattr(counted, name)) for name in _TOTALS} | {
        "events": (sum(row["events"] for row in of.files), counted.events),
        "repeats": (repeats, counted.repeats),
        "stalls": (sum(row["stalls"] for row in of.stalls), counted.stalls),
        "stalled_us": (sum(row["us"] for row in of.stalls), counted.stalled_us),
        "explained_us": (explained_us(of), explained),
        "life_us": (life_us(of), counted.life_us),
        "asked_us": (of.life["asked_us"], counted.asked_us),
        "trips": (of.trips["samples"], len(counted.trips)),
        "receipts": (of.receipts["samples"], len(counted.receipts)),
    }


def deviating(figures: dict[str, tuple[float, float]]) -> list[str]:
    """Return the figures that are off by more than SHARE of what was counted."""
    return [
        f"{name}: {told} instead of {counted}"
        for name, (told, counted) in figures.items()
        if abs(told - counted) > SHARE * abs(counted)
    ]


def right_diagnoses(found: SparkFound) -> list[str]:
    """Return the names of the transfers whose trouble is the main cause of the verdict."""
    first = {case.name: next((blame.family for blame in blames(found.cases[case.name])), "") for case in EVERY}
    return [case.name for case in EVERY if first[case.name] == case.cause]


def _done(directory: Path, module: str, *arguments: str) -> Path:
    """Run a job of the tests in a directory of its own, if it has not been run there; return the directory."""
    own = directory / module
    if not (own / "found.json").exists():
        own.mkdir(parents=True, exist_ok=True)
        # executors need no Python: a job in which one starts Python fails
        environment = os.environ | {"PYSPARK_PYTHON": "/nonexistent"}
        subprocess.run([sys.executable, "-m", module, *arguments, str(own)], check=True, env=environment)
    return own


def _rows(found: SparkFound, traces: dict[str, Path]) -> Iterable[tuple[list[str], list[str]]]:
    """Yield the cells of each scenario's row, and what is wrong with it."""
    for name, place in traces.items():
        duckdb, spark = (msgspec.to_builtins(of[name]) | {"engine": ""} for of in (found.duckdb, found.spark))
        wrong = differences(duckdb, spark)
        cells = [name, f"{sum(row['events'] for row in duckdb['files']):,}", f"{count_of_values(duckdb):,}"]
        cells.append(f"{len(wrong):,}" if wrong else "none")
        if name in _COUNTED_AGAIN:
            figures = figures_of(found.duckdb[name], recount(place))
            off = deviating(figures)
            cells += [f"{len(figures)}", f"{len(off)}" if off else "none"]
            wrong += off
        else:
            cells += ["-", "-"]
        yield cells, [f"{name}: {each}" for each in wrong]


def main(directory: Path) -> int:
    """Print the table, and what is wrong. Return the exit code."""
    scenarios = _done(directory, "tests.analysis.job")
    own = _done(directory, "tests.analysis.spark_job", str(scenarios))
    found = msgspec.json.decode((own / "found.json").read_bytes(), type=SparkFound)
    traces = {name: scenarios / name for name in SCENARIOS} | {CASES: own / "cases" / "all"}
    titles = ("scenario", "events", "values of both engines", "differ", "figures counted again", "off by over 1 %")
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    wrong: list[str] = []
    for cells, of_row in _rows(found, traces):
        print(f"| {' | '.join(cells)} |")
        wrong += of_row
    right = right_diagnoses(found)
    others = [case.name for case in EVERY if case.name not in right]
    print(f"\nDiagnoses: {len(right)} of {len(EVERY)} are right; not: {', '.join(others) or 'none'}.")
    for each in wrong:
        print(each)
    return int(bool(wrong) or len(right) < RIGHT_MIN)


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
