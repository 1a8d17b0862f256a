"""The sender's counters, with the names of the reference document: messages buffered, and those the socket took.

Each `increment_out_bytes` counts one message that moved from the queue to the byte buffer. Each `register_write` counts
a byte buffer that went to the socket as a whole. A message that was buffered and not written when the connection broke
is lost, unless something keeps it, as the tunnel does. Bytes are those on the wire: command line, headers and payload.
"""

import enum
from dataclasses import dataclass

__all__ = ["Count", "Phase", "PhaseStatistics"]


class Phase(enum.Enum):
    """The phases before and after the break of the connection."""

    BEFORE = 1
    AFTER = 2


@dataclass
class Count:
    """A number of messages and of their bytes."""

    messages: int = 0
    size_bytes: int = 0

    def add(self, messages: int, size_bytes: int) -> None:
        """Add messages and bytes to the count."""
        self.messages += messages
        self.size_bytes += size_bytes


class PhaseStatistics:
    """The counters of both phases; `phase` is the current one."""

    def __init__(self) -> None:
        self.phase = Phase.BEFORE
        self.published = {phase: Count() for phase in Phase}
        self.buffered = {phase: Count() for phase in Phase}
        self.written = {phase: Count() for phase in Phase}

    def increment_out_bytes(self, size_bytes: int) -> None:
        """Count a message that was moved to the byte buffer."""
        self.buffered[self.phase].add(1, size_bytes)

    def register_write(self, messages: int, size_bytes: int) -> None:
        """Count the messages of a byte buffer that the socket took as a whole."""
        self.written[self.phase].add(messages, size_bytes)
