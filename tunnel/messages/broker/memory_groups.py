"""The groups whose members read topics in memory: each has a position in every partition, which its user pays for."""

from __future__ import annotations

from tunnel.messages.broker.partition import MemoryPartition
from tunnel.messages.broker.positions import Positions
from tunnel.messages.broker.protocol import LIMIT
from tunnel.messages.broker.topics import Topic, Topics
from tunnel.messages.broker.users import Holdings
from tunnel.messages.errors import RemoteCallError

__all__ = ["MemoryGroups"]


class MemoryGroups:
    """A group counts from its first member on, before it has stored a position: messages are kept for it. What this
    takes is limited as stored positions are."""

    def __init__(self, topics: Topics, positions: Positions, positions_max: int) -> None:
        self._topics = topics
        self._positions = positions
        self._holdings = Holdings(positions_max)
        self._held: dict[tuple[str, str], tuple[str, int]] = {}  # by group and topic: the user, and how many positions

    def on_joining(self, group: str, topic: Topic, user: str) -> None:
        """Count the positions of a group that a member is about to join. RemoteCallError LIMIT if they are too many."""
        needed = len(topic.partitions) if topic.spec.storage == "memory" else 0
        payer, held = self._held.get((group, topic.name), (user, 0))
        if needed <= held:  # a topic of this name may have been deleted, and created with more partitions
            return
        problem = self._holdings.why_not(payer, needed - held, "positions of members in memory")
        if problem:
            raise RemoteCallError(LIMIT, f"{problem}: leave a group first")
        self._holdings.add(payer, needed - held)
        self._held[group, topic.name] = payer, needed

    def on_emptied(self, group: str, name: str) -> None:
        """Keep no messages for a group whose last member has left, unless it has stored a position."""
        payer, held = self._held.pop((group, name), ("", 0))
        self._holdings.add(payer, -held)
        topic = self._topics.found.get(name)  # it may have been deleted
        for number, partition in enumerate(topic.partitions if topic is not None else ()):
            if isinstance(partition, MemoryPartition) and not self._positions.knows((group, name, number)):
                partition.on_left(group)
