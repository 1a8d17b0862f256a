"""How far a listener has got in a partition: up to the first message that is not settled yet."""

from __future__ import annotations

from collections.abc import Sequence

from tunnel.messages.topics.consumer import ConsumedMessage

__all__ = ["Progress"]


class Progress:
    """The messages of a partition that were fetched and are not settled. Messages of a compressed set share an offset.

    `position` is the offset of the first message that is not settled, so everything before it is settled.
    """

    def __init__(self, offset: int) -> None:
        self._fetched = offset
        self._open: dict[int, int] = {}  # offset to number of messages, in the order of the offsets

    @property
    def position(self) -> int:
        return next(iter(self._open), self._fetched)

    def __len__(self) -> int:
        return len(self._open)

    def on_fetched(self, messages: Sequence[ConsumedMessage], end: int) -> None:
        """Add fetched messages; the next fetch begins at `end`."""
        for message in messages:
            self._open[message.offset] = self._open.get(message.offset, 0) + 1
        self._fetched = end

    def on_settled(self, offset: int) -> None:
        """Note that a message needs no further attempt."""
        left = self._open[offset] - 1
        if left:
            self._open[offset] = left
        else:
            del self._open[offset]
