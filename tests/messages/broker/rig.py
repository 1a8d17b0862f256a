"""A broker on loopback, and clients of it, for the tests of the broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from tests.support.loops import until
from tunnel.messages import (
    Broker,
    BrokerClient,
    BrokerSettings,
    ChannelTable,
    LogConfig,
    Replica,
    Request,
    Response,
    StoredPartition,
    split_address,
)
from tunnel.messages.calls.frames import CallHeader, encode_frame
from tunnel.messages.sets.sets import ByteBufferMessageSet
from tunnel.messages.topics.producers import encode_requests
from tunnel.messages.topics.requests import ProduceRequest

__all__ = [
    "ANN",
    "EVE",
    "QUICK",
    "DirectTable",
    "brokered",
    "drain_fetches",
    "following",
    "frame",
    "from_address",
    "open_as",
    "position",
    "produce",
    "stored",
    "until",
    "until_position",
]

QUICK = LogConfig(flush_messages=1, flush_s=0.0)


@asynccontextmanager
async def brokered(
    place: Path, *, settings: BrokerSettings | None = None, **options: Any
) -> AsyncIterator[tuple[Broker, BrokerClient]]:
    """A broker that listens, and a client with a channel table."""
    async with Broker(place, settings, **options) as broker, ChannelTable() as table:
        yield broker, BrokerClient(table, await broker.listen("127.0.0.1", 0))


@asynccontextmanager
async def stored(place: Path, log: LogConfig = QUICK, **settings: Any) -> AsyncIterator[StoredPartition]:
    """A partition that is served without a broker."""
    async with StoredPartition(place, BrokerSettings(log=log, **settings)) as partition:
        yield partition


@asynccontextmanager
async def following(copy: StoredPartition, table: object, **options: Any) -> AsyncIterator[None]:
    """Let a partition follow that of the master which a table reaches."""
    task = asyncio.ensure_future(Replica(cast("ChannelTable", table), "master:1", **options).follow(copy))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def drain_fetches(client: BrokerClient, topic: str, count: int, partition: int = 0) -> list[bytes]:
    """Return the messages of a partition once there are at least `count`."""
    consumer = client.consumer(topic, partition)
    found: list[bytes] = []
    while len(found) < count:
        found += [message.payload for message in await consumer.fetch(wait_ms=60_000)]
    return found


async def until_position(client: BrokerClient, wanted: int, group: str = "billing", partition: int = 0) -> None:
    """Wait until a group has this position in a partition of the only topic."""
    while await position(client, group, partition) != wanted:  # noqa: ASYNC110 - the broker has to be asked
        await asyncio.sleep(0.01)


async def position(client: BrokerClient, group: str = "billing", partition: int = 0) -> int:
    """Return the position of a group in a partition of the only topic."""
    found = [each.offset for each in await client.positions(group) if each.partition == partition]
    return found[0] if found else 0


class DirectTable:
    """A channel table without a network: each call goes to the handlers of one partition.

    It counts the calls, and keeps the sizes of the answers.
    """

    def __init__(self, partition: StoredPartition) -> None:
        self._handlers = partition.handlers
        self.asked = 0
        self.sizes: list[int] = []

    async def call(self, address: str, code: int, body: bytes, fields: dict[str, str]) -> Response:
        self.asked += 1
        response = self._handlers[code](Request(code, body, fields))
        found = await response if isinstance(response, Awaitable) else response
        assert found is not None
        self.sizes.append(len(found.data))
        return found


def frame(code: int, opaque: int, body: bytes = b"", **fields: str) -> bytes:
    return b"".join(encode_frame(CallHeader(code, opaque, 0, "", fields), body))


def produce(*sets: bytes, topic: str = "t", partition: int = 0) -> bytes:
    return encode_requests([ProduceRequest(topic, partition, ByteBufferMessageSet(data)) for data in sets])


EVE, ANN = "127.0.0.2", "127.0.0.3"


async def open_as(client: BrokerClient, source: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*split_address(client.address), local_addr=(source, 0))


@asynccontextmanager
async def from_address(client: BrokerClient, source: str) -> AsyncIterator[BrokerClient]:
    """A client that connects from an address of loopback: on TCP, an address is a user."""

    async def dial(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*split_address(address), local_addr=(source, 0))

    async with ChannelTable(dial) as table:
        yield BrokerClient(table, client.address)
