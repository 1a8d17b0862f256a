"""Column expressions that several analyses share."""

from pyspark.sql import Column
from pyspark.sql import functions as F

from tunnel.traces.record import TraceEvent, TraceReason
from tunnel.wire import IN_STREAM, PacketType

__all__ = ["CLOSE", "DATA", "FINISH", "STREAM_TYPES", "dropped_at_relay", "percentiles"]

DATA, CLOSE, FINISH = int(PacketType.DATA), int(PacketType.CLOSE), int(PacketType.FINISH)
STREAM_TYPES = tuple(sorted(IN_STREAM))  # packet types with a sequence number, except the two of the handshake
_ACCURACY = 1000  # of percentiles: an error of at most 1/1000


def percentiles(value: Column | str, *shares: float) -> Column:
    """Return the percentiles at these shares (0 to 1), as an array."""
    return F.percentile_approx(value, F.array(*[F.lit(share) for share in shares]), F.lit(_ACCURACY))


def dropped_at_relay() -> Column:
    """Return whether an event is a packet that the relay dropped. A dropped duplicate is no loss, so it is excluded."""
    is_drop = F.col("event") == TraceEvent.PACKET_DROPPED.value
    return is_drop & (F.col("reason") != TraceReason.DUPLICATE.value)
