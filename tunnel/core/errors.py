"""Errors that the caller made. What the peer or the path did wrong is an event, never an exception.

TunnelError
├── LocalProtocolError   a method was called that the connection's state does not allow
└── PeerClosedError      the peer has closed or is gone: nothing can be written any more
"""

__all__ = ["LocalProtocolError", "PeerClosedError", "TunnelError"]


class TunnelError(Exception):
    """Base of all errors raised by the transport."""


class LocalProtocolError(TunnelError):
    """The caller used a connection in a way that its state forbids; nothing was changed."""


class PeerClosedError(TunnelError):
    """Nobody is there to read what would be written; nothing was taken."""
