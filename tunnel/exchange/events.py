"""What the lanes ask of their carrier, and what they tell their driver. Small, frozen, complete in themselves."""

from typing import TypeAlias

import msgspec

from tunnel.wire import Buffer, Discarded, Packet

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
    """An HTTP request to send: POST these buffers, in order, as one body. Report `answered` or `failed` with its id."""

    id: int
    body: list[Buffer]
    lane: int  # -1: the ATTACH
    number: int
    pull: bool
    repeat: int
    """0: the first attempt. Above 0 the carrier must open a new TCP connection for it (7.5)."""
    deadline_us: int
    """When the lanes will do something about its silence; the carrier itself needs no timeout."""


class PacketsReceived(msgspec.Struct, frozen=True):
    """One batch from the relay, handed out once. Payloads are slices of the response body."""

    packets: list[Packet]
    discarded: Discarded | None


class BatchDone(msgspec.Struct, frozen=True):
    """The receipt of a pushed batch. ok: it is at the relay. Else it was given up: it may or may not have got there."""

    token: int
    ok: bool


class AttachedEvent(msgspec.Struct, frozen=True):
    """The relay knows us. Comes again, with another epoch or not, after each `Detached`."""

    epoch: int
    fresh: bool  # no route of this attachment exists (6.3)
    packet_bytes_max: int
    initial_edge_bytes: int
    pull_interval_us: int


class Detached(msgspec.Struct, frozen=True):
    """The relay forgot us: all batches were given up before this, and attaching again has begun."""


class LanesChanged(msgspec.Struct, frozen=True):
    """There are more or fewer lanes, or pulls come at another interval: what `Endpoint.carrier_changed` wants."""

    lanes: int
    pull_interval_us: int


class Abandoned(msgspec.Struct, frozen=True):
    """Nothing is expected of this request any more: close its connection."""

    request_id: int


class AttachRefused(msgspec.Struct, frozen=True):
    """Repeating will not help (7.9): nothing more is sent. `code` is a StatusCode, or 0 if `status` says it all."""

    status: int
    code: int
    text: str


class Troubled(msgspec.Struct, frozen=True):
    """One body failed for the third time; repeats go on. `last` tells a person what happened the last time."""

    failures: int
    last: str


class Recovered(msgspec.Struct, frozen=True):
    """The first valid answer after `Troubled`."""


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
