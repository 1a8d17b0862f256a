"""The time from trace files to a finished report, for 1, 5 and 20 million events: `python -m loadtests.bench.analysis`.

A simulated run with losses is repeated, shifted in time and with other ids, until it has the wanted number of events.
Then `tunnel-traces report` runs as a user would run it. Wall time, processor time and memory include its Java process.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from tests.analysis.truth import simulate
from tunnel.traces import TraceRecord
from tunnel.traces.jsonl import read_trace
from tunnel.traces.salvage import SUFFIX

__all__ = ["main", "repeat"]

FRAME_RECORDS = 4096
FILE_RECORDS = 60 * FRAME_RECORDS
SHIFT_US = 60_000_000
SAMPLE_S = 0.5


def repeat(records: list[TraceRecord], directory: Path, count: int) -> int:
    """Write at least `count` records; return their number."""
    directory.mkdir(parents=True, exist_ok=True)
    encoder, compressor = msgspec.json.Encoder(), zstandard.ZstdCompressor(level=1)
    written, files = 0, 0
    lines: list[TraceRecord] = []
    frames: list[bytes] = []

    def flush(*, last: bool = False) -> None:
        nonlocal frames, files
        if lines:
            frames.append(compressor.compress(encoder.encode_lines(lines)))
            lines.clear()
        if frames and (last or len(frames) * FRAME_RECORDS >= FILE_RECORDS):
            (directory / f"bench-1-a-{files:05d}{SUFFIX}").write_bytes(b"".join(frames))
            frames, files = [], files + 1

    round_ = 0
    while written < count:
        for record in records:
            written += 1
            lines.append(_shifted(record, round_, written))
            if len(lines) == FRAME_RECORDS:
                flush()
        round_ += 1
    flush(last=True)
    return written


def _shifted(record: TraceRecord, round_: int, number: int) -> TraceRecord:
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
        number=number,
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
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # the process has ended
        cpu_s += (int(fields[11]) + int(fields[12])) / 100
        size += int(fields[21]) * 4096
    return cpu_s, size


def measure(traces: Path, master: str, limit_s: float) -> dict[str, Any]:
    """Run the report on a directory; return its exit code, times and peak memory. Stop it after `limit_s`."""
    command = [sys.executable, "-m", "tunnel.analysis", "report", str(traces), "-o", str(traces / "report.html")]
    started = time.monotonic()
    with (traces / "_log").open("wb") as log:
        process = subprocess.Popen([*command, "--master", master], stdout=log, stderr=subprocess.STDOUT)
    cpu_s, peak = 0.0, 0
    while process.poll() is None:
        now_s, size = _usage(_tree(process.pid))
        cpu_s, peak = max(cpu_s, now_s), max(peak, size)
        if time.monotonic() - started > limit_s:
            for pid in reversed(_tree(process.pid)):
                subprocess.run(["kill", str(pid)], check=False)
            break
        time.sleep(SAMPLE_S)
    code = process.wait()
    return {
        "exit_code": code,
        "wall_s": round(time.monotonic() - started, 1),
        "cpu_s": round(cpu_s, 1),
        "peak_gib": round(peak / 2**30, 2),
    }


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark, and print the table or JSON. Return 1 if a run failed."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.bench.analysis", description=__doc__)
    parser.add_argument(
        "--millions",
        type=float,
        nargs="+",
        default=[1, 5, 20],
        metavar="M",
        help="millions of events (default: 1 5 20)",
    )
    parser.add_argument("--master", default="local[2]", metavar="URL", help="master of Spark (default: local[2])")
    parser.add_argument(
        "--limit", type=float, default=900.0, metavar="S", help="stop a run after S seconds (default: 900)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        simulate(Path(directory) / "seed", streams=12, bytes_each=600_000)
        seed = [each for path in sorted((Path(directory) / "seed").glob("*.zst")) for each in read_trace(path)]
        results = []
        for millions in options.millions:
            traces = Path(directory) / f"m{millions:g}"
            events = repeat(seed, traces, round(millions * 1e6))
            results.append({"events": events, **measure(traces, options.master, options.limit)})
            if not options.json:
                row = results[-1]
                print(
                    f"{events:12,} events  {row['wall_s']:7.1f} s  {row['cpu_s']:7.1f} s of CPU  "
                    f"{row['peak_gib']:.2f} GiB  {row['cpu_s'] / events * 1e6:.1f} µs of CPU per event",
                    flush=True,
                )
    if options.json:
        print(json.dumps(results))
    return int(any(row["exit_code"] for row in results))


if __name__ == "__main__":
    raise SystemExit(main())
