"""Requests from the lanes to their carrier, and events from the lanes to the driver."""

from typing import TypeAlias

import msgspec

from tunnel.wire import BodyFormat, Buffer, Discarded, Packet

__all__ = [
    "Abandoned",
    "AttachRefused",
    "AttachedEvent",
    "BatchDone",
    "Detached",
    "LaneEvent",
    "LanesChanged",
    "PacketsReceived",
    "Recovered",
    "Request",
    "Troubled",
]


class Request(msgspec.Struct, frozen=True):
    """An HTTP request that the carrier must send: POST these buffers, in order, as one body.

    The carrier then calls `on_answered` or `on_failed` of the lanes with the request's id; if `stream` is set, it may
    call `on_received` and `on_ended` instead.
    """

    id: int
    body: list[Buffer]
    lane: int  # -1 for ATTACH
    number: int
    pull: bool
    repeat: int
    """0 for the first attempt. Any other attempt needs a new TCP connection, or one that has proven itself (7.5)."""
    format: BodyFormat
    """The format in which to send the body (7.19)."""
    deadline_us: int
    """When the lanes will act if no answer has come. The carrier itself needs no timeout."""
    stream: bool = False
    """Pass the answer on piece by piece, if its status is 200 (7.20)."""
    answer_bytes_max: int = 0
    """More than 0: the answer may well have this size, because the pull asks for what waits at the relay."""


class PacketsReceived(msgspec.Struct, frozen=True):
    """A batch came from the relay; it is delivered once. Payloads are slices of the buffer in which it came."""

    packets: list[Packet]
    discarded: Discarded | None


class BatchDone(msgspec.Struct, frozen=True):
    """A pushed batch is at the relay (`ok`), or was given up: then it may or may not have reached the relay."""

    token: int
    ok: bool


class AttachedEvent(msgspec.Struct, frozen=True):
    """The relay has answered ATTACH. The event comes again whenever the endpoint has attached again; the epoch may then
    be another."""

    epoch: int
    fresh: bool  # a fresh attach (6.3): routes must be resumed and services announced again
    packet_bytes_max: int
    initial_edge_bytes: int
    pull_interval_us: int
    packets_max: int = 0  # of one batch; 0: the relay did not say
    both_ran_us: int = 0
    """More than 0: another relay answered, which does not know our connections (6.3). It ran for at least this time
    while the earlier relay still answered, unless the machine has slept since the last attach: the clock stood still.
    """


class Detached(msgspec.Struct, frozen=True):
    """The attachment is lost, and all batches were given up before this event. The lanes attach again, unless
    `AttachRefused` follows."""


class LanesChanged(msgspec.Struct, frozen=True):
    """The number of lanes or the pull interval may have changed: pass both to `Endpoint.carrier_changed`."""

    lanes: int
    pull_interval_us: int


class Abandoned(msgspec.Struct, frozen=True):
    """The lanes no longer wait for this request: the carrier must close its connection."""

    request_id: int


class AttachRefused(msgspec.Struct, frozen=True):
    """The attachment was refused and repeating will not help (7.9): the lanes send nothing more.

    `code` is the relay's StatusCode, or 0 if there is none.
    """

    status: int
    code: int
    text: str
    is_page: bool = False  # the answer was a login page of an intermediary, or the like


class Troubled(msgspec.Struct, frozen=True):
    """The path is in trouble: one body has failed three times or more. Repeats go on.

    `last` describes the latest failure for people.
    """

    failures: int
    last: str
    is_partial: bool = False  # only requests that carry data are refused, while others pass


class Recovered(msgspec.Struct, frozen=True):
    """The first valid answer after `Troubled` has come."""


LaneEvent: TypeAlias = (
    PacketsReceived
    | BatchDone
    | AttachedEvent
    | Detached
    | LanesChanged
    | Abandoned
    | AttachRefused
    | Troubled
    | Recovered
)
