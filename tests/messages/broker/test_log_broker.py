"""A broker, its replica and consumers, over loopback."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from tests.messages.broker.rig import DirectTable
from tests.messages.streams import served
from tests.support.disk import RecordedDisk
from tests.support.loops import HANGING_S, in_loop, in_loop_within
from tests.support.power import Act, Step
from tunnel.messages.broker import (
    APPEND,
    CORRUPT,
    FETCH,
    MALFORMED,
    BrokerConfig,
    LogBroker,
    Replica,
    count_messages,
)
from tunnel.messages.calls import Request, Response
from tunnel.messages.channels import ChannelTable
from tunnel.messages.codec import Codec
from tunnel.messages.consumer import ConsumedMessage, Consumer
from tunnel.messages.errors import LogError, OffsetOutOfRangeError, RemoteCallError
from tunnel.messages.log import Log, LogConfig
from tunnel.messages.message import count_whole, encode_payloads
from tunnel.messages.segments import SegmentSet
from tunnel.messages.sets import ByteBufferMessageSet

SOON = LogConfig(flush_messages=1, flush_s=0.0)


@asynccontextmanager
async def broker(log: Log, table: ChannelTable, **config: Any) -> AsyncIterator[str]:
    async with served(LogBroker(log, BrokerConfig(**config)).handlers) as address:
        try:
            yield address
        finally:
            await table.close()


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


@in_loop
async def test_appended_messages_are_fetched(tmp_path: Path) -> None:
    table = ChannelTable()
    with Log.open(tmp_path, SOON) as log:
        async with broker(log, table) as address:
            first = await table.call(address, APPEND, encode_payloads([b"a", b"b"]), {"durable": "1"})
            assert first.fields == {"offset": "0"}
            packed = ByteBufferMessageSet.of([b"c", b"d"], codec=Codec.GZIP)
            second = await table.call(address, APPEND, packed.data)
            assert second.fields == {"offset": "2"}
            await log.flushed(3)
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
    table = ChannelTable()
    with Log.open(tmp_path, LogConfig(flush_messages=1, flush_s=0.0, segment_bytes=10)) as log:
        for number in range(3):
            log.append([b"%d" % number])
            log.flush()
        async with broker(log, table) as address:
            for body in (encode_payloads([b"a"])[:-1], encode_payloads([b"a"])[:-1] + b"b"):
                with pytest.raises(RemoteCallError) as caught:
                    await table.call(address, APPEND, body)
                assert caught.value.code == CORRUPT
            for fields in (None, {"offset": "x"}):
                with pytest.raises(RemoteCallError) as malformed:
                    await table.call(address, FETCH, b"", fields)
                assert malformed.value.code == MALFORMED
            log.trim(1)
            for offset in (0, 4):
                with pytest.raises(OffsetOutOfRangeError, match=f"offset {offset} .* 1 to 3"):
                    await Consumer(table, address, offset).fetch(wait_ms=0)
    with pytest.raises(LogError, match="ends within"):
        count_messages(encode_payloads([b"a"])[:-1])


@in_loop
async def test_a_consumer_that_lags_is_notified(tmp_path: Path) -> None:
    table = ChannelTable()
    lags: list[int] = []
    with Log.open(tmp_path, SOON) as log:
        log.append(numbered(100))
        log.flush()
        async with broker(log, table, behind_bytes=400) as address:
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
    with Log.open(tmp_path, SOON) as log:
        log.append([b""] * 10_002)
        log.flush()
        async with broker(log, ChannelTable()) as address, ChannelTable() as table:
            consumer = Consumer(table, address, fetch_bytes=1, on_lag=lags.append)
            for _ in range(2):
                assert len(await consumer.fetch()) == 1
            assert consumer.lag == 10_000
    assert lags == [10_001]


@asynccontextmanager
async def watched(log: Log) -> AsyncIterator[tuple[str, ChannelTable, list[int]]]:
    """A broker, and the offsets of the fetches that it gets."""
    handlers = LogBroker(log).handlers
    fetch, asked = cast("Callable[[Request], Awaitable[Response]]", handlers[FETCH]), list[int]()

    def note(request: Request) -> Awaitable[Response]:
        asked.append(int((request.fields or {})["offset"]))
        return fetch(request)

    async with served({**handlers, FETCH: note}) as address, ChannelTable() as table:
        yield address, table, asked


@in_loop
async def test_a_consumer_fetches_ahead_while_its_caller_works(tmp_path: Path) -> None:
    with Log.open(tmp_path, SOON) as log:
        log.append([bytes(1000)] * 100)
        log.flush()
        async with watched(log) as (address, table, asked):
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
    with Log.open(tmp_path, SOON) as log:
        log.append([b"%d" % number + bytes(1000) for number in range(100)])
        log.flush()
        async with watched(log) as (address, table, asked):
            consumer = Consumer(table, address, fetch_bytes=40_000)
            for offset in (0, 50, 1):
                consumer.offset = offset
                assert (await consumer.fetch())[0] == ConsumedMessage(offset, b"%d" % offset + bytes(1000))
            ahead = consumer.offset
            await table.close()
        async with watched(log) as (address, table, asked):  # the answer that was fetched ahead is lost
            consumer = Consumer(table, address, ahead, fetch_bytes=40_000)
            await consumer.fetch()
            while len(asked) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0)
            await (await table.channel(address)).close()
            start = consumer.offset
            assert (await consumer.fetch())[0].offset == start


@in_loop
async def test_an_answer_ends_at_a_whole_message_if_the_index_has_one(tmp_path: Path) -> None:
    with Log.open(tmp_path, SOON) as log:
        log.append([bytes(1000)] * 100)
        log.append([bytes(70_000)] * 2)
        log.flush()
        offsets = []
        async with watched(log) as (address, table, _):
            for offset, size in ((0, 40_000), (0, 500), (100, 100_000), (101, 100_000), (102, 100)):
                fields = {"offset": str(offset), "bytes": str(size)}
                answer = await table.call(address, FETCH, b"", fields)
                whole, end = count_whole(answer.data)
                following = (answer.fields or {}).get("next")
                assert following is None or (int(following), len(answer.data)) == (offset + whole, end)
                offsets.append(following)
        assert offsets == ["34", None, "101", "102", "102"]


@in_loop
async def test_consumers_far_behind_read_from_the_replica_and_return(tmp_path: Path) -> None:
    table, replicas = ChannelTable(), ChannelTable()
    with Log.open(tmp_path / "master", SOON) as log, Log.open(tmp_path / "copy", SOON) as copy:
        log.append(numbered(1000))
        log.flush()
        handlers = LogBroker(log).handlers
        async with served(handlers) as master:
            slave = LogBroker(copy, BrokerConfig(master=master)).handlers
            assert APPEND not in slave
            async with served(slave) as replica:
                handlers.update(LogBroker(log, BrokerConfig(replica=replica, behind_bytes=1000)).handlers)
                async with Replica(copy, replicas, master, batch_bytes=500):
                    await copy.flushed(1000)
                    consumer = Consumer(table, master, fetch_bytes=300)
                    found: list[bytes] = []
                    places: list[str] = []
                    while len(found) < 1000:
                        found += [message.payload for message in await consumer.fetch()]
                        if not places or places[-1] != consumer.address:
                            places.append(consumer.address)
                    log.append(numbered(5, 1000))
                    while len(found) < 1005:
                        found += [message.payload for message in await consumer.fetch()]
                        places.append(consumer.address)
                    assert found == numbered(1005)
                    assert places[0] == replica
                    assert places[-1] == master
                await replicas.close()
                await table.close()
    assert log.end_offset == 1005


@in_loop_within(HANGING_S)
async def test_consumers_go_on_when_the_replica_lags_or_dies(tmp_path: Path) -> None:
    table = ChannelTable()
    with Log.open(tmp_path / "master", SOON) as log, Log.open(tmp_path / "copy", SOON) as copy:
        log.append(numbered(200))
        copy.append(numbered(50))
        log.flush()
        copy.flush()
        handlers = LogBroker(log).handlers
        async with served(handlers) as master:
            async with served(LogBroker(copy, BrokerConfig(master=master)).handlers) as replica:
                handlers.update(LogBroker(log, BrokerConfig(replica=replica, behind_bytes=100)).handlers)
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


@in_loop
async def test_a_replica_without_its_master_waits(tmp_path: Path) -> None:
    async def refuse(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        asked.set()
        raise ConnectionRefusedError("nobody there")

    asked = asyncio.Event()
    with Log.open(tmp_path, SOON) as log:
        async with Replica(log, ChannelTable(refuse), "x:1"):
            await asked.wait()
            await asyncio.sleep(0)


@pytest.mark.parametrize("batch_bytes", [10, 1 << 20])
@in_loop_within(HANGING_S)
async def test_a_replica_whose_own_disk_fails_stops_and_says_so(
    batch_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not claim to wait for its master, which has done nothing wrong.

    If all messages fit into one batch, no later append fails, so the replica itself must look at its log.
    """
    real = os.writev

    def full(descriptor: int, buffers: Sequence[bytes]) -> int:
        if b"copy" in os.readlink(f"/proc/self/fd/{descriptor}").encode():
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, buffers)

    with (
        Log.open(tmp_path / "master", SOON) as log,
        Log.open(tmp_path / "copy", SOON) as copy,
        capture_logs() as lines,
    ):
        monkeypatch.setattr(os, "writev", full)
        log.append(numbered(10))
        log.flush()
        async with (
            served(LogBroker(log).handlers) as master,
            ChannelTable() as table,
            Replica(copy, table, master, batch_bytes=batch_bytes) as replica,
        ):
            with pytest.raises(LogError, match="No space left"):
                await replica.wait()
            assert [line["event"] for line in lines] == ["a log failed", "a replica stopped"]
    monkeypatch.undo()


@in_loop_within(HANGING_S)
async def test_appends_wait_for_a_slow_disk(tmp_path: Path) -> None:
    """While the disk holds up a write, an append that finds too many bytes waiting is answered after that write."""
    is_slow, goes_on = threading.Event(), threading.Event()

    def hold_up(step: Step) -> None:
        if step.act is Act.WRITE:
            is_slow.set()
            assert goes_on.wait(HANGING_S)

    config = LogConfig(flush_messages=1, flush_s=0.0, pending_bytes_max=100)
    with RecordedDisk(tmp_path / "disk") as disk, Log.open(disk.root / "log", config) as log:
        table = ChannelTable()
        async with broker(log, table) as address:
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
    with RecordedDisk(tmp_path / "disk") as disk, Log.open(disk.root / "log") as log:
        table = DirectTable(LogBroker(log))
        await table.call("", APPEND, encode_payloads([b"kept"]), {"durable": "1"})
        disk.mark("answered", True)
    answered = next(crash for crash in disk.crashes() if crash.last("answered", False))
    answered.write(tmp_path / "image")
    with Log.open(tmp_path / "image" / "log") as left:
        assert list(left.read(0).payloads()) == [b"kept"]


@in_loop
async def test_a_reader_gets_eight_mebibytes_at_most_whatever_it_asks_for(tmp_path: Path) -> None:
    """More would be read into the page cache, and perhaps into memory, for one request."""
    with Log.open(tmp_path, SOON) as log:
        log.append([bytes(1 << 20)] * 9)
        log.flush()
        answer = await DirectTable(LogBroker(log)).call("", FETCH, b"", {"offset": "0", "bytes": str(1 << 40)})
        assert isinstance(answer.body, SegmentSet)
        assert 7 << 20 < answer.body.size_bytes <= 8 << 20


@in_loop
async def test_a_replica_never_goes_on_with_a_hole(tmp_path: Path) -> None:
    """The master has removed what the replica needs next. It must stop: its offsets would no longer be the master's."""
    with (
        Log.open(tmp_path / "master", LogConfig(flush_messages=1, flush_s=0.0, segment_bytes=10)) as log,
        Log.open(tmp_path / "copy", SOON) as copy,
    ):
        for number in range(5):
            log.append([b"%d" % number])
            log.flush()
        log.trim(3)
        replica = Replica(copy, cast("ChannelTable", DirectTable(LogBroker(log))), "master:1")
        with pytest.raises(OffsetOutOfRangeError, match="offset 0"):
            await replica.pull()
        assert copy.next_offset == 0


@in_loop
async def test_a_reader_that_no_longer_finds_its_messages_is_sent_to_the_replica_which_may_have_them(
    tmp_path: Path,
) -> None:
    with Log.open(tmp_path, LogConfig(flush_messages=1, flush_s=0.0, segment_bytes=10)) as log:
        for _ in range(3):
            log.append([b"x"])
            log.flush()
        log.trim(2)
        table = DirectTable(LogBroker(log, BrokerConfig(replica="replica:1")))
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
    one = asyncio.Semaphore(1)
    with Log.open(tmp_path, SOON) as log:
        log.append([b"a"])
        log.flush()
        broker = LogBroker(log, BrokerConfig(behind_bytes=10))
        near = LogBroker(log, BrokerConfig(behind_bytes=11))
        fetch = Request(FETCH, b"", {"offset": "0"})
        for cached, asked, in_thread in (
            (True, broker, False),
            (False, broker, True),
            (False, near, True),
            (None, broker, True),
            (None, near, False),
        ):
            monkeypatch.setattr(Log, "is_cached", lambda *_, cached=cached: cached)
            assert (await asked.fetch(fetch, one)).data == encode_payloads([b"a"])
            assert threads.pop() is in_thread
        async with one:  # another read of the disk for the same client
            waiting = asyncio.ensure_future(broker.fetch(fetch, one))
            for _ in range(5):
                await asyncio.sleep(0)
            assert threads == []
        await waiting
