"""The counters of one connection, as plain integers. Formatting is left to the caller."""

import msgspec

__all__ = ["ConnectionStats"]


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
    packets_received: int = 0
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
