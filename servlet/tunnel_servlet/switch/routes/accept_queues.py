"""The accept queues: CONNECTs to services whose listeners have no room at the moment (PROTOCOL 2.8, 3.2)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from tunnel_servlet.switch.model import Route, Turn

__all__ = ["AcceptQueues"]


class AcceptQueues:
    """One queue for each service whose listeners have no room. Users take turns in it; the strangers who come to one
    user's service have turns of their own.

    A burst of one user therefore delays a connection of another user by one place. The queues need no limits of their
    own, since each route in them counts as open for its user.
    """

    def __init__(self) -> None:
        self._queues: dict[str, OrderedDict[Turn, dict[Route, None]]] = {}  # by service, then turn: oldest first
        self.changed: OrderedDict[str, None] = OrderedDict()  # names whose queues must be looked at

    def __len__(self) -> int:
        return sum(len(routes) for users in self._queues.values() for routes in users.values())

    def __contains__(self, name: str) -> bool:
        return name in self._queues

    def add(self, name: str, route: Route) -> None:
        """Let a route wait for the service of this name."""
        route.waits_for = name
        self._queues.setdefault(name, OrderedDict()).setdefault(route.turn, {})[route] = None

    def remove(self, route: Route) -> None:
        """Forget a route that no longer waits."""
        users = self._queues[route.waits_for]
        routes = users[route.turn]
        del routes[route]
        if not routes:
            del users[route.turn]
        if not users:
            del self._queues[route.waits_for]

    def firsts(self, name: str) -> Iterator[Route]:
        """Yield the oldest route of each user, and that of each owner's strangers, in the order of their turns."""
        for routes in self._queues.get(name, {}).values():
            yield next(iter(routes))

    def turn_taken(self, route: Route) -> None:
        """Remove a route that `firsts` has yielded. The next turn of its user comes after those of all other users."""
        users = self._queues[route.waits_for]
        self.remove(route)
        if route.turn in users:
            users.move_to_end(route.turn)

    # --- services that may have room

    def look_at(self, name: str) -> None:
        """Note that a route has come, that the listeners of this name have changed, or that one has room again."""
        if name in self._queues:
            self.changed[name] = None

    def poll_changed(self) -> str | None:
        """Return a name whose queue must be looked at, or None."""
        return self.changed.popitem(last=False)[0] if self.changed else None
