"""A partition that is served without a broker, its replica and consumers, over loopback."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from tests.messages.broker.rig import QUICK, DirectTable, stored
from tests.messages.streams import served
from tests.support.disk import RecordedDisk
from tests.support.loops import HANGING_S, in_loop, in_loop_within
from tests.support.power import Act, Step
from tunnel.messages.broker.protocol import APPEND, CORRUPT, FETCH, MALFORMED
from tunnel.messages.broker.replica import Replica
from tunnel.messages.broker.settings import BrokerSettings
from tunnel.messages.broker.stored_partition import StoredPartition
from tunnel.messages.calls.calls import Request, Response
from tunnel.messages.calls.channels import ChannelTable
from tunnel.messages.errors import OffsetOutOfRangeError, RemoteCallError
from tunnel.messages.kept.log import Log, LogConfig
from tunnel.messages.kept.segments import SegmentSet
from tunnel.messages.payers import Payer
from tunnel.messages.sets.codec import Codec
from tunnel.messages.sets.message import count_whole, encode_payloads
from tunnel.messages.sets.sets import ByteBufferMessageSet
from tunnel.messages.topics.consumer import ConsumedMessage, Consumer


@asynccontextmanager
async def reached(partition: StoredPartition) -> AsyncIterator[tuple[str, ChannelTable]]:
    """The address of a partition, and a table with which clients reach it."""
    async with served(partition.handlers) as address, ChannelTable() as table:
        yield address, table


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


@in_loop
async def test_appended_messages_are_fetched(tmp_path: Path) -> None:
    async with stored(tmp_path) as partition, reached(partition) as (address, table):
        first = await table.call(address, APPEND, encode_payloads([b"a", b"b"]), {"durable": "1"})
        assert first.fields == {"offset": "0"}
        packed = ByteBufferMessageSet.of([b"c", b"d"], codec=Codec.GZIP)
        second = await table.call(address, APPEND, packed.data)
        assert second.fields == {"offset": "2"}
        await partition.flush_before(3)
        consumer = Consumer(table, address)
        assert await consumer.fetch() == [
            ConsumedMessage(0, b"a"),
            ConsumedMessage(1, b"b"),
            ConsumedMessage(2, b"c"),
            ConsumedMessage(2, b"d"),
        ]
        assert (consumer.offset, consumer.lag) == (3, 0)
        assert await consumer.fetch(wait_ms=1) == []
        waiting = asyncio.ensure_future(consumer.fetch(wait_ms=60_000))
        await table.call(address, APPEND, encode_payloads([b"e"]))
        assert [message.payload for message in await waiting] == [b"e"]


@in_loop
async def test_invalid_requests_are_refused(tmp_path: Path) -> None:
    async with stored(tmp_path, replace(QUICK, segment_bytes=10)) as partition:
        for number in range(3):
            partition.log.append([b"%d" % number])
            partition.log.flush()
        async with reached(partition) as (address, table):
            for body in (encode_payloads([b"a"])[:-1], encode_payloads([b"a"])[:-1] + b"b"):
                with pytest.raises(RemoteCallError) as caught:
                    await table.call(address, APPEND, body)
                assert caught.value.code == CORRUPT
            for fields in (None, {"offset": "x"}):
                with pytest.raises(RemoteCallError) as malformed:
                    await table.call(address, FETCH, b"", fields)
                assert malformed.value.code == MALFORMED
            partition.log.trim(1)
            for offset in (0, 4):
                with pytest.raises(OffsetOutOfRangeError, match=f"offset {offset} .* 1 to 3"):
                    await Consumer(table, address, offset).fetch(wait_ms=0)


@in_loop
async def test_a_consumer_that_lags_is_notified(tmp_path: Path) -> None:
    lags: list[int] = []
    async with stored(tmp_path, behind_bytes=400) as partition:
        partition.log.append(numbered(100))
        partition.log.flush()
        async with reached(partition) as (address, table):
            consumer = Consumer(table, address, fetch_bytes=120, lag_max=50, on_lag=lags.append)
            found: list[bytes] = []
            while len(found) < 100:
                found += [message.payload for message in await consumer.fetch()]
            assert found == numbered(100)
            assert lags == sorted(lags, reverse=True)
            assert lags
            assert min(lags) > 50
            assert consumer.lag == 0


@in_loop
async def test_ten_thousand_messages_are_no_backlog_and_one_more_is(tmp_path: Path) -> None:
    """The threshold of the reference document: max_offset - offset > 10000."""
    lags: list[int] = []
    async with stored(tmp_path) as partition:
        partition.log.append([b""] * 10_002)
        partition.log.flush()
        async with reached(partition) as (address, table):
            consumer = Consumer(table, address, fetch_bytes=1, on_lag=lags.append)
            for _ in range(2):
                assert len(await consumer.fetch()) == 1
            assert consumer.lag == 10_000
    assert lags == [10_001]


@asynccontextmanager
async def watched(partition: StoredPartition) -> AsyncIterator[tuple[str, ChannelTable, list[int]]]:
    """The address of a partition, a table, and the offsets of the fetches that come."""
    handlers = partition.handlers
    fetch, asked = cast("Callable[[Request], Awaitable[Response]]", handlers[FETCH]), list[int]()

    def note(request: Request) -> Awaitable[Response]:
        asked.append(int((request.fields or {})["offset"]))
        return fetch(request)

    async with served({**handlers, FETCH: note}) as address, ChannelTable() as table:
        yield address, table, asked


@in_loop
async def test_a_consumer_fetches_ahead_while_its_caller_works(tmp_path: Path) -> None:
    async with stored(tmp_path) as partition:
        log = partition.log
        log.append([bytes(1000)] * 100)
        log.flush()
        async with watched(partition) as (address, table, asked):
            consumer = Consumer(table, address, fetch_bytes=40_000)
            found = [each.offset for each in await consumer.fetch()]
            while len(asked) < 2:  # without another call of `fetch`  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert asked == [0, consumer.offset]
            while len(found) < 100:
                found += [each.offset for each in await consumer.fetch()]
            assert found == list(range(100))
            assert asked == sorted(set(asked))  # no offset is asked for twice
            log.append([b"new"])
            assert [each.payload for each in await consumer.fetch()] == [b"new"]


@in_loop
async def test_messages_fetched_ahead_are_used_only_where_the_consumer_goes_on(tmp_path: Path) -> None:
    async with stored(tmp_path) as partition:
        log = partition.log
        log.append([b"%d" % number + bytes(1000) for number in range(100)])
        log.flush()
        async with watched(partition) as (address, table, asked):
            consumer = Consumer(table, address, fetch_bytes=40_000)
            for offset in (0, 50, 1):
                consumer.offset = offset
                assert (await consumer.fetch())[0] == ConsumedMessage(offset, b"%d" % offset + bytes(1000))
            ahead = consumer.offset
            await table.close()
        async with watched(partition) as (address, table, asked):  # the answer that was fetched ahead is lost
            consumer = Consumer(table, address, ahead, fetch_bytes=40_000)
            await consumer.fetch()
            while len(asked) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0)
            await (await table.channel(address)).close()
            start = consumer.offset
            assert (await consumer.fetch())[0].offset == start


@in_loop
async def test_an_answer_ends_at_a_whole_message_if_the_index_has_one(tmp_path: Path) -> None:
    async with stored(tmp_path) as partition:
        log = partition.log
        log.append([bytes(1000)] * 100)
        log.append([bytes(70_000)] * 2)
        log.flush()
        offsets = []
        async with watched(partition) as (address, table, _):
            for offset, size in ((0, 40_000), (0, 500), (100, 100_000), (101, 100_000), (102, 100)):
                fields = {"offset": str(offset), "bytes": str(size)}
                answer = await table.call(address, FETCH, b"", fields)
                whole, end = count_whole(answer.data)
                following = (answer.fields or {}).get("next")
                assert following is None or (int(following), len(answer.data)) == (offset + whole, end)
                offsets.append(following)
        assert offsets == ["34", None, "101", "102", "102"]


@in_loop_within(HANGING_S)
async def test_consumers_go_on_when_the_replica_lags_or_dies(tmp_path: Path) -> None:
    table = ChannelTable()
    async with stored(tmp_path / "master", behind_bytes=100) as partition, stored(tmp_path / "copy") as copy:
        for each, count in ((partition, 200), (copy, 50)):
            each.log.append(numbered(count))
            each.log.flush()
        async with served(partition.handlers) as master:
            copy.settings = replace(copy.settings, master=master)
            assert APPEND not in copy.handlers
            async with served(copy.handlers) as replica:
                partition.settings = replace(partition.settings, replica=replica)
                consumer = Consumer(table, master, fetch_bytes=200)
                found: list[bytes] = []
                while len(found) < 150:
                    found += [message.payload for message in await consumer.fetch()]
                assert found == numbered(200)[: len(found)]
                consumer.offset = 0
                await consumer.fetch()
                assert consumer.address == replica
                (await table.channel(replica))._writer.transport.abort()
            consumer.offset = 0
            consumer.address = replica  # no server listens there any more
            with pytest.raises(OSError, match=r".*"):
                await consumer.fetch()
            assert consumer.address == master
            found = []
            failed = 0
            while len(found) < 200:  # the broker serves every second fetch itself, and the consumer goes on
                try:
                    found += [message.payload for message in await consumer.fetch(wait_ms=0)]
                except OSError:
                    failed += 1
            assert found == numbered(200)
            assert failed > 1
            await table.close()


@in_loop_within(HANGING_S)
async def test_appends_wait_for_a_slow_disk(tmp_path: Path) -> None:
    """While the disk holds up a write, an append that finds too many bytes waiting is answered after that write."""
    is_slow, goes_on = threading.Event(), threading.Event()

    def hold_up(step: Step) -> None:
        if step.act is Act.WRITE:
            is_slow.set()
            assert goes_on.wait(HANGING_S)

    with RecordedDisk(tmp_path / "disk") as disk:
        async with (
            stored(disk.root / "log", replace(QUICK, pending_bytes_max=300)) as partition,
            reached(partition) as (address, table),
        ):
            log = partition.log
            disk.before = hold_up
            first = await table.call(address, APPEND, encode_payloads([b"a"]))  # the disk holds up its write
            await asyncio.to_thread(is_slow.wait, HANGING_S)
            second = await table.call(address, APPEND, encode_payloads([b"b"]))  # there is room for it
            third = asyncio.ensure_future(table.call(address, APPEND, encode_payloads([bytes(100)])))
            while not log._room_waiters:  # noqa: ASYNC110
                await asyncio.sleep(0)
            await table.call(address, FETCH, b"", {"offset": "0", "wait_ms": "0"})  # the broker answers other requests
            assert not third.done()
            assert not log.has_room
            goes_on.set()
            offsets = [answer.fields["offset"] for answer in (first, second, await third) if answer.fields]
            assert offsets == ["0", "1", "2"]


@in_loop
async def test_a_durable_append_is_answered_when_the_message_is_on_disk(tmp_path: Path) -> None:
    """Only then may its sender forget it: at every step after the answer, the power may fail."""
    with RecordedDisk(tmp_path / "disk") as disk:
        async with stored(disk.root / "log", LogConfig()) as partition:
            await DirectTable(partition).call("", APPEND, encode_payloads([b"kept"]), {"durable": "1"})
            disk.mark("answered", True)
    answered = next(crash for crash in disk.crashes() if crash.last("answered", False))
    answered.write(tmp_path / "image")
    with Log.open(tmp_path / "image" / "log") as left:
        assert list(left.read(0).payloads()) == [b"kept"]


@in_loop
async def test_a_reader_gets_eight_mebibytes_at_most_whatever_it_asks_for(tmp_path: Path) -> None:
    """More would be read into the page cache, and perhaps into memory, for one request."""
    async with stored(tmp_path) as partition:
        log = partition.log
        log.append([bytes(1 << 20)] * 9)
        log.flush()
        answer = await DirectTable(partition).call("", FETCH, b"", {"offset": "0", "bytes": str(1 << 40)})
        assert isinstance(answer.body, SegmentSet)
        assert 7 << 20 < answer.body.size_bytes <= 8 << 20


@in_loop
async def test_a_replica_never_goes_on_with_a_hole(tmp_path: Path) -> None:
    """The master has removed what the replica needs next. It must stop: its offsets would no longer be the master's."""
    async with (
        stored(tmp_path / "master", replace(QUICK, segment_bytes=10)) as partition,
        stored(tmp_path / "copy") as copy,
    ):
        for number in range(5):
            partition.log.append([b"%d" % number])
            partition.log.flush()
        partition.log.trim(3)
        replica = Replica(cast("ChannelTable", DirectTable(partition)), "master:1")
        with pytest.raises(OffsetOutOfRangeError, match="offset 0"):
            await replica.pull(copy)
        assert copy.log.next_offset == 0


@in_loop
async def test_a_reader_that_no_longer_finds_its_messages_is_sent_to_the_replica_which_may_have_them(
    tmp_path: Path,
) -> None:
    async with stored(tmp_path, replace(QUICK, segment_bytes=10), replica="replica:1") as partition:
        for _ in range(3):
            partition.log.append([b"x"])
            partition.log.flush()
        partition.log.trim(2)
        table = DirectTable(partition)
        assert ((await table.call("", FETCH, b"", {"offset": "1"})).fields or {})["redirect"] == "replica:1"
        stays = await table.call("", FETCH, b"", {"offset": "1", "stay": "1"})
        assert (stays.fields, stays.data) == ({"max": "3", "first": "2"}, b"")


@in_loop
async def test_the_disk_is_read_in_a_thread_and_only_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[bool] = []
    real = Log.read

    def read(self: Log, offset: int, size_max: int = 0) -> SegmentSet:
        threads.append(threading.current_thread() is not threading.main_thread())
        return real(self, offset, size_max)

    monkeypatch.setattr(Log, "read", read)
    payer = Payer()
    payer.disk_reads = one = asyncio.Semaphore(1)
    async with stored(tmp_path) as partition:
        log = partition.log
        log.append([b"a"])
        log.flush()
        fetch = Request(FETCH, b"", {"offset": "0"})
        for cached, behind_bytes, in_thread in (
            (True, 10, False),
            (False, 10, True),
            (False, 11, True),
            (None, 11, False),
            (None, 10, True),
        ):
            partition.settings = BrokerSettings(behind_bytes=behind_bytes)
            monkeypatch.setattr(Log, "is_cached", lambda *_, cached=cached: cached)
            assert (await partition.fetch(fetch, payer)).data == encode_payloads([b"a"])
            assert threads.pop() is in_thread
        async with one:  # another read of the disk for the same client
            waiting = asyncio.ensure_future(partition.fetch(fetch, payer))
            for _ in range(5):
                await asyncio.sleep(0)
            assert threads == []
        await waiting
