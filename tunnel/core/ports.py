"""The facts that an endpoint knows about its carrier and relay. All its connections share them."""

import msgspec

from tunnel.core.constants import NEVER_US
from tunnel.core.send.window import NO_EDGE
from tunnel.wire import PACKET_SIZE_MAX

__all__ = ["CarrierView"]


class CarrierView(msgspec.Struct):
    """State of the carrier and the relay. The endpoint and its driver set it; connections and their parts read it."""

    lanes: int = 1
    """Number of lanes in use; 1 on a link. On several lanes, packets overtake each other (4.8)."""
    pull_interval_us: int = 0
    """Interval of pulls; 0: pulls are held (4.6)."""
    initial_edge_bytes: int = NO_EDGE
    """Bytes that the relay takes on a new route before it has announced an edge (7.12)."""
    packet_bytes_max: int = PACKET_SIZE_MAX
    """Largest packet that the relay takes."""
    round_trip_us: int = 0
    """Smoothed time of an exchange with the relay; 0: unknown."""
    absent_since_us: int = NEVER_US
    """When the attachment was lost, or the relay became unreachable (4.15); else NEVER_US."""
