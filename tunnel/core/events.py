"""The events that the core reports to the application, in the order in which they happened."""

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
    "Moved",
    "PeerClosed",
    "PeerFinished",
    "Readable",
    "Refused",
    "Writable",
]


class LostReason(enum.Enum):
    """The reason for which a connection ended without a clean end of stream. The value is a text for people."""

    RESET = "reset by the peer"
    PEER_CLOSED = "the peer closed before it had acknowledged all bytes written"
    TIMEOUT = "no answer within the user timeout"
    INTEGRITY = "length or digest of the stream did not match"
    GONE = "the peer's endpoint no longer exists"
    UNKNOWN = "the peer does not know this connection"
    PROTOCOL = "the peer broke the protocol"
    SHUTDOWN = "the peer is shutting down"
    DENIED = "the relay's rules no longer allow it"
    MOVED = (
        "several relays answer at this address, and this endpoint was moved to another one, which does not know the "
        "connection"
    )
    ABORTED = "aborted by this side"


class Connected(msgspec.Struct, frozen=True):
    """The connection is open: our CONNECT was accepted, or the initiator has answered our ACCEPTED."""

    connection_id: int


class ConnectRequested(msgspec.Struct, frozen=True):
    """An initiator asks for a target of this exit, such as a TCP target: dial it, then call `accept` or `refuse`.

    It also comes for a service if `EndpointConfig.asks_services` is set. `offer` is the ClientHello of an initiator
    that offers encryption (3.13).
    """

    connection_id: int
    target: Target
    user: str
    offer: bytes = b""


class Incoming(msgspec.Struct, frozen=True):
    """A connection to a service of this endpoint has come.

    The event comes with the first packet of the initiator, other than ABORT or SHUTDOWN, after this endpoint has
    accepted (3.5).
    """

    connection_id: int
    service: str
    user: str


class Moved(msgspec.Struct, frozen=True):
    """The connection goes on at this endpoint. It comes from a sibling, at another relay (6.11)."""

    connection_id: int


class Readable(msgspec.Struct, frozen=True):
    """The connection has bytes to read, and had none before: read until `read` returns nothing."""

    connection_id: int


class Writable(msgspec.Struct, frozen=True):
    """`write` takes bytes again after it had refused some."""

    connection_id: int


class Flushed(msgspec.Struct, frozen=True):
    """Every byte written so far is acknowledged. The event comes only if some were unacknowledged before."""

    connection_id: int


class PeerClosed(msgspec.Struct, frozen=True):
    """The peer closed. It reads no more, so nothing can be written any more; the rest of its stream can still be read.

    Of the bytes written, `junked_bytes` were not acknowledged. If there are any, the connection will end with Lost.
    """

    connection_id: int
    junked_bytes: int


class PeerFinished(msgspec.Struct, frozen=True):
    """End of stream: the reader has taken the last byte, and length and digest match. The event comes once."""

    connection_id: int


class Closed(msgspec.Struct, frozen=True):
    """Both halves ended cleanly. This is the connection's last event."""

    connection_id: int


class Refused(msgspec.Struct, frozen=True):
    """Our CONNECT was refused. This is the connection's last event."""

    connection_id: int
    reason: RejectReason
    text: str


class Lost(msgspec.Struct, frozen=True):
    """The connection ended with an error. This is the connection's last event."""

    connection_id: int
    reason: LostReason
    text: str


Event: TypeAlias = (
    Connected
    | ConnectRequested
    | Incoming
    | Moved
    | Readable
    | Writable
    | Flushed
    | PeerClosed
    | PeerFinished
    | Closed
    | Refused
    | Lost
)
