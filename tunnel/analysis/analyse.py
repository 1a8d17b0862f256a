"""Runs all analyses: tables that several of them share are computed once, and the result is a few plain rows."""

import json
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tunnel.analysis import (
    alignment,
    clocks,
    counts,
    flow,
    graphs,
    hole_queries,
    holes,
    limits,
    network,
    stalls,
    tables,
    timing,
)
from tunnel.analysis.kept import kept
from tunnel.analysis.ledger import Intake
from tunnel.analysis.result import BUCKET_US, Analysis, Rows

__all__ = ["analyse"]

WORST = 6  # streams that get a graph
WORST_LISTED = 20
STALLS_LISTED = 30
_SHORT_BUCKETS_US = (100_000, 1_000_000)
_LONG_BUCKETS_US = (BUCKET_US, 60_000_000, 600_000_000, 3_600_000_000, 86_400_000_000)
_BUCKETS = 1_000  # largest number of time buckets, except for a trace of years

Progress = Callable[[str], None]


def analyse(
    session: SparkSession, events: DataFrame, intake: Intake, progress: Progress = lambda text: None
) -> Analysis:
    """Run every analysis over the events."""
    result = Analysis()
    progress("checking the trace files")
    relay_dropped = _health(result, events, intake)
    events = _aligned(result, events)
    missing = _holes(result, session, events)
    progress("joining both ends of the streams")
    with ThreadPoolExecutor(1) as beside:  # one query is planned, on one core, while another one runs
        counted = beside.submit(_counts, result, session, events)
        _streams(result, events, missing, relay_dropped, beside, progress)
        counted.result()
    return result


def _aligned(result: Analysis, events: DataFrame) -> DataFrame:
    """Return the events in the common time of all writers, and correct the times of the files."""
    walls = tables.walls(result.files)
    delays = (
        [] if clocks.are_one(walls) else _rows(alignment.delays_of(events, sum(row["events"] for row in result.files)))
    )
    known = clocks.clocks_of(walls, delays)
    for row in result.files:
        ahead_us = known[row["writer"]].ahead_us if row["writer"] in known else 0
        if row["begin_us"] is not None:
            row["begin_us"], row["end_us"] = row["begin_us"] - ahead_us, row["end_us"] - ahead_us
    for row in result.writers:
        of = known[row["writer"]]
        row["ahead_us"], row["clock"] = of.ahead_us, of.known_by
    at_zero = [wall + known[name].ahead_us for name, wall in walls.items() if wall is not None]
    result.wall_us = at_zero[0] if at_zero else None
    _measure_span(result)
    return alignment.aligned(events, known)


def _measure_span(result: Analysis) -> None:
    known = [row for row in result.files if row["begin_us"] is not None]
    result.begin_us = min((row["begin_us"] for row in known), default=0)
    result.end_us = max((row["end_us"] for row in known), default=0)
    span_us = result.end_us - result.begin_us
    short = (size for size in _SHORT_BUCKETS_US if span_us < 60 * size)
    long = (size for size in _LONG_BUCKETS_US if span_us < _BUCKETS * size)
    result.bucket_us = next(short, None) or next(long, _LONG_BUCKETS_US[-1])


def _holes(result: Analysis, session: SparkSession, events: DataFrame) -> DataFrame:
    """Return the times for which each writer has no records."""
    incomplete = [row["writer"] for row in result.writers if row["missing"]]
    inner = holes.merged(_rows(hole_queries.holes_of(events, incomplete))) if incomplete else {}
    return hole_queries.table_of(session, holes.by_writer(result.files, inner))


def _streams(
    result: Analysis, events: DataFrame, missing: DataFrame, relay_dropped: bool, beside: Executor, progress: Progress
) -> None:
    with (
        kept(flow.flow_of(events)) as steps,
        kept(network.in_order(flow.packets_of(steps, missing))) as ordered,
        kept(network.stream_table(ordered)) as streams,
    ):
        _totals(result, streams)
        examined = beside.submit(_network, result, ordered, events, relay_dropped)
        progress("measuring round trips and stalls")
        with kept(timing.steps_of(steps, streams)) as timed:
            _timing(result, timed, ordered, streams)
            with kept(stalls.stalls_of(timed, steps, ordered, streams, events, missing)) as stalled:
                _stalls(result, stalled, timed, streams)
        result.points = _points(steps, [row["stream"] for row in result.worst[:WORST]])
        examined.result()
        _name(result, steps)


def _rows(table: DataFrame) -> Rows:
    return [row.asDict() for row in table.collect()]


def _row(table: DataFrame) -> dict[str, Any]:
    rows = table.collect()
    return rows[0].asDict() if rows else {}


def _health(result: Analysis, events: DataFrame, intake: Intake) -> bool:
    """Fill in the tables about the trace itself. Return whether it has packets that a relay dropped."""
    result.files = _rows(counts.file_health(events))
    dropped = sum(int(row.pop("dropped_packets")) for row in result.files)
    for row in result.files:
        row["file"] = intake.sources.get(row["source"], row["source"])
    result.writers = tables.writers(result.files)
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
    return dropped > 0


def _counts(result: Analysis, session: SparkSession, events: DataFrame) -> None:
    details = _rows(counts.details_of(events))
    result.exchanges = tables.exchanges(details)
    result.absences = tables.absences(details)
    result.batches = tables.batches(details)
    result.timers = tables.timers(details)
    attached = tables.relays_of(details)
    relays = _relays(session, attached) if attached else None
    sums = _rows(counts.sums_of(events, relays, result.begin_us, result.bucket_us))
    result.retransmissions = tables.retransmissions(sums)
    result.goodput = tables.goodput_over_time(sums)
    result.moved = tables.moved(sums)
    result.faults = tables.faults(sums)


def _relays(session: SparkSession, attached: list[tuple[str, str]]) -> DataFrame:
    """Return each node with its relay. A table made of Python's values would start Python on the workers."""
    rows = [{"node": node, "relay": relay} for node, relay in attached]
    shape = "array<struct<node: string, relay: string>>"
    return session.sql(f"select inline(from_json(:rows, '{shape}'))", args={"rows": json.dumps(rows)})


def _totals(result: Analysis, streams: DataFrame) -> None:
    totals = _row(network.totals_of(streams))
    result.gilbert = tables.fitted({name: totals.pop(name) for name in network.TRANSITIONS})
    result.totals = totals


def _network(result: Analysis, ordered: DataFrame, events: DataFrame, relay_dropped: bool) -> None:
    totals = result.totals
    # Even an empty table costs a query, so skip those that are known to be empty.
    if totals["lost"]:
        result.bursts = _rows(network.burst_lengths(ordered))
        result.loss_stages = _rows(network.loss_stages(ordered, events, relay_dropped=relay_dropped))
    if (totals["attempts_max"] or 0) > 1:
        repairs = _rows(network.repairs(ordered))
        result.spurious = tables.spurious(repairs)
        result.recovery = tables.recovery(repairs)
    if totals["never_arrived"]:
        result.lost_ranges = _rows(network.lost_ranges(ordered))


def _timing(result: Analysis, timed: DataFrame, ordered: DataFrame, streams: DataFrame) -> None:
    samples = timing.samples_of(timed, ordered)
    times = _rows(timing.trips_over_time(samples, result.begin_us, result.bucket_us))
    result.trips, result.receipts = (tables.trips_of_all(times, of) for of in ("trip", "receipt"))
    result.trips_over_time = tables.trips_over_time(times)
    result.trip_values = tables.trip_values(_rows(timing.trip_classes(samples)))
    result.totals["busy_us"] = _row(timing.busy_us(timed))["us"]
    result.limits = _row(limits.limits_of(timed, streams, F.lit(result.totals["payload_most"])))


def _stalls(result: Analysis, stalled: DataFrame, timed: DataFrame, streams: DataFrame) -> None:
    result.stalls = _rows(stalls.stalls_by_cause(stalled))
    result.longest_stalls = _rows(stalls.longest(stalled, STALLS_LISTED))
    by_stream = stalled.groupBy("stream").agg(
        F.count("*").alias("stalls"), F.sum("gap_us").alias("stalled_us"), F.mode("why").alias("stalled_by")
    )
    receipts = timing.receipts_by_stream(timed)
    worst = streams.join(by_stream, "stream", "left").join(receipts, "stream", "left")
    blame = F.coalesce("stalled_us", F.lit(0)) + 1000 * F.coalesce("lost", F.lit(0)) + F.coalesce("needless", F.lit(0))
    result.worst = _rows(worst.orderBy(blame.desc(), "stream").limit(WORST_LISTED))
    for row in result.worst:
        for name in ("receipts", "backoff_max"):  # 0 if the stream sent packets, None if its sender was not traced
            row[name] = row[name] or (0 if row["packets"] else None)


def _name(result: Analysis, table: DataFrame) -> None:
    """Add nodes and carriers to the streams that are shown one by one; all earlier tables have only numbers."""
    chosen = sorted({row["stream"] for row in (*result.worst, *result.lost_ranges)})
    found = {row.pop("stream"): row for row in _rows(flow.names_of(table, chosen))} if chosen else {}
    for row in result.worst:
        row.update(found[row["stream"]])
    for row in result.lost_ranges:
        row["sender"] = found[row["stream"]]["sender"]


def _points(table: DataFrame, chosen: list[int]) -> dict[str, Rows]:
    """Return the graph points of a few streams, by stream."""
    if not chosen:
        return {}
    points: dict[str, Rows] = {str(stream): [] for stream in chosen}
    for row in _rows(graphs.points_of(table, chosen)):
        points[str(row["stream"])].append(row)
    return points
