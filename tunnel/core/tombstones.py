"""What outlives a connection: its id, which is not drawn again, and the answer to its CONNECT (3.1, 3.3)."""

from collections import deque

from tunnel.core.constants import SECOND_US, TOMBSTONE_US

__all__ = ["RouteName", "Tombstones"]

RouteName = tuple[str, bytes]
"""User and route key: what makes CONNECT idempotent."""

COHORT_US = 15 * SECOND_US
"""What ends within so long is forgotten together: a time for each would cost as much as all else."""


class _Cohort:
    """What is remembered until the same time."""

    __slots__ = ("answers", "ids", "until_us")

    def __init__(self, until_us: int) -> None:
        self.until_us = until_us
        self.ids: set[int] = set()
        self.answers: dict[bytes, bytes] = {}


class Tombstones:
    """Remembers for 4 minutes, and up to `COHORT_US` longer. Cleaned whenever something is put in or asked."""

    __slots__ = ("_cohorts",)

    def __init__(self) -> None:
        self._cohorts: deque[_Cohort] = deque()

    def __len__(self) -> int:
        return sum(len(cohort.ids) for cohort in self._cohorts)

    def add(self, connection_id: int, now: int) -> None:
        """An id that is not to be drawn again."""
        self._cohort(now).ids.add(connection_id)

    def add_answer(self, route: RouteName, answer: bytes, now: int) -> None:
        """`answer` is the payload of REJECTED that a repeated CONNECT gets."""
        self._cohort(now).answers[_name(route)] = answer

    def has_id(self, connection_id: int) -> bool:
        """Whether the id rests."""
        return any(connection_id in cohort.ids for cohort in self._cohorts)

    def answer(self, route: RouteName, now: int) -> bytes | None:
        """What to answer a CONNECT of a connection that has ended; None if it is not known."""
        self.clean(now)
        name = _name(route)
        for cohort in self._cohorts:
            if name in cohort.answers:
                return cohort.answers[name]
        return None

    def clean(self, now: int) -> None:
        """Forget what has rested long enough."""
        cohorts = self._cohorts
        while cohorts and cohorts[0].until_us <= now:
            cohorts.popleft()

    def _cohort(self, now: int) -> _Cohort:
        """The newest, while it is open; else a new one."""
        self.clean(now)
        if not self._cohorts or self._cohorts[-1].until_us < now + TOMBSTONE_US:
            self._cohorts.append(_Cohort(now + TOMBSTONE_US + COHORT_US))
        return self._cohorts[-1]


def _name(route: RouteName) -> bytes:
    """As one object; the key has a fixed length."""
    user, key = route
    return key + user.encode()
