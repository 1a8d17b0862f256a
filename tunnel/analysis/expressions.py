"""What several analyses ask of a record in the same words."""

from pyspark.sql import Column
from pyspark.sql import functions as F

from tunnel.traces.record import TraceEvent, TraceReason

__all__ = ["SEQUENCED", "dropped_at_relay", "percentiles"]

_DATA, _CLOSE, _OPTION, _FINISH = 4, 5, 10, 13  # PROTOCOL 1.5
SEQUENCED = (_DATA, _CLOSE, _OPTION, _FINISH)  # packet types with a number, apart from the two that open
_ACCURACY = 1000  # of percentiles: a thousandth


def percentiles(value: Column | str, *shares: float) -> Column:
    """The values below which these shares lie, as an array."""
    return F.percentile_approx(value, F.array(*[F.lit(share) for share in shares]), F.lit(_ACCURACY))


def dropped_at_relay() -> Column:
    """Whether a relay threw a packet away. What had come before is no loss."""
    is_drop = F.col("event") == TraceEvent.PACKET_DROPPED.value
    return is_drop & (F.col("reason") != TraceReason.DUPLICATE.value)
