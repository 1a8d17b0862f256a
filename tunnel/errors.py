"""The errors that a user of tunnel may get, and what to do about each.

TunnelError
├── LocalProtocolError            a method was called that the connection's state does not allow
├── PeerClosedError               the peer has closed, so no more data can be written
├── UnreachableError              no relay answers                                (exit code 3)
├── NotAuthenticatedError         the relay or a proxy rejected the credentials   (4)
│   └── ProxyPasswordError        it was a proxy                                  (4)
├── PeerKeyError                  the peer's key is not the one that is known     (4)
├── DeniedError                   the user is known, but no rule allows it        (5)
├── RefusedError                  the target or the service refused               (6)
├── LostError                     a connection ended without a clean end          (6)
│   └── ResetError                and the user timeout was not the reason
└── IntegrityError                received bytes may not be those written         (7)

All but TunnelError, LocalProtocolError and PeerClosedError are SocketErrors: also built-in errors that socket code
expects (ConnectionError, one of its subclasses, or PermissionError), with an errno, and their text as strerror.
docs/LIBRARY.md lists the numbers.
"""

import errno
import re
from typing import Any

from tunnel.core import Lost, LostReason, Refused
from tunnel.core.errors import LocalProtocolError, PeerClosedError, TunnelError
from tunnel.ground.exit_codes import DENIED, INTEGRITY, LOST, NOT_AUTHENTICATED, UNREACHABLE
from tunnel.ground.special_targets import NO_HOST, SRV_SHOWN
from tunnel.wire import RejectReason

__all__ = [
    "SESSION_STICKINESS",
    "DeniedError",
    "IntegrityError",
    "LocalProtocolError",
    "LostError",
    "LostReason",
    "NotAuthenticatedError",
    "PeerClosedError",
    "PeerKeyError",
    "ProxyPasswordError",
    "RefusedError",
    "RejectReason",
    "ResetError",
    "SocketError",
    "TunnelError",
    "UnreachableError",
    "lost_error",
    "refused_error",
]


class SocketError(TunnelError, OSError):
    """The base of the errors that are OSErrors too. The attribute `strerror` holds the text, which `str` returns.

    Callers that only know OSErrors print `strerror`, or compare `errno`. `str` leaves the number out, which
    OSError(number, text) would put before the text.
    """

    number = errno.ECONNABORTED  # the errno, unless `__init__` is called with another one

    def __init__(self, text: str = "", number: int | None = None) -> None:
        super().__init__(text)
        self.errno = self.number if number is None else number
        self.strerror = text

    def __str__(self) -> str:
        return str(self.strerror)

    def __reduce__(self) -> tuple[Any, ...]:
        make, arguments, state = super().__reduce__()
        return make, arguments, {**state, "errno": self.errno, "strerror": self.strerror}


class UnreachableError(SocketError, ConnectionError):
    """No relay answers at that address; the text says what happened instead."""

    exit_code = UNREACHABLE
    number = errno.ENETUNREACH


class NotAuthenticatedError(SocketError, PermissionError):
    """The relay, or a proxy in front of it, did not accept our credentials."""

    exit_code = NOT_AUTHENTICATED
    number = errno.EACCES


class ProxyPasswordError(NotAuthenticatedError):
    """A proxy did not accept our user and password. Do not send them again: many proxies lock accounts for that."""


class PeerKeyError(SocketError, ConnectionError):
    """The other end of the stream has another key than the known ones, or does not encrypt, although it has to; or the
    file of known peers cannot be used. The text says which, and what to do.
    """

    exit_code = NOT_AUTHENTICATED
    reason = LostReason.INTEGRITY


class DeniedError(SocketError, PermissionError):
    """The relay knows the user, but does not allow this."""

    exit_code = DENIED
    number = errno.EACCES
    reason = RejectReason.DENIED


class RefusedError(SocketError, ConnectionRefusedError):
    """The connection was refused; `reason` says why, and `said` is the text that came with the refusal."""

    exit_code = LOST
    number = errno.ECONNREFUSED

    def __init__(self, text: str, reason: RejectReason = RejectReason.REFUSED, said: str = "") -> None:
        super().__init__(text, _ERRNO.get(reason))
        self.reason = reason
        self.said = said


class LostError(SocketError, ConnectionError):
    """The connection ended, and some bytes did not arrive or may not have arrived. `reason` says why it ended."""

    exit_code = LOST
    number = errno.ECONNRESET

    def __init__(self, text: str, reason: LostReason = LostReason.TIMEOUT) -> None:
        super().__init__(text, errno.ETIMEDOUT if reason is LostReason.TIMEOUT else None)
        self.reason = reason


class ResetError(LostError, ConnectionResetError):
    """The connection ended, and not by the user timeout; for example, the peer closed early or was lost."""

    def __init__(self, text: str, reason: LostReason = LostReason.RESET) -> None:
        super().__init__(text, reason)


class IntegrityError(SocketError, ConnectionError):
    """The received bytes may not be those that the peer wrote: the stream's length, its digest or its encryption does
    not fit them. Do not use them.
    """

    exit_code = INTEGRITY
    reason = LostReason.INTEGRITY


_ERRNO = {
    RejectReason.UNREACHABLE: errno.EHOSTUNREACH,
    RejectReason.NO_EXIT: errno.EHOSTUNREACH,
    RejectReason.TIMED_OUT: errno.ETIMEDOUT,
}

# Two texts say what happened, and what to do. The text that came with the refusal is printed in place of the former.
_REFUSALS = {
    RejectReason.DENIED: ("no rule allows this target", "ask the operator of the relay for a rule"),
    RejectReason.REFUSED: ("the target refused the connection", "check that it listens there"),
    RejectReason.UNREACHABLE: ("the exit cannot reach the target", "check that the exit runs, and its network"),
    RejectReason.NAME_NOT_RESOLVED: ("the exit cannot resolve the name", "check it as seen from the exit"),
    RejectReason.TIMED_OUT: (
        "the target did not answer in time",
        "check that it runs, and for a firewall in front of it",
    ),
    RejectReason.NO_SUCH_SERVICE: ("no endpoint listens under this name", "start the service, or check its name"),
    RejectReason.GONE: ("the endpoint that held the connection was lost or replaced", "connect again"),
    RejectReason.BUSY: ("there is no room for another connection", "try again later, or raise the limits"),
    RejectReason.VERSION: ("the other side speaks another version", "update the older one"),
    RejectReason.ID_IN_USE: ("the relay already has a connection with this id", "connect again"),
    RejectReason.SHUTTING_DOWN: ("the other side is shutting down", "try again later"),
    RejectReason.MALFORMED: ("the request was not understood", "update the older side"),
    RejectReason.ALLOWED: ("the relay's rules allow this target, and nothing was opened", "connect to it"),
    RejectReason.FINISHED: ("the connection has already ended", "connect again"),
    RejectReason.NO_EXIT: ("no exit is attached to the relay", "start `tunnel-relay exit`, or see why it is away"),
}

SESSION_STICKINESS = (
    "configure the proxy in front of the relays to send each client to one of them (session stickiness), or name the "
    "URL of one relay"
)
_LOSSES = {
    LostReason.TIMEOUT: "check the path to the relay (tunnel doctor), or raise user_timeout",
    LostReason.INTEGRITY: "do not use the received data; a device between the endpoints alters it",
    LostReason.GONE: "connect again",
    LostReason.UNKNOWN: "connect again",
    LostReason.DENIED: "ask the operator of the relay for a rule that allows it",
    LostReason.MOVED: SESSION_STICKINESS,
}


def _is_special(target: str) -> bool:
    """Whether the text of a target stands for something other than a service."""
    return ":" in target or target.startswith(SRV_SHOWN)


def refused_error(event: Refused, target: str) -> RefusedError | DeniedError:
    """Return the error for a CONNECT that was refused."""
    what, advice = _REFUSALS[event.reason]
    what = event.text or what
    if NO_HOST in what:  # no rule could allow it
        advice = "check how the host is written"
    names_target = re.search(rf"(?<![\w.:-]){re.escape(target)}(?![\w.:-])", what)
    # The text of a denial may end with a line of a configuration, which a colon would seem to continue.
    separator = "; " if event.reason is RejectReason.DENIED else ": "
    text = f"{'' if names_target else f'{target}: '}{what}{separator}{advice}"
    if event.reason in (RejectReason.DENIED, RejectReason.NO_SUCH_SERVICE) and not _is_special(target):
        text = f"{text}; without a port, {target} is the name of a service: did you mean {target}:PORT?"
    if event.reason is RejectReason.DENIED:
        return DeniedError(text)
    return RefusedError(text, event.reason, event.text)


def lost_error(event: Lost, target: str) -> LostError | IntegrityError:
    """Return the error for a connection that did not end cleanly."""
    text = "; ".join(part for part in (event.reason.value, event.text, _LOSSES.get(event.reason, "")) if part)
    if event.reason is LostReason.INTEGRITY:
        return IntegrityError(f"{target}: {text}")
    if event.reason is LostReason.TIMEOUT:
        return LostError(f"{target}: {text}", event.reason)
    return ResetError(f"{target}: {text}", event.reason)
