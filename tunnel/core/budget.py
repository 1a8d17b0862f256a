"""The budget from which a process grants receive windows, so that many connections cannot use up its memory."""

__all__ = ["WindowBudget"]


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
