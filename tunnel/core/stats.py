"""Counters of one connection. Plain integers; whoever shows them formats them."""

import msgspec

__all__ = ["ConnectionStats"]


class ConnectionStats(msgspec.Struct):
    """Bytes speak of the application's stream, packets of sequenced packets."""

    bytes_written: int = 0
    bytes_buffered: int = 0
    """Written, never carried."""
    bytes_carried: int = 0
    """Put into batches, retransmissions included."""
    bytes_receipted: int = 0
    """Of those, queued at the relay for certain."""
    bytes_acknowledged: int = 0
    """In the peer's buffer: cumulatively acknowledged."""
    bytes_received: int = 0
    """Arrived in order."""
    bytes_delivered: int = 0
    """Read by the application."""
    packets_sent: int = 0
    packets_received: int = 0
    packets_duplicate: int = 0
    packets_discarded: int = 0
    """Malformed, of a stranger, or beyond the window."""
    packets_resent: int = 0
    packets_spurious: int = 0
    """Retransmissions proven needless (4.9)."""
    resent_by_cause: dict[str, int] = {}
    window_bytes: int = 0
    """What the peer still has room for."""
    edge_bytes: int = 0
    """What the relay still has room for; a very large number without a relay."""
    in_flight_packets: int = 0
    receive_buffer_bytes: int = 0
    srtt_us: int = 0
    rto_us: int = 0
    backoff: int = 0
