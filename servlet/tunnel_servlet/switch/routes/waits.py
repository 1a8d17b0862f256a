"""Says, for people, why a connection that its initiator asked for has no answer yet (PROTOCOL 3.14)."""

from tunnel.wire import Target, is_inline_exit
from tunnel_servlet.switch.model import Route, RouteState, ServedAttachment

__all__ = ["oldest_unanswered", "why_unanswered"]

_SECOND = 1_000_000
_NO_ROOM = (
    "no endpoint that offers the service takes another unanswered connection of this user, and this one waits for room"
)
_KEPT = "it encrypts, so its connection does not go to an exit in the relay's process, which does not encrypt"
_UNANSWERED = (RouteState.WAITING, RouteState.HANDED)


def oldest_unanswered(attachment: ServedAttachment, target: Target) -> Route | None:
    """Return the oldest connection to this target that the attachment asked for and that has no answer, if any."""
    for leg in attachment.legs.values():
        route = leg.route  # while it has no answer, only its initiator has a leg
        if route.state in _UNANSWERED and route.target == target and not route.resume:
            return route
    return None


def why_unanswered(route: Route, now: int) -> str:
    """Return the reason in words; empty if the route is not waiting for an answer. No user learns the name of an exit,
    which may be that of a machine of its operator."""
    if route.state is RouteState.WAITING:
        return _NO_ROOM
    if route.state is not RouteState.HANDED:
        return ""
    acceptor = route.acceptor.attachment
    who = "the endpoint that offers the service"
    if route.listener is None:
        who = "the exit in the relay's process" if is_inline_exit(acceptor.identity) else "the exit"
    unheard_us = acceptor.unheard_us(now)
    if unheard_us < _SECOND + acceptor.pull_interval_us:
        if route.listener is None:
            return f"{who} has the connection, and the target has not answered"
        return f"{who} has not accepted the connection"
    text = f"{who} has been silent for {unheard_us // _SECOND} s"
    is_kept = acceptor.is_silent(now) and acceptor.has_encrypted and route.offers_encryption and route.listener is None
    return f"{text}; {_KEPT}" if is_kept else text
