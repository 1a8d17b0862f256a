"""The common time of all writers: the shortest delays of packets, to compare clocks, and the events in that time."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tunnel.analysis.clocks import Clock
from tunnel.analysis.expressions import DATA, STREAM_TYPES
from tunnel.traces.record import TraceEvent

__all__ = ["aligned", "delays_of"]

_ENOUGH = 100_000  # up to this number of events, all packets are compared; of more, a sample of about this number


def delays_of(events: DataFrame, count: int) -> DataFrame:
    """Return the shortest time from sending at one writer (`begin`) to arrival at another (`end`), by their own clocks.

    `count` is the number of events. If there are many, only a sample of the DATA packets is compared, but all numbered
    packets of other types.
    """
    kind = F.col("packet_type")
    is_chosen = (kind != DATA) | (F.pmod(F.xxhash64("sequence"), F.lit(1 + count // _ENOUGH)) == 0)
    known = events.where((F.col("version") == 1) & kind.isin(*STREAM_TYPES) & is_chosen)
    key = ("stream", "other", "sequence", "attempt")
    sent = known.where(F.col("event") == TraceEvent.PACKET_SENT.value).select(
        F.col("connection").alias("stream"),
        F.col("peer").alias("other"),
        "sequence",
        "attempt",
        F.col("writer").alias("begin"),
        F.col("time_us").alias("sent_us"),
    )
    received = known.where(F.col("event") == TraceEvent.PACKET_RECEIVED.value).select(
        F.col("peer").alias("stream"),
        F.col("connection").alias("other"),
        "sequence",
        "attempt",
        F.col("writer").alias("end"),
        F.col("time_us").alias("received_us"),
    )
    delay = F.col("received_us") - F.col("sent_us")
    return sent.join(received, [*key]).where("begin != end").groupBy("begin", "end").agg(F.min(delay).alias("us"))


def aligned(events: DataFrame, clocks: dict[str, Clock]) -> DataFrame:
    """Return the events with all times in the common time."""
    at: Column | None = None
    for name, clock in clocks.items():
        if clock.ahead_us:
            when = F.when if at is None else at.when
            at = when(F.col("writer") == name, F.col("time_us") - clock.ahead_us)
    return events if at is None else events.withColumn("time_us", at.otherwise(F.col("time_us")))
