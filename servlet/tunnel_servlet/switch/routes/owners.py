"""Which user a service name belongs to, where the rules let several users listen under it (PROTOCOL 2.8)."""

from collections import OrderedDict
from collections.abc import Callable

__all__ = ["NameOwners"]


class NameOwners:
    """The owners of names. A name belongs to the user whose endpoint was the first to listen under it.

    When nothing listens under the name any more, it stays with this user for a while, so that a service that is
    started again finds its name free. Each user keeps only a limited number of such names; beyond it, the one left
    longest ago is freed. When only other users still listen under a name, the caller gives it to one of them (`take`).
    """

    def __init__(self, keep_us: int, kept_max: int) -> None:
        self._keep_us = keep_us
        self._kept_max = kept_max
        self._owners: dict[str, str] = {}
        # By owner: names under which nothing listens, and until when they are kept.
        self._kept: dict[str, OrderedDict[str, int]] = {}

    def owner(self, name: str, now: int) -> str:
        """Return the user that the name belongs to, or an empty string."""
        user = self._owners.get(name, "")
        kept = self._kept.get(user)
        if kept is not None and kept.get(name, now + 1) <= now:
            self._forget(user, name)
            return ""
        return user

    def take(self, name: str, user: str) -> None:
        """Give the name to a user, one of whose endpoints listens under it now."""
        before = self._owners.get(name)
        if before is not None:
            self._unkeep(before, name)
        self._owners[name] = user

    def on_left(self, name: str, now: int) -> None:
        """Note that no endpoint listens under the name any more."""
        user = self._owners.get(name)
        if user is None:
            return
        kept = self._kept.setdefault(user, OrderedDict())
        kept[name] = now + self._keep_us
        if len(kept) > self._kept_max:
            self._forget(user, next(iter(kept)))

    def forget_unless(self, is_allowed: Callable[[str, str], bool]) -> None:
        """Free the names that are kept for users who may not listen under them: `is_allowed(user, name)`."""
        for user, names in list(self._kept.items()):
            for name in [name for name in names if not is_allowed(user, name)]:
                self._forget(user, name)

    def _forget(self, user: str, name: str) -> None:
        self._unkeep(user, name)
        del self._owners[name]

    def _unkeep(self, user: str, name: str) -> None:
        kept = self._kept.get(user)
        if kept is not None and kept.pop(name, None) is not None and not kept:
            del self._kept[user]
