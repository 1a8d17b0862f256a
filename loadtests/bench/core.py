"""The speed of the core alone: two endpoints in one process, without faults: `python -m loadtests.bench.core`.

Checksums and stream digests are on: every packet is encoded, and verified by the receiver. "handed on" passes buffers
without a copy, as a link can; "joined" copies each batch into one body, as HTTP does. Times are CPU seconds of this
process, medians of several interleaved runs; those of --stages are medians of wall time.
"""

import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from loadtests.harness.experiment import command
from tunnel.core import Connection, Endpoint, EndpointConfig
from tunnel.wire import HEADER_SIZE, Packet, Target, TargetKind, checksum, encode_packets, parse_packets

__all__ = ["Row", "main", "measure"]

BULK_BATCH_BYTES = 2 * 1024 * 1024 + 16 * HEADER_SIZE  # eight packets of 256 KiB (PROTOCOL 4.13)
SMALL_BATCH_BYTES = 64 * 1024
WRITE_BYTES = 1024 * 1024
SMALL_BYTES = 64
STEP_US = 100  # virtual time per step


class Row(msgspec.Struct):
    """One figure: the case, its rate, and the time per item."""

    name: str
    per_second: float
    unit: str
    each_us: float


class _Pair:
    """A connection between two endpoints in this process, whose batches are passed by a function call."""

    def __init__(self, *, joined: bool) -> None:
        self.now = 0
        self._joined = joined
        self.near = Endpoint(EndpointConfig(), Random(1))
        self.far = Endpoint(EndpointConfig(), Random(2))
        self.far.listen("bench", 128, self.now)
        self.writer = self.near.connect(Target(TargetKind.SERVICE, "bench"), self.now)
        self.exchange(SMALL_BATCH_BYTES)
        self.reader: Connection = next(iter(self.far.connections.values()))

    def move(self, source: Endpoint, destination: Endpoint, batch_bytes: int) -> None:
        """Move all waiting batches from one endpoint to the other."""
        while source.wants_batch():
            batch = source.next_batch(batch_bytes, self.now)
            if batch is None:
                return
            source.batch_done(batch.token, True, self.now)
            buffers = encode_packets(batch.packets)
            if self._joined:
                packets, _ = parse_packets(b"".join(buffers))
            else:
                packets = batch.packets
                for packet in packets:
                    _verify(packet)
            destination.receive_packets(packets, self.now)

    def exchange(self, batch_bytes: int) -> None:
        """Advance the time by one step: move batches in both directions, handle timers, drop events."""
        self.now += STEP_US
        self.move(self.near, self.far, batch_bytes)
        self.move(self.far, self.near, batch_bytes)
        for endpoint in (self.near, self.far):
            deadline = endpoint.next_timeout()
            if deadline is not None and deadline <= self.now:
                endpoint.handle_timeout(self.now)
            while endpoint.poll_event() is not None:
                pass


def _verify(packet: Packet) -> None:
    """Compute the checksum over header and payload: the cost of parsing a packet, without the copy."""
    checksum(bytes(HEADER_SIZE), packet.payload)


def _bulk(total_bytes: int, *, joined: bool) -> float:
    pair = _Pair(joined=joined)
    block = bytes(WRITE_BYTES)
    delivered = 0
    start = time.process_time()
    while delivered < total_bytes:
        while pair.writer.write(block, pair.now):
            pass
        pair.move(pair.near, pair.far, BULK_BATCH_BYTES)
        while data := pair.reader.read(WRITE_BYTES, pair.now):
            delivered += len(data)
        pair.exchange(BULK_BATCH_BYTES)
    return (time.process_time() - start) / delivered


def _one_way(count: int) -> float:
    pair = _Pair(joined=True)
    message = bytes(SMALL_BYTES)
    start = time.process_time()
    for _ in range(count):
        pair.writer.write(message, pair.now)
        pair.exchange(SMALL_BATCH_BYTES)
        pair.reader.read(SMALL_BYTES, pair.now)
    return (time.process_time() - start) / count


def _echo(count: int) -> float:
    pair = _Pair(joined=True)
    message = bytes(SMALL_BYTES)
    start = time.process_time()
    for _ in range(count):
        pair.writer.write(message, pair.now)
        pair.move(pair.near, pair.far, SMALL_BATCH_BYTES)
        pair.reader.write(pair.reader.read(SMALL_BYTES, pair.now), pair.now)
        pair.exchange(SMALL_BATCH_BYTES)
        pair.writer.read(SMALL_BYTES, pair.now)
    return (time.process_time() - start) / count


def _crowded(count: int) -> float:
    """Do as `_one_way` does, with small writes of many connections in each batch; return the seconds per packet."""
    pair = _Pair(joined=True)
    others = [pair.near.connect(Target(TargetKind.SERVICE, "bench"), pair.now) for _ in range(63)]
    for _ in range(64):
        pair.exchange(SMALL_BATCH_BYTES)
    writers = [pair.writer, *(writer for writer in others if writer.identity.peer_id)]
    readers = list(pair.far.connections.values())
    message = bytes(SMALL_BYTES)
    rounds = max(1, count // len(writers))
    start = time.process_time()
    for _ in range(rounds):
        for writer in writers:
            writer.write(message, pair.now)
        pair.exchange(SMALL_BATCH_BYTES)
        for reader in readers:
            reader.read(SMALL_BYTES, pair.now)
    return (time.process_time() - start) / (rounds * len(writers))


def measure(bulk_bytes: int, count: int, runs: int) -> Iterator[Row]:
    """Run all cases, interleaved; yield the median of each."""
    cases: dict[str, Callable[[], float]] = {
        "bulk, 256 KiB packets, handed on": lambda: _bulk(bulk_bytes, joined=False),
        "bulk, 256 KiB packets, joined": lambda: _bulk(bulk_bytes, joined=True),
        "64-byte writes, one per batch": lambda: _one_way(count),
        "64-byte writes, many connections per batch": lambda: _crowded(count),
        "64-byte echo": lambda: _echo(count),
    }
    figures: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(runs):
        for name, run in cases.items():
            figures[name].append(run())
    for name, seconds in figures.items():
        median = statistics.median(seconds)
        if name.startswith("bulk"):
            yield Row(name, 1 / median / 1e6, "MB/s", median * 262_144 * 1e6)
        else:
            yield Row(name, 1 / median, "echoes/s" if "echo" in name else "packets/s", median * 1e6)


def stages(count: int) -> Iterator[Row]:
    """Measure each stage of a 64-byte write separately; yield the median of each."""
    pair = _Pair(joined=True)
    message = bytes(SMALL_BYTES)
    spent: dict[str, list[int]] = {}

    def timed(name: str, function: Callable[..., Any], *arguments: object) -> Any:
        start = time.perf_counter_ns()
        result = function(*arguments)
        spent.setdefault(name, []).append(time.perf_counter_ns() - start)
        return result

    for _ in range(count):
        pair.now += STEP_US
        timed("write", pair.writer.write, message, pair.now)
        batch = timed("next_batch", pair.near.next_batch, SMALL_BATCH_BYTES, pair.now)
        body = b"".join(timed("encode_packets", encode_packets, batch.packets))
        timed("batch_done", pair.near.batch_done, batch.token, True, pair.now)
        packets, _ = timed("parse_packets", parse_packets, body)
        timed("receive_packets", pair.far.receive_packets, packets, pair.now)
        timed("read", pair.reader.read, SMALL_BYTES, pair.now)
        pair.exchange(SMALL_BATCH_BYTES)
    for name, nanoseconds in spent.items():
        median = statistics.median(nanoseconds) / 1000
        yield Row(name, 1e6 / median, "calls/s", median)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown processor"


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark, and print the table or JSON."""
    parser = command("bench.core", __doc__, "--bulk-mib 64 --runs 3")
    parser.add_argument("--bulk-mib", type=int, default=512, help="payload of a bulk run, in MiB (default 512)")
    parser.add_argument("--count", type=int, default=20_000, help="small packets per run (default 20000)")
    parser.add_argument("--runs", type=int, default=5, help="runs of each case; the results are medians (default 5)")
    parser.add_argument("--stages", action="store_true", help="measure the stages of a small packet instead")
    options = parser.parse_args(arguments)
    if options.stages:
        rows = list(stages(options.count))
    else:
        rows = list(measure(options.bulk_mib * 1024 * 1024, options.count, options.runs))
    if options.json:
        print(json.dumps([msgspec.to_builtins(row) for row in rows]))
        return 0
    print(f"{_processor()}, Python {platform.python_version()}; two endpoints in one process, CPU time")
    print(f"{options.bulk_mib} MiB or {options.count} packets per run, medians of {options.runs} interleaved runs\n")
    for row in rows:
        print(f"{row.name:<44}{row.per_second:>10,.0f} {row.unit:<10}{row.each_us:>9.1f} us each")
    return 0


if __name__ == "__main__":
    sys.exit(main())
