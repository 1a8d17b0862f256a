"""Tombstones: the ids of ended connections, which are not drawn again, and the answers to their CONNECTs.

Clauses 3.1, 3.3 of docs/PROTOCOL.md.
"""

from collections import deque

from tunnel.core.constants import SECOND_US, TOMBSTONE_US

__all__ = ["RouteName", "Tombstones"]

RouteName = tuple[str, bytes]
"""User and route key. Together they identify a CONNECT, which makes it idempotent."""

COHORT_US = 15 * SECOND_US
"""Connections that end within this time are forgotten together. A time for each would double the memory."""


class _Cohort:
    """The tombstones that are forgotten at the same time."""

    __slots__ = ("answers", "ids", "until_us")

    def __init__(self, until_us: int) -> None:
        self.until_us = until_us
        self.ids: set[int] = set()
        self.answers: dict[bytes, bytes] = {}


class Tombstones:
    """All tombstones of an endpoint.

    They are kept for 4 minutes, and for up to `COHORT_US` longer. Expired ones are removed when a tombstone is added
    and when an answer is looked up.
    """

    __slots__ = ("_cohorts",)

    def __init__(self) -> None:
        self._cohorts: deque[_Cohort] = deque()

    def __len__(self) -> int:
        return sum(len(cohort.ids) for cohort in self._cohorts)

    def add(self, connection_id: int, now: int) -> None:
        """Add an id that must not be drawn again."""
        self._cohort(now).ids.add(connection_id)

    def add_answer(self, route: RouteName, answer: bytes, now: int) -> None:
        """Add the answer to a repeated CONNECT. `answer` is the payload of REJECTED."""
        self._cohort(now).answers[_name(route)] = answer

    def has_id(self, connection_id: int) -> bool:
        """Return whether there is a tombstone of this id."""
        return any(connection_id in cohort.ids for cohort in self._cohorts)

    def answer(self, route: RouteName, now: int) -> bytes | None:
        """Return the answer to a CONNECT whose connection has ended; None if there is no tombstone of it."""
        self.clean(now)
        name = _name(route)
        for cohort in self._cohorts:
            if name in cohort.answers:
                return cohort.answers[name]
        return None

    def clean(self, now: int) -> None:
        """Remove the tombstones that have expired."""
        cohorts = self._cohorts
        while cohorts and cohorts[0].until_us <= now:
            cohorts.popleft()

    def _cohort(self, now: int) -> _Cohort:
        """Return the newest cohort if it still takes tombstones, else a new one."""
        self.clean(now)
        if not self._cohorts or self._cohorts[-1].until_us < now + TOMBSTONE_US:
            self._cohorts.append(_Cohort(now + TOMBSTONE_US + COHORT_US))
        return self._cohorts[-1]


def _name(route: RouteName) -> bytes:
    """Return user and route key as one bytes object. That is unambiguous, since the key has a fixed length."""
    user, key = route
    return key + user.encode()
