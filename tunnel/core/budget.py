"""The budget from which an endpoint grants windows and buffers, so that many connections cannot use up the memory.

An endpoint that accepts connections of several users gives each of them a share. No grant makes a user's share larger
than half of what the others leave, so one user alone gets at most half of the budget.
"""

__all__ = ["BudgetShares", "WindowBudget"]


class WindowBudget:
    """Grants bytes until they are used up. The caller must release what it was granted."""

    __slots__ = ("granted_bytes", "total_bytes")

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.granted_bytes = 0

    def grant(self, wanted_bytes: int) -> int:
        """Grant `wanted_bytes`, or as many as are left. Return the number granted."""
        granted = max(0, min(wanted_bytes, self.total_bytes - self.granted_bytes))
        self.granted_bytes += granted
        return granted

    def release(self, released_bytes: int) -> None:
        """Give granted bytes back."""
        self.granted_bytes -= released_bytes


class UserShare(WindowBudget):
    """The part of a budget that one user's connections hold."""

    def __init__(self, pool: WindowBudget) -> None:
        super().__init__(pool.total_bytes)
        self.pool = pool
        self.connections = 0

    def grant(self, wanted_bytes: int) -> int:
        free = self.pool.total_bytes - self.pool.granted_bytes
        granted = self.pool.grant(min(wanted_bytes, max(0, (free - self.granted_bytes) // 2)))
        self.granted_bytes += granted
        return granted

    def release(self, released_bytes: int) -> None:
        self.granted_bytes -= released_bytes
        self.pool.release(released_bytes)


class BudgetShares:
    """The shares of all users who have opened connections to this endpoint."""

    def __init__(self, pool: WindowBudget) -> None:
        self._pool = pool
        self._shares: dict[str, UserShare] = {}

    def __len__(self) -> int:
        return len(self._shares)

    def enter(self, user: str) -> WindowBudget:
        """Return the budget of a new connection. Connections without a user are our own: they share the whole pool."""
        if not user:
            return self._pool
        share = self._shares.get(user)
        if share is None:
            share = self._shares[user] = UserShare(self._pool)
        share.connections += 1
        return share

    def leave(self, user: str) -> None:
        """Note that a connection of this user has ended, after it released what it was granted."""
        if user:
            share = self._shares[user]
            share.connections -= 1
            if not share.connections:
                del self._shares[user]
