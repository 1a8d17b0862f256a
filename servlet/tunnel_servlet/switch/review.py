"""Ends what the rules no longer allow, and sets new rates, after the operator has changed rules or tokens.

Clause 9.7 of docs/PROTOCOL.md.
"""

from collections.abc import Callable, Iterator

import msgspec

from tunnel.wire import DropReason, Target
from tunnel_servlet.switch.context import SwitchContext
from tunnel_servlet.switch.decisions import Decision, Deny, Rules
from tunnel_servlet.switch.lifecycle import Lifecycle
from tunnel_servlet.switch.model import Route, RouteState, ServedAttachment
from tunnel_servlet.switch.operating.rows import shown_target
from tunnel_servlet.switch.own_packets import listen_state_frame
from tunnel_servlet.switch.registry import Registry
from tunnel_servlet.switch.routes.openings import may_accept
from tunnel_servlet.switch.routes.routes import RouteTable
from tunnel_servlet.switch.routes.services import Services
from tunnel_servlet.switch.witness import EndpointEnd

__all__ = ["Ended", "Review"]

_ROUTES_PER_STEP = 16  # a step takes 3 ms at most: a denial with its text takes up to 0.2 ms
_REVOKED = "the user has no valid token any more"
_NO_EXIT = "the user may no longer be an exit"
_NO_ACCEPTOR = "the endpoint that accepted it may no longer do so"


class Ended(msgspec.Struct):
    """Something that was ended, as the log shows it."""

    kind: str  # "connection", "listener" or "endpoint"
    user: str
    name: str  # of the target, the service or the endpoint
    text: str


class Review:
    """Checks all attachments, routes and listeners with the same functions that decided whether they might begin.

    Those that are still allowed are not disturbed; bound routes get the new rates.
    """

    def __init__(
        self, context: SwitchContext, registry: Registry, routes: RouteTable, services: Services, lifecycle: Lifecycle
    ) -> None:
        self._context = context
        self._registry = registry
        self._routes = routes
        self._services = services
        self._lifecycle = lifecycle

    def steps(self, rules: Rules, clock: Callable[[], int]) -> Iterator[list[Ended]]:
        """End what `rules` do not allow, in small steps. Each yields what it has ended.

        Between two steps the caller may do anything else, and must decide by `rules` about all that begins.
        """
        attachments = list(self._registry.by_id.values())
        doomed = {found: why for found in attachments if (why := _why_not_attached(found, rules))}
        decisions: dict[tuple[str, Target], Decision] = {}  # many routes lead to the same target
        for attachment in attachments:
            opened = [leg.route for leg in attachment.legs.values() if leg is leg.route.initiator]
            for first in range(0, len(opened), _ROUTES_PER_STEP):
                some = [route for route in opened[first : first + _ROUTES_PER_STEP] if _is_there(route)]
                why = doomed.get(attachment, "")
                denied = [(route, why or _why_not_open(route, doomed, rules, decisions)) for route in some]
                yield [self._end_route(route, why, clock()) for route, why in denied if why]
                for route in some:
                    if route.state is RouteState.BOUND:
                        self._routes.pace(route, clock())
        for attachment in attachments:
            now = clock()
            if attachment not in doomed and not attachment.is_gone:
                yield self._refuse_names(attachment, rules, now)
        for attachment, why in doomed.items():
            if not attachment.is_gone:
                yield [self._end_attachment(attachment, why, clock())]
        self._context.pacing.forget_unused(set(self._registry.accounts))
        self._services.free_names(lambda user, name: rules.has_user(user) and rules.may_listen(user, name))

    def _end_route(self, route: Route, why: str, now: int) -> Ended:
        self._routes.deny(route, why, now)
        return Ended("connection", route.user, shown_target(route.target), why)

    def _end_attachment(self, attachment: ServedAttachment, why: str, now: int) -> Ended:
        self._context.counters.attachments_denied += 1
        self._lifecycle.remove(attachment, DropReason.GONE, now, EndpointEnd.DENIED)
        return Ended("endpoint", attachment.account.user, attachment.name, why)

    def _refuse_names(self, attachment: ServedAttachment, rules: Rules, now: int) -> list[Ended]:
        user = attachment.account.user
        ended: list[Ended] = []
        for state in self._services.refuse(attachment, rules.may_listen, now):
            attachment.mailbox.post(("listens " + state.name, 0), listen_state_frame(state))
            self._context.counters.listeners_denied += 1
            ended.append(Ended("listener", user, state.name, state.text or "no rule allows this name"))
        return ended


def _is_there(route: Route) -> bool:
    return route.state is not RouteState.RELEASED


def _why_not_attached(attachment: ServedAttachment, rules: Rules) -> str:
    """Return why the attachment must end, or an empty string."""
    if not rules.has_user(attachment.account.user):
        return _REVOKED
    return _NO_EXIT if attachment.is_exit and not rules.is_exit(attachment.account.user) else ""


def _why_not_open(
    route: Route,
    doomed: dict[ServedAttachment, str],
    rules: Rules,
    decisions: dict[tuple[str, Target], Decision],
) -> str:
    """Return why a route of an attachment that stays must end, or an empty string."""
    asked = route.asks_as, route.target
    decision = decisions.get(asked)
    if decision is None:
        decision = decisions[asked] = rules.authorise(*asked)
    if isinstance(decision, Deny):
        return decision.text or "no rule allows it"
    if route.state not in (RouteState.HANDED, RouteState.BOUND):
        return ""  # the relay checks the acceptor when it chooses one
    acceptor = route.acceptor.attachment
    is_kept = acceptor not in doomed and may_accept(acceptor, decision, route, rules.may_listen)
    return "" if is_kept else _NO_ACCEPTOR
