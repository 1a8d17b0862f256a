"""What the sender counts, as its document names it: messages buffered, and what of that the socket took.

Each `increment_out_bytes` is one message that moved from the queue to the byte buffer; each `register_write` says that
all of the byte buffer went to the socket. What was incremented and not registered when the connection broke is lost.
"""

import enum
from dataclasses import dataclass

__all__ = ["Count", "Phase", "PhaseStatistics"]


class Phase(enum.Enum):
    """Before the connection broke, and after."""

    BEFORE = 1
    AFTER = 2


@dataclass
class Count:
    """Messages and their bytes."""

    messages: int = 0
    size_bytes: int = 0

    def add(self, messages: int, size_bytes: int) -> None:
        """Count these too."""
        self.messages += messages
        self.size_bytes += size_bytes


class PhaseStatistics:
    """Counts of both phases; `phase` says which one counts now."""

    def __init__(self) -> None:
        self.phase = Phase.BEFORE
        self.published = {phase: Count() for phase in Phase}
        self.buffered = {phase: Count() for phase in Phase}
        self.written = {phase: Count() for phase in Phase}
        self._unwritten = Count()

    def increment_out_bytes(self, size_bytes: int) -> None:
        """One message was moved to the byte buffer."""
        self.buffered[self.phase].add(1, size_bytes)
        self._unwritten.add(1, size_bytes)

    def register_write(self, size_bytes: int) -> None:
        """The socket took all of the byte buffer."""
        assert size_bytes == self._unwritten.size_bytes
        self.written[self.phase].add(self._unwritten.messages, size_bytes)
        self._unwritten = Count()

    def forget_unwritten(self) -> None:
        """The connection is gone, and the byte buffer with it."""
        self._unwritten = Count()
