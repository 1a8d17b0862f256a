"""The clients that the load test kills: `python -m loadtests.broker.sides` with one of these lines.

    producer ROAD DIRECTORY PARTITION TOTAL GROUP...
    consumer ROAD DIRECTORY GROUP PARTITIONS TOTAL

ROAD is HOST:PORT of the broker, or the URL of a relay at which the broker is a service. A producer is the only one of
its partition, and sends each message at the offset that is its number. It waits for the slowest group (in
DIRECTORY/GROUP), so that it still has messages to send when it is killed. A consumer appends the number of each message
to a file of its own for each partition. The size of that file is the consumer's position: effect and position are one
write, so a message that arrives again is recognised by its offset.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import structlog
import uvloop

from tunnel import Attachment, TunnelError, attach
from tunnel.messages import (
    BrokerClient,
    ChannelTable,
    DeliveredMessage,
    GroupConsumer,
    ListenerConfig,
    RemoteCallError,
    split_address,
)
from tunnel.messages.broker.protocol import CONFLICT

__all__ = [
    "BATCH",
    "NUMBER_BYTES",
    "PAYLOAD_BYTES",
    "SERVICE",
    "TOPIC",
    "ahead_max",
    "consume",
    "make_payload",
    "produce",
    "taken_in",
]

SERVICE = "broker"
TOPIC = "orders"
PAYLOAD_BYTES = 100
NUMBER_BYTES = 8
BATCH = 500
_AGAIN_S = 0.2
_LOOK_S = 0.002  # between two looks at the slowest group


def make_payload(partition: int, number: int) -> bytes:
    """Return the message of this number in a partition."""
    return (number.to_bytes(NUMBER_BYTES, "big") + b" partition %d " % partition).ljust(PAYLOAD_BYTES, b".")


class _Road:
    """Opens connections to the broker, over TCP or through a relay; attaches again if the relay has forgotten it."""

    def __init__(self, road: str) -> None:
        self._road = road
        self._attachment: Attachment | None = None
        self.address = SERVICE if "://" in road else road

    def table(self) -> ChannelTable:
        return ChannelTable(self._dial, connect_timeout=20.0)

    async def _dial(self, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if "://" not in self._road:
            return await asyncio.open_connection(*split_address(address))
        if self._attachment is not None and self._attachment.refusal is not None:
            await self._attachment.close()
            self._attachment = None
        if self._attachment is None:
            attachment = attach(self._road, carrier="link", attach_timeout=60.0, wait=True, linger=0.5)
            await attachment.start()
            self._attachment = attachment
        return await self._attachment.open_connection(address, timeout=10.0)


def ahead_max(total: int) -> int:
    """Return how far the slowest group may lag, in messages, when a producer of `total` sends its next batch."""
    return min(4 * BATCH, total // 20)


def taken_in(directory: Path, group: str, partition: int) -> int:
    """Return the number of messages of a partition that a group has taken in."""
    file = directory / group / str(partition)
    return file.stat().st_size // NUMBER_BYTES if file.exists() else 0


async def produce(road: str, directory: Path, partition: int, total: int, groups: Sequence[str]) -> None:
    """Send the messages that are not at the broker yet, and say when all of them are."""
    way = _Road(road)
    noted = directory / f"acknowledged-{partition}"
    acknowledged = int(noted.read_text() or 0) if noted.exists() else 0
    print("ready", acknowledged, flush=True)
    async with way.table() as table:
        client = BrokerClient(table, way.address)
        producer = client.producer(timeout=10.0)
        number = -1
        while number < total:
            try:
                if number < 0:
                    number = await _end(client, partition)
                    if number < acknowledged:
                        print("lost", acknowledged - number, "acknowledged messages", flush=True)
                        return
                while number - min(taken_in(directory, group, partition) for group in groups) > ahead_max(total):  # noqa: ASYNC110 - files
                    await asyncio.sleep(_LOOK_S)
                count = min(BATCH, total - number)
                batch = [make_payload(partition, each) for each in range(number, number + count)]
                await producer.send_at(number, TOPIC, *batch, partition=partition)
            except (OSError, TunnelError) as error:
                if not (isinstance(error, RemoteCallError) and error.code == CONFLICT):
                    print("trying again after:", error, flush=True)
                number = -1
                await asyncio.sleep(_AGAIN_S)
                continue
            number += count
            acknowledged = number
            noted.write_text(str(acknowledged))
        print("produced", total, flush=True)


async def _end(client: BrokerClient, partition: int) -> int:
    (topic,) = [each for each in await client.topics() if each.topic == TOPIC]
    return topic.partitions[partition].end


class _Effects:
    """The numbers that a consumer has taken in, one file for each partition."""

    def __init__(self, directory: Path, partitions: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.again = 0
        self._files: list[int] = []
        self._positions: list[int] = []
        for partition in range(partitions):
            descriptor = os.open(directory / str(partition), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            position = os.fstat(descriptor).st_size // NUMBER_BYTES
            os.ftruncate(descriptor, position * NUMBER_BYTES)
            self._files.append(descriptor)
            self._positions.append(position)

    def take(self, message: DeliveredMessage) -> None:
        """Take in a message, unless it was taken in before. End the process if one before it was left out."""
        position = self._positions[message.partition]
        if message.offset < position:
            self.again += 1
            return
        if message.offset > position:
            raise SystemExit(f"partition {message.partition}: message {message.offset} came in place of {position}")
        os.write(self._files[message.partition], message.payload[:NUMBER_BYTES])
        self._positions[message.partition] = position + 1

    @property
    def taken(self) -> int:
        return sum(self._positions)


async def consume(road: str, directory: Path, group: str, partitions: int, total: int) -> None:
    """Take in all messages of a group, and say when there are `total` and how many came again."""
    effects = _Effects(directory, partitions)
    print("ready", effects.taken, flush=True)
    way = _Road(road)
    async with way.table() as table:
        config = ListenerConfig(fetch_bytes=512 * 1024)
        consumer = GroupConsumer(table, way.address, group, TOPIC, member=group, config=config)
        async with consumer.register_message_listener(effects.take):
            while effects.taken < total:  # noqa: ASYNC110 - the handler must do as little as it can
                await asyncio.sleep(0.05)
    print("consumed", total, "again", effects.again, flush=True)


def main(arguments: list[str]) -> None:
    """Run one side."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    side, road, directory, *rest = arguments
    if side == "producer":
        uvloop.run(produce(road, Path(directory), int(rest[0]), int(rest[1]), rest[2:]))
    else:
        uvloop.run(consume(road, Path(directory), rest[0], int(rest[1]), int(rest[2])))


if __name__ == "__main__":
    main(sys.argv[1:])
