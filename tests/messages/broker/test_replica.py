"""Replicas: which readers are redirected, what is copied, and how a replica starts late or falls behind."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from tests.messages.broker.rig import QUICK, DirectTable, brokered, drain_fetches, following, stored, until
from tests.support.loops import in_loop
from tests.support.page_cache import dropped_from_page_cache
from tunnel.messages import (
    Broker,
    BrokerClient,
    BrokerSettings,
    ChannelTable,
    Log,
    LogConfig,
    RemoteCallError,
    Replica,
    Response,
    TopicSpec,
)
from tunnel.messages.broker import replica as replicas
from tunnel.messages.broker.protocol import FETCH, NOT_MASTER, TOPICS
from tunnel.messages.broker.stored_partition import StoredPartition
from tunnel.messages.kept.segments import INDEX_BYTES


async def redirected(client: BrokerClient, offset: int) -> str:
    fields = {"topic": "t", "partition": "0", "offset": str(offset)}
    response = await client.table.call(client.address, FETCH, b"", fields)
    return (response.fields or {}).get("redirect", "")


@in_loop
async def test_a_reader_of_what_is_not_in_the_page_cache_is_far_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few bytes these are: the master must not wait for its disk."""
    cached: bool | None = True
    asked: list[tuple[int, int]] = []

    def is_cached(self: Log, offset: int, size_max: int) -> bool | None:
        asked.append((offset, size_max))
        return cached

    monkeypatch.setattr(Log, "is_cached", is_cached)
    async with brokered(tmp_path, settings=BrokerSettings(replica="replica:1")) as (_, client):
        await client.producer().send("t", b"a", b"b")
        assert await redirected(client, 0) == ""
        cached = None  # the file system does not tell
        assert await redirected(client, 0) == ""
        cached = False
        assert await redirected(client, 1) == "replica:1"
        assert asked == [(0, 65536), (0, 65536), (1, 65536)]
        assert await redirected(client, 2) == ""  # at the end, there is nothing to read
        assert len(asked) == 3


@in_loop
async def test_the_page_cache_decides_on_a_real_file_system(tmp_path: Path) -> None:
    async with brokered(tmp_path, settings=BrokerSettings(replica="replica:1")) as (broker, client):
        await client.producer().send("t", *[bytes(1000)] * 100)
        partition = broker.topics.get("t").partition(0)
        assert isinstance(partition, StoredPartition)
        if partition.log.is_cached(0, 65536) is None:
            pytest.skip("the file system of the temporary directory does not tell what is in the page cache")
        assert await redirected(client, 0) == ""
        for _ in dropped_from_page_cache(partition.log.read(0).descriptor):
            if await redirected(client, 0) == "replica:1":
                break


@in_loop
async def test_a_reader_that_is_far_behind_reads_from_the_replica_and_returns(tmp_path: Path) -> None:
    topics = {"t": TopicSpec(partitions=2), "hints": TopicSpec(storage="memory")}
    async with brokered(tmp_path / "a", topics=topics) as (master, client):
        await client.producer().send("t", *(b"%d" % number for number in range(500)), partition=1)
        settings = BrokerSettings(master=client.address)
        async with brokered(tmp_path / "b", settings=settings) as (replica, copy):
            await until(lambda: "t" in replica.topics.found)
            partition = replica.topics.get("t").partition(1)
            await until(lambda: partition.is_ready and partition.end_offset == 500)
            assert "hints" not in replica.topics.found
            with pytest.raises(RemoteCallError, match=f"send to the broker at {client.address}") as caught:
                await copy.producer().send("t", b"x")
            assert caught.value.code == NOT_MASTER
            with pytest.raises(RemoteCallError, match="positions are kept by"):
                await copy.commit("g", "t", 1, 1)
            for topic in (master.topics.get("t"),):
                for each in topic.partitions:
                    assert isinstance(each, StoredPartition)
                    each.settings = replace(each.settings, replica=copy.address, behind_bytes=1000)
            consumer = client.consumer("t", 1, fetch_bytes=1000)
            found: list[bytes] = []
            places: list[str] = []
            while len(found) < 500:
                found += [message.payload for message in await consumer.fetch()]
                places.append(consumer.address)
            await client.producer().send("t", b"live", partition=1)
            while len(found) < 501:
                found += [message.payload for message in await consumer.fetch()]
                places.append(consumer.address)
            assert found == [*(b"%d" % number for number in range(500)), b"live"]
            assert places[0] == copy.address
            assert places[-1] == client.address


@in_loop
async def test_a_replica_starts_with_the_oldest_message_that_is_left(tmp_path: Path) -> None:
    settings = BrokerSettings(log=replace(QUICK, segment_bytes=10))
    async with brokered(tmp_path / "a", settings=settings) as (master, client):
        for number in range(6):
            await client.producer().send("t", b"%d" % number)
        stored = master.topics.get("t").partition(0)
        assert isinstance(stored, StoredPartition)
        await asyncio.to_thread(stored.log.trim, 4)
        async with brokered(tmp_path / "b", settings=BrokerSettings(master=client.address)) as (replica, copy):
            await until(lambda: "t" in replica.topics.found)
            partition = replica.topics.get("t").partition(0)
            await until(lambda: partition.is_ready and partition.end_offset == 6)
            assert partition.first_offset == 4
            messages = await copy.consumer("t", 0, 4).fetch()
            assert [message.payload for message in messages] == [b"4", b"5"]
        for number in range(6, 9):
            await client.producer().send("t", b"%d" % number)
        await asyncio.to_thread(stored.log.trim, 8)
        async with brokered(tmp_path / "b", settings=BrokerSettings(master=client.address)) as (replica, copy):
            partition = replica.topics.get("t").partition(0)
            await until(lambda: partition.is_ready and partition.end_offset == 9)
            assert partition.first_offset == 8


@in_loop
async def test_a_replica_waits_for_its_master(tmp_path: Path) -> None:
    async with brokered(tmp_path / "a") as (_, client):
        await client.producer().send("t", b"a")
        address = client.address
    async with (
        brokered(tmp_path / "b", settings=BrokerSettings(master=address)) as (replica, copy),
        brokered(tmp_path / "a") as (master, _client),
    ):
        host, _, port = address.rpartition(":")
        await master.listen(host, int(port))
        await until(lambda: "t" in replica.topics.found)
        assert await drain_fetches(copy, "t", 1) == [b"a"]


@in_loop
async def test_two_users_a_topic_that_cannot_be_copied_stops_no_other(tmp_path: Path) -> None:
    """A user can delete a topic at the master, and create it with another number of partitions."""
    async with brokered(tmp_path / "b", topics={"a": TopicSpec(partitions=2)}):
        pass
    async with brokered(tmp_path / "a", topics={"a": TopicSpec(), "b": TopicSpec()}) as (_, client):
        await client.producer().send("b", b"copied")
        settings = BrokerSettings(master=client.address)
        with capture_logs() as logs:
            async with brokered(tmp_path / "b", settings=settings) as (replica, copy):
                await until(lambda: "b" in replica.topics.found)
                assert await drain_fetches(copy, "b", 1) == [b"copied"]
                await until(lambda: [each for each in logs if each["event"] == "not_copied"])
        assert [each["topic"] for each in logs if each["event"] == "not_copied"] == ["a"]


class Liar:
    """A table whose master lists topics as the answers say, one after the other, and has no bounds of a log."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.fetches = 0

    async def call(self, address: str, code: int, body: bytes = b"", fields: dict[str, str] | None = None) -> Response:
        if code != TOPICS:
            self.fetches += 1
            return Response(b"", [None, {}, {"first": "a", "max": ""}][self.fetches % 3])
        return Response(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])

    async def close(self) -> None: ...


@in_loop
async def test_a_replica_goes_on_whatever_its_master_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_LOOK_S", "_RETRY_S"):
        monkeypatch.setattr(replicas, name, 0.001)
    one = '{"partition": 0, "first": 0, "end": 0, "size_bytes": 0}'
    none, bad, good = (
        f'{{"topic": "{name}", "storage": "log", "partitions": [{partitions}]}}'
        for name, partitions in (("x", ""), ("../x", one), ("good", one))
    )
    deep = b'[{"x": ' + 5_000 * b"["
    table = Liar(deep, b"", b"\xff", b"{}", b"[7]", f"[{none}]".encode(), f"[{bad}, {good}]".encode())
    async with Broker(tmp_path) as broker:
        task = asyncio.ensure_future(Replica(cast("ChannelTable", table), "m:1").follow_topics(broker.topics))
        await until(lambda: table.fetches > 3)
        assert list(broker.topics.found) == ["good"]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@in_loop
async def test_two_users_a_topic_that_the_master_has_deleted_is_asked_for_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user could make the replica ask for 500 partitions twice a second, without end."""
    monkeypatch.setattr(replicas, "_RETRY_S", 0.001)
    monkeypatch.setattr(replicas, "_GONE_S", 1e6)
    async with brokered(tmp_path / "a", topics={"a": TopicSpec()}) as (master, client):
        settings = BrokerSettings(master=client.address)
        with capture_logs() as logs:
            async with brokered(tmp_path / "b", settings=settings) as (replica, _):
                await until(lambda: "a" in replica.topics.found and master.counters.fetch_requests)
                await client.delete_topic("a")
                await until(lambda: [each for each in logs if each["event"] == "topic_gone"])
                await client.create_topic("b")
                await until(lambda: "b" in replica.topics.found)  # it has looked for topics since
        assert [each["event"] for each in logs if each["event"] in ("topic_gone", "master_away")] == ["topic_gone"]


@in_loop
async def test_a_replica_whose_own_disk_is_full_does_not_blame_its_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, is_full = os.writev, True

    def limited(descriptor: int, buffers: Sequence[bytes]) -> int:
        if is_full and f"{tmp_path}/b/" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, buffers)

    monkeypatch.setattr(os, "writev", limited)
    async with brokered(tmp_path / "a") as (_, client):
        await client.producer().send("t", b"a")
        with capture_logs() as lines:
            settings = BrokerSettings(master=client.address, log=QUICK)
            async with brokered(tmp_path / "b", settings=settings) as (_, copy):
                await until(lambda: any(line["event"] == "a log failed" for line in lines))
                # The replica finds the failure when it copies the next message.
                await client.producer().send("t", b"b")
                await until(lambda: any(line["event"] in ("storage_failed", "master_away") for line in lines))
                is_full = False
                assert await drain_fetches(copy, "t", 2) == [b"a", b"b"]
    events = [line["event"] for line in lines]
    assert events.count("storage_failed") == events.count("storage_recovered") == 1
    assert "master_away" not in events


NEVER = LogConfig(flush_messages=1_000_000, flush_s=3600.0)


def counted_syncs(monkeypatch: pytest.MonkeyPatch, directory: Path) -> list[str]:
    """Return a list that gets an entry for each flush of a log in this directory."""
    found: list[str] = []
    real = os.fdatasync

    def fdatasync(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if path.startswith(str(directory)):
            found.append(path)
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    return found


@in_loop
async def test_a_replica_that_follows_does_not_make_its_master_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master flushes as its settings say. Others get nothing that is not on its disk yet."""
    syncs = counted_syncs(monkeypatch, tmp_path / "master")
    async with stored(tmp_path / "master", NEVER) as master, stored(tmp_path / "copy") as copy:
        table, log = DirectTable(master), master.log
        async with following(copy, table):
            while not table.asked:  # noqa: ASYNC110
                await asyncio.sleep(0)
            for number in range(300):
                log.append([b"%d" % number])
                await asyncio.sleep(0)
            await asyncio.sleep(0.1)  # as long as an early flush may take
            assert (syncs, copy.log.next_offset) == ([], 0)
            log.flush()
            await copy.log.until_flushed(300)
        assert len(syncs) == 1
        assert list(copy.log.read(0).payloads()) == [b"%d" % number for number in range(300)]


@in_loop
async def test_a_replica_takes_batches_though_its_master_flushes_each_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "_GATHER_MS", 60_000)
    async with stored(tmp_path / "master") as master, stored(tmp_path / "copy") as copy:
        table, log = DirectTable(master), master.log
        async with following(copy, table, batch_bytes=50_000):
            while copy.log.next_offset < 150:
                log.append([bytes(990)])
                await log.until_flushed(log.next_offset, now=True)
                await asyncio.sleep(0)
        assert min(table.sizes) > 50_000 - INDEX_BYTES - 1000
        assert len(table.sizes) <= copy.log.next_offset / 33


@in_loop
async def test_a_replica_gets_what_there_is_when_a_batch_takes_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "_GATHER_MS", 1)
    async with stored(tmp_path / "master") as master, stored(tmp_path / "copy") as copy:
        master.log.append([b"a"])
        async with following(copy, DirectTable(master)):
            await copy.log.until_flushed(1)
