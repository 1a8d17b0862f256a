"""Stalls: silences of a sender that had work to do, with what happened meanwhile, and one cause for each."""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tunnel.analysis.expressions import percentiles
from tunnel.analysis.flow import ACKED, ANSWERED, ASKED, ROUTED, SENT
from tunnel.analysis.limits import blocked_by, is_unread
from tunnel.traces.record import TraceEvent

__all__ = ["longest", "stalls_by_cause", "stalls_of"]

_OPEN_US = 1_000_000  # a silence at the end of the trace is a stall if it is longer than this, and than the RTO

_BEFORE = (
    "in_flight_bytes_before",
    "backlog_bytes_before",
    "window_bytes_before",
    "edge_bytes_before",
    "granted_before",
    "granted_most",
    "asked_before",
)


def stalls_of(
    steps: DataFrame, flow: DataFrame, packets: DataFrame, streams: DataFrame, events: DataFrame, holes: DataFrame
) -> DataFrame:
    """Return the stalls, each with the step that ended it, what happened meanwhile, and its cause (`why`).

    `is_open`: the stall still lasted when the trace of its sender ended. A silence in which the sender's writer lost
    records (`holes`, of `hole_queries.table_of`) is not counted: perhaps the sender was not silent.
    """
    columns = ["stream", "node", "writer", "kind", "sequence", "attempt", "size", "cause", *_BEFORE]
    ended = steps.where("is_stall").select(
        *columns, F.col("t_before").alias("start_us"), F.col("t").alias("end_us"), F.lit(False).alias("is_open")
    )
    candidates = ended.unionByName(_open_at_the_end(steps, holes).select(*ended.columns))
    candidates = candidates.withColumn("gap_us", F.col("end_us") - F.col("start_us"))
    candidates = candidates.withColumn("stall", F.xxhash64("stream", "end_us", "sequence", "attempt", "kind"))
    in_hole = F.exists("holes", lambda hole: (hole["begin"] < F.col("end_us")) & (hole["end"] > F.col("start_us")))
    candidates = candidates.join(F.broadcast(holes.drop("until_us")), "writer", "left")
    candidates = candidates.where(~F.coalesce(in_hole, F.lit(False))).drop("holes")
    needless = packets.where("needless > 0").select("stream", "sequence", F.lit(True).alias("was_needless"))
    known = candidates.join(_exchanges_meanwhile(candidates, events), "stall", "left")
    known = known.join(_lags_meanwhile(candidates, flow, streams, events), "stall", "left")
    known = known.join(needless, ["stream", "sequence"], "left")
    return known.withColumn("why", _cause()).drop("stall", "writer", "size", *_BEFORE)


def _open_at_the_end(steps: DataFrame, holes: DataFrame) -> DataFrame:
    """Return the silences after the last step of a stream whose sender still has work to do."""
    last = steps.where("is_last").join(F.broadcast(holes.select("writer", "until_us")), "writer")
    busy = (F.col("in_flight_bytes_now") > 0) | (F.col("backlog_bytes_now") > 0) | (F.col("asked_now") > 0)
    gap = F.col("until_us") - F.col("t")
    now = {f"{name}_before": F.col(f"{name}_now") for name in ("in_flight_bytes", "backlog_bytes", "asked")}
    now |= {f"{name}_before": F.col(name) for name in ("window_bytes", "edge_bytes")}
    now |= {"granted_before": F.col("window_bytes") + F.col("in_flight_bytes_now")}
    # what will end it is unknown: no packet was sent or acknowledged
    now |= {"kind": F.lit(0), "attempt": F.lit(0), "cause": F.lit("")}
    now |= {"start_us": F.col("t"), "end_us": F.col("until_us"), "is_open": F.lit(True)}
    return last.where(busy & (gap > F.greatest("rto_us", F.lit(_OPEN_US)))).withColumns(now)


def _exchanges_meanwhile(stalls: DataFrame, events: DataFrame) -> DataFrame:
    """Return what happened at the node of each stall while it lasted.

    That is: failed exchanges, retransmissions by the carrier's own TCP, absence from the relay, and the time in which
    no pull was open. One ordered pass over the events of each node computes running sums; the difference of a sum
    between the end and the start of a stall is what happened during it.
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
    sampled = at == TraceEvent.SOCKET_SAMPLED.value
    marks = events.where((F.col("version") == 1) & (opened | ended | failed | absent | sampled)).select(
        "node",
        F.col("time_us").alias("t"),
        F.lit(None).cast("long").alias("stall"),
        F.when(opened, 1).when(ended, -1).otherwise(0).alias("pulls"),
        failed.cast("int").alias("failures"),
        absent.cast("int").alias("absences"),
        F.when(sampled, F.col("count")).alias("tcp"),
    )
    nothing = [F.lit(0).alias(name) for name in ("pulls", "failures", "absences")]
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
            **{f"{name}_sum": F.sum(name).over(so_far) for name in ("failures", "absences")},
            "tcp_last": F.last("tcp", ignorenulls=True).over(so_far),
        }
    )
    idle = F.when(F.lag(F.col("open_pulls")).over(node) <= 0, F.col("t") - F.col("before_us")).otherwise(0)
    rows = rows.withColumn("idle", idle).withColumn("idle_sum", F.sum("idle").over(so_far))
    rows = rows.where(F.col("stall").isNotNull())
    names = {
        "failures": "failures_sum",
        "absences": "absences_sum",
        "no_pull_us": "idle_sum",
        "tcp_retransmits": "tcp_last",
    }
    return rows.groupBy("stall").agg(
        *[(F.max(column) - F.min(column)).alias(name) for name, column in names.items()],
        F.max("ever_pulled").alias("ever_pulled"),
    )


# event loops

_WHOSE = ("lag", "peer_lag", "relay_lag")


def _lags_meanwhile(stalls: DataFrame, flow: DataFrame, streams: DataFrame, events: DataFrame) -> DataFrame:
    """Return for how long of each stall the event loops of its sender, of the peer and of their relay were late.

    A lag lasts from the moment at which the loop should have run until it ran. The loop often handles packets that came
    during the lag before it records the lag, so the record alone would lie after the stall. Several nodes of one
    process record the same lag, which counts once.
    """
    late = events.where((F.col("version") == 1) & (F.col("event") == TraceEvent.LOOP_LAG.value))
    begins = F.struct((F.col("time_us") - F.col("latency_us")).alias("t"), F.lit(1).alias("turn"))
    ends = F.struct(F.col("time_us").alias("t"), F.lit(-1).alias("turn"))
    marks = late.select(F.xxhash64("writer").alias("writer"), F.explode(F.array(begins, ends)).alias("at")).select(
        "writer",
        "at.t",
        "at.turn",
        F.lit(None).cast("long").alias("stall"),
        F.lit("").alias("whose"),
    )
    places = stalls.select("stall", "stream", "writer", "start_us", "end_us").join(_clocks(flow, streams), "stream")
    whose = [
        F.struct(F.lit("lag").alias("whose"), F.col("writer").alias("writer"), F.lit(0).cast("long").alias("ahead")),
        F.struct(F.lit("peer_lag").alias("whose"), F.col("receiver").alias("writer"), F.col("ahead").alias("ahead")),
        F.struct(
            F.lit("relay_lag").alias("whose"), F.col("relay").alias("writer"), F.col("relay_ahead").alias("ahead")
        ),
    ]
    edges = (
        places.withColumn("place", F.explode(F.array(*whose)))
        .where("place.writer is not null and place.ahead is not null")
        .select(
            F.col("place.writer").alias("writer"),
            F.explode(F.array(F.expr("start_us + place.ahead"), F.expr("end_us + place.ahead"))).alias("t"),
            F.lit(0).alias("turn"),
            "stall",
            F.col("place.whose").alias("whose"),
        )
    )
    process = Window.partitionBy("writer").orderBy("t", F.col("stall").asc_nulls_first(), "whose")
    so_far = process.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    rows = marks.unionByName(edges).withColumns(
        {"is_late": F.sum("turn").over(so_far) > 0, "before_us": F.lag("t").over(process)}
    )
    lasted = F.when(F.lag("is_late").over(process), F.col("t") - F.col("before_us")).otherwise(0)
    rows = rows.withColumn("lasted", lasted).withColumn("late_us", F.sum("lasted").over(so_far))
    found = rows.where(F.col("stall").isNotNull()).groupBy("stall", "whose", "writer")
    lags = found.agg((F.max("late_us") - F.min("late_us")).alias("us"))
    return lags.groupBy("stall").agg(
        *[F.max(F.when(F.col("whose") == name, F.col("us"))).alias(f"{name}_us") for name in _WHOSE]
    )


def _clocks(flow: DataFrame, streams: DataFrame) -> DataFrame:
    """Return the processes that each stream passes, and by how much their clocks are ahead of its sender's.

    `receiver` is the writer at the other end, `relay` a writer that bound the route. Clocks by which nothing arrives
    before it was sent are taken for one clock, as on one machine. Otherwise the shortest times there and back differ by
    twice the difference of the clocks, if the path is as long both ways; where nothing came back, half a round trip
    is used. The route was bound at about the time of the answer to CONNECT.
    """
    back = streams.select(F.col("stream").alias("other"), F.col("delay_us").alias("back_us"))
    ends = streams.select("stream", "other", "receiver", "delay_us", "trip_us_p50", "trip_us_p99")
    ends = ends.join(back, "other", "left")
    there, trip = F.col("delay_us"), F.coalesce("trip_us_p50", F.lit(0))
    is_one = (there >= 0) & F.coalesce(F.col("back_us") >= 0, there <= F.col("trip_us_p99"), F.lit(True))
    ahead = F.when(is_one, 0).otherwise(F.coalesce((there - F.col("back_us")) / 2, there - trip / 2))
    ends = ends.select("stream", "other", "receiver", F.round(ahead).cast("long").alias("ahead"))
    handshake = flow.where(F.col("kind").isin(ASKED, ANSWERED, ROUTED))
    asked = handshake.groupBy("stream").agg(
        F.min(F.when(F.col("kind") == ASKED, F.col("t"))).alias("asked_us"),
        F.min(F.when(F.col("kind") == ANSWERED, F.col("t"))).alias("answered_us"),
    )
    routed = handshake.where(F.col("kind") == ROUTED).groupBy("stream", F.col("writer").alias("relay"))
    routes = routed.agg(F.min("t").alias("t")).join(asked, "stream")
    is_one = F.col("t").between(F.col("asked_us"), F.col("answered_us"))
    relay_ahead = F.when(is_one, 0).otherwise(F.coalesce(F.col("t") - F.coalesce("answered_us", "asked_us"), F.lit(0)))
    routes = routes.select("stream", "relay", relay_ahead.cast("long").alias("relay_ahead"))
    # for the other direction, count from the clock of its sender, which is `ahead` of the first sender's
    turned = routes.join(ends.select("stream", "other", "ahead"), "stream")
    behind = F.col("relay_ahead") - F.coalesce("ahead", F.lit(0))
    turned = turned.select(F.col("other").alias("stream"), "relay", behind.alias("relay_ahead"))
    known = ends.join(routes.unionByName(turned), "stream", "left")
    # a relay that is the other end, too, has one clock
    same = F.col("relay") == F.col("receiver")
    return known.withColumn("relay_ahead", F.when(same, F.col("ahead")).otherwise(F.col("relay_ahead"))).drop("other")


# causes


def _cause() -> Column:
    """Return the cause of a stall: the first that fits. docs/ANALYSIS.md explains the names."""
    gap = F.col("gap_us")
    resent = (F.col("kind") == SENT) & (F.col("attempt") > 0)
    waits = F.col("backlog_bytes_before") > 0
    full = blocked_by("window_bytes_before")
    return (
        F.when(F.col("lag_us") * 2 > gap, "loop_lag")
        .when(F.col("relay_lag_us") * 2 > gap, "relay_loop_lag")
        .when(F.col("peer_lag_us") * 2 > gap, "peer_loop_lag")
        .when(F.col("absences") > 0, "carrier_http")
        .when(resent & F.col("cause").isin("batch_given_up", "route_resumed"), "carrier_http")
        .when(full & is_unread(), "flow_control_peer")
        .when(F.col("failures") > 0, "carrier_http")
        .when(F.col("asked_before") > 0, "connecting")
        .when(F.col("tcp_retransmits") > 0, "carrier_tcp")
        .when((F.col("ever_pulled") > 0) & (F.col("no_pull_us") * 2 > gap), "no_poll_outstanding")
        .when(blocked_by("edge_bytes_before"), "flow_control_relay")
        .when(resent & F.col("was_needless"), "ack_delay_or_loss")
        .when(resent & (F.col("attempt") > 1), "double_retransmission")
        .when(resent & ~waits, "tail_retransmission")
        .when(resent, "loss")
        .when(full, "window_small")
        .when(waits & (F.col("kind") == SENT), "carrier_busy")
        .when(F.col("kind") == ACKED, "packet_delay")
        .when(F.col("is_open"), "no_answer")
        .otherwise("application")
    )


def stalls_by_cause(stalls: DataFrame, *by: str) -> DataFrame:
    """Return the number and durations of stalls, by cause; the largest total comes first. `by` are further keys."""
    return (
        stalls.groupBy(*by, "why")
        .agg(
            F.count("*").alias("stalls"),
            F.sum("gap_us").alias("us"),
            percentiles("gap_us", 0.5, 0.99).alias("gap"),
            F.max("gap_us").alias("us_max"),
            F.countDistinct("stream").alias("streams"),
        )
        .select(
            *by,
            "why",
            "stalls",
            "us",
            F.col("gap")[0].alias("us_p50"),
            F.col("gap")[1].alias("us_p99"),
            "us_max",
            "streams",
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
            "is_open",
            "lag_us",
            "peer_lag_us",
            "relay_lag_us",
            "failures",
            "no_pull_us",
            "tcp_retransmits",
        )
        .orderBy(F.desc("gap_us"), "stream", "start_us")
        .limit(limit)
    )
