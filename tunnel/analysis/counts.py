"""Everything that is a count or a sum: one pass over all events, then small tables of its result."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tunnel.analysis.schema import CORRUPT
from tunnel.traces.record import TraceEvent

__all__ = [
    "batches",
    "counts_of",
    "exchanges",
    "faults",
    "file_health",
    "goodput_over_time",
    "moved",
    "relays_of",
    "retransmissions",
    "writer_health",
]

BUCKET_US = 10_000_000


def counts_of(events: DataFrame, begin_us: int, bucket_us: int = BUCKET_US) -> DataFrame:
    """How many events of each kind, and of how many bytes, by node, bucket of time, carrier and cause."""
    numbered = F.col("packet_type").isin(4, 5, 10, 13)
    return (
        events.where("version = 1")
        .groupBy(
            "node",
            "event",
            F.floor((F.col("time_us") - begin_us) / bucket_us).alias("bucket"),
            "carrier",
            "cause",
            "reason",
            F.when(F.col("event").startswith("exchange_"), F.col("text")).otherwise("").alias("kind"),
            "status",
            numbered.alias("numbered"),
            (F.col("attempt") > 0).alias("attempt_above_0"),
        )
        .agg(
            F.count("*").alias("n"),
            F.sum("size_bytes").alias("bytes"),
            F.sum("count").alias("counted"),
            F.max("latency_us").alias("latency_us_max"),
            F.sum("latency_us").alias("latency_us_sum"),
        )
    )


def relays_of(events: DataFrame) -> DataFrame:
    """Which relay each endpoint was attached to, most recently."""
    attached = events.where((F.col("event") == TraceEvent.ATTACHED.value) & (F.col("text") != ""))
    return attached.groupBy("node").agg(F.max_by("text", "time_us").alias("relay"))


def retransmissions(counts: DataFrame, relays: DataFrame) -> DataFrame:
    """First and further transmissions of numbered packets by relay, carrier, bucket of time and cause."""
    sent = counts.where((F.col("event") == TraceEvent.PACKET_SENT.value) & F.col("numbered"))
    cause = F.when(F.col("attempt_above_0"), F.coalesce(F.nullif("cause", F.lit("")), F.lit("unknown")))
    return (
        sent.join(F.broadcast(relays), "node", "left")
        .groupBy(
            F.coalesce("relay", F.lit("")).alias("relay"),
            "carrier",
            "bucket",
            cause.alias("cause"),
        )
        .agg(F.sum("n").alias("packets"), F.sum("bytes").alias("bytes"))
        .orderBy("relay", "carrier", "bucket", "cause")
    )


def goodput_over_time(counts: DataFrame) -> DataFrame:
    """Bytes of numbered packets that left and that came, by bucket of time."""

    def of(event: TraceEvent, first: bool = False) -> Column:
        chosen = (F.col("event") == event.value) & F.col("numbered")
        if first:
            chosen = chosen & ~F.col("attempt_above_0")
        return F.sum(F.when(chosen, F.col("bytes")).otherwise(0))

    return (
        counts.groupBy("bucket")
        .agg(
            of(TraceEvent.PACKET_SENT).alias("sent_bytes"),
            of(TraceEvent.PACKET_SENT, first=True).alias("first_bytes"),
            of(TraceEvent.PACKET_RECEIVED).alias("received_bytes"),
        )
        .orderBy("bucket")
    )


def exchanges(events: DataFrame) -> DataFrame:
    """What became of exchanges: answers by status with their latency, failures, repeats."""
    of = events.where((F.col("version") == 1) & F.col("event").startswith("exchange_"))
    latency = F.percentile_approx("latency_us", F.array(F.lit(0.5), F.lit(0.99)), F.lit(1000))
    return (
        of.groupBy(F.col("text").alias("kind"), "event", "status")
        .agg(F.count("*").alias("n"), F.sum("size_bytes").alias("bytes"), latency.alias("latency"))
        .select(
            "kind",
            "event",
            "status",
            "n",
            "bytes",
            F.col("latency")[0].alias("latency_us_p50"),
            F.col("latency")[1].alias("latency_us_p99"),
        )
        .orderBy("kind", "event", "status")
    )


def batches(events: DataFrame) -> DataFrame:
    """How long batches took until the relay had them, by carrier."""
    done = events.where(F.col("event").isin(TraceEvent.BATCH_RECEIPTED.value, TraceEvent.BATCH_GIVEN_UP.value))
    latency = F.percentile_approx("latency_us", F.array(F.lit(0.5), F.lit(0.99)), F.lit(1000))
    return (
        done.groupBy("carrier", "event")
        .agg(F.count("*").alias("n"), latency.alias("latency"))
        .select(
            "carrier",
            "event",
            "n",
            F.col("latency")[0].alias("latency_us_p50"),
            F.col("latency")[1].alias("latency_us_p99"),
        )
        .orderBy("carrier", "event")
    )


def moved(counts: DataFrame) -> DataFrame:
    """What connections that ended had moved between application, transport and network, in all."""
    total = counts.where(F.col("event") == TraceEvent.STREAM_DATA_MOVED.value)
    return total.groupBy("cause").agg(
        F.sum("n").alias("streams"), F.sum("bytes").alias("bytes"), F.sum("counted").alias("packets")
    )


def faults(counts: DataFrame) -> DataFrame:
    """What a test did on purpose."""
    injected = counts.where(F.col("event") == TraceEvent.FAULT_INJECTED.value)
    return injected.groupBy("cause").agg(F.sum("n").alias("n"), F.sum("bytes").alias("bytes")).orderBy(F.desc("n"))


def file_health(events: DataFrame) -> DataFrame:
    """One row for each file and writer: which numbers it has, what could not be read."""
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
    )


def writer_health(files: DataFrame) -> DataFrame:
    """What each writer wrote and what of it is missing: the trace's own losses, which are none of the network."""
    return (
        files.where((F.col("writer") != "") & F.col("last").isNotNull())
        .groupBy("writer")
        .agg(
            F.sum("events").alias("events"),
            F.max("last").alias("last"),
            F.coalesce(F.sum("dropped"), F.lit(0)).alias("dropped"),
        )
        .select("writer", "events", "dropped", (F.greatest(F.col("last") - F.col("events"), F.lit(0))).alias("missing"))
        .orderBy("writer")
    )
