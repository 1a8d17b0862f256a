"""The clients of a broker: a producer whose sends are answered, and calls for topics, positions and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tunnel.messages.broker.protocol import (
    COMMIT,
    CREATE,
    DELETE_GROUP,
    DELETE_TOPIC,
    DISCARDED,
    METRICS,
    POSITIONS,
    PRODUCE,
    TOPICS,
    PositionReport,
    TopicReport,
    numbers,
)
from tunnel.messages.broker.settings import BEHIND_MESSAGES, TopicSpec
from tunnel.messages.calls.calls import CALL_TIMEOUT_S
from tunnel.messages.calls.channels import ChannelTable
from tunnel.messages.errors import DiscardedError, RemoteCallError
from tunnel.messages.sets.codec import Codec
from tunnel.messages.sets.message import MESSAGE_BYTES_MAX
from tunnel.messages.topics.consumer import Consumer
from tunnel.messages.topics.producers import Encoder, Producer, ProducerData, encode_requests
from tunnel.messages.topics.requests import ProduceRequest

__all__ = ["BrokerClient", "BrokerProducer", "Place"]


class Place(msgspec.Struct, frozen=True):
    """Where a set was stored: its partition, and the offset of its first message."""

    partition: int
    offset: int


class BrokerProducer(Producer):
    """Sends to a broker, and returns when the broker has stored the messages.

    A send that the broker refuses, or that reaches something else than a broker, raises RemoteCallError or
    ChannelClosedError; one that a full topic in memory discards raises DiscardedError. `durable=False`: return when the
    broker has the messages; it flushes them within a second.
    """

    def __init__(
        self,
        table: ChannelTable,
        address: str,
        *,
        encoder: Encoder | None = None,
        codec: Codec = Codec.NONE,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        durable: bool = True,
        timeout: float = CALL_TIMEOUT_S,
    ) -> None:
        super().__init__(encoder, codec, message_bytes_max)
        self._table = table
        self._address = address
        self._timeout = timeout
        self._fields = {"durable": "1" if durable else "0"}

    async def send(self, topic: str, *values: Any, partition: int = -1) -> Place:
        """Encode, check and send these values as one set; with partition -1, the broker chooses. Return its place."""
        (place,) = await self.send_data(ProducerData(topic, values, partition))
        return place

    async def send_data(self, *data: ProducerData) -> list[Place]:
        """Send values for one or more topics and partitions, and return the place of each set."""
        return await self._call(self.encode(data), {}) if data else []

    async def send_requests(self, requests: Sequence[ProduceRequest]) -> None:
        """Send encoded requests."""
        if requests:
            await self._call(encode_requests(requests), {})

    async def send_at(self, offset: int, topic: str, *values: Any, partition: int = 0) -> None:
        """Send values that must get the offsets from `offset` on. So a partition's only producer stores no set twice.

        Raise RemoteCallError with the code CONFLICT if the partition's next offset is another one: then this set, or a
        part of it, was stored before, or another producer sends to the partition.
        """
        await self._call(self.encode([ProducerData(topic, values, partition)]), {"at": str(offset)})

    async def send_memory(
        self, topic: str, *values: Any, partition: int = -1, priority: int = 0, ttl_ms: int = 0
    ) -> Place:
        """Send values to a topic in memory that discards by priority or time; they expire after `ttl_ms`, if given."""
        fields = {"priority": str(priority), "ttl_ms": str(ttl_ms)}
        (place,) = await self._call(self.encode([ProducerData(topic, values, partition)]), fields)
        return place

    async def _call(self, body: bytes, fields: dict[str, str]) -> list[Place]:
        try:
            response = await self._table.call(
                self._address, PRODUCE, body, self._fields | fields, timeout=self._timeout
            )
        except RemoteCallError as error:
            if error.code != DISCARDED:
                raise
            offsets = [None if offset < 0 else offset for offset in numbers(error.fields.get("offsets", ""))]
            raise DiscardedError(error.code, str(error), offsets) from None
        found = response.fields or {}
        places = zip(numbers(found["partitions"]), numbers(found["offsets"]), strict=True)
        return [Place(partition, offset) for partition, offset in places]


class BrokerClient:
    """Calls to the broker at an address, through a table of channels."""

    def __init__(self, table: ChannelTable, address: str) -> None:
        self.table = table
        self.address = address

    def producer(self, **options: Any) -> BrokerProducer:
        """Return a producer, with the options of BrokerProducer."""
        return BrokerProducer(self.table, self.address, **options)

    def consumer(
        self, topic: str, partition: int = 0, offset: int = 0, *, lag_max: int = BEHIND_MESSAGES, **options: Any
    ) -> Consumer:
        """Return a consumer of one partition, with the options of Consumer."""
        return Consumer(self.table, self.address, offset, topic=topic, partition=partition, lag_max=lag_max, **options)

    async def create_topic(self, topic: str, spec: TopicSpec | None = None) -> None:
        """Create a topic; harmless if it exists with the same number of partitions and the same storage."""
        await self.table.call(self.address, CREATE, msgspec.json.encode(spec or TopicSpec()), {"topic": topic})

    async def delete_topic(self, topic: str) -> int:
        """Delete a topic with its messages and positions, and return the number of its partitions.

        RemoteCallError NOT_ALLOWED unless this user has created it, or this machine is that of the broker.
        """
        response = await self.table.call(self.address, DELETE_TOPIC, b"", {"topic": topic})
        return int((response.fields or {})["partitions"])

    async def delete_group(self, group: str) -> int:
        """Delete the positions of a group without members, and return their number. RemoteCallError as for topics."""
        response = await self.table.call(self.address, DELETE_GROUP, b"", {"group": group})
        return int((response.fields or {})["positions"])

    async def topics(self) -> list[TopicReport]:
        """Return all topics, with the offsets and sizes of their partitions."""
        response = await self.table.call(self.address, TOPICS)
        return msgspec.json.decode(response.data, type=list[TopicReport])

    async def positions(self, group: str = "") -> list[PositionReport]:
        """Return how far a group, or every group, has read."""
        response = await self.table.call(self.address, POSITIONS, b"", {"group": group})
        return msgspec.json.decode(response.data, type=list[PositionReport])

    async def commit(
        self, group: str, topic: str, partition: int, offset: int, *, force: bool = False, member: str = ""
    ) -> int:
        """Store that a group has read the messages before `offset`, and return the position that the broker now keeps.

        A position never goes back, unless `force` is set. With `member`, it is stored only if the partition belongs to
        that member of the group.
        """
        fields = {"group": group, "topic": topic, "partition": str(partition), "offset": str(offset)}
        if force:
            fields["force"] = "1"
        if member:
            fields["member"] = member
        response = await self.table.call(self.address, COMMIT, b"", fields)
        return int((response.fields or {})["offset"])

    async def metrics(self) -> dict[str, float]:
        """Return the broker's counters and sizes by name."""
        return msgspec.json.decode((await self.table.call(self.address, METRICS)).data, type=dict[str, float])
