"""Attempts to add traces to tables: each fails or is killed, and is followed by one that is left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import msgspec

from tests.analysis.engines import count_of, take_in
from tests.analysis.plain import compressed, plain
from tunnel.analysis.engines.engine import Engine
from tunnel.analysis.engines.folders import LocalFolder
from tunnel.analysis.kept.ingest import compact
from tunnel.analysis.kept.ledger import open_ledger

__all__ = ["EVENTS", "Attempts", "attempt"]

EVENTS = 10_003
MOMENTS = ("while Spark writes", "before the record", "at a random time")
TIME_S = (4.0, 12.0)  # the random time lies between these, while Spark starts, reads or writes
WAIT_S = 1200.0  # a bound for a machine that is ten times slower
MAGIC = b"\x28\xb5\x2f\xfd"


class Attempts(msgspec.Struct):
    """The results of all attempts."""

    killed: dict[str, tuple[int, int]]
    """For each moment: the number of events in the tables after the kill, and after the next attempt."""
    failed: dict[str, tuple[str, int, int]]
    """For each failure: the error, the number of events after it, and after the next attempt."""


def attempt(engine: Engine, base: Path) -> Attempts:
    """Make all attempts."""
    folders = {moment: base / moment.replace(" ", "-") for moment in MOMENTS}
    with ThreadPoolExecutor(len(MOMENTS)) as pool:
        groups = list(pool.map(lambda moment: _killed(folders[moment], moment), MOMENTS))
    killed = {moment: _completed(engine, folder) for moment, folder in folders.items()}
    for group in groups:
        _end_java(group)
    failed = {
        "a worker lacks a file": _failed(engine, base / "missing", lambda path: path.rename(base / "moved")),
        "a task fails": _failed(engine, base / "task", lambda path: path.write_bytes(MAGIC + b"not a frame")),
    }
    return Attempts(killed, failed)


def _traces(folder: Path) -> Path:
    compressed(folder, "one", EVENTS - 3)
    plain(folder / "node=7", "two ä%41 [b]*?{c,d}.jsonl", 3)  # names that mean something to Spark
    return folder


def _again(engine: Engine, traces: Path, work: Path) -> int:
    take_in(engine, traces, work)
    return count_of(engine, work)


def _killed(folder: Path, moment: str) -> int:
    """Kill the command at this moment. Return its process group, in which its Java may still be at work."""
    traces, work = _traces(folder), folder / "_tables"
    # tests.analysis.killed counts the touches of hidden files in `commits`: the first one writes the record to such a
    # file, and the second one gives this file its name. Step 0 kills nothing. While Spark writes, step 2 is for
    # a machine on which this process looks too late.
    hidden, step = f"{work / 'commits'}/.", "0" if moment == "at a random time" else "2"
    command = [sys.executable, "-m", "tests.analysis.killed", str(traces), str(work), hidden, step, "spark"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    if moment == "while Spark writes":
        while not list(work.glob("events/*/*/_temporary")) and process.poll() is None:
            os.sched_yield()
        process.kill()
    elif moment == "at a random time":
        try:
            process.wait(Random().uniform(*TIME_S))
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait(WAIT_S)
    return process.pid


def _completed(engine: Engine, traces: Path) -> tuple[int, int]:
    """Return the number of events after a kill, and after the next attempt."""
    work = traces / "_tables"
    seen = count_of(engine, work) if work.exists() else 0
    return seen, _again(engine, traces, work)


def _end_java(group: int) -> None:
    """End the processes that are left in the group of a killed command."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def _failed(engine: Engine, folder: Path, change: Callable[[Path], object]) -> tuple[str, int, int]:
    """Change a file before Spark reads it, and restore it before the next attempt. Return the row of `failed`."""
    traces, work = _traces(folder), folder / "_tables"
    (original,) = traces.glob("*.zst")
    content = original.read_bytes()

    def progress(text: str) -> None:
        if text.startswith("adding"):
            change(original)

    error = ""
    with open_ledger(LocalFolder(work)) as ledger:
        try:
            compact(engine, LocalFolder(traces), ledger, progress)
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
    seen = count_of(engine, work)
    original.write_bytes(content)
    return error, seen, _again(engine, traces, work)
