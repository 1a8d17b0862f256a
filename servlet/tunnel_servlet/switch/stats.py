"""What the switch counts."""

import msgspec

__all__ = ["Counters", "SwitchStats"]


class Counters(msgspec.Struct):
    """Since the start; they only rise."""

    requests: int = 0  # bodies handed in
    answers: int = 0  # ANSWER and ATTACHED
    refusals: int = 0  # STATUS
    attaches_fresh: int = 0
    attachments_expired: int = 0
    attachments_replaced: int = 0
    links_opened: int = 0

    packets_received: int = 0
    bytes_received: int = 0  # of packets
    packets_sent: int = 0  # those sent again included
    bytes_sent: int = 0
    packets_replaced: int = 0  # a later attempt found an earlier one waiting
    packets_taken_back: int = 0  # sent, not confirmed, and first in line again

    packets_filtered: int = 0  # by the packet filter
    packets_damaged: int = 0  # thrown away by parsing
    packets_invalid: int = 0  # malformed, or what no endpoint may send
    packets_misaddressed: int = 0  # the destination is not the one bound (9.1)
    packets_too_many: int = 0  # in one body
    packets_too_large: int = 0
    packets_dropped_full: int = 0  # named in DROPPED(full), or small control packets
    packets_without_route: int = 0

    connects: int = 0  # first ones and repeats
    connects_refused: int = 0  # by the relay
    routes_bound: int = 0
    routes_resumed: int = 0  # of those bound
    routes_released: int = 0
    resumes_parked: int = 0


class SwitchStats(msgspec.Struct, frozen=True):
    """How things are now, and the counters so far."""

    users: int
    attachments: int
    exits: int
    links: int
    parked_pulls: int
    routes: int  # all of those below
    routes_pending: int
    routes_parked: int
    routes_bound: int
    listeners: int
    bytes_held: int
    bytes_reserved: int
    bytes_outstanding: int
    timers: int
    counters: Counters
