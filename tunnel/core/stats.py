"""The counters of one connection, as plain integers. Formatting is left to the caller."""

from bisect import bisect_left
from operator import add

import msgspec

__all__ = ["RESENT_BOUNDS", "ROUND_TRIP_BOUNDS_US", "ConnectionStats", "EndedTotals"]

ROUND_TRIP_BOUNDS_US = (
    1_000,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    10_000_000,
)
"""Upper bounds for counting round trips by size."""
RESENT_BOUNDS = (0.0, 0.001, 0.01, 0.05, 0.1, 0.25, 0.5)
"""Upper bounds for counting shares of packets that were sent again."""


class ConnectionStats(msgspec.Struct):
    """Counters and gauges of a connection. Bytes are bytes of the application's stream."""

    bytes_written: int = 0
    bytes_buffered: int = 0
    """Bytes written and never put into a batch."""
    bytes_carried: int = 0
    """Bytes put into batches, including retransmissions."""
    bytes_receipted: int = 0
    """The part of these bytes that has a receipt: they were queued at the relay."""
    bytes_acknowledged: int = 0
    """Bytes that the peer has, by its cumulative acknowledgement."""
    bytes_received: int = 0
    """Bytes that arrived in order."""
    bytes_delivered: int = 0
    """Bytes that the application has read."""
    packets_sent: int = 0
    """Numbered packets, with those sent again."""
    packets_control: int = 0
    """Other packets that were sent, but SHUTDOWN, which leaves when the connection has ended."""
    packets_received: int = 0
    """Packets of both kinds."""
    packets_duplicate: int = 0
    packets_discarded: int = 0
    """Packets that were malformed, had the id of another peer, or exceeded the window or another limit."""
    packets_resent: int = 0
    packets_spurious: int = 0
    """Retransmissions proven needless (4.9)."""
    resent_by_cause: dict[str, int] = {}
    window_bytes: int = 0
    """Bytes that the peer still has room for."""
    edge_bytes: int = 0
    """Bytes beyond packet S for which the relay had room when it announced its edge; NO_EDGE before any edge."""
    in_flight_packets: int = 0
    receive_buffer_bytes: int = 0
    srtt_us: int = 0
    """Smoothed, and counted from receipts (4.5): on some carriers without the way to the relay."""
    round_trip_us: int = 0
    """An estimate of the time to the peer and back; 0: unknown."""
    rto_us: int = 0
    backoff: int = 0


class EndedTotals(msgspec.Struct):
    """The sums of all connections that have ended, and how many had which round trip and share of resent packets.

    The last number of each list counts those above all bounds.
    """

    connections: int = 0
    packets_sent: int = 0
    packets_control: int = 0
    packets_received: int = 0
    packets_resent: int = 0
    packets_spurious: int = 0
    packets_duplicate: int = 0
    packets_discarded: int = 0
    bytes_acknowledged: int = 0
    bytes_received: int = 0
    resent_by_cause: dict[str, int] = {}
    round_trips: list[int] = msgspec.field(default_factory=lambda: [0] * (len(ROUND_TRIP_BOUNDS_US) + 1))
    round_trips_us: int = 0
    resent_shares: list[int] = msgspec.field(default_factory=lambda: [0] * (len(RESENT_BOUNDS) + 1))
    resent_share_total: float = 0.0

    def add(self, stats: ConnectionStats) -> None:
        """Add a connection that has ended."""
        self.connections += 1
        self.add_counts(stats)
        if stats.round_trip_us:
            self.round_trips[bisect_left(ROUND_TRIP_BOUNDS_US, stats.round_trip_us)] += 1
            self.round_trips_us += stats.round_trip_us
        if stats.packets_sent:
            share = stats.packets_resent / stats.packets_sent
            self.resent_shares[bisect_left(RESENT_BOUNDS, share)] += 1
            self.resent_share_total += share

    def add_counts(self, stats: ConnectionStats) -> None:
        """Add the counters of a connection, but not to the round trips and shares."""
        self.packets_sent += stats.packets_sent
        self.packets_control += stats.packets_control
        self.packets_received += stats.packets_received
        self.packets_resent += stats.packets_resent
        self.packets_spurious += stats.packets_spurious
        self.packets_duplicate += stats.packets_duplicate
        self.packets_discarded += stats.packets_discarded
        self.bytes_acknowledged += stats.bytes_acknowledged
        self.bytes_received += stats.bytes_received
        for cause, count in stats.resent_by_cause.items():
            self.resent_by_cause[cause] = self.resent_by_cause.get(cause, 0) + count

    def plus(self, other: "EndedTotals") -> "EndedTotals":
        """Return the sums of both."""
        sums = self.copy()
        for name in _SUMS:
            setattr(sums, name, getattr(self, name) + getattr(other, name))
        for cause, count in other.resent_by_cause.items():
            sums.resent_by_cause[cause] = sums.resent_by_cause.get(cause, 0) + count
        for ours, theirs in ((sums.round_trips, other.round_trips), (sums.resent_shares, other.resent_shares)):
            ours[:] = map(add, ours, theirs)
        return sums

    def copy(self) -> "EndedTotals":
        """Return a copy that counts no further."""
        return msgspec.structs.replace(
            self,
            resent_by_cause=dict(self.resent_by_cause),
            round_trips=list(self.round_trips),
            resent_shares=list(self.resent_shares),
        )


_SUMS = [
    name for name in EndedTotals.__struct_fields__ if name not in ("resent_by_cause", "round_trips", "resent_shares")
]
