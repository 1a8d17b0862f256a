"""The errors with which the core refuses a call. Faults of the peer or the path are events, never exceptions.

TunnelError
├── LocalProtocolError   the state of the connection does not allow the call
└── PeerClosedError      the peer has closed or is lost: nothing can be written any more
"""

__all__ = ["LocalProtocolError", "PeerClosedError", "TunnelError"]


class TunnelError(Exception):
    """The base class of the tunnel's own errors."""


class LocalProtocolError(TunnelError):
    """The state of the connection does not allow the call. The call changed nothing."""


class PeerClosedError(TunnelError):
    """The peer will not read any further data. No byte was taken."""
