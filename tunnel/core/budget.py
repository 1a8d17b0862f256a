"""Receive windows are granted from one budget per process, so that many connections cannot ask for all its memory."""

__all__ = ["WindowBudget"]


class WindowBudget:
    """Grants bytes until they are used up. Who was granted something must release it."""

    __slots__ = ("granted_bytes", "total_bytes")

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.granted_bytes = 0

    def grant(self, wanted_bytes: int) -> int:
        """As much of what is wanted as is left."""
        granted = max(0, min(wanted_bytes, self.total_bytes - self.granted_bytes))
        self.granted_bytes += granted
        return granted

    def release(self, released_bytes: int) -> None:
        """Give back what was granted."""
        self.granted_bytes -= released_bytes
