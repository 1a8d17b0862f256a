"""The answers of the switch to HTTP requests, and how it refuses bodies that it cannot decode."""

import msgspec

from tunnel.exchange.served.served import ServedLane
from tunnel.wire import Buffer, EnvelopeError, Exchange, Status, StatusCode
from tunnel_servlet.switch.model import ServedAttachment

__all__ = ["BAD_BODY", "RelayResponse", "confirmed_lane", "unsent"]

BAD_BODY = {
    EnvelopeError.NOT_OURS: StatusCode.CORRUPT,  # the magic itself may be what was damaged
    EnvelopeError.TRUNCATED: StatusCode.CORRUPT,
    EnvelopeError.CORRUPT: StatusCode.CORRUPT,
    EnvelopeError.VERSION: StatusCode.MALFORMED,
    EnvelopeError.MALFORMED: StatusCode.MALFORMED,
}
"""The status for each error of a body. CORRUPT means that repeating the body may help (7.10)."""


class RelayResponse(msgspec.Struct):
    """The answer to one HTTP request, or the next envelope of a streamed answer. An empty body ends a stream."""

    handle: int
    status: int  # of HTTP
    body: list[Buffer]
    previous: int = 0  # the handle of the previous answer of the same lane, which need not arrive any more; 0: none
    goes_on: bool = False  # more of the same body follows


def unsent(lane: ServedLane, serial: int) -> str:
    """Return the text of the refusal of a request that confirms an answer which the lane has not sent."""
    text = f"no answer of lane {lane.lane} had serial {serial}, the newest had {lane.serial}"
    return f"{text}: a new generation starts its serials at 1"


def confirmed_lane(attachment: ServedAttachment, exchange: Exchange) -> ServedLane | Status | None:
    """Return the lane whose stream the request confirms, None if it confirms none, or the refusal."""
    if exchange.confirms is None:
        return None
    number, serial = exchange.confirms
    found = attachment.lanes.get(number)
    if found is None or not found[0].has_sent(serial):
        # Not MALFORMED: an endpoint may be right that attached again after a late copy of its ATTACH. A serial that was
        # never sent would confirm packets that never arrived.
        return Status(StatusCode.UNKNOWN, text=f"no answer of lane {number} had serial {serial}")
    return found[0]
