"""The switch's counters and its present state, as the admin listener reports them."""

import enum

import msgspec

from tunnel.wire import RejectReason, StatusCode

__all__ = ["Counters", "RateWait", "SwitchStats", "Traffic", "Undelivered"]


class Traffic(msgspec.Struct):
    """Packets and their bytes since the start, from endpoints and to them; they only rise."""

    packets_received: int = 0
    bytes_received: int = 0
    packets_sent: int = 0  # including those sent again
    bytes_sent: int = 0


class Counters(msgspec.Struct):
    """Counters since the start of the relay; they only rise."""

    requests: int = 0  # request bodies that reached the switch
    answers: int = 0  # ANSWER and ATTACHED envelopes, of which a streamed answer has several
    refusals: int = 0  # responses with STATUS
    refusals_by_status: dict[str, int] = {}  # the same by the name of the StatusCode
    bodies_too_full: int = 0  # of the refusals, those of bodies with more packets than packets_per_body_max
    attaches_fresh: int = 0
    attachments_left: int = 0  # they had said so
    attachments_expired: int = 0
    attachments_replaced: int = 0
    links_opened: int = 0
    streams_opened: int = 0  # streamed answers

    packets_received: int = 0
    bytes_received: int = 0  # of packets
    packets_streamed: int = 0  # of those received: DATA, CLOSE, FINISH and OPTION that were queued on bound routes
    packets_sent: int = 0  # including those sent again
    bytes_sent: int = 0
    by_links: Traffic = msgspec.field(default_factory=Traffic)  # the part of all packets that links carried
    in_process: Traffic = msgspec.field(default_factory=Traffic)  # the part of endpoints in the relay's own process
    packets_taken_back: int = 0  # sent, not confirmed, and put back at the head of the mailbox

    # Packets that were not delivered; each counts once (`Undelivered`).
    packets_filtered: int = 0  # dropped by the packet filter
    packets_damaged: int = 0  # discarded by the parser
    packets_invalid: int = 0  # malformed, or not allowed from an endpoint
    packets_misaddressed: int = 0  # the destination is not the one that is bound (9.1)
    packets_too_early: int = 0  # their route is not bound, and they cannot be stored for it (3.6)
    packets_too_large: int = 0
    packets_dropped_full: int = 0  # named in DROPPED(full), or control packets for which there was no room
    packets_without_route: int = 0
    packets_replaced: int = 0  # a copy, or another control packet of the type, waits instead (9.2)
    packets_ended: int = 0  # they waited, or were not confirmed, when their route or attachment ended
    connects_ignored: int = 0  # the initiator repeats them

    connects: int = 0  # including repeats
    connects_refused: int = 0  # refused by the relay
    connects_refused_by_reason: dict[str, int] = {}  # the same by the name of the RejectReason
    connects_moved: int = 0  # handed to another acceptor, because the first one left or was silent
    routes_bound: int = 0
    routes_resumed: int = 0  # of those bound
    routes_released: int = 0
    routes_denied: int = 0  # of those released, because the rules or the tokens were changed
    routes_kicked: int = 0  # of those released, because the operator ended them
    routes_moved: int = 0  # of those released, because their initiators left for another relay
    routes_closed: int = 0  # of those released, because both sides of a bound one had ended
    routes_lost: int = 0  # of those released, because an endpoint was no longer attached
    listeners_denied: int = 0
    attachments_denied: int = 0
    attachments_kicked: int = 0  # the operator ended them
    resumes_parked: int = 0

    def refuse_connect(self, reason: int) -> None:
        """Count a CONNECT that the relay refuses for this reason; the answer to a question is no refusal."""
        if reason != RejectReason.ALLOWED:
            self.connects_refused += 1
            name = RejectReason(reason).name.lower()
            self.connects_refused_by_reason[name] = self.connects_refused_by_reason.get(name, 0) + 1

    def refuse_request(self, code: int) -> None:
        """Count a response with the STATUS of this code."""
        self.refusals += 1
        name = StatusCode(code).name.lower()
        self.refusals_by_status[name] = self.refusals_by_status.get(name, 0) + 1

    def copy(self) -> "Counters":
        """Return a copy that counts no further."""
        copy = msgspec.structs.replace
        return copy(
            self,
            refusals_by_status=dict(self.refusals_by_status),
            connects_refused_by_reason=dict(self.connects_refused_by_reason),
            by_links=copy(self.by_links),
            in_process=copy(self.in_process),
        )


class Undelivered(enum.Enum):
    """Why the relay did not deliver a packet: the names of the counters.

    Packets to the relay itself count as delivered: OPTION of an attachment, LISTEN_STATE, NOOP, and a CONNECT that it
    refuses.
    """

    FILTERED = "packets_filtered"
    DAMAGED = "packets_damaged"
    INVALID = "packets_invalid"
    MISADDRESSED = "packets_misaddressed"
    TOO_EARLY = "packets_too_early"
    TOO_LARGE = "packets_too_large"
    FULL = "packets_dropped_full"
    NO_ROUTE = "packets_without_route"
    REPLACED = "packets_replaced"
    ENDED = "packets_ended"
    IGNORED = "connects_ignored"


class SwitchStats(msgspec.Struct, frozen=True):
    """The switch's present state, and its counters."""

    users: int
    attachments: int
    exits: int
    links: int
    parked_pulls: int
    streams: int
    routes: int  # the sum of the five below
    routes_waiting: int  # for a listener with room
    routes_pending: int
    routes_parked: int
    routes_bound: int
    routes_aborted: int  # ended by ABORT, and kept for packets that come late (9.5)
    listeners: int
    bytes_held: int
    bytes_reserved: int
    bytes_outstanding: int
    timers: int
    counters: Counters

    @property
    def routes_open(self) -> int:
        """How many connections there are for those who use them."""
        return self.routes - self.routes_aborted


class RateWait(msgspec.Struct, frozen=True):
    """How long streams of one user have waited for a rate. The time starts at 0 again only if rules or tokens are
    reloaded while the user is not attached."""

    user: str
    rule: str  # empty: the rate of all the user's connections
    direction: str  # "up": from the user's endpoints; "down": to them
    bytes_per_second: int
    waited_ms: int
