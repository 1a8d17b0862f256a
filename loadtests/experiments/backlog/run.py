"""The four measures of a backlog, in phases of a few seconds.

The processors are shared out as if there were two machines: one for the master, its sender and its live consumer, and
one for the replica and the readers that catch up. Without a replica, these readers still run on the second machine.
"""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from loadtests.experiments.backlog.copies import Sent, send_log
from loadtests.experiments.backlog.sides import MESSAGE_BYTES
from loadtests.harness.ports import hold_port
from loadtests.harness.processes import Process, python_command
from tunnel.messages import Log, LogConfig

__all__ = ["READERS", "Figures", "Measures", "Readers", "run"]

READERS = (1, 2, 4, 8)

_SIDES = "loadtests.experiments.backlog.sides"
_FILL = 1000  # messages per append while the backlog is filled
_LIVE_RATE = 1000.0  # messages per second while the delay of live messages is measured


class Readers(msgspec.Struct):
    """The rates of several readers that read the backlog at once: of all of them, and of the slowest."""

    count: int
    per_second: float
    slowest: float


class Figures(msgspec.Struct):
    """The figures with a replica, or those without one."""

    sender_alone: float = 0.0
    sender_beside_reader: float = 0.0
    live_p99_ms_alone: float = 0.0
    live_p99_ms_beside_reader: float = 0.0
    reader: float = 0.0
    reader_redirected: bool = False
    readers: list[Readers] = []


class Measures(msgspec.Struct):
    """All results of a measurement."""

    backlog_messages: int
    bytes_per_message: float = 0.0
    capacity_messages: int = 0
    disk_read_cold: float = 0.0
    disk_read_warm: float = 0.0
    disk_read_per_cpu_s: float = 0.0
    zero_copy: Sent = msgspec.field(default_factory=Sent)
    copied: Sent = msgspec.field(default_factory=Sent)
    without_replica: Figures = msgspec.field(default_factory=Figures)
    with_replica: Figures = msgspec.field(default_factory=Figures)


def run(
    messages: int,
    seconds: float,
    readers: Sequence[int] = READERS,
    *,
    replica_directory: Path | None = None,
    told: Callable[[str], None] = lambda text: None,
) -> Measures:
    """Fill a backlog with `messages` of 1 KiB and measure; each phase takes `seconds`.

    For each number in `readers` there is a phase in which that many readers read the backlog at once. The replica's
    files are in a new directory below `replica_directory`, or below the temporary directory if that is None. Blocks
    until the end and removes all of its files. `told` is called with the name of each phase.
    """
    master_place = Path(tempfile.mkdtemp(prefix="tunnel-backlog-"))
    replica_place = Path(tempfile.mkdtemp(prefix="tunnel-backlog-", dir=replica_directory))
    master_log, replica_log = master_place / "master", replica_place / "replica"
    measures = Measures(messages)
    try:
        told("filling")
        _fill(master_log, messages, measures)
        told("reading the disk")
        measures.disk_read_cold, _ = _read(master_log, seconds, cold=True)
        measures.disk_read_warm, measures.disk_read_per_cpu_s = _read(master_log, seconds, cold=False)
        told("sending the log to a socket")
        measures.zero_copy = send_log(master_log, seconds, zero_copy=True)
        measures.copied = send_log(master_log, seconds, zero_copy=False)
        shutil.copytree(master_log, replica_log, ignore=shutil.ignore_patterns("lock"))
        for figures, served in ((measures.without_replica, None), (measures.with_replica, replica_log)):
            _measure(figures, master_log, served, seconds, readers, told)
    finally:
        shutil.rmtree(master_place, ignore_errors=True)
        shutil.rmtree(replica_place, ignore_errors=True)
    return measures


def _fill(directory: Path, messages: int, measures: Measures) -> None:
    payload = bytes(MESSAGE_BYTES)
    with Log.open(directory, LogConfig(flush_messages=100_000)) as log:
        for _ in range(0, messages, _FILL):
            log.append([payload] * _FILL)
            while not log.has_room:
                time.sleep(0.001)
        log.flush()
        used = sum(path.stat().st_size for path in directory.iterdir())
        measures.backlog_messages = log.end_offset
        measures.bytes_per_message = used / log.end_offset
        measures.capacity_messages = int(shutil.disk_usage(directory).free / measures.bytes_per_message)


def _read(directory: Path, seconds: float, *, cold: bool) -> tuple[float, float]:
    """Read and check the log; return messages per second, and per second of processor time.

    If `cold`, the log is dropped from the page cache first.
    """
    if cold:
        for path in directory.glob("*.log"):
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    count = 0
    with Log.open(directory) as log:
        start, used = time.perf_counter(), time.process_time()
        while count < log.end_offset and time.perf_counter() < start + seconds:
            for _ in log.read(count, 1 << 20).payloads():
                count += 1
        return count / (time.perf_counter() - start), count / (time.process_time() - used)


def _measure(
    figures: Figures,
    master_log: Path,
    replica_log: Path | None,
    seconds: float,
    readers: Sequence[int],
    told: Callable[[str], None],
) -> None:
    """Measure a broker that serves `master_log`, with a replica that serves `replica_log` unless that is None."""
    with hold_port() as port, hold_port() as replica_port:
        master, replica = f"127.0.0.1:{port}", f"127.0.0.1:{replica_port}"
        name = "without a replica" if replica_log is None else "with a replica"
        brokers = [_broker(port, master_log, "", "" if replica_log is None else replica)]
        if replica_log is not None:
            brokers.append(_broker(replica_port, replica_log, master, ""))
        try:
            for broker, processors in zip(brokers, _machines(), strict=False):
                _start(broker, processors).wait_ready()
            told(f"{name}: the sender")
            figures.sender_alone = _together(("producer", master, seconds, 0))[0]["per_second"]
            sender, reader = _together(("producer", master, seconds, 0), ("reader", master, seconds))
            figures.sender_beside_reader = sender["per_second"]
            figures.reader = reader["per_second"]
            figures.reader_redirected = bool(reader["redirected"])
            if replica_log is not None:
                told(f"{name}: the replica copies what was sent")
                _together(("catchup", master, replica))
            told(f"{name}: live messages")
            live = ("producer", master, seconds + 1, _LIVE_RATE)
            figures.live_p99_ms_alone = _live(master, seconds, live)
            figures.live_p99_ms_beside_reader = _live(master, seconds, live, ("reader", master, seconds + 1))
            for count in readers:
                told(f"{name}: {count} readers")
                rates = [each["per_second"] for each in _together(*[("reader", master, seconds)] * count)]
                figures.readers.append(Readers(count, sum(rates), min(rates)))
        finally:
            for broker in brokers:
                broker.kill()


def _machines() -> tuple[set[int], set[int]]:
    """Return the processors of the two simulated machines.

    Each gets about half of this machine's processors; if there is only one, both get that one.
    """
    processors = sorted(os.sched_getaffinity(0))
    half = len(processors) // 2
    return set(processors[half:]), set(processors[:half] or processors)


def _start(process: Process, processors: set[int]) -> Process:
    process.start()
    os.sched_setaffinity(process.pid, processors)
    return process


def _broker(port: int, directory: Path, master: str, replica: str) -> Process:
    command = python_command(_SIDES, "broker", str(port), str(directory), master, replica)
    return Process(command, ready=lambda line: line == "ready\n")


def _live(master: str, seconds: float, *others: tuple[object, ...]) -> float:
    """Return the p99 delay of live messages while `others` run. The consumer starts at the current end of the log."""
    return _together(*others, ("consumer", master, seconds, -1))[-1]["p99_ms"]


def _together(*sides: tuple[object, ...]) -> list[dict[str, float]]:
    """Run these processes at once, readers on the second machine; return the JSON that each prints at its end."""
    first, second = _machines()
    processes = [
        _start(Process(python_command(_SIDES, *map(str, side))), second if side[0] == "reader" else first)
        for side in sides
    ]
    try:
        for process in processes:
            if process.wait(300):
                raise RuntimeError(f"{' '.join(process.command)} failed:\n{process.output}")
        return [json.loads(process.output.splitlines()[-1]) for process in processes]
    finally:
        for process in processes:
            process.kill()
