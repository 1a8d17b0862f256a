"""What an operator may set of the switch. Every limit bounds something that a peer can make grow."""

from dataclasses import dataclass, fields

from tunnel.wire import PACKET_SIZE_MAX

__all__ = ["FRAME_OVERHEAD_BYTES", "SwitchConfig"]

KIB, MIB = 1 << 10, 1 << 20  # bytes
SECOND = 1_000_000  # microseconds

FRAME_OVERHEAD_BYTES = 256  # what keeping one packet costs besides its bytes, rounded up (CPython 3.11)


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchConfig:
    """Limits and times of the switch. ValueError if they contradict each other."""

    node: str = "relay"
    """Name of this relay in traces."""

    # What ATTACHED announces (7.11)
    body_bytes_max: int = 1 * MIB
    """Largest request body that is taken, and largest answer that is made."""
    packet_bytes_max: int = 1 * MIB
    """Largest packet that is forwarded, header included."""
    packets_per_body_max: int = 16_384
    """Packets of one body that are looked at; the rest is dropped."""
    lanes_max: int = 8
    """Lanes per attachment."""
    hold_us_max: int = 30 * SECOND
    """A pull is held no longer, whatever it asks for (7.4)."""
    pull_interval_us_min: int = 0
    pull_interval_us_max: int = 60 * SECOND
    """What an endpoint may negotiate as the time between its pulls."""

    # Who may be there
    attachments_max: int = 10_000
    attachments_per_user_max: int = 100
    attachment_timeout_us: int = 300 * SECOND
    """An attachment that made no exchange and held no link for so long is forgotten (9.6)."""
    links_per_attachment_max: int = 4
    names_per_attachment_max: int = 64
    """Services an endpoint may listen for."""
    replaced_max: int = 4096
    """Ids of replaced attachments that are remembered, to refuse resumes at once (6.4)."""

    # Routes
    routes_max: int = 10_000
    routes_per_user_max: int = 4096
    routes_per_attachment_max: int = 1024
    """Routes that an attachment may have opened."""
    pending_timeout_us: int = 75 * SECOND
    """A CONNECT that was handed on is answered by then, or REJECTED(timed out): longer than the longest pause between
    two CONNECTs of an initiator, so that one more repeat comes in time (3.2)."""
    park_us: int = 5 * SECOND
    """How long a resume waits for the endpoint it names (6.5)."""
    settle_us: int = 5 * SECOND
    """After the first endpoint has attached, so long nobody is told that a service or exit is not there: everybody who
    was attached to the relay before this one is on the way back."""
    linger_us: int = 60 * SECOND
    """A route is released so long after the first SHUTDOWN (9.5)."""
    lingering_per_attachment_max: int = 1024
    """Routes of one attachment that wait for the second SHUTDOWN; beyond it the oldest is released."""

    # What is kept (9.2)
    reserved_bytes: int = 16 * KIB
    """Reserved for each route and direction."""
    early_bytes_max: int = 64 * KIB
    """DATA that is held before ACCEPTED (3.6)."""
    route_bytes_max: int = 8 * MIB
    """One route and direction gets no more of the pool. It is what may be under way to a slow endpoint, or on a long
    path: 50 MB/s with a round trip of 150 ms."""
    control_bytes_max: int = 16 * KIB
    """Reserved besides for what is not DATA, for each route and direction."""
    initial_edge_bytes: int = 256 * KIB
    """What a sender may have in flight before the first EDGE (7.12)."""
    mailbox_bytes_max: int = 32 * MIB
    exit_mailbox_bytes_max: int = 256 * MIB
    user_bytes_max: int = 128 * MIB
    """For all mailboxes of a user, exits aside."""
    process_bytes_max: int = 512 * MIB
    general_packets_max: int = 16_384
    """Packets in a mailbox that belong to no route: openings and refusals."""
    notices_max: int = 1024
    """Ids for which DROPPED waits in a mailbox because they have no route."""
    unreceipted_bytes_max: int = 8 * MIB
    """On one link: sent, and neither receipted nor taken back (8.2)."""
    link_stalled_us: int = 1 * SECOND
    """A link that owes a receipt for so long gets no more packets while the endpoint pulls."""
    quantum_bytes: int = 64 * KIB
    """Of the deficit round robin."""

    def __post_init__(self) -> None:
        zero_allowed = (
            "node",
            "hold_us_max",
            "settle_us",
            "pull_interval_us_min",
            "pull_interval_us_max",
            "replaced_max",
        )
        for field in fields(self):
            if field.name not in zero_allowed and getattr(self, field.name) < 1:
                raise ValueError(f"{field.name} must be at least 1, not {getattr(self, field.name)}")
        if self.packet_bytes_max > PACKET_SIZE_MAX:
            raise ValueError(f"a packet has at most {PACKET_SIZE_MAX} bytes (PROTOCOL 1.3)")
        if not 0 <= self.pull_interval_us_min <= self.pull_interval_us_max:
            raise ValueError("the smallest pull interval is above the largest, or negative")
        if self.route_bytes_max < self.reserved_bytes:
            raise ValueError("a route may use less than is reserved for it")
        smallest = self.pool_bytes(min(self.mailbox_bytes_max, self.exit_mailbox_bytes_max, self.user_bytes_max))
        if smallest < self.reserved_bytes or self.pool_bytes(self.process_bytes_max) < 2 * self.reserved_bytes:
            raise ValueError("no mailbox has room for even one route")

    @staticmethod
    def pool_bytes(hard_bytes: int) -> int:
        """What reservations and shares are cut from: the rest is for what comes back unconfirmed, and for overhead."""
        return hard_bytes - hard_bytes // 4
