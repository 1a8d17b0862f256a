"""A day of many relays, and what a report of it takes on DuckDB: `python -m loadtests.bench.day --events 20000000`.

A simulated run of a relay, a client and a service is repeated: for each relay with names of its own, and several times
over the day. Each connection has about 1,000 events, so 100 million make 100,000 connections on 1,000 relays. Then
`tunnel-traces report` reads all. The line that is printed compares processor time, memory and disk with the limits; the
disk is that of the tables and of DuckDB's temporary files together. Exit code 1: the report failed, has other numbers
than the trace, or exceeds a limit.
"""

import argparse
import json
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from loadtests.bench.analysis import FRAME_RECORDS, measure
from tests.analysis.truth import simulate
from tunnel.traces import TraceRecord
from tunnel.traces.jsonl import encode_record, read_trace
from tunnel.traces.salvage import SUFFIX

__all__ = ["Day", "main", "write_day"]

RELAYS = 1_000
DAY_S = 86_400
CONNECTIONS, BYTES_EACH = 12, 330_000  # of the simulated run: about 1,000 events for each connection
EVENTS_MAX = 200_000_000
_FILLED = re.compile(rb'"@(\w+):(\d*)@"')
_SPREAD = 0x9E3779B1  # odd, so that different numbers become different ids


class Day(msgspec.Struct):
    """What was written."""

    events: int
    connections: int
    relays: int
    bytes: int


def write_day(directory: Path, events: int) -> Day:
    """Write a file for each relay, `events` records at least in all."""
    with tempfile.TemporaryDirectory() as base:
        simulate(Path(base), streams=CONNECTIONS, bytes_each=BYTES_EACH)
        seed = [each for path in sorted(Path(base).glob("*.zst")) for each in read_trace(path)]
    ids = sorted({each for record in seed for each in (record.connection, record.peer) if each})
    runs = -(-events // len(seed))
    relays = min(RELAYS, runs)
    templates = [_template(seed, ids, number * len(seed)) for number in range(-(-runs // relays))]
    directory.mkdir(parents=True, exist_ok=True)
    compressor, written = zstandard.ZstdCompressor(level=1), 0
    for relay in range(relays):
        with (directory / f"day-{relay:04d}-a-00000{SUFFIX}").open("wb") as file:
            for number in range(relay, runs, relays):  # runs are dealt to the relays in turn
                frames, values = templates[number // relays], _values(relay, number, runs, len(ids))
                written += sum(file.write(compressor.compress(frame % values)) for frame in frames)
    return Day(runs * len(seed), runs * CONNECTIONS, relays, written)


class _Values(dict[bytes, bytes]):
    """The values of a template. Whole seconds are computed when they are asked for: `s17` is 17 s after the shift."""

    shift_s = 0

    def __missing__(self, key: bytes) -> bytes:
        self[key] = value = b"%d" % (int(key[1:]) + self.shift_s)
        return value


def _values(relay: int, run: int, runs: int, ids: int) -> _Values:
    values = _Values()
    values.shift_s = 1 + run * DAY_S // runs
    values[b"r"] = b"%d" % relay
    values.update((b"c%d" % place, b"%d" % ((run * ids + place + 1) * _SPREAD & 0xFFFFFFFF)) for place in range(ids))
    return values


def _template(seed: list[TraceRecord], ids: list[int], before: int) -> list[bytes]:
    """Return the frames of one run, with places for the names of its relay, its ids and its whole seconds."""
    place_of = {each: place for place, each in enumerate(ids)}
    lines = [_line(record, place_of, before + number) for number, record in enumerate(seed, start=1)]
    return [b"".join(lines[begin : begin + FRAME_RECORDS]) for begin in range(0, len(lines), FRAME_RECORDS)]


def _line(record: TraceRecord, place_of: dict[int, int], number: int) -> bytes:
    seconds, rest_us = divmod(record.time_us, 1_000_000)
    own = {
        "number": number,
        "writer": "day-@r@",
        "node": f"{record.node}-@r@",
        "time_us": f"@s{seconds}:{rest_us:06d}@",
    }
    values = json.loads(encode_record(record)) | own
    for name in ("connection", "peer"):
        if values.get(name):
            values[name] = f"@c{place_of[values[name]]}:@"
    if record.event == "attached" and record.node != "relay":
        values["text"] = f"{record.text}-@r@"
    line = json.dumps(values, separators=(",", ":")).encode().replace(b"%", b"%%")
    return _FILLED.sub(rb"%(\1)b\2", line).replace(b"@r@", b"%(r)b") + b"\n"


def _rows(day: Day, traces: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run the report; return what it took and what of its numbers is wrong."""
    spill = traces.parent / "spill"
    spill.mkdir()
    more = ("--memory", options.memory, "--json")
    taken = measure(traces, "duckdb", "", options.limit, more=more, watched=(traces / "_tables", spill))
    result = {} if taken["exit_code"] else json.loads((traces / "_output").read_bytes())
    counted = {
        "events": sum(row["events"] for row in result.get("files", [])),
        "streams": (result.get("totals") or {}).get("both_ends"),
        "writers": len(result.get("writers", [])),
    }
    wanted = {"events": day.events, "streams": 2 * day.connections, "writers": day.relays}
    return taken | {"wrong": {name: value for name, value in counted.items() if value != wanted[name]}}


def _exceeded(taken: dict[str, Any], options: argparse.Namespace) -> Iterator[str]:
    for name, limit in (("cpu_s", options.cpu), ("peak_gib", options.peak), ("disk_gib", options.disk)):
        if taken[name] > limit:
            yield f"{name} {taken[name]} > {limit}"


def main(arguments: list[str] | None = None) -> int:
    """Write the day, run the report, and print one line. Return 1 if something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.bench.day", description=__doc__)
    parser.add_argument("--events", type=int, default=100_000_000, metavar="N", help="default: 100 million")
    parser.add_argument("--memory", default="4g", help="what DuckDB may take (default: 4g)")
    parser.add_argument("--cpu", type=float, default=1800, metavar="S", help="processor time (default: 1800)")
    parser.add_argument("--peak", type=float, default=6, metavar="GIB", help="memory of the process (default: 6)")
    parser.add_argument(
        "--disk", type=float, default=10, metavar="GIB", help="of tables and temporary files (default: 10)"
    )
    parser.add_argument("--limit", type=float, default=7200, metavar="S", help="stop after S seconds (default: 7200)")
    options = parser.parse_args(arguments)
    if not 0 < options.events <= EVENTS_MAX:
        parser.error(f"--events is 1 to {EVENTS_MAX:,}")
    base = Path(tempfile.mkdtemp(prefix="tunnel-day-"))
    try:
        began_s = time.process_time()
        day = write_day(base / "traces", options.events)
        made_s = time.process_time() - began_s
        taken = _rows(day, base / "traces", options)
    finally:
        shutil.rmtree(base)
    print(
        f"{day.events:,} events of {day.connections:,} connections on {day.relays:,} relays, "
        f"{day.bytes / 2**30:.2f} GiB, written in {made_s:.0f} s of CPU; report {taken['cpu_s']:.0f} s of CPU, "
        f"{taken['wall_s']:.0f} s, {taken['peak_gib']:.2f} GiB of memory, {taken['disk_gib']:.2f} GiB of disk"
    )
    wrong = [f"exit code {taken['exit_code']}"] if taken["exit_code"] else []
    wrong += [f"{name}: {value}" for name, value in taken["wrong"].items()] + list(_exceeded(taken, options))
    print("; ".join(wrong) or "within the limits, and with the numbers of the trace")
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
