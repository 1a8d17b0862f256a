"""Limits the single events of one user, and counts the others, so that no user fills the files of the audit.

Connections that were opened, and their ends, are always single events; but nothing is of what anybody may cause.
"""

import msgspec

from tunnel_servlet.audit.event import Kind

__all__ = ["ALWAYS_SINGLE", "NOBODY", "Sum", "Sums"]

NOBODY = "(nobody)"  # pays for events of no user, which anybody may cause; no user has this name

ALWAYS_SINGLE = frozenset(Kind) - {
    *(Kind.CONNECTION_REFUSED, Kind.ENDPOINT_ATTACHED, Kind.ENDPOINT_DETACHED, Kind.SERVICE_OFFERED),
    *(Kind.SERVICE_REFUSED, Kind.STRANGER_JOINED, Kind.TARGET_REFUSED, Kind.TOKEN_REFUSED),
}  # of a user
_WINDOW_US = 60_000_000


class Sum(msgspec.Struct):
    """The events of one user since `since_us`: the single ones, and the numbers of the others by kind and reason."""

    since_us: int
    single: int = 0
    counts: dict[str, int] = {}


class Sums:
    """Decides which events are written one by one: of each user, `per_minute` in a minute. Times are in microseconds.

    The events that anybody may cause, such as wrong tokens, are those of `NOBODY`.
    """

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._users: dict[str, Sum] = {}
        self.summed = 0  # events that were only counted

    def admits(self, user: str, kind: Kind, reason: str, now: int) -> bool:
        """Whether this event is to be written. If not, it is counted."""
        if kind in ALWAYS_SINGLE and user != NOBODY:
            return True
        found = self._users.get(user)
        if found is None:
            found = self._users[user] = Sum(now)
        elif not found.counts and now - found.since_us >= _WINDOW_US:
            found.since_us, found.single = now, 0
        if found.single < self._per_minute:
            found.single += 1
            return True
        self.summed += 1
        name = f"{kind.value} {reason}" if reason else kind.value
        found.counts[name] = found.counts.get(name, 0) + 1
        return False

    @property
    def is_counting(self) -> bool:
        """Whether `take` has, or will have, anything to return."""
        return any(found.counts for found in self._users.values())

    def take(self, now: int, *, is_end: bool = False) -> list[tuple[str, Sum]]:
        """Return, by user, what was counted in the minutes that are over, or at all (`is_end`), and begin anew."""
        over = [(user, found) for user, found in self._users.items() if is_end or now - found.since_us >= _WINDOW_US]
        for user, _ in over:
            del self._users[user]
        return [(user, found) for user, found in over if found.counts]
