"""What the core tells the application, in the order in which it happened. Small, frozen, and complete in themselves."""

import enum
from typing import TypeAlias

import msgspec

from tunnel.wire import RejectReason, Target

__all__ = [
    "Closed",
    "ConnectRequested",
    "Connected",
    "Event",
    "Flushed",
    "Incoming",
    "Lost",
    "LostReason",
    "PeerClosed",
    "PeerFinished",
    "Readable",
    "Refused",
    "Writable",
]


class LostReason(enum.Enum):
    """Why a connection ended without a clean end of stream; the value is what a person may read."""

    RESET = "reset by the peer"
    PEER_CLOSED = "the peer closed with bytes of ours unread"
    TIMEOUT = "no answer within the user timeout"
    INTEGRITY = "length or digest of the stream did not match"
    GONE = "the peer's endpoint is gone"
    UNKNOWN = "the peer does not know this connection"
    PROTOCOL = "the peer broke the protocol"
    SHUTDOWN = "the peer is shutting down"
    ABORTED = "aborted by this side"


class Connected(msgspec.Struct, frozen=True):
    """The peer accepted our CONNECT."""

    connection_id: int


class ConnectRequested(msgspec.Struct, frozen=True):
    """Someone asks for a TCP target: dial it, then call `accept` or `refuse`."""

    connection_id: int
    target: Target
    user: str


class Incoming(msgspec.Struct, frozen=True):
    """A connection to a service that we listen for; its initiator has been heard."""

    connection_id: int
    service: str
    user: str


class Readable(msgspec.Struct, frozen=True):
    """There is something to read where there was nothing: read until it gives nothing."""

    connection_id: int


class Writable(msgspec.Struct, frozen=True):
    """`write` had refused bytes and takes some again."""

    connection_id: int


class Flushed(msgspec.Struct, frozen=True):
    """Every byte written so far is acknowledged; sent only where there had been unacknowledged ones."""

    connection_id: int


class PeerClosed(msgspec.Struct, frozen=True):
    """The peer closed: it reads no more, nothing can be written any more. Of what was written, `junked_bytes` were not
    acknowledged; if that is more than 0 the connection will end with Lost. What it wrote before can still be read."""

    connection_id: int
    junked_bytes: int


class PeerFinished(msgspec.Struct, frozen=True):
    """The reader took the last byte, length and digest were right: end of stream, once."""

    connection_id: int


class Closed(msgspec.Struct, frozen=True):
    """Both halves ended cleanly. Nothing follows for this connection."""

    connection_id: int


class Refused(msgspec.Struct, frozen=True):
    """Our CONNECT was refused. Nothing follows for this connection."""

    connection_id: int
    reason: RejectReason
    text: str


class Lost(msgspec.Struct, frozen=True):
    """The connection ended with an error. Nothing follows for this connection."""

    connection_id: int
    reason: LostReason
    text: str


Event: TypeAlias = (
    Connected
    | ConnectRequested
    | Incoming
    | Readable
    | Writable
    | Flushed
    | PeerClosed
    | PeerFinished
    | Closed
    | Refused
    | Lost
)
