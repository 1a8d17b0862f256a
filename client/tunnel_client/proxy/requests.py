"""What every request to a local proxy has in common, whatever it was written in: a target, and two answers."""

import enum
from dataclasses import dataclass

from tunnel import DeniedError, RefusedError, RejectReason

__all__ = ["MalformedError", "Parsed", "ProxyRequest", "Why", "why"]


class Why(enum.Enum):
    """Why a target was not reached, as far as proxies can say it."""

    DENIED = "denied"
    NOT_RESOLVED = "not resolved"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    TIMED_OUT = "timed out"
    BUSY = "busy"
    LOST = "lost"  # the relay does not answer, or wants no more of us


class MalformedError(Exception):
    """This is no request; `answer` says so in its own protocol, and the connection ends."""

    def __init__(self, text: str, answer: bytes = b"") -> None:
        super().__init__(text)
        self.answer = answer


@dataclass(frozen=True, slots=True)
class ProxyRequest:
    """Somebody wants to reach a target. Subclasses know how to answer."""

    host: str
    port: int
    is_udp: bool = False
    early: bytes = b""
    """To write to the target before anything else."""
    body_bytes: int | None = None
    """How much of what follows belongs to the request; None: all."""

    def granted(self) -> bytes:
        """The answer when the target was reached."""
        raise NotImplementedError

    def refused(self, reason: Why, text: str) -> bytes:
        """The answer when it was not; the connection ends."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Parsed:
    """A request, or an answer that it is to be asked for with; and how many bytes that took."""

    size: int
    request: ProxyRequest | None = None
    answer: bytes = b""


_REASONS = {
    RejectReason.DENIED: Why.DENIED,
    RejectReason.NAME_NOT_RESOLVED: Why.NOT_RESOLVED,
    RejectReason.REFUSED: Why.REFUSED,
    RejectReason.UNREACHABLE: Why.UNREACHABLE,
    RejectReason.TIMED_OUT: Why.TIMED_OUT,
    RejectReason.BUSY: Why.BUSY,
    RejectReason.SHUTTING_DOWN: Why.BUSY,
}


def why(error: Exception) -> Why:
    """The reason behind an error of `open_connection`."""
    match error:
        case DeniedError():
            return Why.DENIED
        case RefusedError(reason=reason):
            return _REASONS.get(reason, Why.UNREACHABLE)
        case TimeoutError():
            return Why.TIMED_OUT
    return Why.LOST
