"""What outlives a connection: its id, which is not drawn again, and the answer to its CONNECT (3.1, 3.3)."""

from collections import deque

from tunnel.core.constants import TOMBSTONE_US

__all__ = ["RestingPlace", "RouteName"]

RouteName = tuple[str, bytes]
"""User and route key: what makes CONNECT idempotent."""


class RestingPlace:
    """Remembers for 4 minutes. Cleaned whenever something is put in or asked."""

    __slots__ = ("_answers", "_ids", "_order")

    def __init__(self) -> None:
        self._ids: dict[int, None] = {}
        self._answers: dict[RouteName, bytes] = {}
        self._order: deque[tuple[int, int, RouteName]] = deque()

    def __len__(self) -> int:
        return len(self._order)

    def add(self, connection_id: int, route: RouteName, answer: bytes, now: int) -> None:
        """`answer` is the payload of REJECTED that a repeated CONNECT gets."""
        self.clean(now)
        self._ids[connection_id] = None
        self._answers[route] = answer
        self._order.append((now + TOMBSTONE_US, connection_id, route))

    def has_id(self, connection_id: int) -> bool:
        """Whether the id rests."""
        return connection_id in self._ids

    def answer(self, route: RouteName, now: int) -> bytes | None:
        """What to answer a CONNECT of a connection that has ended; None if it is not known."""
        self.clean(now)
        return self._answers.get(route)

    def clean(self, now: int) -> None:
        """Forget what has rested long enough."""
        order = self._order
        while order and order[0][0] <= now:
            _, connection_id, route = order.popleft()
            self._ids.pop(connection_id, None)
            self._answers.pop(route, None)
