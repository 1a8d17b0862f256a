"""The errors for refusals of an attachment, by the relay or by a proxy in front of it, or of a service's name, and when
to ask again."""

import math

from tunnel.errors import DeniedError, NotAuthenticatedError, ProxyPasswordError, TunnelError, UnreachableError
from tunnel.exchange import NEEDS_HTTPS, AttachRefused
from tunnel.exchange.config import OR_WAIT
from tunnel.wire import StatusCode

__all__ = ["OR_WAIT", "asked_again_s", "name_error", "refusal_error"]

_AGAIN_S: tuple[tuple[type[Exception], float], ...] = (
    (ProxyPasswordError, math.inf),  # proxies lock accounts whose wrong password is repeated
    (NotAuthenticatedError, 300.0),
    (DeniedError, 60.0),
    (Exception, 15.0),
)
_DENIALS = frozenset({403, 415})
_PROXY_AUTH_REQUIRED = 407
_UNAUTHORISED = 401
_SAYS_WHAT_TO_DO = ("ask the operator", "get a new one")  # in texts of the relay


def refusal_error(event: AttachRefused, where: str) -> TunnelError:
    """Return the error, which says what answered at `where`, and what to do next."""
    if event.status == _PROXY_AUTH_REQUIRED:
        return ProxyPasswordError(event.text)  # its text already says what to do
    if event.status == _UNAUTHORISED or event.code == StatusCode.NOT_AUTHORISED:
        # A relay does not say what is wrong with a token that it does not know.
        advice = "" if any(words in event.text for words in _SAYS_WHAT_TO_DO) else ": check the token"
        return NotAuthenticatedError(event.text + advice)
    if event.status in _DENIALS or event.code == StatusCode.DENIED:
        who = "the operator of the relay" + ("" if event.code else ", or of the proxy in front of it")
        return DeniedError(f"{event.text}: ask {who}")
    if NEEDS_HTTPS in event.text:
        return UnreachableError(f"{where}: {event.text}")
    if event.is_page:
        return UnreachableError(f"{where}: {event.text}: sign in there and try again{OR_WAIT}")
    if event.status:
        return UnreachableError(f"{where}: {event.text}: check that the URL belongs to a tunnel relay{OR_WAIT}")
    return UnreachableError(event.text)  # the lanes found this out themselves, and say what to do


def name_error(name: str, text: str) -> DeniedError:
    """Return the error for the name of a service that the relay refuses. Without a `text`, no rule allows the name."""
    reason = text or (
        f'the relay does not allow this user to listen under this name: ask its operator to add "{name}" to the list '
        "`listen` under your user's name in the configuration"
    )
    return DeniedError(f"{name}: {reason}")


def asked_again_s(error: Exception) -> float:
    """Return after how many seconds the same settings are tried again: by then, the relay's operator may have changed
    its rules. Infinity: only with another password."""
    return next(seconds for kind, seconds in _AGAIN_S if isinstance(error, kind))
