"""Deleting topics and groups: by the user who made them, or by a client on the broker's own machine."""

from __future__ import annotations

from tunnel.messages.broker.events import note
from tunnel.messages.broker.groups import Groups
from tunnel.messages.broker.positions import PositionKey, Positions
from tunnel.messages.broker.protocol import NOT_ALLOWED, NOT_MASTER, UNKNOWN
from tunnel.messages.broker.settings import BrokerSettings
from tunnel.messages.broker.topics import Topics
from tunnel.messages.broker.users import is_local
from tunnel.messages.errors import RemoteCallError

__all__ = ["Deleting"]


class Deleting:
    """Removes topics, and positions of groups."""

    def __init__(self, settings: BrokerSettings, topics: Topics, positions: Positions, groups: Groups) -> None:
        self._settings = settings
        self._topics = topics
        self._positions = positions
        self._groups = groups

    async def topic(self, name: str, user: str) -> int:
        """Delete a topic with its messages and its positions. Return the number of its partitions."""
        self._check_master()
        if name not in self._topics.found:
            raise RemoteCallError(UNKNOWN, f"there is no topic {name}: nothing was deleted")
        topic = self._topics.get(name)
        _check_owner(f"the topic {name}", topic.owner, user)
        # Positions first: without them, groups read messages again; with those of a topic that is gone, they would wait
        # for the messages of a new one.
        await self._forget_topic(name)
        await self._topics.delete(topic)
        self._groups.topic_deleted(name)
        await self._forget_topic(name)
        note("topic_deleted", topic=name, partitions=topic.spec.partitions, user=user)
        return topic.spec.partitions

    async def group(self, group: str, user: str) -> int:
        """Delete the positions of a group. Return their number."""
        self._check_master()
        keys = await self._positions.keys(lambda key: key[0] == group)
        if not keys:
            raise RemoteCallError(UNKNOWN, f"the group {group} has no positions: nothing was deleted")
        for key in keys:
            if self._positions.knows(key):
                _check_owner(f"a position of the group {group}", self._positions.owner(key), user)
        if any(self._groups.has_members(group, topic) for topic in {key[1] for key in keys}):
            raise RemoteCallError(NOT_ALLOWED, f"the group {group} has members: stop its listeners first")
        count = await self.forget(keys)
        note("group_deleted", group=group, positions=count, user=user)
        return count

    async def forget(self, keys: list[PositionKey]) -> int:
        """Remove positions, and keep no messages in memory for their groups. Return how many there were."""
        count = await self._positions.remove(keys)
        for group, topic, number in keys:
            memory = self._topics.memory(topic, number)
            if memory is not None and not self._positions.knows((group, topic, number)):
                memory.on_left(group)
        return count

    async def _forget_topic(self, name: str) -> None:
        await self.forget(await self._positions.keys(lambda key: key[1] == name))

    def _check_master(self) -> None:
        if self._settings.master:
            raise RemoteCallError(
                NOT_MASTER, f"this broker is a replica: delete at the broker at {self._settings.master}"
            )


def _check_owner(what: str, owner: str, user: str) -> None:
    if owner != user and not is_local(user):
        raise RemoteCallError(
            NOT_ALLOWED,
            f"{what} belongs to {owner or 'the operator'}: only its owner may delete it, or a client that reaches the "
            "broker over loopback",
        )
