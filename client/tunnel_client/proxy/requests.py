"""The common parts of the requests to the local proxy, in every protocol: a target, and answers for both outcomes."""

import enum
from dataclasses import dataclass

from tunnel import DeniedError, RefusedError, RejectReason

__all__ = ["MalformedError", "Parsed", "ProxyRequest", "Why", "why"]


class Why(enum.Enum):
    """Why a target was not reached, as far as proxy protocols can express it."""

    DENIED = "denied"
    NOT_RESOLVED = "not resolved"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    TIMED_OUT = "timed out"
    BUSY = "busy"
    LOST = "lost"  # the relay does not answer, or no longer accepts this user


class MalformedError(Exception):
    """The client sent something other than a request. `answer` tells the client so; then the connection ends."""

    def __init__(self, text: str, answer: bytes = b"") -> None:
        super().__init__(text)
        self.answer = answer


@dataclass(frozen=True, slots=True)
class ProxyRequest:
    """A client's request to reach a target. The subclass of each protocol builds the answers."""

    host: str
    port: int
    is_udp: bool = False
    early: bytes = b""
    """Bytes to write to the target before any others."""
    body_bytes: int | None = None
    """How many of the bytes that the client sends after `early` belong to the request; None means all."""

    def success_answer(self) -> bytes:
        """Return the answer for a target that was reached."""
        raise NotImplementedError

    def refusal_answer(self, reason: Why, text: str) -> bytes:
        """Return the answer for a target that was not reached. After it, the connection ends."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Parsed:
    """The result of parsing `size` bytes: a request, or an answer after which the client sends its request."""

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
    """Return the reason for an error of `open_connection`."""
    match error:
        case DeniedError():
            return Why.DENIED
        case RefusedError(reason=reason):
            return _REASONS.get(reason, Why.UNREACHABLE)
        case TimeoutError():
            return Why.TIMED_OUT
    return Why.LOST
