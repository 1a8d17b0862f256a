"""Attempts to add traces to tables that fail or are killed, each followed by one that is left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import msgspec
from pyspark.sql import SparkSession

from tests.analysis.plain import compressed, plain
from tunnel.analysis.ingest import compact, read_events
from tunnel.analysis.ledger import Ledger, open_ledger

__all__ = ["EVENTS", "Attempts", "attempt"]

EVENTS = 10_003
MOMENTS = ("while Spark writes", "before the record", "after the record", "at a random time")
TIME_S = (4.0, 12.0)  # the random time lies between them: Spark starts, reads and writes
WAIT_S = 300.0


class Attempts(msgspec.Struct):
    """What became of the attempts."""

    killed: dict[str, tuple[int, int]]
    """For each moment: the number of events in the tables after the kill, and after the next attempt."""
    failed: dict[str, tuple[str, int, int]]
    """For each failure: the error, the number of events after it, and after the next attempt."""


def attempt(session: SparkSession, base: Path) -> Attempts:
    """Make all attempts."""
    killed = {moment: _killed(session, base / moment.replace(" ", "-"), moment) for moment in MOMENTS}
    failed = {
        "a file is not there": _failed(session, base / "missing", "*.zst"),
        "a worker writes elsewhere": _failed(session, base / "elsewhere", "_tables/staged/*/*"),
    }
    return Attempts(killed, failed)


def _traces(folder: Path) -> Path:
    compressed(folder, "one", EVENTS - 3)
    plain(folder, "two.jsonl", 3)
    return folder


def _count(session: SparkSession, work: Path) -> int:
    return read_events(session, Ledger(work)).count()


def _again(session: SparkSession, traces: Path, work: Path) -> int:
    with open_ledger(work) as ledger:
        compact(session, traces, ledger)
    return _count(session, work)


def _killed(session: SparkSession, folder: Path, moment: str) -> tuple[int, int]:
    traces, work = _traces(folder), folder / "_tables"
    # the record is written to a hidden file (1), which gets its name (2) and is removed (3)
    step = {"before the record": "2", "after the record": "3"}.get(moment, "0")
    hidden = f"{work / 'commits'}/."
    command = [sys.executable, "-m", "tests.analysis.killed", str(traces), str(work), hidden, step]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    if moment == "while Spark writes":
        while not list(work.glob("events/*/_temporary")) and process.poll() is None:
            os.sched_yield()
        process.kill()
    elif moment == "at a random time":
        try:
            process.wait(Random().uniform(*TIME_S))
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait(WAIT_S)
    seen = _count(session, work) if work.exists() else 0
    after = _again(session, traces, work)
    _end_java(process.pid)
    return seen, after


def _end_java(group: int) -> None:
    """End what is left of the process group that a killed command led."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def _failed(session: SparkSession, folder: Path, pattern: str) -> tuple[str, int, int]:
    """A file disappears after it was looked at."""
    traces, work = _traces(folder), folder / "_tables"
    moved: list[Path] = []

    def progress(text: str) -> None:
        if text.startswith("adding"):
            moved.extend(sorted(folder.glob(pattern))[:1])
            moved[0].rename(moved[0].with_name("_moved"))

    error = ""
    with open_ledger(work) as ledger:
        try:
            compact(session, traces, ledger, progress)
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
    seen = _count(session, work)
    if moved[0].is_relative_to(work):
        return error, seen, _again(session, traces, work)
    moved[0].with_name("_moved").rename(moved[0])
    return error, seen, _again(session, traces, work)
