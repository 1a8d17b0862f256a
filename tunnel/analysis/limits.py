"""What kept a sender from sending more, while it was not stalled: one limit for each time between two of its steps.

The sums of these times and of the stalls are the time for which streams lived, so no share exceeds the whole.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tunnel.analysis.expressions import DATA
from tunnel.analysis.flow import SENT

__all__ = ["LIMITS", "blocked_by", "is_unread", "limit_before", "limits_of"]

LIMITS = (
    "idle",
    "connecting",
    "all_sent",
    "awaiting",
    "ending",
    "reader_slow",
    "window_full",
    "edge_reached",
    "carrier_full",
)

# As in core/send/window.py (RFC 9293, 3.8.6.2.1): new bytes are not cut to less than this while packets are in flight.
TRICKLE_BYTES = 1024
# If at least this much is in flight when the edge is reached, the relay's room is not the cause: the receiver's side
# takes the bytes too slowly.
EDGE_BYTES = 256 * 1024
MAIN_SHARE = 10  # idle times and windows of a stream that carries less than a tenth of the largest one do not count


def blocked_by(room: str) -> Column:
    """Return whether the next packet is larger than the room in this column before the step.

    A repeat cannot be cut; new bytes are cut to the room, but not to less than TRICKLE_BYTES.
    """
    is_repeat = (F.col("kind") == SENT) & (F.col("attempt") > 0)
    needed = F.least("backlog_bytes_before", F.lit(TRICKLE_BYTES))
    if room == "edge_bytes_before":  # the peer's window has room for a repeat, since it had room for the packet
        needed = F.when(is_repeat, F.greatest(F.col("size") - 24, needed)).otherwise(needed)
    waits = F.col("backlog_bytes_before") > 0
    return F.coalesce(waits & (F.col(room) >= 0) & (F.col(room) < needed), F.lit(False))


def is_unread() -> Column:
    """Return whether the peer's buffer was full of bytes that its application had not read.

    Then nothing is in flight, or the peer grants less than half of what it once did. In contrast, a window that is
    merely small is full of bytes in flight.
    """
    return (F.col("in_flight_bytes_before") == 0) | (2 * F.col("granted_before") < F.col("granted_most"))


def limit_before() -> Column:
    """Return the limit of the time before a step: the first that applies.

    An idle time counts only if the application wrote something at its end. The idle time before the end of the stream
    does not count.
    """
    waits = F.col("backlog_bytes_before") > 0
    in_flight = F.col("in_flight_bytes_before") > 0
    wrote = (F.col("kind") == SENT) & (F.col("attempt") == 0) & (F.col("type") == DATA)
    full = blocked_by("window_bytes_before")
    return (
        F.when(F.col("asked_before") > 0, "connecting")
        .when(full & is_unread(), "reader_slow")
        .when(full, "window_full")
        .when(blocked_by("edge_bytes_before") & (F.col("in_flight_bytes_before") < EDGE_BYTES), "edge_reached")
        .when(waits, "carrier_full")
        .when(in_flight & (F.col("ended_before") > 0), "ending")
        .when(in_flight & wrote, "all_sent")
        .when(in_flight, "awaiting")
        .when(wrote, "idle")
    )


def limits_of(steps: DataFrame, streams: DataFrame, payload_most: Column, *by: str) -> DataFrame:
    """Sum up the time of all streams by limit (columns of these names), and their largest window (`granted_most`).

    Idle times and windows count for streams that carry a tenth of `payload_most` at least: in others, as in the
    direction of the answers, it is normal that nothing is written. `by` are columns of `streams` that tell groups
    apart.
    """
    ends = steps.where("is_last").select("stream", "granted_most", *LIMITS)
    is_main = F.col("payload_bytes") * MAIN_SHARE >= payload_most
    of = {name: F.coalesce(name, F.lit(0)) for name in LIMITS}
    of |= {name: F.when(is_main, of[name]).otherwise(0) for name in ("idle",)}
    sums = [F.coalesce(F.sum(value), F.lit(0)).alias(name) for name, value in of.items()]
    return (
        ends.join(streams, "stream")
        .groupBy(*by)
        .agg(*sums, F.max(F.when(is_main, F.col("granted_most"))).alias("granted_most"))
    )
