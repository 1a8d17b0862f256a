"""The power of a broker's machine fails at any step: confirmed messages and positions are still there."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest

from tests.messages.broker.rig import DirectTable, brokered, following, position, stored, until_position
from tests.support.disk import RecordedDisk
from tests.support.loops import in_loop
from tests.support.power import Act, Crash, Step
from tunnel.messages import (
    BrokerClient,
    BrokerSettings,
    DeliveredMessage,
    GroupConsumer,
    ListenerConfig,
    Log,
    LogConfig,
    TopicSpec,
)
from tunnel.messages.broker import replica
from tunnel.messages.broker.disk_room import DiskRoom
from tunnel.messages.broker.positions import Positions

TOPICS = {"orders": TopicSpec(partitions=2)}
SMALL = BrokerSettings(log=LogConfig(segment_bytes=200))


@pytest.fixture(autouse=True)
def no_real_power_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for the real disk: the recorded disk knows the content that it would have after a power failure."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda descriptor: None)


async def produce_and_consume(disk: RecordedDisk, client: BrokerClient) -> None:
    def handle(message: DeliveredMessage) -> None: ...

    producer = client.producer()
    for number in range(8):
        payload = b"%d:" % number + bytes(30)
        place = await producer.send("orders", payload, partition=number % 2)
        disk.mark("stored", (place.partition, place.offset, payload))
    config = ListenerConfig(commit_s=0.0)
    consumer = GroupConsumer(client.table, client.address, "billing", "orders", config=config)
    async with consumer.register_message_listener(handle):
        for partition in (0, 1):
            await until_position(client, 4, partition=partition)
    # The position that the broker reports may not be on disk yet. But a listener closes only after the broker has
    # confirmed its positions.
    disk.mark("read", True)


async def everything(client: BrokerClient, partition: int) -> list[bytes]:
    """Return all messages that a partition has."""
    consumer = client.consumer("orders", partition)
    found: list[bytes] = []
    while messages := await consumer.fetch(wait_ms=0):
        found += [message.payload for message in messages]
    return found


async def check(place: Path, crash: Crash) -> None:
    async with brokered(place, settings=SMALL, topics=TOPICS) as (_, client):
        for partition in (0, 1):
            stored = [payload for number, _, payload in crash.marked("stored") if number == partition]
            assert (await everything(client, partition))[: len(stored)] == stored
            if crash.last("read", False):
                assert await position(client, "billing", partition) == 4


@in_loop
async def test_a_position_is_confirmed_when_it_is_on_disk(tmp_path: Path) -> None:
    free = threading.Event()

    def before(step: Step) -> None:
        if step.act is Act.SYNC:
            assert free.wait(60)

    with RecordedDisk(tmp_path / "disk") as disk:
        positions = Positions(disk.root / "positions", 10, DiskRoom(disk.root, 0))
        await positions.load()
        disk.before = before
        storing = asyncio.ensure_future(positions.set(("billing", "orders", 0), 4))
        for _ in range(20):
            await asyncio.sleep(0)
        early = storing.done()
        free.set()
        assert await storing == 4
        await positions.close()
    assert not early


@in_loop
async def test_a_power_failure_at_any_step_loses_nothing_that_a_broker_has_confirmed(tmp_path: Path) -> None:
    with RecordedDisk(tmp_path / "disk") as disk:
        async with brokered(disk.root / "deep" / "broker", settings=SMALL, topics=TOPICS) as (_, client):
            await produce_and_consume(disk, client)
    for crash in disk.crashes():
        for _ in crash.images(tmp_path / "image", range(1)):
            await check(tmp_path / "image" / "deep" / "broker", crash)


def hold_up(step: Step) -> None:
    """Let the replica come for what the master has written and not synced: the master must not have it to give."""
    if step.act is Act.SYNC and step.path.startswith("master"):
        time.sleep(0.05)


async def follow(disk: RecordedDisk) -> None:
    """A master whose messages are flushed now and then, and a replica on another machine that follows it."""
    config = LogConfig(flush_messages=1_000_000, flush_s=3600.0, segment_bytes=200)
    async with stored(disk.root / "master", config) as master, stored(disk.root / "copy") as copy:
        disk.before, log = hold_up, master.log
        async with following(copy, DirectTable(master), batch_bytes=100):
            for number in range(24):
                log.append([b"%d:" % number + bytes(20)])
                if number % 5 == 4:
                    await log.until_flushed(log.next_offset, now=True)
                    while copy.log.next_offset < log.end_offset:  # noqa: ASYNC110 - the replica has to come for it
                        await asyncio.sleep(0)
                else:
                    for _ in range(5):
                        await asyncio.sleep(0)
            copy.log.flush()


def contents(log: Log) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < log.end_offset:
        found += log.read(len(found)).payloads()
    return found


@in_loop
async def test_a_replica_has_nothing_that_a_power_failure_takes_from_its_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master would give the offsets of such messages to others, and the two would differ for good."""
    monkeypatch.setattr(replica, "_GATHER_MS", 1)
    with RecordedDisk(tmp_path / "disk") as disk:
        await follow(disk)
    most = 0
    for crash in disk.crashes():
        for _ in crash.images(tmp_path / "image", range(2), spared=["copy"]):
            with Log.open(tmp_path / "image" / "master") as log, Log.open(tmp_path / "image" / "copy") as copy:
                copied = contents(copy)
                assert copied == contents(log)[: len(copied)], crash
                most = max(most, len(copied))
    assert most == 20
