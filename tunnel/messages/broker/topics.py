"""The topics of a broker: which there are, how each is kept, and the limits on their number."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import msgspec

from tunnel.durable_files import make_directory, sync_directory, write_atomically
from tunnel.messages.broker.disk_room import DiskRoom
from tunnel.messages.broker.log_broker import BrokerConfig
from tunnel.messages.broker.partition import MemoryPartition, Partition, StoredPartition
from tunnel.messages.broker.protocol import LIMIT, STORAGE, UNKNOWN, TopicReport, check_name
from tunnel.messages.broker.settings import BrokerSettings, TopicSpec
from tunnel.messages.broker.unbroken import unbroken
from tunnel.messages.errors import LogError, RemoteCallError

__all__ = ["Topic", "Topics"]

_FILE = "topic.json"


class Topic:
    """A topic and its partitions."""

    def __init__(self, name: str, spec: TopicSpec, partitions: list[Partition]) -> None:
        self.name = name
        self.spec = spec
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
                UNKNOWN, f"the topic {self.name} has {len(self.partitions)} partitions, and no partition {number}"
            )
        return self.partitions[number]


class Topics:
    """All topics of a broker, in a directory with a folder for each."""

    def __init__(self, directory: Path, settings: BrokerSettings, room: DiskRoom) -> None:
        self.found: dict[str, Topic] = {}
        self._directory = directory
        self._settings = settings
        self._room = room
        self._serving = BrokerConfig(
            replica=settings.replica, behind_bytes=settings.behind_bytes, master=settings.master
        )
        self._creating = asyncio.Lock()

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
            except (OSError, msgspec.DecodeError, ValueError) as error:
                raise LogError(f"{place} is not a topic: {error}; restore {file}, or move the folder away") from None
            # Its messages are gone, but readers keep their offsets. New messages must get higher ones, or readers would
            # take them for others that they have read.
            self.found[place.name] = self._make(place.name, spec, first=time.time_ns() // 1_000)

    def get(self, name: str) -> Topic:
        """Return a topic. Raise RemoteCallError UNKNOWN if there is none of this name."""
        topic = self.found.get(name)
        if topic is None:
            check_name("topic", name)
            raise RemoteCallError(UNKNOWN, f"there is no topic {name}: create it, or send a message to it first")
        return topic

    async def create(self, name: str, spec: TopicSpec) -> Topic:
        """Return the topic of this name, and create it if there is none.

        Raise RemoteCallError if a limit is reached, if the topic exists with another number of partitions or another
        storage, or if it cannot be written to the disk.
        """
        check_name("topic", name)
        topic = await unbroken(self._create(name, spec))
        if (topic.spec.partitions, topic.spec.storage) != (spec.partitions, spec.storage):
            raise RemoteCallError(
                LIMIT,
                f"the topic {name} exists with {topic.spec.partitions} partitions in storage {topic.spec.storage}, "
                "which cannot be changed: choose another name",
            )
        return topic

    async def _create(self, name: str, spec: TopicSpec) -> Topic:
        async with self._creating:
            if name in self.found:
                return self.found[name]
            self._check_limits(spec)
            self._room.take(len(name))
            try:
                await asyncio.to_thread(self._write, name, spec)
            except OSError as error:
                raise RemoteCallError(STORAGE, f"the topic {name} cannot be created: {error}") from None
            self.found[name] = self._make(name, spec)
            return self.found[name]

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

    def _check_limits(self, spec: TopicSpec) -> None:
        count = sum(len(topic.partitions) for topic in self.found.values())
        most = self._settings.partitions_max
        if count + spec.partitions > most:
            raise RemoteCallError(
                LIMIT,
                f"the broker has {count} partitions and may have {most}: use an existing topic, or raise the limit",
            )
        if spec.storage == "memory":
            specs = [topic.spec for topic in self.found.values() if topic.spec.storage == "memory"]
            size = sum(each.partitions * each.bytes_max for each in (*specs, spec))
            if size > self._settings.memory_topics_bytes_max:
                raise RemoteCallError(
                    LIMIT,
                    f"topics in memory would hold {size} bytes, at most {self._settings.memory_topics_bytes_max} are "
                    "allowed: ask for a smaller bytes_max",
                )

    def _write(self, name: str, spec: TopicSpec) -> None:
        fresh = self._directory / f".{name}"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        write_atomically(fresh / _FILE, msgspec.json.encode(spec))
        os.rename(fresh, self._directory / name)
        sync_directory(self._directory)

    def _make(self, name: str, spec: TopicSpec, first: int = 0) -> Topic:
        """Make a topic. `first` is the offset at which its partitions begin if they are in memory."""
        if spec.storage == "memory":
            return Topic(name, spec, [MemoryPartition(spec, name=name, first=first) for _ in range(spec.partitions)])
        config = self._settings.log
        if spec.retain_bytes is not None:
            config = replace(config, retain_bytes=spec.retain_bytes)
        if spec.retain_s is not None:
            config = replace(config, retain_s=spec.retain_s)
        place = self._directory / name
        return Topic(
            name,
            spec,
            [
                StoredPartition(place / str(number), config, self._room, self._serving)
                for number in range(spec.partitions)
            ],
        )
