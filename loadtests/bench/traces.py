"""The cost of tracing for the traced process, and the speed of the writer: `python -m loadtests.bench.traces`.

The cost of an emit is processor time of the calling thread, so that other work on the machine does not count. The rate
of written records is measured in wall time, with the writer's own thread on the same cores.
"""

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadtests.harness.experiment import command
from tunnel.traces import TraceEvent, TraceRecord
from tunnel.traces.writer import TraceWriter

__all__ = ["main"]

ROUNDS = 5
QUEUE = 10_000_000  # large enough that nothing is dropped, so that each emit does all of its work


def sample(number: int) -> TraceRecord:
    """Return a record of a sent packet, which is the largest kind."""
    return TraceRecord(
        time_us=number * 7,
        node="client-1234abcd",
        event=TraceEvent.PACKET_SENT,
        connection=123456789,
        peer=987654321,
        packet_type=4,
        sequence=number,
        size_bytes=1424,
        srtt_us=20_000,
        rto_us=65_000,
        window_bytes=262_144,
        in_flight_bytes=100_000,
        backlog_bytes=10_000,
        batch=number // 10,
        carrier="link",
    )


def _each_us(count: int, run: Callable[[], None]) -> float:
    """Return the microseconds of this thread's processor time per item, the best of several rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        before = time.thread_time_ns()
        run()
        best = min(best, (time.thread_time_ns() - before) / count / 1000)
    return best


def measure(count: int) -> dict[str, Any]:
    """Measure cost and rate for `count` records."""
    records = [sample(number) for number in range(count)]

    def make() -> None:
        for number in range(count):
            sample(number)

    sink = None

    def guard() -> None:
        for record in records:
            if sink is not None:
                sink(record)

    result: dict[str, Any] = {"records": count, "off_us": _each_us(count, guard), "make_us": _each_us(count, make)}
    with tempfile.TemporaryDirectory() as directory:
        writer = TraceWriter(directory, queue_records=QUEUE)

        def emit() -> None:
            for record in records:
                writer(record)

        result["emit_us"] = _each_us(count, emit)
        writer.close()
    with tempfile.TemporaryDirectory() as directory:
        writer = TraceWriter(directory, queue_records=QUEUE)
        before, cpu = time.perf_counter(), time.process_time()
        for record in records:
            writer(record)
        writer.close()
        result["written_per_s"] = round(count / (time.perf_counter() - before))
        result["written_per_cpu_s"] = round(count / (time.process_time() - cpu))
        size = sum(path.stat().st_size for path in Path(directory).iterdir())
        result["bytes_each"] = round(size / count, 1)
        result["dropped"] = writer.records_dropped
    return result


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark, and print the table or JSON."""
    parser = command("bench.traces", __doc__, "--records 20000")
    parser.add_argument("--records", type=int, default=200_000, metavar="N", help="number of records (default: 200000)")
    options = parser.parse_args(arguments)
    result = measure(options.records)
    if options.json:
        print(json.dumps(result))
        return 0
    print(f"tracing off          {result['off_us']:8.3f} µs per event")
    print(f"create a record      {result['make_us']:8.3f} µs")
    print(f"emit a record        {result['emit_us']:8.3f} µs")
    print(f"written              {result['written_per_s']:8,} per second, {result['bytes_each']} bytes each")
    print(f"                     {result['written_per_cpu_s']:8,} per second of processor time of both threads")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
