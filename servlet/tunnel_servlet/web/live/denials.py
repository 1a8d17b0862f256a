"""The last requests that the rules denied, with the line that would allow them."""

from collections import OrderedDict
from collections.abc import Callable

import msgspec

from tunnel.system.clock import now_us

__all__ = ["Denial", "Denials"]

_PER_USER = 20
_USERS_MAX = 50
_SECOND = 1_000_000


class Denial(msgspec.Struct):
    """What the rules denied to a user. `text` says why, and which line would allow it."""

    user: str
    what: str  # the target, or the service under which the user wanted to listen
    text: str = ""
    count: int = 0
    last_us: int = 0
    age_s: int = 0


class Denials:
    """Keeps the last denials of each user. A user who asks for much displaces only what the same user asked for."""

    def __init__(self, clock: Callable[[], int] = now_us) -> None:
        self._clock = clock
        self._of: OrderedDict[str, OrderedDict[str, Denial]] = OrderedDict()  # by user, then by what; the oldest first

    def add(self, user: str, what: str, text: str) -> None:
        """Note a denial. The same one again counts up."""
        found = self._of.setdefault(user, OrderedDict())
        self._of.move_to_end(user)
        denial = found.setdefault(what, Denial(user, what))
        found.move_to_end(what)
        denial.count += 1
        denial.text, denial.last_us = text, self._clock()
        if len(found) > _PER_USER:
            found.popitem(last=False)
        if len(self._of) > _USERS_MAX:
            self._of.popitem(last=False)

    def rows(self) -> list[Denial]:
        """Return all that is kept, the newest first."""
        now = self._clock()
        kept = [denial for found in self._of.values() for denial in found.values()]
        for denial in kept:
            denial.age_s = (now - denial.last_us) // _SECOND
        return sorted(kept, key=lambda denial: -denial.last_us)
