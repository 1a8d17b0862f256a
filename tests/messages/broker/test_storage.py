"""Full and failing disks: nothing acknowledged is lost, sends are refused with a reason, and the broker recovers."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.messages.broker.rig import QUICK, brokered, drain_fetches, position
from tests.support.loops import in_loop
from tunnel.messages import (
    BrokerClient,
    BrokerProducer,
    BrokerSettings,
    ChannelTable,
    RemoteCallError,
    SyncProducer,
    split_address,
)
from tunnel.messages.broker.partition import ProduceOptions
from tunnel.messages.broker.protocol import STORAGE
from tunnel.messages.broker.stored_partition import StoredPartition
from tunnel.messages.sets.message import encode_payloads

PLAIN = ProduceOptions()
ROOMY = 1 << 40


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Let logs write files up to this size: as on a full disk, a write is done in part first, then fails."""
    writev = os.writev

    def limited(descriptor: int, buffers: Sequence[bytes]) -> int:
        left = size - os.fstat(descriptor).st_size
        if left <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.write(descriptor, b"".join(buffers)[:left])

    os.writev = limited  # type: ignore[assignment]
    try:
        yield
    finally:
        os.writev = writev


def fail_to_flush(descriptor: int) -> None:
    raise OSError(errno.EIO, "Input/output error")


async def send_many(producer: BrokerProducer, count: int) -> None:
    for _ in range(count):
        await producer.send("t", b"x" * 1000)


@in_loop
async def test_a_full_disk_refuses_messages_and_positions_go_on(tmp_path: Path) -> None:
    free = [ROOMY]
    settings = BrokerSettings(disk_reserve_bytes=1000)
    async with brokered(tmp_path, settings=settings, free=lambda _: free[0]) as (broker, client):
        producer = client.producer()
        await producer.send("t", b"a")
        free[0] = 1000
        broker.topics._room._left = 0  # as if the room had been used up
        for _ in range(2):
            with pytest.raises(RemoteCallError, match="disk of the broker is full: 1000 bytes are left") as caught:
                await producer.send("t", b"b")
            assert caught.value.code == STORAGE
        with pytest.raises(RemoteCallError, match="full"):
            await producer.send("new", b"b")
        assert await client.commit("billing", "t", 0, 1) == 1
        free[0] = ROOMY
        assert (await producer.send("t", b"c")).offset == 1
        assert await drain_fetches(client, "t", 2) == [b"a", b"c"]


def put_directory_in_place_of_segment(place: Path, topic: str) -> None:
    (segment,) = place.rglob(f"{topic}/0/*.log")
    segment.unlink()
    segment.mkdir()


@in_loop
async def test_positions_are_listed_although_a_partition_cannot_be_opened(tmp_path: Path) -> None:
    """A caller that asks for all positions also learns those in sound partitions."""
    async with brokered(tmp_path) as (_, client):
        for topic in ("sound", "broken"):
            await client.producer().send(topic, b"a", b"b")
            await client.commit("billing", topic, 0, 1)
    put_directory_in_place_of_segment(tmp_path, "broken")
    async with brokered(tmp_path) as (_, client):
        found = {each.topic: (each.offset, each.end, each.lag) for each in await client.positions()}
        assert found == {"sound": (1, 2, 1), "broken": (1, None, None)}


@in_loop
async def test_a_failed_write_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    settings = BrokerSettings(log=QUICK)
    async with brokered(tmp_path, settings=settings) as (broker, client):
        producer = client.producer()
        await producer.send("t", b"first")
        with files_up_to(5_000):
            with pytest.raises(RemoteCallError) as caught:
                await send_many(producer, 10)
            assert caught.value.code == STORAGE
            assert "nothing was stored" in str(caught.value)
            with pytest.raises(RemoteCallError, match="cannot be written"):
                await producer.send("t", b"y" * 1000)
            kept = await drain_fetches(client, "t", 5)  # what was acknowledged can be read all the time
            assert kept == [b"first", *[b"x" * 1000] * 4]
        partition = broker.topics.get("t").partition(0)
        assert isinstance(partition, StoredPartition)
        partition._failed_at = float("-inf")  # as if the pause after the failure had passed
        assert (await producer.send("t", b"last")).offset == 5
        assert await drain_fetches(client, "t", 6) == [*kept, b"last"]
    async with brokered(tmp_path) as (_, client):
        assert await drain_fetches(client, "t", 6) == [*kept, b"last"]


@in_loop
async def test_a_plain_producer_notices_a_full_disk(tmp_path: Path) -> None:
    async with brokered(tmp_path, settings=BrokerSettings(log=QUICK)) as (_, client):
        host, _, port = client.address.rpartition(":")
        await client.producer().send("t", b"first")
        reader, writer = await asyncio.open_connection(host, int(port))

        async def send() -> bytes:
            for _ in range(1000):
                await SyncProducer(writer).send("t", b"x" * 1000)
                await asyncio.sleep(0)
            writer.write_eof()
            return await reader.read()

        with files_up_to(5_000), pytest.raises(ConnectionError):
            await send()
        writer.close()


@in_loop
async def test_a_plain_producer_is_confirmed_when_all_its_messages_are_on_disk(tmp_path: Path) -> None:
    """Nothing else flushes them: the log would wait for more messages, or for a minute."""
    settings = BrokerSettings(log=replace(QUICK, flush_messages=100, flush_s=60.0))
    async with brokered(tmp_path, settings=settings) as (broker, client):
        reader, writer = await asyncio.open_connection(*split_address(client.address))
        try:
            for topic in ("t", "u", "t"):
                await SyncProducer(writer).send(topic, b"a")
            writer.write_eof()
            assert await reader.read() == b""
            assert [broker.topics.get(topic).partition(0).end_offset for topic in ("t", "u")] == [2, 1]
        finally:
            writer.close()


@in_loop
async def test_a_message_that_was_refused_because_of_a_failed_flush_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has it as a whole. The producer sends it again, and readers get it once."""
    flush = os.fdatasync
    settings = BrokerSettings(log=QUICK)
    async with brokered(tmp_path, settings=settings) as (_, client):
        producer = client.producer()
        await producer.send("t", b"first")
        monkeypatch.setattr(os, "fdatasync", fail_to_flush)
        with pytest.raises(RemoteCallError, match="nothing was stored"):
            await producer.send("t", b"second")
        segment = tmp_path / "topics" / "t" / "0" / f"{0:020d}.log"
        assert segment.read_bytes().endswith(b"second")
        monkeypatch.setattr(os, "fdatasync", flush)
        assert (await producer.send("t", b"second")).offset == 1
        assert await drain_fetches(client, "t", 2) == [b"first", b"second"]
    assert segment.read_bytes().count(b"second") == 1


@in_loop
async def test_a_log_that_is_opened_again_has_only_flushed_messages(tmp_path: Path) -> None:
    now = [0.0]
    settings = BrokerSettings(log=replace(QUICK, flush_messages=100, flush_s=60.0))
    partition = StoredPartition(tmp_path / "0", settings, clock=lambda: now[0])
    await partition.ready()
    data = encode_payloads([b"z" * 100])
    assert partition.append(data, 1, PLAIN) == 0
    await partition.flush_before(1)
    with files_up_to(150):
        partition.append(data, 1, PLAIN)
        with pytest.raises(RemoteCallError, match="nothing was stored"):
            await partition.flush_before(2)
        assert partition.is_failed
        assert not partition.is_ready
        await partition.ready()  # opened again, cut to what was flushed
        assert (partition.end_offset, (tmp_path / "0" / f"{0:020d}.log").stat().st_size) == (1, 110)
        partition.append(data, 1, PLAIN)
        with pytest.raises(RemoteCallError):
            await partition.flush_before(2)
    with pytest.raises(RemoteCallError, match="cannot be written"):
        await partition.ready()  # the log is not opened again within a second
    now[0] = 1.0
    await partition.ready()
    assert partition.append(data, 1, PLAIN) == 1
    await partition.flush_before(2)
    await partition.close()
    partition._log = None
    with pytest.raises(RemoteCallError, match="is being closed"):
        await partition.ready()


@in_loop
async def test_old_messages_are_removed_by_age_even_when_none_come(tmp_path: Path) -> None:
    settings = BrokerSettings(log=replace(QUICK, retain_s=0.05))
    async with brokered(tmp_path, settings=settings) as (broker, client):
        await client.producer().send("t", b"a", b"b")
        partition = broker.topics.get("t").partition(0)
        while partition.first_offset < 2:
            partition.retain()
            await asyncio.sleep(0.02)
        assert (await client.producer().send("t", b"c")).offset == 2
        assert await position(client) == 0


@in_loop
async def test_a_topic_that_is_created_when_its_client_leaves_is_whole(tmp_path: Path) -> None:
    async with brokered(tmp_path) as (_, client):
        for number in range(5):
            creating = asyncio.ensure_future(client.producer().send(f"t{number}", b"a"))
            for _ in range(number):
                await asyncio.sleep(0.001)
            creating.cancel()
            await asyncio.gather(creating, return_exceptions=True)
        async with ChannelTable() as table:
            for number in range(5):
                await BrokerClient(table, client.address).producer().send(f"t{number}", b"b")
