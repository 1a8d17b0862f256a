"""The switch's settings. Every limit bounds something that a peer can make grow."""

from dataclasses import dataclass, fields

from tunnel.wire import PACKET_SIZE_MAX

__all__ = ["FRAME_OVERHEAD_BYTES", "SETTABLE", "SwitchConfig"]

KIB, MIB = 1 << 10, 1 << 20  # bytes
SECOND = 1_000_000  # microseconds

PACKETS_MIN, PACKETS_MAX = 256, 2**16 - 1  # bounds of packets_per_body_max, which has 16 bits in ATTACHED
FRAME_OVERHEAD_BYTES = 256  # memory per stored packet in addition to its bytes, rounded up (CPython 3.11)

SETTABLE = (
    *("body_bytes_max", "pull_interval_us_min", "pull_interval_us_max"),
    *("attachments_max", "attachments_per_user_max", "names_per_attachment_max"),
    *("routes_max", "routes_per_user_max", "routes_per_attachment_max", "route_bytes_max"),
    *("mailbox_bytes_max", "exit_mailbox_bytes_max", "user_bytes_max", "process_bytes_max"),
)
"""The fields of SwitchConfig that an operator may set: they depend on the users and the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchConfig:
    """Limits and times of the switch. Raises ValueError if they contradict each other."""

    node: str = "relay"
    """The name of this relay in traces."""

    # Limits that ATTACHED announces (7.11)
    body_bytes_max: int = 1 * MIB
    """The largest request body that the relay accepts, and the largest answer that it sends."""
    packet_bytes_max: int = 1 * MIB
    """The largest packet that the relay forwards, header included."""
    packets_per_body_max: int = 1024
    packets_per_answer_max: int = 8192
    """Packets in one body or batch: from an endpoint (`body`), and from the relay (`answer`). The relay refuses a body
    with more, and accepts a batch of a link with more (4.13)."""
    lanes_max: int = 8
    """Lanes per attachment."""
    streams: bool = True
    """Whether a pull gets a streamed answer if the endpoint asks for it (7.20)."""
    hold_us_max: int = 65 * SECOND
    """The longest time for which the relay holds a pull, whatever the pull asks for (7.4). Endpoints ask for 55 s at
    most, so that a proxy that waits for 60 s sees the answer."""
    pull_interval_us_min: int = 0
    pull_interval_us_max: int = 60 * SECOND
    """Bounds of the time between pulls that an endpoint may negotiate."""

    # Attachments
    attachments_max: int = 10_000
    attachments_per_user_max: int = 100
    attachment_timeout_us: int = 300 * SECOND
    """The relay forgets an attachment that has sent no ATTACH or exchange and has had no link for this time (9.6)."""
    links_per_attachment_max: int = 4
    shared_links_per_attachment_max: int = 8
    """The same for links that share the load. This is twice what our endpoints open: a dead link of which the relay has
    not heard, or one that was replaced a moment ago, must not keep another one out."""
    names_per_attachment_max: int = 64
    """Service names for which one endpoint may listen."""
    replaced_max: int = 4096
    """Ids of replaced attachments that the relay remembers, so that it can refuse resumes at once (6.4)."""

    # Routes
    routes_max: int = 10_000
    routes_per_user_max: int = 4096
    routes_per_attachment_max: int = 2048
    """Open routes that one attachment may have initiated."""
    pending_timeout_us: int = 75 * SECOND
    """How long a CONNECT that was handed on may stay unanswered before the relay answers REJECTED(timed out). It is
    longer than the longest pause between two CONNECTs of an initiator, so that at least one repeat comes within it
    (3.2)."""
    silent_us: int = 5 * SECOND
    """How long after a CONNECT was handed to it an endpoint from which nothing has come gets others only if no other
    endpoint can take them (6.10). Its pull interval is added."""
    park_us: int = 5 * SECOND
    """How long after its newest repeat the relay keeps a resume whose endpoint is not attached (6.5)."""
    settle_us: int = 5 * SECOND
    """For this time after the first endpoint has attached, the relay does not refuse a CONNECT for lack of a service or
    exit: endpoints that were attached before the relay restarted may still be on the way back (6.5)."""
    linger_us: int = 60 * SECOND
    """How long after the first SHUTDOWN the relay releases a route if no second one comes (9.5)."""
    lingering_per_attachment_max: int = 1024
    """Routes that one attachment initiated and that wait for the second SHUTDOWN; above this number the oldest is
    released."""

    # Stored packets (9.2)
    reserved_bytes: int = 16 * KIB
    """Reserved for each route and direction."""
    early_bytes_max: int = 64 * KIB
    """DATA that the relay holds before ACCEPTED (3.6)."""
    route_bytes_max: int = 8 * MIB
    """The most that may wait for one route and direction, reservation included. This bounds the bytes in flight to a
    slow endpoint or on a long path: it is enough for 50 MB/s with a round-trip time of 150 ms."""
    control_bytes_max: int = 16 * KIB
    """The most that packets other than DATA and ACK may use, for each route and direction."""
    initial_edge_bytes: int = 256 * KIB
    """The bytes that a sender may have in flight before the first EDGE (7.12)."""
    mailbox_bytes_max: int = 64 * MIB
    exit_mailbox_bytes_max: int = 256 * MIB
    user_bytes_max: int = 128 * MIB
    """Packets stored in all mailboxes of a user, except those of exits."""
    process_bytes_max: int = 512 * MIB
    general_packets_max: int = 16_384
    """Packets in a mailbox that belong to no route, such as CONNECT and REJECTED."""
    notices_max: int = 1024
    """DROPPED packets in a mailbox that name ids without a route."""
    unreceipted_bytes_max: int = 8 * MIB
    """Bytes sent on one link that were neither receipted nor taken back (8.2)."""
    unreceipted_packets_max: int = 4096
    """The same in packets; this also limits a streamed answer (7.20). All of them are taken back at once, which takes
    4 us for each, while other users wait."""
    link_stalled_us: int = 1 * SECOND
    """If a batch on a link has had no receipt for this time when the endpoint pulls, or sends on another link, the link
    gets no packets until something comes on it."""
    quantum_bytes: int = 64 * KIB
    """The quantum of the deficit round robin."""

    def __post_init__(self) -> None:
        zero_allowed = (
            "node",
            "streams",
            "hold_us_max",
            "settle_us",
            "pull_interval_us_min",
            "pull_interval_us_max",
            "replaced_max",
        )
        for field in fields(self):
            if field.name not in zero_allowed and getattr(self, field.name) < 1:
                raise ValueError(f"{field.name} must be at least 1, not {getattr(self, field.name)}")
        if not PACKETS_MIN <= self.packets_per_body_max <= PACKETS_MAX:
            # An endpoint whose body is refused as too large may not go below 4 KiB, or 170 empty packets (7.11).
            raise ValueError(f"packets_per_body_max must be at least {PACKETS_MIN} and at most {PACKETS_MAX}")
        if self.packet_bytes_max > PACKET_SIZE_MAX:
            raise ValueError(f"packet_bytes_max must be at most {PACKET_SIZE_MAX} (PROTOCOL 1.3)")
        if not 0 <= self.pull_interval_us_min <= self.pull_interval_us_max:
            raise ValueError("pull_interval_us_min must be at least 0 and at most pull_interval_us_max")
        if self.route_bytes_max < self.reserved_bytes:
            raise ValueError("route_bytes_max must be at least reserved_bytes")
        smallest = self.pool_bytes(min(self.mailbox_bytes_max, self.exit_mailbox_bytes_max, self.user_bytes_max))
        if smallest < self.reserved_bytes or self.pool_bytes(self.process_bytes_max) < 2 * self.reserved_bytes:
            raise ValueError(
                "no mailbox has room for even one route: raise mailbox_bytes_max, exit_mailbox_bytes_max, "
                "user_bytes_max or process_bytes_max, or lower reserved_bytes"
            )

    @staticmethod
    def pool_bytes(hard_bytes: int) -> int:
        """Return the part of a hard limit that reservations and shares use.

        The rest is for unconfirmed packets that are put back, and for overhead.
        """
        return hard_bytes - hard_bytes // 4
