"""Says, for people, why a connection that its initiator asked for has no answer yet (PROTOCOL 3.14)."""

from tunnel.wire import is_inline_exit
from tunnel_servlet.switch.model import Route, RouteState

__all__ = ["why_unanswered"]

_SECOND = 1_000_000
_NO_ROOM = (
    "every endpoint that offers the service has as many unanswered connections as it takes, and this one waits for room"
)


def why_unanswered(route: Route, now: int) -> str:
    """Return the reason in words; empty if the route is not waiting for an answer."""
    if route.state is RouteState.WAITING:
        return _NO_ROOM
    if route.state is not RouteState.HANDED:
        return ""
    acceptor = route.acceptor.attachment
    who = "the endpoint that offers the service"
    if route.listener is None:
        name = f' "{acceptor.name}"' if acceptor.name else ""
        who = "the exit in the relay's process" if is_inline_exit(acceptor.identity) else f"the exit{name}"
    unheard_us = acceptor.unheard_us(now)
    if unheard_us < _SECOND + acceptor.pull_interval_us:
        if route.listener is None:
            return f"{who} has the connection, and the target has not answered"
        return f"{who} has not accepted the connection"
    text = f"{who} has been silent for {unheard_us // _SECOND} s"
    if not acceptor.is_silent(now):
        return text
    if acceptor.has_encrypted and route.offers_encryption and route.listener is None:
        return f"{text}; it encrypts, and the relay gives such a connection to no exit that would take it in clear"
    return f"{text}; the relay knows no other for this connection"
