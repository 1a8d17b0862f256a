"""Round trips, timeouts, busy times and stalls, measured on the sender's own clock."""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tunnel.analysis.expressions import percentiles
from tunnel.analysis.flow import ACKED, SENT
from tunnel.traces.record import TraceEvent

__all__ = [
    "busy_us",
    "longest",
    "receipts_by_stream",
    "samples_of",
    "stalls_by_cause",
    "stalls_of",
    "steps_of",
    "trip_classes",
    "trips_over_time",
]

_SHARES = (0.5, 0.95, 0.99)
STALL_MIN_US = 1_000
BUCKET_US = 10_000_000
ACK_DELAY_US = 25_000  # PROTOCOL 4.3: the longest time for which a receiver delays an acknowledgement


def steps_of(flow: DataFrame, streams: DataFrame) -> DataFrame:
    """Return the steps of each stream's sender, in the order of its clock, with the state before each step.

    A step is a packet sent or acknowledged. Only those steps are returned that measured a round trip, ended a stall
    (`is_stall`), found the timeout doubled, or changed whether the sender was busy: whether it had bytes in flight or
    waiting (`turn`: 1 if a busy time begins, -1 if one ends).

    In a stall, a busy sender was silent for longer than STALL_MIN_US and than the lower of two times. One is two round
    trips and the delay of acknowledgements. The other is the timeout, which runs from the receipt, and so ends later
    by the time from sending to receipt. `streams` has the median round trip of each stream (`trip_us_p50`).
    """
    stream = Window.partitionBy("stream").orderBy("t", "kind", "sequence")
    before = ("t", "in_flight_bytes", "backlog_bytes", "window_bytes", "edge_bytes", "srtt_us", "rto_us")
    steps = flow.where(F.col("kind").isin(SENT, ACKED))
    last_sample = F.last(F.when(F.col("rtt_us") > 0, F.col("rtt_us")), ignorenulls=True)
    so_far = stream.rowsBetween(Window.unboundedPreceding, -1)
    steps = steps.withColumns(
        {f"{name}_before": F.lag(name).over(stream) for name in before}
        | {"rtt_before": last_sample.over(so_far), "is_last": F.lead("t").over(stream).isNull()}
    )
    steps = steps.join(streams.select("stream", F.col("trip_us_p50").alias("trip_us")), "stream", "left")
    gap = F.col("t") - F.col("t_before")
    smoothed = F.when(F.col("srtt_us_before") > 0, F.col("srtt_us_before"))
    trip = F.greatest(smoothed, F.col("trip_us"))
    timeout = F.col("rto_us_before") + F.coalesce(trip - smoothed, F.lit(0))
    patience = F.least(2 * trip + ACK_DELAY_US, timeout)
    busy = (F.col("in_flight_bytes_before") > 0) | (F.col("backlog_bytes_before") > 0)
    is_stall = F.coalesce(busy & (gap > patience) & (gap > STALL_MIN_US), F.lit(False))
    was_busy = F.coalesce(busy, F.lit(False)).cast("int")
    is_busy = ((F.col("in_flight_bytes") > 0) | (F.col("backlog_bytes") > 0)) & ~F.col("is_last")
    return (
        steps.withColumns({"is_stall": is_stall, "turn": is_busy.cast("int") - was_busy})
        .drop("trip_us", "is_last")
        .where("is_stall or rtt_us > 0 or backoff > 0 or turn != 0")
    )


def busy_us(steps: DataFrame) -> DataFrame:
    """Return one row with the time in which at least one sender was busy (`us`)."""
    order = Window.orderBy("t")  # of few rows: the beginnings and ends of busy times, added up for each time
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
    """Return all samples of two kinds (`of`), with the sample of the same stream before each.

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
    """Count the samples of all streams by kind, by class of time, and by class of RTO over that time.

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


# stalls


def stalls_of(steps: DataFrame, packets: DataFrame, events: DataFrame, holes: DataFrame | None = None) -> DataFrame:
    """Return the stalls, each with the step that ended it, the events at its node meanwhile, and its cause (`why`).

    A silence in which the sender's writer lost records (`holes`, of `holes.table_of`) is not counted: it may be none.
    """
    gap = F.col("t") - F.col("t_before")
    candidates = (
        steps.where("is_stall")
        .withColumns({"gap_us": gap, "end_us": F.col("t"), "start_us": F.col("t_before")})
        .select(
            "stream",
            "node",
            "writer",
            "kind",
            "sequence",
            "attempt",
            "cause",
            "carrier",
            "start_us",
            "end_us",
            "gap_us",
            "in_flight_bytes_before",
            "backlog_bytes_before",
            "window_bytes_before",
            "edge_bytes_before",
            "srtt_us_before",
            "rto_us_before",
        )
        .withColumn("stall", F.xxhash64("stream", "end_us", "sequence", "attempt", "kind"))
    )
    if holes is not None:
        in_hole = F.exists("holes", lambda hole: (hole["begin"] < F.col("end_us")) & (hole["end"] > F.col("start_us")))
        candidates = candidates.join(F.broadcast(holes.drop("until_us")), "writer", "left")
        candidates = candidates.where(~F.coalesce(in_hole, F.lit(False))).drop("holes")
    needless = packets.where("needless > 0").select("stream", "sequence", F.lit(True).alias("was_needless"))
    circumstances = _circumstances(candidates, events)
    known = candidates.join(circumstances, "stall", "left").join(needless, ["stream", "sequence"], "left")
    return known.withColumn("why", _cause()).drop("stall", "writer")


def _circumstances(stalls: DataFrame, events: DataFrame) -> DataFrame:
    """Return what happened at the node of each stall while it lasted.

    That is: loop lag, failed exchanges, retransmissions by the carrier's own TCP, absence from the relay, and the time
    in which no pull was open. One ordered pass over the events of each node computes running sums; the difference of a
    sum between the end and the start of a stall is what happened during it.
    """
    at = F.col("event")
    is_pull = F.col("text") == "pull"
    opened = at.isin(TraceEvent.EXCHANGE_SENT.value, TraceEvent.EXCHANGE_REPEATED.value) & is_pull
    ended = is_pull & at.isin(
        TraceEvent.EXCHANGE_ANSWERED.value, TraceEvent.EXCHANGE_FAILED.value, TraceEvent.EXCHANGE_ABANDONED.value
    )
    failed = (
        (at == TraceEvent.EXCHANGE_FAILED.value)
        | (at == TraceEvent.EXCHANGE_REPEATED.value)
        | ((at == TraceEvent.EXCHANGE_ANSWERED.value) & (F.col("status") != 200))
    )
    absent = at == TraceEvent.DETACHED.value
    lag = at == TraceEvent.LOOP_LAG.value
    sampled = at == TraceEvent.SOCKET_SAMPLED.value
    marks = events.where((F.col("version") == 1) & (opened | ended | failed | absent | lag | sampled)).select(
        "node",
        F.col("time_us").alias("t"),
        F.lit(None).cast("long").alias("stall"),
        F.when(opened, 1).when(ended, -1).otherwise(0).alias("pulls"),
        F.when(lag, F.col("latency_us")).otherwise(0).alias("lag_us"),
        failed.cast("int").alias("failures"),
        absent.cast("int").alias("absences"),
        F.when(sampled, F.col("count")).alias("tcp"),
    )
    nothing = [F.lit(0).alias(name) for name in ("pulls", "lag_us", "failures", "absences")]
    edges = stalls.select(
        "node", F.explode(F.array("start_us", "end_us")).alias("t"), "stall", *nothing, F.lit(None).alias("tcp")
    )
    node = Window.partitionBy("node").orderBy("t", F.col("stall").asc_nulls_first())
    so_far = node.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    rows = marks.unionByName(edges).withColumns(
        {
            "open_pulls": F.sum("pulls").over(so_far),
            "before_us": F.lag("t").over(node),
            "ever_pulled": F.max(F.abs("pulls")).over(so_far),
            **{f"{name}_sum": F.sum(name).over(so_far) for name in ("lag_us", "failures", "absences")},
            "tcp_last": F.last("tcp", ignorenulls=True).over(so_far),
        }
    )
    idle = F.when(F.lag(F.col("open_pulls")).over(node) <= 0, F.col("t") - F.col("before_us")).otherwise(0)
    rows = rows.withColumn("idle", idle).withColumn("idle_sum", F.sum("idle").over(so_far))
    rows = rows.where(F.col("stall").isNotNull())
    names = {
        "lag_us": "lag_us_sum",
        "failures": "failures_sum",
        "absences": "absences_sum",
        "no_pull_us": "idle_sum",
        "tcp_retransmits": "tcp_last",
    }
    return rows.groupBy("stall").agg(
        *[(F.max(column) - F.min(column)).alias(name) for name, column in names.items()],
        F.max("ever_pulled").alias("ever_pulled"),
    )


def _cause() -> Column:
    """Return the cause of a stall: the first that fits. docs/ANALYSIS.md explains the names."""
    gap = F.col("gap_us")
    resent = (F.col("kind") == SENT) & (F.col("attempt") > 0)
    waits = F.col("backlog_bytes_before") > 0
    in_flight = F.col("in_flight_bytes_before") > 0
    return (
        F.when(F.col("lag_us") * 2 > gap, "loop_lag")
        .when(F.col("absences") > 0, "carrier_http")
        .when(resent & F.col("cause").isin("batch_given_up", "route_resumed"), "carrier_http")
        .when(F.col("failures") > 0, "carrier_http")
        .when(F.col("tcp_retransmits") > 0, "carrier_tcp")
        .when((F.col("ever_pulled") > 0) & (F.col("no_pull_us") * 2 > gap), "no_poll_outstanding")
        .when(waits & ~in_flight & (F.col("window_bytes_before") == 0), "flow_control_peer")
        .when(waits & (F.col("window_bytes_before") == 0), "flow_control_peer")
        .when(waits & (F.col("edge_bytes_before") == 0), "flow_control_relay")
        .when(resent & F.col("was_needless"), "ack_delay_or_loss")
        .when(resent & (F.col("attempt") > 1), "double_retransmission")
        .when(resent & ~waits, "tail_retransmission")
        .when(resent, "loss")
        .when(waits & (F.col("kind") == SENT), "carrier_busy")
        .when(F.col("kind") == ACKED, "packet_delay")
        .otherwise("application")
    )


def stalls_by_cause(stalls: DataFrame) -> DataFrame:
    """Return the number and durations of stalls, by cause; the largest total comes first."""
    return (
        stalls.groupBy("why")
        .agg(
            F.count("*").alias("stalls"),
            F.sum("gap_us").alias("us"),
            percentiles("gap_us", 0.5, 0.99).alias("gap"),
            F.max("gap_us").alias("us_max"),
            F.countDistinct("stream").alias("streams"),
        )
        .select(
            "why", "stalls", "us", F.col("gap")[0].alias("us_p50"), F.col("gap")[1].alias("us_p99"), "us_max", "streams"
        )
        .orderBy(F.desc("us"))
    )


def longest(stalls: DataFrame, limit: int) -> DataFrame:
    """Return the longest stalls."""
    return (
        stalls.select(
            "stream",
            "node",
            "start_us",
            "gap_us",
            "why",
            "cause",
            "attempt",
            "lag_us",
            "failures",
            "no_pull_us",
            "tcp_retransmits",
        )
        .orderBy(F.desc("gap_us"), "stream", "start_us")
        .limit(limit)
    )
