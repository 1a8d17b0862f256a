"""What can go wrong for a user of a tunnel, and what to do next.

TunnelError
├── LocalProtocolError            a method was called that the connection's state does not allow
├── PeerClosedError               the peer has closed: nothing can be written any more
├── UnreachableError              no relay answers                                (exit code 3)
├── NotAuthenticatedError         the relay, or a proxy, does not know us         (4)
├── DeniedError                   known, but no rule allows it                    (5)
├── RefusedError                  the target or the service did not take us       (6)
├── LostError                     a connection ended without its clean end        (6)
│   └── ResetError                because the other side, or its endpoint, went away
└── IntegrityError                bytes came that were not those written          (7)

Those of connections are also the built-in errors that socket code expects (ConnectionError and its kin).
"""

import errno

from tunnel.core import Lost, LostReason, Refused
from tunnel.core.errors import LocalProtocolError, PeerClosedError, TunnelError
from tunnel.exit_codes import DENIED, INTEGRITY, LOST, NOT_AUTHENTICATED, UNREACHABLE
from tunnel.wire import RejectReason

__all__ = [
    "DeniedError",
    "IntegrityError",
    "LocalProtocolError",
    "LostError",
    "LostReason",
    "NotAuthenticatedError",
    "PeerClosedError",
    "RefusedError",
    "RejectReason",
    "ResetError",
    "TunnelError",
    "UnreachableError",
    "lost_error",
    "refused_error",
]


class UnreachableError(TunnelError, ConnectionError):
    """No relay answers at that address; the text says what did instead."""

    exit_code = UNREACHABLE


class NotAuthenticatedError(TunnelError, PermissionError):
    """The relay, or a proxy before it, did not accept who we say we are."""

    exit_code = NOT_AUTHENTICATED


class DeniedError(TunnelError, PermissionError):
    """The relay knows us, and does not allow this."""

    exit_code = DENIED
    reason = RejectReason.DENIED


class RefusedError(TunnelError, ConnectionRefusedError):
    """The connection was not accepted; `reason` says by whom or why."""

    exit_code = LOST

    def __init__(self, text: str, reason: RejectReason = RejectReason.REFUSED) -> None:
        super().__init__(text)
        self.reason = reason
        self.errno = _ERRNO.get(reason, errno.ECONNREFUSED)


class LostError(TunnelError, ConnectionError):
    """The connection is over, and not every byte arrived, or it is not known whether. `reason` says why."""

    exit_code = LOST

    def __init__(self, text: str, reason: LostReason = LostReason.TIMEOUT) -> None:
        super().__init__(text)
        self.reason = reason


class ResetError(LostError, ConnectionResetError):
    """The other side closed before it had read everything, aborted, or is gone."""

    def __init__(self, text: str, reason: LostReason = LostReason.RESET) -> None:
        super().__init__(text, reason)
        self.errno = errno.ECONNRESET


class IntegrityError(TunnelError, ConnectionError):
    """Length or digest of the stream did not match: do not use what was received."""

    exit_code = INTEGRITY
    reason = LostReason.INTEGRITY


_ERRNO = {
    RejectReason.UNREACHABLE: errno.EHOSTUNREACH,
    RejectReason.TIMED_OUT: errno.ETIMEDOUT,
}

# What a person may do about a refusal; the relay's own text comes first.
_REFUSALS = {
    RejectReason.DENIED: "no rule of the relay allows it: ask its operator for a rule with this host and port",
    RejectReason.REFUSED: "the target refused the connection: check that it listens there",
    RejectReason.UNREACHABLE: "the exit cannot reach the target: check its network",
    RejectReason.NAME_NOT_RESOLVED: "the exit cannot resolve the name: check it as seen from the exit",
    RejectReason.TIMED_OUT: "the target did not answer in time: check a firewall before it",
    RejectReason.NO_SUCH_SERVICE: "nobody listens under this name: start the service, or check its name",
    RejectReason.GONE: "the endpoint that had the connection is gone: connect again",
    RejectReason.BUSY: "no room for another connection: try again later, or raise the limits",
    RejectReason.VERSION: "the other side speaks another version: update the older one",
    RejectReason.ID_IN_USE: "the relay already has a connection of this id: connect again",
    RejectReason.SHUTTING_DOWN: "the other side is shutting down: try again later",
    RejectReason.MALFORMED: "the request was not understood: update the older side",
    RejectReason.FINISHED: "the connection had come to its end: connect again",
}

_LOSSES = {
    LostReason.TIMEOUT: "check the path to the relay (tunnel doctor), or raise user_timeout",
    LostReason.INTEGRITY: "do not use what was received; something between the endpoints alters data",
    LostReason.GONE: "connect again",
    LostReason.UNKNOWN: "connect again",
}


def refused_error(event: Refused, target: str) -> RefusedError | DeniedError:
    """The error for a CONNECT that was refused."""
    text = f"{target}: {event.text + '; ' if event.text else ''}{_REFUSALS[event.reason]}"
    if event.reason is RejectReason.DENIED:
        return DeniedError(text)
    return RefusedError(text, event.reason)


def lost_error(event: Lost, target: str) -> LostError | IntegrityError:
    """The error for a connection that ended without its clean end."""
    text = "; ".join(part for part in (event.reason.value, event.text, _LOSSES.get(event.reason, "")) if part)
    if event.reason is LostReason.INTEGRITY:
        return IntegrityError(f"{target}: {text}")
    if event.reason is LostReason.TIMEOUT:
        return LostError(f"{target}: {text}", event.reason)
    return ResetError(f"{target}: {text}", event.reason)
