"""What kept a sender from sending more, while it was not stalled: one limit for each time between two of its steps.

The sums of these times and of the stalls are the time for which streams lived, so no share exceeds the whole. The query
`steps` decides which limit applies: the first that fits, in its own order.
"""

__all__ = ["LIMITS", "MAIN_SHARE"]

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

MAIN_SHARE = 10  # idle times and windows of a stream that carries less than a tenth of the largest one do not count
