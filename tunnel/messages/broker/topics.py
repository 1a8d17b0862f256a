"""The topics of a broker: which there are, how each is kept, and the limits on their number."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from tunnel.ground.printable import counted
from tunnel.messages.broker.disk_room import DiskRoom
from tunnel.messages.broker.long_work import unbroken
from tunnel.messages.broker.partition import MemoryPartition, Partition
from tunnel.messages.broker.protocol import LIMIT, STORAGE, UNKNOWN, TopicReport, check_name
from tunnel.messages.broker.settings import BrokerSettings, TopicSpec
from tunnel.messages.broker.stored_partition import StoredPartition
from tunnel.messages.broker.users import OPERATOR, Holdings
from tunnel.messages.errors import LogError, RemoteCallError
from tunnel.messages.sets.message import HEADER_BYTES
from tunnel.system.durable_files import make_directory, sync_directory, write_atomically

__all__ = ["Topic", "Topics"]

_FILE = "topic.json"
_MESSAGE_BYTES = 256  # about what a message in memory takes besides its bytes
_OWNER_FILE = "owner"  # the user who created the topic; the operator's have no such file


class Topic:
    """A topic and its partitions. `owner` is the user who created it."""

    def __init__(self, name: str, spec: TopicSpec, partitions: list[Partition], owner: str = OPERATOR) -> None:
        self.name = name
        self.spec = spec
        self.owner = owner
        self.partitions = partitions
        self._turn = 0

    def choose(self) -> int:
        """Return the partition for messages that name none: each in turn, a failed one only if all have failed."""
        count = len(self.partitions)
        for step in range(count):
            number = (self._turn + step) % count
            if not self.partitions[number].is_failed:
                self._turn = number + 1
                return number
        self._turn += 1
        return self._turn % count

    def partition(self, number: int) -> Partition:
        """Return a partition. Raise RemoteCallError UNKNOWN if there is none of this number."""
        if not 0 <= number < len(self.partitions):
            raise RemoteCallError(
                UNKNOWN,
                f"the topic {self.name} has {counted(len(self.partitions), 'partition')}, and no partition {number}",
            )
        return self.partitions[number]


class Topics:
    """All topics of a broker, in a directory with a folder for each."""

    def __init__(self, directory: Path, settings: BrokerSettings, room: DiskRoom) -> None:
        self.found: dict[str, Topic] = {}
        self._directory = directory
        self._settings = settings
        self._room = room
        self._creating = asyncio.Lock()
        self._partitions = Holdings(settings.partitions_max)
        self._memory_bytes = Holdings(settings.memory_topics_bytes_max)

    def load(self) -> None:
        """Find the topics on disk. Blocks. Raise LogError if one cannot be understood."""
        make_directory(self._directory)
        for place in sorted(self._directory.iterdir()):
            file = place / _FILE
            if place.name.startswith("."):
                shutil.rmtree(place, ignore_errors=True)  # a crash interrupted its creation: it has no messages
                continue
            try:
                spec = msgspec.json.decode(file.read_bytes(), type=TopicSpec)
                owner = _read_owner(place)
            except (OSError, msgspec.DecodeError, ValueError) as error:
                raise LogError(f"{place} is not a topic: {error}; restore {file}, or move the folder away") from None
            # Its messages are gone, but readers keep their offsets. New messages must get higher ones, or readers would
            # take them for others that they have read.
            self._add(self._make(place.name, spec, owner, first=time.time_ns() // 1_000))

    def _add(self, topic: Topic, times: int = 1) -> None:
        """Count a topic among those of its owner; with -1, no longer."""
        self.found[topic.name] = topic
        self._partitions.add(topic.owner, times * topic.spec.partitions)
        self._memory_bytes.add(topic.owner, times * _memory_bytes(topic.spec))

    def get(self, name: str) -> Topic:
        """Return a topic. Raise RemoteCallError UNKNOWN if there is none of this name."""
        topic = self.found.get(name)
        if topic is None:
            check_name("topic", name)
            raise RemoteCallError(UNKNOWN, f"there is no topic {name}: create it, or send a message to it first")
        return topic

    async def create(self, name: str, spec: TopicSpec, user: str = OPERATOR) -> Topic:
        """Return the topic of this name, and create it for a user if there is none.

        Raise RemoteCallError if a limit is reached, if the topic exists with another number of partitions or another
        storage, or if it cannot be written to the disk.
        """
        check_name("topic", name)
        topic = await unbroken(self._create(name, spec, user))
        if (topic.spec.partitions, topic.spec.storage) != (spec.partitions, spec.storage):
            raise RemoteCallError(
                LIMIT,
                f"the topic {name} exists with {counted(topic.spec.partitions, 'partition')} in storage "
                f"{topic.spec.storage}, which cannot be changed: choose another name",
            )
        return topic

    async def _create(self, name: str, spec: TopicSpec, user: str) -> Topic:
        async with self._creating:
            if name in self.found:
                return self.found[name]
            self._check_limits(spec, user)
            self._room.take(len(name))
            try:
                await asyncio.to_thread(self._write, name, spec, user)
            except OSError as error:
                raise RemoteCallError(STORAGE, f"the topic {name} cannot be created: {error}") from None
            self._add(self._make(name, spec, user))
            return self.found[name]

    async def delete(self, topic: Topic) -> None:
        """Delete a topic and its messages. RemoteCallError if another one has its name by now, or the disk fails."""
        await unbroken(self._delete(topic))

    async def _delete(self, topic: Topic) -> None:
        async with self._creating:
            if self.found.get(topic.name) is not topic:
                raise RemoteCallError(UNKNOWN, f"the topic {topic.name} was deleted meanwhile")
            hidden = self._directory / f".{topic.name}"  # `load` removes what has such a name
            for partition in topic.partitions:  # first: one that is opened later would make its folder again
                with suppress(OSError, LogError):
                    await partition.close()
            try:
                await asyncio.to_thread(self._hide, topic.name, hidden)
            except OSError as error:
                if topic.spec.storage == "log":  # its partitions can be opened again
                    self.found[topic.name] = self._make(topic.name, topic.spec, topic.owner)
                raise RemoteCallError(STORAGE, f"the topic {topic.name} cannot be deleted: {error}") from None
            self._add(topic, -1)
            del self.found[topic.name]
            await asyncio.to_thread(shutil.rmtree, hidden, ignore_errors=True)

    def _hide(self, name: str, hidden: Path) -> None:
        shutil.rmtree(hidden, ignore_errors=True)
        os.rename(self._directory / name, hidden)
        sync_directory(self._directory)

    def reports(self) -> list[TopicReport]:
        """Return what `tunnel-broker topics` shows. Looks at the disk."""
        return [
            TopicReport(name, topic.spec.storage, [each.report(index) for index, each in enumerate(topic.partitions)])
            for name, topic in sorted(self.found.items())
        ]

    def memory(self, name: str, number: int) -> MemoryPartition | None:
        """Return a partition in memory; None if there is no such partition, or if it is on disk."""
        topic = self.found.get(name)
        partition = topic.partitions[number] if topic is not None and number < len(topic.partitions) else None
        return partition if isinstance(partition, MemoryPartition) else None

    def partitions(self) -> list[Partition]:
        """Return the partitions of all topics."""
        return [partition for topic in self.found.values() for partition in topic.partitions]

    @property
    def memory_held_bytes(self) -> int:
        """The bytes of the messages in memory, with their objects."""
        memories = [each for each in self.partitions() if isinstance(each, MemoryPartition)]
        return sum(each.size_bytes + _MESSAGE_BYTES * each.messages for each in memories)

    def _check_limits(self, spec: TopicSpec, user: str) -> None:
        wanted = (
            (self._partitions, spec.partitions, "partitions"),
            (self._memory_bytes, _memory_bytes(spec), "bytes of topics in memory"),
        )
        for holdings, count, what in wanted:
            problem = holdings.why_not(user, count, what) if count else ""
            if problem:
                raise RemoteCallError(LIMIT, f"{problem}: use an existing topic, or delete one")

    def _write(self, name: str, spec: TopicSpec, owner: str) -> None:
        fresh = self._directory / f".{name}"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        if owner != OPERATOR:
            write_atomically(fresh / _OWNER_FILE, owner.encode())
        write_atomically(fresh / _FILE, msgspec.json.encode(spec))
        os.rename(fresh, self._directory / name)
        sync_directory(self._directory)

    def _make(self, name: str, spec: TopicSpec, owner: str, first: int = 0) -> Topic:
        """Make a topic. `first` is the offset at which its partitions begin if they are in memory."""
        partitions: list[Partition]
        if spec.storage == "memory":
            partitions = [MemoryPartition(spec, name=name, first=first) for _ in range(spec.partitions)]
        else:
            config, place = self._settings.log, self._directory / name
            if spec.retain_bytes is not None:
                config = replace(config, retain_bytes=spec.retain_bytes)
            if spec.retain_s is not None:
                config = replace(config, retain_s=spec.retain_s)
            settings = replace(self._settings, log=config)
            partitions = [StoredPartition(place / str(each), settings, self._room) for each in range(spec.partitions)]
        return Topic(name, spec, partitions, owner)


def _read_owner(place: Path) -> str:
    file = place / _OWNER_FILE
    return file.read_bytes().decode() if file.exists() else OPERATOR


def _memory_bytes(spec: TopicSpec) -> int:
    """Return the memory that a topic may come to take, with the objects of its messages. The smallest has 10 bytes."""
    if spec.storage != "memory":
        return 0
    messages = min(spec.messages_max, spec.bytes_max // HEADER_BYTES)
    return spec.partitions * (spec.bytes_max + _MESSAGE_BYTES * messages)
