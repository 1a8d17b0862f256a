"""The two tables that most analyses share: the events of each stream, kept together, and one row for each packet.

A stream is one direction of a connection. Its name (`stream`) is the sender's id of the connection. Both ends record
that id, so their events can be joined without comparing clocks.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tunnel.analysis.expressions import DATA, STREAM_TYPES
from tunnel.traces.record import TraceCause, TraceEvent

__all__ = [
    "ACKED",
    "ANSWERED",
    "ASKED",
    "ENDED",
    "RECEIVED",
    "RECOVERED",
    "ROUTED",
    "SENT",
    "SPURIOUS",
    "cause_of",
    "flow_of",
    "names_of",
    "packets_of",
    "unwrapped",
]

SENT, RECEIVED, ACKED, RECOVERED, SPURIOUS = range(1, 6)
ASKED, ANSWERED, ENDED, ROUTED = range(6, 10)  # events of a whole connection; their rows have no packet number

_KINDS = {
    TraceEvent.PACKET_SENT: SENT,
    TraceEvent.PACKET_RECEIVED: RECEIVED,
    TraceEvent.PACKETS_ACKED: ACKED,
    TraceEvent.PACKET_RECOVERED: RECOVERED,
    TraceEvent.SPURIOUS_RETRANSMIT: SPURIOUS,
}
_CONNECT, _ACCEPTED, _REJECTED = 1, 2, 3  # PROTOCOL 1.5
_CAUSES = tuple(cause.value for cause in TraceCause)
_HALF = 1 << 31
_ROUND = 1 << 32
_ATTEMPTS_MAX = 62  # in a bit mask; further attempts share the last bit
HEADER_BYTES = 24


def flow_of(events: DataFrame) -> DataFrame:
    """Return the events of numbered packets at the sender and the receiver, partitioned by stream.

    Further rows tell what happened to the whole connection: its initiator asked for it (CONNECT) and was answered, the
    relay bound its route, and it ended. The row of the end is given to the stream whose sender recorded it.
    """
    at, packet = F.col("event"), F.col("packet_type")
    kind = F.lit(None)
    for event, number in _KINDS.items():
        kind = F.when(at == event.value, number).otherwise(kind)
    is_sequenced = packet.isin(*STREAM_TYPES) | (at == TraceEvent.PACKETS_ACKED.value)
    by_relay = F.col("rto_us") == 0  # endpoints record the resumed route, too, with the state of their timers
    kind = (
        F.when(is_sequenced, kind)
        .when((at == TraceEvent.PACKET_SENT.value) & (packet == _CONNECT), ASKED)
        .when((at == TraceEvent.PACKET_RECEIVED.value) & packet.isin(_ACCEPTED, _REJECTED), ANSWERED)
        .when(at == TraceEvent.CONNECTION_CLOSED.value, ENDED)
        .when((at == TraceEvent.ROUTE_BOUND.value) | (by_relay & (at == TraceEvent.ROUTE_RESUMED.value)), ROUTED)
    )
    known = [*_KINDS, TraceEvent.CONNECTION_CLOSED, TraceEvent.ROUTE_BOUND, TraceEvent.ROUTE_RESUMED]
    wanted = events.where((F.col("version") == 1) & at.isin(*[e.value for e in known]) & kind.isNotNull())
    by_sender = kind != RECEIVED
    return wanted.select(
        F.when(by_sender, F.col("connection")).otherwise(F.col("peer")).alias("stream"),
        F.when(by_sender, F.col("peer")).otherwise(F.col("connection")).alias("other"),
        kind.cast("byte").alias("kind"),
        "node",
        F.xxhash64("writer").alias("writer"),
        F.col("time_us").alias("t"),
        F.col("packet_type").cast("short").alias("type"),
        "sequence",
        F.least(F.col("attempt"), F.lit(_ATTEMPTS_MAX)).cast("short").alias("attempt"),
        F.col("size_bytes").alias("size"),
        "cause",
        "rtt_us",
        "srtt_us",
        "rto_us",
        F.col("backoff").cast("short").alias("backoff"),
        "window_bytes",
        "in_flight_bytes",
        "backlog_bytes",
        "edge_bytes",
        "batch",
        "carrier",
        F.col("count").alias("acked"),
    ).repartition("stream")


def packets_of(flow: DataFrame, holes: DataFrame | None = None) -> DataFrame:
    """Return one row for each numbered packet of each stream: what its sender did, and what arrived at its receiver.

    `received_mask` and `spurious_mask` have a bit for each attempt. What is not known is not a loss:

    - `both_ends` is true for a stream that was traced at both ends, false if one end certainly was not, and null if the
      trace does not tell: nothing of it was received or acknowledged.
    - `proven`: a cumulative acknowledgement says that the packet arrived, whether or not the receiver was traced.
    - `is_open`: it may still have been on its way when the trace of its receiver ended.
    - `in_doubt`: its arrival may be among the records that the receiver's writer lost (`holes`, of
      `hole_queries.table_of`).
    - `judged`: the fate of each of its attempts is known.

    All columns are numbers, because Spark would sort rows with text columns in order to group them: `sender` is a hash
    of the node's name, `cause` a number (`cause_of`); `names_of` has the texts.
    """

    def of(kind: int, value: Column) -> Column:
        return F.when(F.col("kind") == kind, value)

    bit = F.expr("shiftleft(1L, cast(attempt as int))")
    packets = (
        flow.where(F.col("kind") <= SPURIOUS)
        .groupBy("stream", "sequence")
        .agg(
            F.max("other").alias("other"),
            F.max(of(SENT, F.xxhash64("node"))).alias("sender"),
            F.max(of(RECEIVED, F.col("writer"))).alias("receiver"),
            F.max(F.when(F.col("kind") <= RECEIVED, F.col("size"))).alias("size"),
            F.max(F.when((F.col("kind") <= RECEIVED) & (F.col("type") == DATA), F.col("size") - HEADER_BYTES)).alias(
                "payload"
            ),
            F.min(of(ACKED, F.col("t"))).alias("acked_us"),
            F.min_by(of(ACKED, F.col("acked")), of(ACKED, F.col("t"))).alias("acked"),
            F.min(of(SENT, F.col("t"))).alias("sent_us"),
            F.max(of(SENT, F.col("t"))).alias("resent_us"),
            F.min(of(RECEIVED, F.col("t"))).alias("received_us"),
            F.min(of(RECOVERED, F.col("t"))).alias("recovered_us"),
            F.expr(f"count_if(kind = {SENT})").alias("sent"),
            F.expr(f"count_if(kind = {RECEIVED})").alias("received"),
            F.coalesce(F.bit_or(of(SENT, bit)), F.lit(0)).alias("sent_mask"),
            F.coalesce(F.bit_or(of(RECEIVED, bit)), F.lit(0)).alias("received_mask"),
            F.coalesce(F.bit_or(of(SPURIOUS, bit)), F.lit(0)).alias("spurious_mask"),
            F.max(of(SENT, F.when(F.col("attempt") == 1, _number_of(F.col("cause"))))).alias("cause"),
            F.max(of(SENT, F.when(F.col("attempt") == 0, F.col("batch")))).alias("batch"),
        )
    )
    return _judged(_placed(packets), holes).drop("sent_mask", "lost_mask", "until_us")


def names_of(flow: DataFrame, streams: list[int]) -> DataFrame:
    """Return the sending node, the receiving node and the carrier of a few streams."""
    first = (F.col("kind") == SENT) & (F.col("attempt") == 0)
    return (
        flow.where(F.col("stream").isin(streams))
        .groupBy("stream")
        .agg(
            F.max(F.when(F.col("kind") == SENT, F.col("node"))).alias("sender"),
            F.max(F.when(F.col("kind") == RECEIVED, F.col("node"))).alias("receiver"),
            F.max(F.when(first, F.col("carrier"))).alias("carrier"),
        )
    )


def cause_of(number: int | None) -> str:
    """Return the cause for its number in a row of `packets_of`; "unknown" if the trace has none."""
    return _CAUSES[number - 1] if number else "unknown"


def _number_of(cause: Column) -> Column:
    return F.array_position(F.array(*[F.lit(each) for each in _CAUSES]), cause)


def _placed(packets: DataFrame) -> DataFrame:
    """Order the packets of each stream, and add what is known of the stream as a whole."""
    stream = Window.partitionBy("stream")
    base = F.min_by("sequence", F.coalesce("sent_us", "received_us")).over(stream)
    delay = F.col("received_us") - F.col("sent_us")  # measured by two clocks, so only its changes mean something
    packets = packets.withColumn("position", unwrapped(F.col("sequence"), base)).withColumns(
        {
            "acked_position": F.max(F.when(F.col("acked_us").isNotNull(), F.col("position"))).over(stream),
            "last_received": F.max(F.when(F.col("received") > 0, F.col("position"))).over(stream),
            "is_sent": F.max((F.col("sent") > 0).cast("int")).over(stream) == 1,
            "delay_min": F.min(delay).over(stream),
            "delay_max": F.max(delay).over(stream),
            "receiver": F.max("receiver").over(stream),
        }
    )
    both = (
        F.when(F.col("is_sent") & F.col("last_received").isNotNull(), F.lit(True))
        .when(F.col("last_received").isNotNull() | (F.col("acked_position") >= 0), F.lit(False))
        .otherwise(F.lit(None).cast("boolean"))
    )
    return packets.where("sent > 0 or received > 0").withColumns(
        {"both_ends": both, "proven": F.coalesce(F.col("position") <= F.col("acked_position"), F.lit(False))}
    )


def _judged(packets: DataFrame, holes: DataFrame | None) -> DataFrame:
    """Decide which attempts were lost and which were needless, as far as the trace tells."""
    # A packet may take longer than any that arrived. So the latest time of arrival allows for the shortest delay plus
    # twice the difference between the longest and the shortest.
    earliest = F.col("sent_us") + F.col("delay_min")
    latest = F.coalesce("resent_us", "sent_us") + 2 * F.col("delay_max") - F.col("delay_min")
    if holes is None:
        packets = packets.withColumns({"until_us": F.lit(None).cast("long"), "in_hole": F.lit(False)})
    else:
        in_hole = F.exists("holes", lambda hole: (hole["begin"] <= latest) & (hole["end"] >= earliest))
        table = holes.select(F.col("writer").alias("receiver"), "holes", "until_us")
        packets = packets.join(F.broadcast(table), "receiver", "left")
        packets = packets.withColumn("in_hole", F.coalesce(in_hole, F.lit(False))).drop("holes")
    unseen = (F.col("received") == 0) & ~F.col("proven")
    behind = (F.col("sent") <= 1) & (F.col("position") > F.col("last_received"))
    after = F.coalesce(
        F.col("sent_us") + 2 * F.col("delay_max") - F.col("delay_min") >= F.col("until_us"), F.lit(False)
    )
    both = F.coalesce("both_ends", F.lit(False))
    # The lowest attempt that arrived, as a mask of one bit. Every later attempt was needless.
    lowest = F.col("received_mask").bitwiseAND(-F.col("received_mask"))
    beyond = F.expr("~((received_mask & -received_mask) * 2 - 1)")
    missing = F.expr("sent_mask & ~received_mask")
    # a packet that was sent once and is acknowledged has arrived, although the record of it is missing
    once = F.col("proven") & (F.col("received") == 0) & (F.col("sent") == 1)
    known = ~F.col("is_open") & ~F.col("in_doubt") & ((F.col("received") > 0) | ~F.col("proven"))
    return (
        packets.withColumns(
            {"is_open": both & unseen & (behind | after), "in_doubt": both & F.col("in_hole") & (missing != 0) & ~once}
        )
        .withColumn("judged", both & (known | once))
        .withColumns(
            {
                "lost_mask": F.when(F.col("judged") & ((F.col("received") > 0) | ~F.col("proven")), missing).otherwise(
                    F.lit(0)
                ),
                "needless": F.when(lowest != 0, F.bit_count(F.expr("sent_mask").bitwiseAND(beyond))).otherwise(
                    F.lit(0)
                ),
            }
        )
        .withColumns(
            {
                "lost": F.bit_count("lost_mask"),
                "lost_first": F.when(F.col("judged"), (F.col("lost_mask").bitwiseAND(F.lit(1)) == 1).cast("int")),
            }
        )
        .drop("last_received", "acked_position", "is_sent", "delay_min", "delay_max", "in_hole")
    )


def unwrapped(sequence: Column, base: Column) -> Column:
    """Return the distance of a wire sequence number from `base`, at least -2^31 and below 2^31 (PROTOCOL 1.6)."""
    return F.pmod(sequence - base + _HALF, F.lit(_ROUND)) - _HALF
