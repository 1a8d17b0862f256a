"""The time from trace files to a finished report, for 0.1 to 20 million events: `python -m loadtests.bench.analysis`.

A simulated run with losses is repeated, with later times and other ids, until it has the wanted number of events. Then
`tunnel-traces report` runs three times, as a user would run it. `first` reads all traces. `again` has the same traces,
and finds the result that `first` has stored. `grown` has one more small trace file, so that everything is computed
again from the tables. All of this is done for each engine. Wall time, processor time and memory include the Java
process, if the report starts one, whose use is sampled every half second. With --skewed, each trace is also made with
nine tenths of its events in one connection, and the times are compared.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from loadtests.harness.processes import cpu_seconds, resident_bytes
from tests.analysis.truth import simulate
from tunnel.traces import TraceRecord
from tunnel.traces.jsonl import read_trace
from tunnel.traces.salvage import SUFFIX

__all__ = ["main", "repeat", "repeat_skewed"]

FRAME_RECORDS = 4096
FILE_RECORDS = 60 * FRAME_RECORDS
SHIFT_US = 60_000_000
SAMPLE_S = 0.5
RUNS = ("first", "again", "grown")
ENGINES = ("duckdb", "spark")
MORE = 1_000  # records of the file that is new for the last run


class _Files:
    """Writes records in frames and files as large as those of a TraceWriter."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.written = 0
        self._directory = directory
        self._encoder, self._compressor = msgspec.json.Encoder(), zstandard.ZstdCompressor(level=1)
        self._lines: list[TraceRecord] = []
        self._frames: list[bytes] = []
        self._files = 0

    def add(self, record: TraceRecord) -> None:
        self.written += 1
        msgspec.structs.force_setattr(record, "number", self.written)
        self._lines.append(record)
        if len(self._lines) == FRAME_RECORDS:
            self.flush(last=False)

    def flush(self, *, last: bool = True) -> None:
        if self._lines:
            self._frames.append(self._compressor.compress(self._encoder.encode_lines(self._lines)))
            self._lines.clear()
        if self._frames and (last or len(self._frames) * FRAME_RECORDS >= FILE_RECORDS):
            (self._directory / f"bench-1-a-{self._files:05d}{SUFFIX}").write_bytes(b"".join(self._frames))
            self._frames, self._files = [], self._files + 1


def repeat(records: list[TraceRecord], directory: Path, count: int) -> int:
    """Write at least `count` records; return their number."""
    files, round_ = _Files(directory), 0
    while files.written < count:
        for record in records:
            files.add(_shifted(record, round_))
        round_ += 1
    files.flush()
    return files.written


def repeat_skewed(records: list[TraceRecord], directory: Path, count: int) -> int:
    """Write at least `count` records, nine tenths of them of one connection; return their number."""
    pairs = Counter(frozenset((each.connection, each.peer)) for each in records if each.connection and each.peer)
    chosen = pairs.most_common(1)[0][0]
    heavy = [each for each in records if {each.connection, each.peer} == chosen]
    others = [each for each in records if {each.connection, each.peer} != chosen]
    # Each round adds this to the sequence numbers, so that no round repeats those of another: a stream has no more
    # packets than events.
    step = len(heavy)
    files, round_, light_round, light = _Files(directory), 0, 1, 0
    while files.written < count:
        for record in heavy:
            moved = {"time_us": record.time_us + round_ * SHIFT_US // 10, "writer": "bench"}
            files.add(msgspec.structs.replace(record, sequence=(record.sequence + round_ * step) % 2**32, **moved))
        round_ += 1
        while light * 9 < files.written - light:
            for record in others:
                files.add(_shifted(record, light_round))
            light += len(others)
            light_round += 1
    files.flush()
    return files.written


def _shifted(record: TraceRecord, round_: int) -> TraceRecord:
    """Return the record at a later time, with other nodes and ids."""
    change = (round_ * 0x9E3779B1) & 0xFFFFFFFF
    return msgspec.structs.replace(
        record,
        time_us=record.time_us + round_ * SHIFT_US // 10,
        node=f"{record.node}-{round_ % 8}",
        connection=record.connection ^ change if record.connection else 0,
        peer=record.peer ^ change if record.peer else 0,
        batch=record.batch + (round_ << 20) if record.batch else 0,
        writer="bench",
    )


def _tree(pid: int) -> list[int]:
    """Return the ids of a process and of all processes that it started."""
    found = [pid]
    for parent in found:
        children = Path(f"/proc/{parent}/task/{parent}/children")
        if children.exists():
            found.extend(int(child) for child in children.read_text().split())
    return found


def _usage(pids: list[int]) -> tuple[float, int]:
    """Return the processor seconds and the resident bytes of these processes together."""
    cpu_s, size = 0.0, 0
    for pid in pids:
        try:
            cpu_s += cpu_seconds(pid)
            size += resident_bytes(pid)
        except OSError:
            continue  # the process has ended
    return cpu_s, size


def _disk(directories: Iterable[Path]) -> int:
    """Return the bytes that the files of the directories take."""
    size = 0
    for directory in directories:
        for path in directory.rglob("*"):
            with suppress(FileNotFoundError):  # it has just been removed
                size += path.stat().st_blocks * 512
    return size


def measure(
    traces: Path, engine: str, master: str, limit_s: float, *, more: Sequence[str] = (), watched: Sequence[Path] = ()
) -> dict[str, Any]:
    """Run the report on a directory, with `more` options; return its exit code, times, and peak memory and disk.

    Stop it after `limit_s`. What it prints goes to the files `_output` and `_errors` beside the traces. The disk is
    that of the `watched` directories; DuckDB's temporary files are in the last.
    """
    command = [sys.executable, "-m", "tunnel.analysis", "report", str(traces), "-o", str(traces / "report.html")]
    command += ["--engine", engine, *(("--master", master) if engine == "spark" else ())]
    command += more
    environment = os.environ | ({"TMPDIR": str(watched[-1])} if watched else {})
    started = time.monotonic()
    with (traces / "_output").open("wb") as output, (traces / "_errors").open("wb") as errors:
        process = subprocess.Popen(command, stdout=output, stderr=errors, env=environment)
    cpu_s, peak, disk = 0.0, 0, 0
    while True:
        ended, status, usage = os.wait4(process.pid, os.WNOHANG)
        if ended:
            break
        used_s, size = _usage(_tree(process.pid))
        cpu_s, peak, disk = max(cpu_s, used_s), max(peak, size), max(disk, _disk(watched))
        if time.monotonic() - started > limit_s:
            for pid in reversed(_tree(process.pid)):
                subprocess.run(["kill", str(pid)], check=False)
        time.sleep(SAMPLE_S)
    process.returncode = os.waitstatus_to_exitcode(status)
    # what the process itself has used is known exactly; a sample misses its last half second
    cpu_s, peak = max(cpu_s, usage.ru_utime + usage.ru_stime), max(peak, usage.ru_maxrss * 1024)
    return {
        "exit_code": process.returncode,
        "wall_s": round(time.monotonic() - started, 1),
        "cpu_s": round(cpu_s, 1),
        "peak_gib": round(peak / 2**30, 2),
        "disk_gib": round(max(disk, _disk(watched)) / 2**30, 2),
    }


def _measured(
    seed: list[TraceRecord], traces: Path, events: int, spread: str, engine: str, options: argparse.Namespace
) -> dict[str, Any]:
    """Run the report three times (`RUNS`). Return the row of results, and print it unless JSON is wanted."""
    runs = {name: measure(traces, engine, options.master, options.limit) for name in RUNS[:2]}
    repeat([_shifted(each, events) for each in seed[:MORE]], traces / "more", MORE)
    runs |= {RUNS[2]: measure(traces, engine, options.master, options.limit)}
    disk = _disk([traces / "_tables"])
    for made in ("more", "_tables"):
        shutil.rmtree(traces / made)
    row = {"events": events, "spread": spread, "engine": engine, **runs, "tables_gib": round(disk / 2**30, 2)}
    if not options.json:
        print(
            f"{events:12,} events, {spread:6} {engine:6}  "
            + "".join(f"{name} {run['wall_s']:.1f} s {run['cpu_s']:.1f} s of CPU  " for name, run in runs.items())
            + f"{max(run['peak_gib'] for run in runs.values()):.2f} GiB  tables {row['tables_gib']:.2f} GiB",
            flush=True,
        )
    return row


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark, and print the table or JSON. Return 1 if a run failed."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.bench.analysis", description=__doc__)
    parser.add_argument(
        "--millions",
        type=float,
        nargs="+",
        default=[0.1, 1, 5, 20],
        metavar="M",
        help="millions of events (default: 0.1 1 5 20)",
    )
    parser.add_argument("--skewed", action="store_true", help="also with 90 %% of the events in one connection")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES, help="the engines (default: both)")
    parser.add_argument("--master", default="local[2]", metavar="URL", help="the Spark master (default: local[2])")
    parser.add_argument(
        "--limit", type=float, default=900.0, metavar="S", help="stop a run after S seconds (default: 900)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    results = []
    with tempfile.TemporaryDirectory() as base:
        simulate(Path(base) / "seed", streams=12, bytes_each=600_000)
        seed = [each for path in sorted((Path(base) / "seed").glob("*.zst")) for each in read_trace(path)]
        for millions in options.millions:
            for spread, write in (("even", repeat), ("skewed", repeat_skewed))[: 1 + options.skewed]:
                with tempfile.TemporaryDirectory(dir=base) as traces:
                    events = write(seed, Path(traces), round(millions * 1e6))
                    for engine in options.engines:
                        results.append(_measured(seed, Path(traces), events, spread, engine, options))
            if options.skewed and not options.json:
                count = len(options.engines)
                for even, skewed in zip(results[-2 * count : -count], results[-count:], strict=True):
                    ratio = skewed["first"]["wall_s"] / even["first"]["wall_s"]
                    print(f"{'':20}{even['engine']}: skewed over even: {ratio:.2f}", flush=True)
    if options.json:
        print(json.dumps(results))
    return int(any(row[run]["exit_code"] for row in results for run in RUNS))


if __name__ == "__main__":
    raise SystemExit(main())
