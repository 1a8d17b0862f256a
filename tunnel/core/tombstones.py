"""What outlives a connection: its id, which is not drawn again, and the answer to its CONNECT (3.1, 3.3)."""

from collections import deque

from tunnel.core.constants import SECOND_US, TOMBSTONE_US

__all__ = ["RestingPlace", "RouteName"]

RouteName = tuple[str, bytes]
"""User and route key: what makes CONNECT idempotent."""

SHELF_US = 15 * SECOND_US
"""What ends within so long is forgotten together: a time for each would cost as much as all else."""


class _Shelf:
    """What rests until the same time."""

    __slots__ = ("answers", "ids", "until_us")

    def __init__(self, until_us: int) -> None:
        self.until_us = until_us
        self.ids: set[int] = set()
        self.answers: dict[bytes, bytes] = {}


class RestingPlace:
    """Remembers for 4 minutes, and up to `SHELF_US` longer. Cleaned whenever something is put in or asked."""

    __slots__ = ("_shelves",)

    def __init__(self) -> None:
        self._shelves: deque[_Shelf] = deque()

    def __len__(self) -> int:
        return sum(len(shelf.ids) for shelf in self._shelves)

    def add(self, connection_id: int, now: int) -> None:
        """An id that is not to be drawn again."""
        self._shelf(now).ids.add(connection_id)

    def add_answer(self, route: RouteName, answer: bytes, now: int) -> None:
        """`answer` is the payload of REJECTED that a repeated CONNECT gets."""
        self._shelf(now).answers[_name(route)] = answer

    def has_id(self, connection_id: int) -> bool:
        """Whether the id rests."""
        return any(connection_id in shelf.ids for shelf in self._shelves)

    def answer(self, route: RouteName, now: int) -> bytes | None:
        """What to answer a CONNECT of a connection that has ended; None if it is not known."""
        self.clean(now)
        name = _name(route)
        for shelf in self._shelves:
            if name in shelf.answers:
                return shelf.answers[name]
        return None

    def clean(self, now: int) -> None:
        """Forget what has rested long enough."""
        shelves = self._shelves
        while shelves and shelves[0].until_us <= now:
            shelves.popleft()

    def _shelf(self, now: int) -> _Shelf:
        """The newest, while it is open; else a new one."""
        self.clean(now)
        if not self._shelves or self._shelves[-1].until_us < now + TOMBSTONE_US:
            self._shelves.append(_Shelf(now + TOMBSTONE_US + SHELF_US))
        return self._shelves[-1]


def _name(route: RouteName) -> bytes:
    """As one object; the key has a fixed length."""
    user, key = route
    return key + user.encode()
