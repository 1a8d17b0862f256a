"""Connection and endpoint state. Synchronous, without clock, socket or chance: the caller hands in `now`."""

from tunnel.core.config import EndpointConfig
from tunnel.core.connection.connection import Connection
from tunnel.core.connection.state import State
from tunnel.core.endpoint import Batch, Endpoint
from tunnel.core.errors import LocalProtocolError, PeerClosedError, TunnelError
from tunnel.core.events import (
    Closed,
    Connected,
    ConnectRequested,
    Event,
    Flushed,
    Incoming,
    Lost,
    LostReason,
    PeerClosed,
    PeerFinished,
    Readable,
    Refused,
    Writable,
)
from tunnel.core.stats import ConnectionStats

__all__ = [
    "Batch",
    "Closed",
    "ConnectRequested",
    "Connected",
    "Connection",
    "ConnectionStats",
    "Endpoint",
    "EndpointConfig",
    "Event",
    "Flushed",
    "Incoming",
    "LocalProtocolError",
    "Lost",
    "LostReason",
    "PeerClosed",
    "PeerClosedError",
    "PeerFinished",
    "Readable",
    "Refused",
    "State",
    "TunnelError",
    "Writable",
]
