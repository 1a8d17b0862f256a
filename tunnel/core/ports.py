"""What an endpoint knows of its carrier and relay; shared by all its connections."""

import msgspec

from tunnel.core.constants import NEVER_US
from tunnel.core.send.window import NO_EDGE
from tunnel.wire import PACKET_SIZE_MAX

__all__ = ["CarrierView"]


class CarrierView(msgspec.Struct):
    """Set by the endpoint, read by everything below it."""

    lanes: int = 1
    """Exchanges at once: with several, packets overtake each other (4.8)."""
    pull_interval_us: int = 0
    """0: pulls are held (4.6)."""
    initial_edge_bytes: int = NO_EDGE
    """What the relay takes of a new route before it has announced an edge (7.12)."""
    packet_bytes_max: int = PACKET_SIZE_MAX
    """The largest packet that the relay takes."""
    absent_since_us: int = NEVER_US
    """Since when no relay knows us (4.15); NEVER_US: one does."""
