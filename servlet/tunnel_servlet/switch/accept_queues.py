"""The accept queues: CONNECTs to services whose listeners have no room at the moment (2.8, 3.2)."""

from __future__ import annotations

from collections import OrderedDict

from tunnel_servlet.switch.model import Route

__all__ = ["AcceptQueues"]


class AcceptQueues:
    """One queue for each service that is short of room, in which users take turns.

    A burst of one user therefore delays a connection of another user by one place. The queues need no limits of their
    own, since each route in them counts as open for its user.
    """

    def __init__(self) -> None:
        self._queues: dict[str, OrderedDict[str, dict[Route, None]]] = {}  # by service, then user: oldest first
        self._changed: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(routes) for users in self._queues.values() for routes in users.values())

    def __contains__(self, name: str) -> bool:
        return name in self._queues

    def add(self, name: str, route: Route) -> None:
        """Let a route wait for the service of this name."""
        route.waits_for = name
        self._queues.setdefault(name, OrderedDict()).setdefault(route.user, {})[route] = None

    def remove(self, route: Route) -> None:
        """Forget a route that waits no more."""
        users = self._queues[route.waits_for]
        routes = users[route.user]
        del routes[route]
        if not routes:
            del users[route.user]
        if not users:
            del self._queues[route.waits_for]

    def first(self, name: str) -> Route | None:
        """Return the oldest route of the user whose turn it is, or None if no route waits."""
        users = self._queues.get(name)
        return None if users is None else next(iter(next(iter(users.values()))))

    def turn_taken(self, route: Route) -> None:
        """Remove a route that was first, and give the next turn to another user."""
        users = self._queues[route.waits_for]
        self.remove(route)
        if route.user in users:
            users.move_to_end(route.user)

    # --- services that may have room

    def look_at(self, name: str) -> None:
        """Note that the listeners of this name have changed, or that one of them has room again."""
        if name in self._queues:
            self._changed[name] = None

    def poll_changed(self) -> str | None:
        """Return a name whose queue must be looked at, or None."""
        return self._changed.popitem(last=False)[0] if self._changed else None
