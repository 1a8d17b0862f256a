"""What an endpoint may be told. Every field has a unit in its name and a reason beside it."""

from dataclasses import dataclass

from tunnel.core.constants import SECOND_US
from tunnel.wire import PACKET_SIZE_MAX

__all__ = ["EndpointConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointConfig:
    """Limits and times of an endpoint; checked when made, constant afterwards."""

    window_bytes_start: int = 256 * 1024
    """First receive window: small, since most connections carry little."""
    window_bytes_min: int = 16 * 1024
    """Granted to every connection, even when the budget is used up: without it a stream would stand still."""
    window_bytes_max: int = 16 * 1024 * 1024
    """Reached by doubling, when the reader keeps up and the budget grants it: 10 MB/s at 1.6 s of round trip."""
    budget_bytes: int = 256 * 1024 * 1024
    """Receive windows of all connections together, beyond the minimum of each."""
    send_buffer_bytes_max: int = 4 * 1024 * 1024
    """Written and not yet acknowledged, per connection, before `write` says 0; follows the peer's window upwards."""
    packet_bytes_max: int = 512 * 1024
    """Largest packet that this endpoint takes, header included."""
    keepalive_us: int = 60 * SECOND_US
    """Silence after which a PING leaves; 0 for none."""
    user_timeout_us: int = 300 * SECOND_US
    """How long bytes or probes may be unanswered, or the route be gone, before the connection is lost."""
    connections_max: int = 20_000
    """Connections of this endpoint at once; further CONNECTs are refused as busy."""
    out_of_order_packets_max: int = 16_384
    """Packets kept beyond a gap, per connection: bounds what one-byte packets cost."""
    exit: bool = False
    """Ask the application (ConnectRequested) about CONNECTs to TCP targets; refused otherwise."""

    def __post_init__(self) -> None:
        if not 0 < self.window_bytes_min <= self.window_bytes_start <= self.window_bytes_max < 2**32:
            raise ValueError(
                "windows must satisfy 0 < window_bytes_min <= window_bytes_start <= window_bytes_max < 2**32"
            )
        if not 1024 + 24 <= self.packet_bytes_max <= PACKET_SIZE_MAX:
            raise ValueError(f"packet_bytes_max must lie between 1048 and {PACKET_SIZE_MAX}")
        if self.user_timeout_us < SECOND_US:
            raise ValueError("user_timeout_us must be at least one second")
        if min(self.budget_bytes, self.keepalive_us) < 0:
            raise ValueError("budget_bytes and keepalive_us must not be negative")
        if min(self.send_buffer_bytes_max, self.connections_max, self.out_of_order_packets_max) < 1:
            raise ValueError("send_buffer_bytes_max, connections_max and out_of_order_packets_max must be positive")
