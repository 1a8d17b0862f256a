"""The effects of the network on packets: losses and their bursts, needless repeats, reordering, waiting and repair."""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tunnel.analysis.expressions import STREAM_TYPES, dropped_at_relay, percentiles
from tunnel.traces.record import TraceEvent

__all__ = [
    "TRANSITIONS",
    "burst_lengths",
    "in_order",
    "loss_stages",
    "lost_ranges",
    "repairs",
    "stream_table",
    "totals_of",
]

TRANSITIONS = ("n00", "n01", "n10", "n11")


def in_order(packets: DataFrame) -> DataFrame:
    """Add columns to each packet that depend on its neighbours in the stream.

    They tell how long it waited for earlier packets, whether it was overtaken, and, if its first attempt was lost, to
    which burst of losses it belongs. `trip_us` is the round trip from its sending to its acknowledgement, as the sender
    saw it. It is known if an acknowledgement moved the cumulative number up to this packet, and if all packets between
    the old and the new number had been sent once and were acknowledged for the first time. It includes the time for
    which the receiver delayed the acknowledgement.
    """
    forward = Window.partitionBy("stream").orderBy("position")
    so_far = forward.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    # The later packets of the stream. The order is reversed so that one pass computes the minimum for all packets.
    behind = Window.partitionBy("stream").orderBy(F.col("position").desc()).rowsBetween(Window.unboundedPreceding, -1)
    earlier = forward.rowsBetween(Window.unboundedPreceding, -1)
    lost = F.col("lost_first")
    before = F.last(F.when(F.col("acked_us").isNotNull(), F.col("position")), ignorenulls=True).over(earlier)
    before = F.coalesce(before, F.lit(-1))
    resent = F.coalesce(F.max(F.when(F.col("sent") > 1, F.col("position"))).over(so_far), F.lit(-1))
    is_exact = (F.col("sent") == 1) & (F.col("acked") >= F.col("position") - before) & (resent <= before)
    return (
        packets.withColumns({"earliest_behind_us": F.min("received_us").over(behind)})
        .withColumn("trip_us", F.when(is_exact, F.greatest(F.col("acked_us") - F.col("sent_us"), F.lit(1))))
        .withColumns(
            {
                "deliverable_us": F.max("received_us").over(so_far),
                "lost_before": F.lag("lost_first").over(forward),
                "trip_before": F.last("trip_us", ignorenulls=True).over(earlier),
            }
        )
        .withColumn("starts_burst", ((lost == 1) & (F.coalesce("lost_before", F.lit(0)) == 0)).cast("int"))
        .withColumns(
            {
                "burst": F.when(lost == 1, F.sum("starts_burst").over(so_far)),
                "hol_us": F.col("deliverable_us") - F.col("received_us"),
                # its first attempt arrived, but a later packet had arrived before it
                "late_us": F.when(
                    (F.col("received_mask").bitwiseAND(F.lit(1)) == 1)
                    & (F.col("earliest_behind_us") < F.col("received_us")),
                    F.col("received_us") - F.col("earliest_behind_us"),
                ),
            }
        )
        .drop("starts_burst", "earliest_behind_us", "deliverable_us", "received_mask", "acked")
    )


def stream_table(ordered: DataFrame) -> DataFrame:
    """Return one row for each stream: counts of sent, repeated, lost, needless and received packets.

    It also has the waiting times at the receiver, the round trips, and the transitions between lost and received first
    attempts. A packet arrived if the receiver recorded it, or if a cumulative acknowledgement says so. `receiver` is
    the hash of the receiver's writer, and `delay_us` the shortest time from sending to arrival, by two clocks.
    """
    received, sent = F.col("received") > 0, F.col("sent") > 0
    arrived = received | F.col("proven")
    both = F.coalesce("both_ends", F.lit(False))
    repeats = F.greatest(F.col("sent") - 1, F.lit(0))
    table = ordered.groupBy("stream").agg(
        F.max("other").alias("other"),
        F.max("receiver").alias("receiver"),
        F.min(F.col("received_us") - F.col("sent_us")).alias("delay_us"),
        F.max("both_ends").alias("both_ends"),
        F.min("sent_us").alias("begin_us"),
        (F.max("resent_us") - F.min("sent_us")).alias("duration_us"),
        (F.max("received_us") - F.min("received_us")).alias("receiving_us"),
        F.sum("sent").alias("packets"),
        F.count_if(sent).alias("unique_packets"),
        F.sum(F.col("sent") * F.col("size")).alias("bytes"),
        F.sum(F.when(sent, F.col("size"))).alias("unique_bytes"),
        F.sum(repeats * F.col("size")).alias("resent_bytes"),
        F.sum(F.when(arrived, F.coalesce("payload", F.lit(0))).otherwise(0)).alias("payload_bytes"),
        # the packets whose fate is known, as the base of shares
        F.sum(F.when(sent & arrived, F.col("size"))).alias("useful_bytes"),
        F.sum(F.when(sent & (arrived | F.col("judged")), F.col("sent") * F.col("size"))).alias("known_bytes"),
        F.sum(F.when(F.col("judged"), F.col("sent"))).alias("judged"),
        F.sum(F.when(both, repeats)).alias("judged_repeats"),
        F.count_if(F.col("in_doubt")).alias("in_doubt"),
        F.count_if(received).alias("received_packets"),
        F.sum(F.greatest(F.col("received") - 1, F.lit(0))).alias("duplicates"),
        F.sum("lost").alias("lost"),
        F.sum("needless").alias("needless"),
        F.count_if(F.col("is_open")).alias("open_packets"),
        F.count_if(_never_arrived()).alias("never_arrived"),
        F.max("sent").alias("attempts_max"),
        F.count_if(F.col("late_us").isNotNull()).alias("reordered"),
        F.max("late_us").alias("late_us_max"),
        F.count_if(F.col("hol_us") > 0).alias("waited"),
        percentiles("hol_us", 0.5, 0.99).alias("hol"),
        F.count("trip_us").alias("trips"),
        percentiles("trip_us", 0.5, 0.99).alias("trip"),
        *_transitions(),
    )
    parts = [F.col(name)[index].alias(f"{name}_us_p{share}") for name in ("hol", "trip") for index, share in _SHARES]
    return table.select("*", *parts).drop("hol", "trip")


_SHARES = ((0, 50), (1, 99))


def _never_arrived() -> Column:
    """Return whether no attempt of a packet arrived."""
    return F.col("judged") & (F.col("received") == 0) & ~F.col("proven")


def _transitions() -> list[Column]:
    """Return the counts n00 to n11: pairs of neighbours whose first attempts arrived (0) or were lost (1)."""
    columns = []
    for before in (0, 1):
        for now in (0, 1):
            counted = (F.col("lost_before") == before) & (F.col("lost_first") == now) & ~F.col("is_open")
            columns.append(F.count_if(counted & (F.col("sent") > 0)).alias(f"n{before}{now}"))
    return columns


def totals_of(streams: DataFrame, *by: str) -> DataFrame:
    """Sum up all streams. `by` are further columns that tell groups apart."""
    sums = [
        "packets", "unique_packets", "bytes", "unique_bytes", "resent_bytes", "payload_bytes", "useful_bytes",
        "known_bytes", "judged", "judged_repeats", "in_doubt", "received_packets", "duplicates", "lost", "needless",
        "open_packets", "never_arrived", "reordered", "waited",
    ]  # fmt: skip
    return streams.groupBy(*by).agg(
        F.count("*").alias("streams"),
        F.count_if(F.col("both_ends")).alias("both_ends"),
        F.count_if(~F.col("both_ends")).alias("one_end"),
        F.count_if(F.col("both_ends").isNull()).alias("unknown_ends"),
        *[F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in sums],
        F.max("payload_bytes").alias("payload_most"),
        F.max("attempts_max").alias("attempts_max"),
        F.max("late_us_max").alias("late_us_max"),
        F.max("hol_us_p99").alias("hol_us_p99_max"),
        F.coalesce(F.sum("duration_us"), F.lit(0)).alias("duration_us"),
        *[F.sum(F.when(F.col("both_ends"), F.col(name))).alias(name) for name in TRANSITIONS],
    )


def burst_lengths(ordered: DataFrame) -> DataFrame:
    """Return the number of bursts of each length, in packets."""
    bursts = ordered.where(F.col("burst").isNotNull()).groupBy("stream", "burst").agg(F.count("*").alias("length"))
    return bursts.groupBy("length").agg(F.count("*").alias("bursts")).orderBy("length")


def repairs(packets: DataFrame) -> DataFrame:
    """Sum up the packets that were sent more than once; the column `of` tells two kinds of rows apart.

    Rows of "cause" compare what both ends prove with what the sender believed, by the cause of the first repeat. Rows
    of "attempts" have the time from the first attempt to the acknowledgement, by number of attempts.
    """
    truth = F.col("needless") > 0
    verdict = F.col("spurious_mask") != 0
    took = F.col("recovered_us") - F.col("sent_us")
    keys = F.array(
        F.when(
            F.coalesce("both_ends", F.lit(False)),
            F.struct(F.lit("cause").alias("of"), F.coalesce("cause", F.lit(0)).cast("int").alias("key")),
        ),
        F.when(
            took.isNotNull(),
            F.struct(F.lit("attempts").alias("of"), F.least("sent", F.lit(8)).cast("int").alias("key")),
        ),
    )
    return (
        packets.where("sent > 1")
        .select(
            F.explode(keys).alias("k"),
            (F.col("sent") - 1).alias("repeats"),
            "needless",
            (truth & verdict).alias("hit"),
            (~truth & verdict).alias("false_alarm"),
            (truth & ~verdict).alias("miss"),
            took.alias("took"),
        )
        .where("k is not null")
        .groupBy("k.of", "k.key")
        .agg(
            F.count("*").alias("packets"),
            F.sum("repeats").alias("attempts"),
            F.sum("needless").alias("needless"),
            F.count_if("hit").alias("hits"),
            F.count_if("false_alarm").alias("false_alarms"),
            F.count_if("miss").alias("missed"),
            percentiles("took", 0.5, 0.99).alias("took"),
        )
    )


def loss_stages(packets: DataFrame, events: DataFrame, *, relay_dropped: bool = True) -> DataFrame:
    """Count where first attempts were lost: before the relay had the batch, in the relay, or after it.

    `relay_dropped=False` tells that no relay dropped a packet, and saves a pass over the events.
    """
    batches = events.where(F.col("event").isin(TraceEvent.BATCH_RECEIPTED.value, TraceEvent.BATCH_GIVEN_UP.value))
    ends = batches.groupBy(F.xxhash64("node").alias("sender"), "batch").agg(
        F.max((F.col("event") == TraceEvent.BATCH_RECEIPTED.value).cast("int")).alias("receipted")
    )
    lost = packets.where("lost_first = 1").select("stream", "sequence", "sender", "batch", "size", "received", "proven")
    lost = lost.join(ends, ["sender", "batch"], "left")
    if relay_dropped:
        at_relay = (
            # Packets without a sequence number record 0, which would match the packet with that number.
            events.where(dropped_at_relay() & F.col("packet_type").isin(*STREAM_TYPES))
            .select(F.col("connection").alias("stream"), "sequence", F.col("reason").alias("relay_reason"))
            .dropDuplicates(["stream", "sequence"])
        )
        lost = lost.join(at_relay, ["stream", "sequence"], "left")
    else:
        lost = lost.withColumn("relay_reason", F.lit(None).cast("string"))
    stage = (
        F.when(
            F.col("relay_reason").isNotNull(),
            F.concat(F.lit("dropped by the relay: "), F.replace("relay_reason", F.lit("_"), F.lit(" "))),
        )
        .when(F.col("receipted") == 1, "after the relay had it")
        .when(F.col("receipted") == 0, "before the relay had it")
        .otherwise("unknown: its batch is not in the trace")
    )
    return (
        lost.groupBy(stage.alias("stage"))
        .agg(
            F.count("*").alias("packets"),
            F.sum("size").alias("bytes"),
            F.count_if((F.col("received") == 0) & ~F.col("proven")).alias("never_arrived"),
        )
        .orderBy(F.desc("packets"))
    )


def lost_ranges(ordered: DataFrame, limit: int = 50) -> DataFrame:
    """Return runs of neighbouring packets that never arrived, the longest first ("gaps and islands")."""
    missing = ordered.where(_never_arrived() & (F.col("sent") > 0))
    stream = Window.partitionBy("stream").orderBy("position")
    # Neighbouring packets have the same difference between position and rank.
    islands = missing.withColumn("island", F.col("position") - F.row_number().over(stream))
    return (
        islands.groupBy("stream", "island")
        .agg(
            F.min_by("sequence", "position").alias("first"),
            F.max_by("sequence", "position").alias("last"),
            F.count("*").alias("packets"),
            F.sum("size").alias("bytes"),
            F.max("sent").alias("attempts"),
        )
        .drop("island")
        .orderBy(F.desc("packets"), "stream", "first")
        .limit(limit)
    )
