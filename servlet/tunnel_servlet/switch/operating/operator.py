"""The operator's side of the switch: what there is, and how to end it (PROTOCOL 9.10)."""

from collections.abc import Callable, Iterator

from tunnel.wire import DropReason
from tunnel_servlet.switch.context import SwitchContext
from tunnel_servlet.switch.inline_id import is_own_name
from tunnel_servlet.switch.lifecycle import Lifecycle
from tunnel_servlet.switch.model import Listener, Route, RouteState, ServedAttachment
from tunnel_servlet.switch.operating.rows import UserRow, number_in, shown_target, user_row
from tunnel_servlet.switch.registry import Registry
from tunnel_servlet.switch.review import Ended
from tunnel_servlet.switch.routes.routes import RouteTable
from tunnel_servlet.switch.witness import EndpointEnd

__all__ = ["ATTACHMENT_KICKED", "KICKED", "Operator"]

KICKED = "the operator of the relay ended this connection"
_ROUTES_PER_STEP = 16  # as in a review: a step takes 3 ms at most
ATTACHMENT_KICKED = "the operator of the relay ended this attachment"
_ENDPOINT_KICKED = "the operator of the relay ended the attachment of an endpoint of this connection"


class Operator:
    """Lists and ends connections and attachments. The caller must let the switch serve after each call or step that
    ends something.

    An endpoint whose attachment was ended may attach again, and open new connections.
    """

    def __init__(
        self, epoch: int, context: SwitchContext, registry: Registry, routes: RouteTable, lifecycle: Lifecycle
    ) -> None:
        self.epoch = epoch
        self._context = context
        self._registry = registry
        self._routes = routes
        self._lifecycle = lifecycle
        self._awaited: ServedAttachment | None = None  # that still had to learn of an ABORT when this was last asked

    # --- what there is

    def connections(self) -> list[Route]:
        """Return all connections, the oldest first. One that a side has aborted has ended."""
        return [route for route in self._routes.by_number.values() if not route.is_aborted]

    def are_over(self) -> bool:
        """Whether no connection is left, and no end of one that was aborted or kicked still has to learn of it."""
        routes = self._routes
        if len(routes) != routes.aborted or any(
            leg.queue.control
            for route in routes.by_number.values()
            for leg in (route.initiator, route.acceptor)
            if not leg.has_shut
        ):
            return False
        if self._awaited is None or self._awaited.is_gone or not _owes_abort(self._awaited):
            # All are looked at only when one has it: this is asked again and again.
            self._awaited = next((one for one in self._registry.by_id.values() if _owes_abort(one)), None)
        return self._awaited is None

    def attachments(self) -> list[ServedAttachment]:
        """Return all attachments, the oldest first."""
        return list(self._registry.by_id.values())

    def users(self) -> list[UserRow]:
        """Return the users with an endpoint that is attached; the relay's own endpoints belong to none."""
        accounts, config = self._registry.accounts.values(), self._context.config
        return [user_row(account, config) for account in accounts if not is_own_name(account.user)]

    def services(self) -> list[Listener]:
        """Return all services that are offered."""
        found = self._registry.by_id.values()
        return [listener for one in found for listener in one.listeners.values() if listener.is_up]

    def connection(self, text: str) -> Route | None:
        """Return the connection of this id, or None if there is none. Raise ValueError if it is no such id."""
        return self.find(number_in(text, "c", self.epoch))

    def find(self, number: int) -> Route | None:
        """Return the connection of this number, or None if there is none."""
        return self._routes.by_number.get(number)

    def attachment(self, text: str) -> ServedAttachment | None:
        """Return the attachment of this id, or None if there is none. Raise ValueError if it is no such id."""
        number = number_in(text, "a", self.epoch)
        return next((one for one in self._registry.by_id.values() if one.number == number), None)

    def attachments_of(self, user: str) -> list[ServedAttachment]:
        """Return the attachments of a user; none if this is a name of the relay's own endpoints."""
        if is_own_name(user):
            return []
        return [one for one in self._registry.by_id.values() if one.account.user == user]

    # --- ends

    def kick_connection(self, route: Route, now: int) -> Ended:
        """End a connection: both endpoints get a reset, and learn why."""
        self._routes.kick(route, KICKED, now)
        return Ended("connection", route.user, shown_target(route.target), KICKED)

    def kick_attachments(self, attachments: list[ServedAttachment], clock: Callable[[], int]) -> Iterator[list[Ended]]:
        """End attachments and their connections, in small steps. Each yields what it has ended.

        The other ends learn why. A CONNECT that one of the attachments was given and has not answered goes to another
        acceptor.
        """
        for attachment in attachments:
            routes = dict.fromkeys(leg.route for leg in attachment.legs.values())
            ended: list[Ended] = []
            for route in routes:
                if route.state is not RouteState.RELEASED:
                    self._routes.kick(route, _ENDPOINT_KICKED, clock())
                    ended.append(Ended("connection", route.user, shown_target(route.target), _ENDPOINT_KICKED))
                if len(ended) == _ROUTES_PER_STEP:
                    yield ended
                    ended = []
            yield ended
        for attachment in attachments:
            if not attachment.is_gone:
                self._context.counters.attachments_kicked += 1
                self._lifecycle.remove(attachment, DropReason.GONE, clock(), EndpointEnd.KICKED)
                yield [Ended("endpoint", attachment.account.user, attachment.name, ATTACHMENT_KICKED)]


def _owes_abort(attachment: ServedAttachment) -> bool:
    """Whether the endpoint still has to learn of an ABORT. By link, a receipt shows that it has; the answer to a
    request leaves as a whole."""
    return attachment.mailbox.holds_abort or any(link.holds_abort for link in attachment.links.values())
