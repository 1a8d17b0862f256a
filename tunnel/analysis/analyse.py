"""All analyses in one go: tables that several of them need are made once, what comes out is small and plain."""

from collections.abc import Callable
from typing import Any

import msgspec
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tunnel.analysis import counts, flow, network, timing
from tunnel.analysis.intake import Intake

__all__ = ["Analysis", "analyse"]

Rows = list[dict[str, Any]]
WORST = 6  # streams with a graph of their own
WORST_LISTED = 20
POINTS = 1500  # of one graph
STALLS_LISTED = 30
_SHORT_BUCKETS_US = (100_000, 1_000_000)

Progress = Callable[[str], None]


class Analysis(msgspec.Struct):
    """What the report shows, and `--json` prints: each table is a list of rows."""

    begin_us: int = 0
    end_us: int = 0
    bucket_us: int = counts.BUCKET_US
    """Of everything that is shown over time: ten seconds, less for a short trace."""
    problems: Rows = []
    """Files with something wrong."""
    files: Rows = []
    writers: Rows = []
    retransmissions: Rows = []
    goodput: Rows = []
    exchanges: Rows = []
    batches: Rows = []
    moved: Rows = []
    faults: Rows = []
    totals: dict[str, Any] = {}
    gilbert: dict[str, Any] = {}
    bursts: Rows = []
    spurious: Rows = []
    recovery: Rows = []
    loss_stages: Rows = []
    lost_ranges: Rows = []
    rtt: dict[str, Any] = {}
    rtt_values: Rows = []
    rtt_over_time: Rows = []
    timers: Rows = []
    stalls: Rows = []
    longest_stalls: Rows = []
    worst: Rows = []
    points: dict[str, Rows] = {}
    """Time and sequence of the worst streams."""


def analyse(
    session: SparkSession, events: DataFrame, intake: Intake, progress: Progress = lambda text: None
) -> Analysis:
    """Run every analysis over the events."""
    result = Analysis()
    progress("looking at the trace itself")
    _health(result, events, intake)
    _counts(result, events)
    progress("bringing both ends together")
    steps = flow.flow_of(events).persist(StorageLevel.MEMORY_AND_DISK)
    packets = flow.packets_of(steps)
    ordered = network.in_order(packets).persist(StorageLevel.MEMORY_AND_DISK)
    streams = network.stream_table(ordered).persist(StorageLevel.MEMORY_AND_DISK)
    _network(result, ordered, streams, events)
    progress("measuring time")
    _timing(result, steps, ordered, streams, events)
    for table in (streams, ordered, steps):
        table.unpersist()
    return result


def _rows(table: DataFrame) -> Rows:
    return [row.asDict() for row in table.collect()]


def _row(table: DataFrame) -> dict[str, Any]:
    rows = table.collect()
    return rows[0].asDict() if rows else {}


def _health(result: Analysis, events: DataFrame, intake: Intake) -> None:
    files = counts.file_health(events)
    result.files = _rows(files)
    names = {file.digest: file.name for file in intake.files if file.digest and not file.same_as}
    for row in result.files:
        row["file"] = names.get(row["source"], row["source"])
    known = [row for row in result.files if row["begin_us"] is not None]
    result.begin_us = min((row["begin_us"] for row in known), default=0)
    result.end_us = max((row["end_us"] for row in known), default=0)
    span_us = result.end_us - result.begin_us
    result.bucket_us = next((size for size in _SHORT_BUCKETS_US if span_us < 60 * size), counts.BUCKET_US)
    result.writers = _writers(result.files)
    result.problems = [
        {
            "file": file.name,
            "problem": file.problem,
            "frames": file.frames,
            "corrupt_frames": file.corrupt_frames,
            "same_as": file.same_as,
        }
        for file in intake.problems
    ]
    for row in result.files:
        for name, problem in (("other_versions", "version"), ("bad_lines", "lines")):
            if row[name]:
                detail = {"count": row[name], "version": row["other_version"]}
                result.problems.append({"file": row["file"], "problem": problem, **detail})


def _writers(files: Rows) -> Rows:
    """As counts.writer_health, of rows that are here already."""
    found: dict[str, dict[str, Any]] = {}
    for row in files:
        if row["writer"] and row["last"] is not None:
            of = found.setdefault(row["writer"], {"writer": row["writer"], "events": 0, "last": 0, "dropped": 0})
            of["events"] += row["events"]
            of["last"] = max(of["last"], row["last"])
            of["dropped"] += row["dropped"] or 0
    for of in found.values():
        of["missing"] = max(0, of.pop("last") - of["events"])
    return [found[name] for name in sorted(found)]


def _counts(result: Analysis, events: DataFrame) -> None:
    table = counts.counts_of(events, result.begin_us, result.bucket_us).persist(StorageLevel.MEMORY_AND_DISK)
    result.retransmissions = _rows(counts.retransmissions(table, counts.relays_of(events)))
    result.goodput = _rows(counts.goodput_over_time(table))
    result.moved = _rows(counts.moved(table))
    result.faults = _rows(counts.faults(table))
    result.exchanges = _rows(counts.exchanges(events))
    result.batches = _rows(counts.batches(events))
    table.unpersist()


def _network(result: Analysis, ordered: DataFrame, streams: DataFrame, events: DataFrame) -> None:
    sums = [
        "packets", "unique_packets", "bytes", "unique_bytes", "resent_bytes", "received_bytes", "received_packets",
        "duplicates", "lost", "needless", "open_packets", "never_arrived", "reordered", "waited",
    ]  # fmt: skip
    result.totals = _row(
        streams.agg(
            F.count("*").alias("streams"),
            F.count_if(F.col("both_ends")).alias("both_ends"),
            *[F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in sums],
            F.max("attempts_max").alias("attempts_max"),
            F.max("late_us_max").alias("late_us_max"),
            F.max("hol_us_p99").alias("hol_us_p99_max"),
            F.coalesce(F.sum("duration_us"), F.lit(0)).alias("duration_us"),
        )
    )
    result.gilbert = _row(network.gilbert(streams))
    result.bursts = _rows(network.burst_lengths(ordered))
    result.spurious = _rows(network.spurious(ordered))
    result.recovery = _rows(network.recovery(ordered))
    result.loss_stages = _rows(network.loss_stages(ordered, events))
    result.lost_ranges = _rows(network.lost_ranges(ordered))


def _timing(result: Analysis, table: DataFrame, ordered: DataFrame, streams: DataFrame, events: DataFrame) -> None:
    steps = timing.steps_of(table).persist(StorageLevel.MEMORY_AND_DISK)
    trips = timing.rtt_by_stream(steps)
    result.rtt_values = _rows(timing.rtt_values(steps))
    result.rtt_over_time = _rows(timing.rtt_over_time(steps, result.begin_us, result.bucket_us))
    result.timers = _rows(timing.timers(events))
    stalls = timing.stalls_of(steps, ordered, events).persist(StorageLevel.MEMORY_AND_DISK)
    result.stalls = _rows(timing.stalls_by_cause(stalls))
    result.longest_stalls = _rows(timing.longest(stalls, STALLS_LISTED))
    result.rtt = _row(timing.rtt_of_all(steps))
    by_stream = stalls.groupBy("stream").agg(
        F.count("*").alias("stalls"), F.sum("gap_us").alias("stalled_us"), F.mode("why").alias("stalled_by")
    )
    worst = streams.join(by_stream, "stream", "left").join(trips, "stream", "left")
    blame = F.coalesce("stalled_us", F.lit(0)) + 1000 * F.coalesce("lost", F.lit(0)) + F.coalesce("needless", F.lit(0))
    result.worst = _rows(worst.orderBy(blame.desc(), "stream").limit(WORST_LISTED))
    chosen = [row["stream"] for row in result.worst[:WORST]]
    result.points = _points(table, {row["stream"]: row for row in result.worst}, chosen)
    stalls.unpersist()
    steps.unpersist()


def _points(table: DataFrame, known: dict[int, dict[str, Any]], chosen: list[int]) -> dict[str, Rows]:
    """Time and sequence of a few streams; of long ones a part of what went well, and everything that did not."""
    if not chosen:
        return {}
    most = max(known[stream]["packets"] or 0 for stream in chosen)
    part = max(1, 3 * most // POINTS)
    shown = (
        table.where(F.col("stream").isin(chosen) & F.col("kind").isin(flow.SENT, flow.RECEIVED, flow.ACKED))
        .where((F.col("attempt") > 0) | (F.pmod(F.xxhash64("sequence", "kind"), F.lit(part)) == 0))
        .select("stream", "kind", "t", "sequence", "attempt", "cause")
        .limit(POINTS * WORST * 2)
    )
    points: dict[str, Rows] = {str(stream): [] for stream in chosen}
    for row in shown.collect():
        points[str(row["stream"])].append(row.asDict())
    return points
