"""The errors with which the core refuses a call. Faults of the peer or the path are events, never exceptions.

TunnelError
├── LocalProtocolError   the state of the connection does not allow the call
└── PeerClosedError      the peer has closed or is lost: nothing can be written any more
"""

from typing import Any

__all__ = ["LocalProtocolError", "PeerClosedError", "TunnelError"]


class TunnelError(Exception):
    """The base class of the tunnel's own errors."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Let errors be copied, also to another process. `__init__` is not called again: its parameters differ."""
        return _copied, (type(self), self.args), dict(self.__dict__)


class LocalProtocolError(TunnelError):
    """The state of the connection does not allow the call. The call changed nothing."""


class PeerClosedError(TunnelError):
    """The peer will not read any further data. No byte was taken."""


def _copied(kind: type[TunnelError], arguments: tuple[Any, ...]) -> TunnelError:
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    return error
