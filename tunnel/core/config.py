"""Settings of an endpoint. A field's name includes its unit, and the text below it explains its value."""

from dataclasses import dataclass

from tunnel.core.constants import SECOND_US
from tunnel.wire import PACKET_SIZE_MAX

__all__ = ["EndpointConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointConfig:
    """Limits and times of an endpoint. They are checked on creation and constant afterwards."""

    window_bytes_start: int = 256 * 1024
    """First receive window. It is small, since most connections carry little."""
    window_bytes_min: int = 16 * 1024
    """Window that every connection gets, even when the budget is used up. Without it a stream would stall."""
    window_bytes_max: int = 16 * 1024 * 1024
    """Largest receive window: 10 MB/s at a round trip of 1.6 s. Windows grow to it by doubling, while the reader keeps
    up and the budget grants it."""
    budget_bytes: int = 256 * 1024 * 1024
    """Bytes that all connections may take together for receive windows beyond `window_bytes_min` each and for send
    buffers beyond `send_buffer_bytes_max` each. All connections that one user has opened to this endpoint get at most
    half of what the others leave free."""
    send_buffer_bytes_max: int = 4 * 1024 * 1024
    """Bytes of a connection that may be written and not yet acknowledged; at this number `write` takes no more. A
    larger window of the peer raises the limit, as far as the budget grants it. A connection that a user has opened to
    this endpoint has at most 256 KiB of it at first, and the rest when the budget grants it."""
    packet_bytes_max: int = 512 * 1024
    """Largest packet that this endpoint accepts, including the header."""
    keepalive_us: int = 60 * SECOND_US
    """Silence after which a PING leaves; 0 for no keepalive."""
    user_timeout_us: int = 300 * SECOND_US
    """How long bytes or probes may be unanswered, or the route missing, before the connection is lost."""
    connections_max: int = 20_000
    """Largest number of connections at once. Further CONNECTs are refused as busy."""
    out_of_order_packets_max: int = 16_384
    """Packets kept beyond a gap, per connection. This limits the memory that one-byte packets can take."""
    exit: bool = False
    """Ask the application (ConnectRequested) about CONNECTs to targets for an exit. If false, they are refused."""
    asks_services: bool = False
    """Ask the application (ConnectRequested) about CONNECTs to services, too, because some are encrypted or refused. If
    false, they are accepted in clear, and Incoming shows them."""

    def __post_init__(self) -> None:
        if not 0 < self.window_bytes_min <= self.window_bytes_start <= self.window_bytes_max < 2**32:
            raise ValueError(
                "windows must satisfy 0 < window_bytes_min <= window_bytes_start <= window_bytes_max < 2**32, but they "
                f"are {self.window_bytes_min}, {self.window_bytes_start} and {self.window_bytes_max}"
            )
        if not 1024 + 24 <= self.packet_bytes_max <= PACKET_SIZE_MAX:
            raise ValueError(f"packet_bytes_max must be 1048 to {PACKET_SIZE_MAX}, not {self.packet_bytes_max}")
        if self.user_timeout_us < SECOND_US:
            raise ValueError(f"user_timeout_us must be at least {SECOND_US} (one second), not {self.user_timeout_us}")
        if min(self.budget_bytes, self.keepalive_us) < 0:
            raise ValueError(
                "budget_bytes and keepalive_us must not be negative, but they are "
                f"{self.budget_bytes} and {self.keepalive_us}"
            )
        if min(self.send_buffer_bytes_max, self.connections_max, self.out_of_order_packets_max) < 1:
            raise ValueError(
                "send_buffer_bytes_max, connections_max and out_of_order_packets_max must be positive, but they are "
                f"{self.send_buffer_bytes_max}, {self.connections_max} and {self.out_of_order_packets_max}"
            )
