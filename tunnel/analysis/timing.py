"""Round trips, timeouts and busy times, measured on the sender's own clock."""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tunnel.analysis.expressions import CLOSE, FINISH, percentiles
from tunnel.analysis.flow import ACKED, ANSWERED, ASKED, ENDED, SENT
from tunnel.analysis.limits import LIMITS, limit_before
from tunnel.analysis.result import BUCKET_US

__all__ = [
    "busy_us",
    "receipts_by_stream",
    "samples_of",
    "steps_of",
    "trip_classes",
    "trips_over_time",
]

_SHARES = (0.5, 0.95, 0.99)
STALL_MIN_US = 1_000
PATIENCE_US = 500_000  # allowed for the answer to a CONNECT while no round trip is known
ACK_DELAY_US = 25_000  # PROTOCOL 4.3: the longest time for which a receiver delays an acknowledgement


def steps_of(flow: DataFrame, streams: DataFrame) -> DataFrame:
    """Return the steps of each stream's sender, in the order of its clock, with the state before each step.

    A step is a packet sent or acknowledged, a CONNECT or its answer, or the end of the connection. Only some steps are
    returned: they measured a round trip, ended a stall (`is_stall`), found the timeout doubled, changed whether the
    sender was busy (`turn`: 1 if a busy time begins, -1 if one ends), or are the last of their stream (`is_last`).
    A sender is busy while it has bytes in flight or waiting, or a CONNECT without an answer.

    In a stall, a busy sender was silent for longer than STALL_MIN_US, and for longer than the lower of two times. One
    is two round trips and the delay of acknowledgements. The other is the timeout, which runs from the receipt, and so
    ends later by the time from sending to receipt. `streams` has the median round trip of each stream (`trip_us_p50`).

    Each time between two steps is either a stall or belongs to one of `limits.LIMITS`. The columns of these names are
    the sums of such times up to the step.
    """
    # at the same microsecond of the sender's clock, the sender handles arrivals before it sends anything
    stream = Window.partitionBy("stream").orderBy("t", F.col("kind").isin(SENT, ASKED), "kind", "sequence")
    so_far = stream.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    earlier = stream.rowsBetween(Window.unboundedPreceding, -1)
    state = ("in_flight_bytes", "backlog_bytes", "window_bytes", "edge_bytes", "srtt_us", "rto_us")
    steps = flow.where(F.col("kind").isin(SENT, ACKED, ASKED, ANSWERED, ENDED))
    has_state = F.col("kind") != ANSWERED  # the record of an ANSWERED step tells nothing of the sender
    asks = F.when(F.col("kind") == ASKED, 1).when(F.col("kind").isin(ANSWERED, ENDED), 0)
    ends = (F.col("kind") == SENT) & F.col("type").isin(CLOSE, FINISH)
    # an acknowledgement tells the window; before the first acknowledgement, the window is the sender's own guess
    granted = F.when(F.col("kind") == ACKED, F.col("window_bytes") + F.col("in_flight_bytes"))
    last_sample = F.last(F.when(F.col("rtt_us") > 0, F.col("rtt_us")), ignorenulls=True)

    def last(value: Column, *, now: bool = False) -> Column:
        return F.last(value, ignorenulls=True).over(so_far if now else earlier)

    steps = steps.withColumns(
        {f"{name}_before": last(F.when(has_state, F.col(name))) for name in state}
        | {f"{name}_now": last(F.when(has_state, F.col(name)), now=True) for name in state[:2]}
        | {
            "t_before": F.lag("t").over(stream),
            "rtt_before": last_sample.over(earlier),
            "asked_before": F.coalesce(last(asks), F.lit(0)),
            "asked_now": F.coalesce(last(asks, now=True), F.lit(0)),
            "ended_before": F.coalesce(F.max(ends.cast("int")).over(earlier), F.lit(0)),
            "granted_before": last(granted),
            "granted_most": F.max(granted).over(earlier),
            "is_last": F.lead("t").over(stream).isNull(),
        }
    )
    steps = steps.join(streams.select("stream", F.col("trip_us_p50").alias("trip_us")), "stream", "left")
    gap = F.col("t") - F.col("t_before")
    smoothed = F.when(F.col("srtt_us_before") > 0, F.col("srtt_us_before"))
    trip = F.greatest(smoothed, F.col("trip_us"))
    timeout = F.col("rto_us_before") + F.coalesce(trip - smoothed, F.lit(0))
    patience = F.least(2 * trip + ACK_DELAY_US, timeout)
    asked = F.col("asked_before") > 0
    patience = F.when(asked, F.coalesce(patience, F.lit(PATIENCE_US))).otherwise(patience)
    busy = (F.col("in_flight_bytes_before") > 0) | (F.col("backlog_bytes_before") > 0) | asked
    is_stall = F.coalesce(busy & (gap > patience) & (gap > STALL_MIN_US), F.lit(False))
    was_busy = F.coalesce(busy, F.lit(False)).cast("int")
    is_busy = (F.col("in_flight_bytes_now") > 0) | (F.col("backlog_bytes_now") > 0) | (F.col("asked_now") > 0)
    steps = steps.withColumns(
        {"is_stall": is_stall, "turn": (is_busy & ~F.col("is_last")).cast("int") - was_busy}
    ).withColumn("limit", F.when(~F.col("is_stall"), limit_before()))
    sums = {name: F.sum(F.when(F.col("limit") == name, gap)).over(so_far) for name in LIMITS}
    return (
        steps.withColumns(sums)
        .drop("trip_us", "limit")
        .where("is_stall or rtt_us > 0 or backoff > 0 or turn != 0 or is_last")
    )


def busy_us(steps: DataFrame) -> DataFrame:
    """Return one row with the time in which at least one sender was busy (`us`)."""
    order = Window.orderBy("t")  # few rows: the beginnings and ends of busy times, added up for each time
    turns = steps.where("turn != 0").groupBy("t").agg(F.sum("turn").alias("turn"))
    marks = turns.select(
        F.sum("turn").over(order.rowsBetween(Window.unboundedPreceding, Window.currentRow)).alias("busy"),
        (F.lead("t").over(order) - F.col("t")).alias("us"),
    )
    return marks.where("busy > 0").agg(F.coalesce(F.sum("us"), F.lit(0)).alias("us"))


def receipts_by_stream(steps: DataFrame) -> DataFrame:
    """Return figures of each stream: times from receipt to acknowledgement (PROTOCOL 4.5), RTO and backoff."""
    sample = F.when(F.col("rtt_us") > 0, F.col("rtt_us"))
    return steps.groupBy("stream").agg(
        F.count(sample).alias("receipts"),
        percentiles(sample, 0.5)[0].alias("receipt_us_p50"),
        percentiles(F.when(sample.isNotNull(), F.col("rto_us")), 0.5)[0].alias("rto_us_p50"),
        F.max("backoff").alias("backoff_max"),
    )


def samples_of(steps: DataFrame, ordered: DataFrame) -> DataFrame:
    """Return all samples of two kinds (`of`), each with the sample before it in the same stream.

    "trip" is the time from sending to acknowledgement. "receipt" is the time from receipt to acknowledgement, less the
    delay that the receiver reports: the sample that the transport itself takes, and from which its RTO is computed.
    """
    receipts = steps.where("rtt_us > 0").select(
        F.lit("receipt").alias("of"), "t", F.col("rtt_us").alias("us"), F.col("rtt_before").alias("us_before"), "rto_us"
    )
    trips = ordered.where("trip_us is not null").select(
        F.lit("trip").alias("of"),
        F.col("acked_us").alias("t"),
        F.col("trip_us").alias("us"),
        F.col("trip_before").alias("us_before"),
        F.lit(None).cast("long").alias("rto_us"),
    )
    return trips.unionByName(receipts)


def trip_classes(samples: DataFrame) -> DataFrame:
    """Count the samples of all streams by kind, by class of time, and by class of the RTO divided by that time.

    The classes are logarithmic, 8 for each factor of 2 (about 27 for a factor of ten).
    """
    trip = F.floor(F.log2(F.col("us")) * 8).cast("int")
    ratio = F.floor(F.log2(F.col("rto_us") / F.col("us")) * 8).cast("int")
    return samples.groupBy("of", trip.alias("us"), ratio.alias("rto_over_us")).agg(F.count("*").alias("n"))


def trips_over_time(samples: DataFrame, begin_us: int, bucket_us: int = BUCKET_US) -> DataFrame:
    """Return the samples of each kind and the RTO by time bucket, and one row without a bucket for the whole trace."""
    bucket = F.floor((F.col("t") - begin_us) / bucket_us)
    by_time = samples.withColumn("bucket", bucket)
    return by_time.groupingSets([[F.col("of"), F.col("bucket")], [F.col("of")]], "of", "bucket").agg(
        F.count("*").alias("samples"),
        F.min("us").alias("us_min"),
        percentiles("us", *_SHARES).alias("us"),
        F.avg(F.abs(F.col("us") - F.col("us_before"))).alias("jitter_us"),
        percentiles("rto_us", 0.5).alias("rto"),
        percentiles(F.col("rto_us") / F.col("us"), 0.5, 0.99).alias("rto_over_us"),
    )
