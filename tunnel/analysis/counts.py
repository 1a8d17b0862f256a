"""All counts and sums, computed in three passes over all events; `tables` turns them into the tables of the report.

To plan and compile a pass takes longer than to count a million events. Each pass therefore answers many questions at
once. Its grouping keys have few values, however long the trace is.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tunnel.analysis.expressions import STREAM_TYPES, dropped_at_relay, percentiles
from tunnel.analysis.result import BUCKET_US
from tunnel.analysis.schema import CORRUPT
from tunnel.traces.record import TraceEvent

__all__ = ["details_of", "file_health", "sums_of"]


def file_health(events: DataFrame) -> DataFrame:
    """Return one row for each file and writer: its record numbers and times, and the records that could not be read."""
    known = F.col("version") == 1
    return events.groupBy("source", "writer").agg(
        F.count_if(known).alias("events"),
        F.count_if(F.col(CORRUPT).isNotNull()).alias("bad_lines"),
        F.count_if(~known & F.col(CORRUPT).isNull()).alias("other_versions"),
        F.max(F.when(~known, F.col("version"))).alias("other_version"),
        F.min(F.when(known & (F.col("number") > 0), F.col("number"))).alias("first"),
        F.max(F.when(known & (F.col("number") > 0), F.col("number"))).alias("last"),
        F.sum(F.when(F.col("event") == TraceEvent.TRACE_DROPPED.value, F.col("count"))).alias("dropped"),
        F.min(F.when(known, F.col("time_us"))).alias("begin_us"),
        F.max(F.when(known, F.col("time_us"))).alias("end_us"),
        F.count_if(dropped_at_relay()).alias("dropped_packets"),
        F.max(F.when(F.col("event") == TraceEvent.CLOCK_READ.value, F.col("wall_us") - F.col("time_us"))).alias(
            "wall_us"
        ),
    )


def details_of(events: DataFrame, *by: str) -> DataFrame:
    """Count the events that are rare enough for latency percentiles; the column `of` tells them apart.

    They are exchanges (by kind, event and status), batches (by carrier and event), timers that fired (by name),
    attachments (by node and relay, with the time of the last one), and the times at which an endpoint lost its relay.
    `by` are further columns that tell groups apart.
    """
    at, text = F.col("event"), F.col("text")
    is_exchange = (F.col("version") == 1) & at.startswith("exchange_")
    is_batch = at.isin(TraceEvent.BATCH_RECEIPTED.value, TraceEvent.BATCH_GIVEN_UP.value)
    is_timer = (at == TraceEvent.TIMER_UPDATED.value) & (F.col("cause") == "expired")
    is_attached = (at == TraceEvent.ATTACHED.value) & (text != "")
    is_detached = (at == TraceEvent.DETACHED.value) & (F.col("reason") == "")  # only a relay gives a reason
    of = F.when(is_exchange, "exchange").when(is_batch, "batch").when(is_timer, "timer").when(is_attached, "attached")
    of = of.when(is_detached, "detached")
    # One record names all timers that fired together.
    names = F.when(is_timer, F.split(text, " ")).otherwise(F.array(F.when(~is_batch, text).otherwise(F.lit(""))))
    return (
        events.where(is_exchange | is_batch | is_timer | is_attached | is_detached)
        .select(
            of.alias("of"),
            F.explode(names).alias("name"),
            F.when(is_exchange | is_batch, at).otherwise("").alias("event"),
            F.when(is_exchange, F.col("status")).otherwise(0).alias("status"),
            F.when(is_batch, F.col("carrier")).when(is_attached, F.col("node")).otherwise("").alias("where"),
            "size_bytes",
            "latency_us",
            "time_us",
            *by,
        )
        .groupBy(*by, "of", "name", "event", "status", "where")
        .agg(
            F.count("*").alias("n"),
            F.sum("size_bytes").alias("bytes"),
            percentiles("latency_us", 0.5, 0.99).alias("latency"),
            F.max("latency_us").alias("latency_us_max"),
            F.max("time_us").alias("last_us"),
        )
    )


def sums_of(events: DataFrame, relays: DataFrame | None, begin_us: int, bucket_us: int = BUCKET_US) -> DataFrame:
    """Sum up packets and bytes by time bucket: received ones, and sent ones. Sequenced packets that were sent are also
    divided by relay and carrier, and repeats by cause.

    There are three more kinds of rows by time bucket: the bytes that connections had moved, the faults that a test
    injected (both by cause), and, with event "", all other events, which only show that something happened. `relays`
    maps each node to the relay it was attached to; None means that no node was.
    """
    sent = F.col("event") == TraceEvent.PACKET_SENT.value
    received = F.col("event") == TraceEvent.PACKET_RECEIVED.value
    told = F.col("event").isin(TraceEvent.STREAM_DATA_MOVED.value, TraceEvent.FAULT_INJECTED.value)
    numbered = F.col("packet_type").isin(*STREAM_TYPES)
    repeated = sent & numbered & (F.col("attempt") > 0)
    known = events.where("version = 1")
    relay: Column = F.lit("")
    if relays is not None:
        known = known.join(F.broadcast(relays), "node", "left")
        relay = F.when(sent & numbered, F.coalesce("relay", F.lit(""))).otherwise("")
    return known.groupBy(
        F.when(sent | received | told, F.col("event")).otherwise("").alias("event"),
        relay.alias("relay"),
        F.when(sent & numbered, F.col("carrier")).otherwise("").alias("carrier"),
        F.floor((F.col("time_us") - begin_us) / bucket_us).alias("bucket"),
        F.when(repeated | told, F.col("cause")).otherwise("").alias("cause"),
        ((sent | received) & numbered).alias("numbered"),
        repeated.alias("repeated"),
    ).agg(
        F.count("*").alias("n"),
        F.sum("size_bytes").alias("bytes"),
        F.sum("count").alias("counted"),
    )
