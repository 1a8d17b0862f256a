"""The messages that a listener hands to its handler, the answers of handlers, and when messages are tried again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

__all__ = ["DeliveredMessage", "ListHandler", "ListenerConfig", "MessageHandler", "RetryLater"]


class DeliveredMessage(msgspec.Struct, frozen=True, gc=False):
    """A message as a handler receives it. `attempt` counts from 1 on."""

    topic: str
    partition: int
    offset: int
    max_offset: int
    """The offset after the partition's newest message, as the broker said a second before this attempt, or later."""
    payload: bytes
    attempt: int = 1

    @property
    def lag(self) -> int:
        """The number of messages from this one to the end of the partition: a large one means a backlog."""
        return self.max_offset - self.offset


class RetryLater(msgspec.Struct, frozen=True):
    """The answer of a handler that cannot handle a message yet. Without `delay_s`, the configured delay holds."""

    delay_s: float | None = None


MessageHandler: TypeAlias = Callable[[DeliveredMessage], Awaitable[RetryLater | None] | RetryLater | None]
"""Handles a message. None means success. RetryLater, and any error, mean another attempt later."""

ListHandler: TypeAlias = Callable[[Sequence[DeliveredMessage]], Awaitable[RetryLater | None] | RetryLater | None]
"""Handles several messages of a partition, in their order. Its answer holds for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerConfig:
    """When messages are tried again, and how much a listener fetches."""

    retry_s: float = 1.0
    """The delay before the second attempt. It doubles with each further attempt."""
    retry_max_s: float = 60.0
    """The longest of these delays."""
    attempts_max: int = 16
    """After this number of attempts, a message goes to `dead_letter_topic`; without one, attempts go on forever."""
    dead_letter_topic: str = ""
    commit_s: float = 0.2
    """How long a listener collects progress before it stores it at the broker."""
    fetch_bytes: int = 256 * 1024
    ahead_max: int = 1_000
    """Messages of a partition are fetched while fewer than this number of them are fetched and not yet settled."""
    wait_ms: int = 20_000
    """How long the broker holds a fetch when there is no message."""

    def __post_init__(self) -> None:
        if min(self.retry_s, self.retry_max_s, self.commit_s) < 0 or min(self.attempts_max, self.ahead_max) < 1:
            raise ValueError("a listener's times must not be negative, attempts_max and ahead_max must be positive")

    def delay(self, attempt: int) -> float:
        """Return how many seconds after this attempt the next one follows."""
        return min(self.retry_max_s, self.retry_s * 2.0 ** min(attempt - 1, 30))
