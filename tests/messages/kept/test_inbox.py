"""Inboxes: what they refuse, what their checkpoints say, and what is on disk when they answer."""

import asyncio
import os
import threading
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from tests.support.disk import RecordedDisk
from tests.support.loops import HANGING_S, in_loop, in_loop_within
from tests.support.power import Act, Step
from tunnel.messages.calls.calls import Request
from tunnel.messages.errors import LogError, RemoteCallError
from tunnel.messages.kept.inbox import Inbox, InboxRecord
from tunnel.messages.kept.log import LogConfig
from tunnel.messages.kept.outbox import DELIVER, FENCED, GAP, HELLO
from tunnel.messages.sets.codec import Codec, compress
from tunnel.messages.sets.message import HEADER_BYTES, UNPACKED_BYTES_MAX, Message, encode_message, encode_payloads

SMALL = LogConfig(flush_messages=1, flush_s=0.0, segment_bytes=200)
LATE = LogConfig(flush_messages=1_000_000, flush_s=3600.0)
ID = b"x" * 16


@pytest.fixture(autouse=True)
def no_real_power_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for the real disk: the recorded disk knows the content that it would have after a power failure."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda descriptor: None)


def received(inbox: Inbox) -> list[bytes]:
    return [record.payload for record in inbox.read(0, None)]


def checkpoint(directory: Path) -> dict[str, Any] | None:
    """Return what the checkpoint on disk says; None if there is none."""
    path = directory / "inbox.json"
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Any]) if path.exists() else None


def asked(code: int, outbox: bytes, first: int, body: bytes) -> Request:
    return Request(code, body, {"outbox": outbox.hex(), "epoch": "1", "first": str(first)}, False)


@in_loop_within(HANGING_S)
@pytest.mark.parametrize("size", [100, UNPACKED_BYTES_MAX - HEADER_BYTES])
async def test_two_users_a_compressed_message_of_one_outbox_is_refused_and_costs_another_nothing(
    tmp_path: Path, *, size: int
) -> None:
    """Unpacked, the message could become a record larger than readers of the inbox accept.

    Then the messages of all outboxes would be unreadable.
    """
    packed = encode_message(Message(compress(encode_payloads([bytes(size)]), Codec.ZSTD), Codec.ZSTD))
    evil = b"e" * 16
    with Inbox.open(tmp_path) as inbox:
        for sender in (ID, evil):
            await cast(Awaitable[Any], inbox.handlers[HELLO](asked(HELLO, sender, 0, b"")))
        for body in (packed, encode_payloads([b"plain"]) + packed, encode_payloads([b"cut"])[:-1]):
            with pytest.raises(RemoteCallError, match="without compression") as caught:
                await cast(Awaitable[Any], inbox.handlers[DELIVER](asked(DELIVER, evil, 0, body)))
            assert caught.value.code == GAP
        await cast(Awaitable[Any], inbox.handlers[DELIVER](asked(DELIVER, ID, 0, encode_payloads([b"honest"]))))
        assert received(inbox) == [b"honest"]
    with Inbox.open(tmp_path) as inbox:
        assert received(inbox) == [b"honest"]


@in_loop
async def test_gaps_and_old_epochs_are_refused(tmp_path: Path) -> None:
    with Inbox.open(tmp_path / "in") as inbox:
        with pytest.raises(RemoteCallError, match="message 1 instead of 0") as caught:
            inbox._accept(b"x" * 16, 1, 1, [b"gap"])
        assert caught.value.code == GAP
        assert await inbox._hello(b"x" * 16, 2) == 0
        assert await inbox._hello(b"x" * 16, 2) == 0
        with pytest.raises(RemoteCallError) as fenced:
            inbox._hello(b"x" * 16, 1)
        assert fenced.value.code == FENCED
        assert await inbox._accept(b"x" * 16, 2, 0, [b"a", b"b"]) == 2
        assert await inbox._accept(b"x" * 16, 2, 1, [b"b", b"c"]) == 3
        assert await inbox._accept(b"x" * 16, 2, 0, [b"a"]) == 3
        assert received(inbox) == [b"a", b"b", b"c"]


@in_loop
async def test_progress_survives_a_restart(tmp_path: Path) -> None:
    for start in range(0, 300, 100):
        with Inbox.open(tmp_path, checkpoint_records=30) as inbox:
            assert inbox.next_number(b"y" * 16) == start
            for number in range(start, start + 100, 10):
                await inbox._accept(b"y" * 16, 1, number, [b"%d" % each for each in range(number, number + 10)])
        assert (tmp_path / "inbox.json").exists()
    with Inbox.open(tmp_path, LogConfig(segment_bytes=100)) as inbox:
        inbox.log.append([bytes(33)])
        inbox.log.flush()
        inbox.trim(100)
        assert [record.offset for record in inbox.read(250, 20)] == list(range(250, 270))
    progress = (tmp_path / "inbox.json").read_bytes()
    (tmp_path / "inbox.json").write_bytes(progress.replace(b'"offset":301', b'"offset":999'))
    with pytest.raises(LogError, match="has the offset 999"):
        Inbox.open(tmp_path)
    (tmp_path / "inbox.json").write_bytes(b"{}")
    with pytest.raises(LogError, match="is not an inbox"):
        Inbox.open(tmp_path)


@in_loop_within(HANGING_S)
async def test_a_record_says_which_message_of_which_outbox_it_is(tmp_path: Path) -> None:
    other = b"y" * 16
    for _ in range(2):
        with Inbox.open(tmp_path) as inbox:
            if not inbox.log.end_offset:
                assert (inbox.next_number(ID), inbox.next_number(other)) == (0, 0)
                await inbox._hello(ID, 3)
                await inbox._accept(ID, 3, 0, [b"a", b"b"])
                await inbox._accept(other, 0, 0, [b"c"])
                await inbox._accept(ID, 4, 1, [b"b", b"d"])  # the first is a repeat
            assert list(inbox.read(0)) == [
                InboxRecord(1, ID, 3, 0, b"a"),
                InboxRecord(2, ID, 3, 1, b"b"),
                InboxRecord(3, other, 0, 0, b"c"),
                InboxRecord(4, ID, 4, 2, b"d"),
            ]
            assert (inbox.next_number(ID), inbox.next_number(other)) == (3, 1)


@in_loop_within(HANGING_S)
async def test_a_reader_gets_as_many_records_as_it_asks_for(tmp_path: Path) -> None:
    with Inbox.open(tmp_path, SMALL) as inbox:
        await inbox._accept(ID, 0, 0, [b"%d" % number for number in range(900)])
        await inbox._accept(ID, 0, 900, [b"%d" % number for number in range(900, 1001)])
        assert [record.number for record in inbox.read(0)] == list(range(1000))
        assert [record.number for record in inbox.read(899, 2)] == [899, 900]
        assert [record.number for record in inbox.read(0, None)] == list(range(1001))
        assert [record.number for record in inbox.read(1000, 5)] == [1000]
        assert list(inbox.read(1001)) == list(inbox.read(5, 0)) == []


@in_loop_within(HANGING_S)
async def test_an_epoch_begins_once_and_holds_after_a_restart(tmp_path: Path) -> None:
    with Inbox.open(tmp_path) as inbox:
        assert await inbox._hello(ID, 0) == 0
        assert inbox.log.end_offset == 0
        for _ in range(2):
            assert await inbox._hello(ID, 1) == 0
            assert inbox.log.end_offset == 1
        assert await inbox._accept(ID, 1, 0, [b"a"]) == 1
        assert await inbox._hello(ID, 2) == 1
    for _ in range(2):
        with Inbox.open(tmp_path) as inbox:
            assert inbox.next_number(ID) == 1
            with pytest.raises(RemoteCallError, match="epoch 1 is over, epoch 2 has begun") as caught:
                inbox._accept(ID, 1, 1, [b"b"])
            assert caught.value.code == FENCED
            assert await inbox._hello(ID, 2) == 1
            inbox.trim(0)
            assert checkpoint(tmp_path) == {"offset": 3, "expected": {ID.hex(): [2, 1]}}


@in_loop_within(HANGING_S)
async def test_checkpoints_are_written_as_often_as_they_should_be(tmp_path: Path) -> None:
    """Opening an inbox reads the records after the last checkpoint."""
    found = []
    with Inbox.open(tmp_path, checkpoint_records=3) as inbox:
        for number in range(9):
            await inbox._accept(ID, 5, number, [b"x"])
            written = checkpoint(tmp_path)
            found.append(written and written["offset"])
    assert found == [None, None, None, 4, 4, 4, 4, 8, 8]
    assert checkpoint(tmp_path) == {"offset": 8, "expected": {ID.hex(): [5, 8]}}
    with Inbox.open(tmp_path, checkpoint_records=3) as inbox:
        await inbox._accept(ID, 5, 9, [b"x"])
        await inbox._accept(ID, 5, 10, [b"x"])
        assert checkpoint(tmp_path) == {"offset": 8, "expected": {ID.hex(): [5, 8]}}
        await inbox._accept(ID, 5, 11, [b"x"])
    assert checkpoint(tmp_path) == {"offset": 12, "expected": {ID.hex(): [5, 12]}}


@in_loop_within(HANGING_S)
async def test_an_outbox_does_not_wait_until_the_records_of_another_are_flushed_by_themselves(tmp_path: Path) -> None:
    with Inbox.open(tmp_path, LATE, checkpoint_records=0) as inbox:
        first = inbox._accept(ID, 0, 0, [b"a"])
        inbox.log.flush()  # blocks the loop, so that `first` does not go on before the next record is there
        second = inbox._accept(ID, 0, 1, [b"b"])  # the checkpoint names it, and nothing else asks for its flush
        assert await first == 1
        assert checkpoint(tmp_path) == {"offset": 2, "expected": {ID.hex(): [0, 2]}}
        assert await second == 2


@in_loop_within(HANGING_S)
async def test_a_checkpoint_that_says_nothing_new_is_not_written(tmp_path: Path) -> None:
    with Inbox.open(tmp_path) as inbox:
        await inbox._accept(ID, 0, 0, [b"a"])
        inbox.trim(0)
        first = (tmp_path / "inbox.json").stat().st_ino
        inbox.trim(0)
        assert (tmp_path / "inbox.json").stat().st_ino == first
    with Inbox.open(tmp_path) as inbox:
        inbox.trim(0)
        assert (tmp_path / "inbox.json").stat().st_ino == first


@in_loop_within(HANGING_S)
async def test_a_checkpoint_that_does_not_fit_its_log_is_refused(tmp_path: Path) -> None:
    """An inbox that went on would take messages again, or leave some out."""
    with Inbox.open(tmp_path, SMALL) as inbox:
        for number in range(20):
            await inbox._accept(ID, 0, number, [b"x"])
        inbox.trim(10)
        first = inbox.log.first_offset
    assert 0 < first <= 10
    path = tmp_path / "inbox.json"
    for offset in (first - 1, 21):
        path.write_bytes(b'{"offset":%d,"expected":{}}' % offset)
        text = f"{path} has the offset {offset}, but the log beside it has {first} to 20: restore both from one backup"
        with pytest.raises(LogError) as caught:
            Inbox.open(tmp_path)
        assert str(caught.value) == text
    for offset in (first, 20):
        path.write_bytes(b'{"offset":%d,"expected":{"%s":[0,%d]}}' % (offset, ID.hex().encode(), offset))
        with Inbox.open(tmp_path) as inbox:
            assert inbox.next_number(ID) == 20
    path.write_bytes(b"[]")
    with pytest.raises(LogError, match=r"is not an inbox: .*; name the directory of an inbox, or an empty one"):
        Inbox.open(tmp_path)


async def opens_at_every_step(disk: RecordedDisk, place: Path) -> None:
    for crash in disk.crashes():
        for _ in crash.images(place, range(3)):
            with Inbox.open(place / "in") as inbox:
                assert inbox.next_number(ID) == inbox.log.end_offset


@in_loop
async def test_a_checkpoint_names_only_records_that_are_on_disk(tmp_path: Path) -> None:
    renamed, free = asyncio.Event(), threading.Event()
    syncs = 0

    def before(step: Step) -> None:
        nonlocal syncs
        if step.act is Act.SYNC and step.path.endswith(".log"):
            syncs += 1
            if syncs == 3:  # the first is that of the opening, the second that of the first record
                assert free.wait(60)
        elif step.act is Act.RENAME:
            loop.call_soon_threadsafe(renamed.set)

    loop = asyncio.get_running_loop()
    with RecordedDisk(tmp_path / "disk") as disk, Inbox.open(disk.root / "in", checkpoint_records=0) as inbox:
        disk.before = before
        first = asyncio.ensure_future(inbox._accept(ID, 0, 0, [b"a"]))
        await inbox.log.until_flushed(1, now=True)
        second = asyncio.ensure_future(inbox._accept(ID, 0, 1, [b"b"]))
        # The checkpoint after the first record names the second one, too. So the checkpoint and the sender of the
        # second record wait until that record is on disk.
        while not renamed.is_set() and len(inbox.log._waiters) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        free.set()
        assert (await first, await second) == (1, 2)
    await opens_at_every_step(disk, tmp_path / "image")


@in_loop
async def test_trimming_syncs_the_records_and_then_writes_their_checkpoint(tmp_path: Path) -> None:
    with RecordedDisk(tmp_path / "disk") as disk, Inbox.open(disk.root / "in", LATE) as inbox:
        accepted = inbox._accept(ID, 0, 0, [b"a"])  # appended, and nothing asks for a flush yet
        inbox.trim(0)
        assert await accepted == 1
    assert any(step.to == "in/inbox.json" for step in disk.steps)
    await opens_at_every_step(disk, tmp_path / "image")


@in_loop
async def test_records_are_removed_only_once_a_checkpoint_covers_them(tmp_path: Path) -> None:
    with RecordedDisk(tmp_path / "disk") as disk, Inbox.open(disk.root / "in", SMALL) as inbox:
        for number in range(30):
            await inbox._accept(ID, 0, number, [b"x"])
        inbox.trim(25)
        assert inbox.log.first_offset > 20
    await opens_at_every_step(disk, tmp_path / "image")


@in_loop
async def test_a_greeting_is_answered_only_once_its_epoch_is_on_disk(tmp_path: Path) -> None:
    """Otherwise an older copy of the outbox could send again after a power failure."""
    with RecordedDisk(tmp_path / "disk") as disk, Inbox.open(disk.root / "in", LATE) as inbox:
        assert await inbox._hello(ID, 3) == 0
        disk.mark("answered", True)
    answered = next(crash for crash in disk.crashes() if crash.last("answered", False))
    answered.write(tmp_path / "image")
    with Inbox.open(tmp_path / "image" / "in") as inbox, pytest.raises(RemoteCallError, match="epoch 2 is over"):
        inbox._accept(ID, 2, 0, [b"from an old copy"])


@in_loop
async def test_a_repeat_is_confirmed_only_once_its_first_delivery_is_on_disk(tmp_path: Path) -> None:
    with RecordedDisk(tmp_path / "disk") as disk, Inbox.open(disk.root / "in", LATE) as inbox:
        first = inbox._accept(ID, 1, 0, [b"a"])  # appended, and nothing asks for a flush yet
        assert await inbox._accept(ID, 1, 0, [b"a"]) == 1
        disk.mark("confirmed", True)
        await first
    confirmed = next(crash for crash in disk.crashes() if crash.last("confirmed", False))
    confirmed.write(tmp_path / "image")
    with Inbox.open(tmp_path / "image" / "in") as inbox:
        assert [record.payload for record in inbox.read(0)] == [b"a"]


class WatchedLock:
    """A lock that tells when it is asked for."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self.asked.release()
        self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()


def test_two_threads_never_write_a_checkpoint_at_once(tmp_path: Path) -> None:
    """Both would write the same new file, and one would rename what the other has half written."""
    held, free = threading.Event(), threading.Event()
    writers: list[int] = []

    def before(step: Step) -> None:
        if step.path.endswith(".new"):
            writers.append(threading.get_ident())
            if step.act is Act.SYNC and not held.is_set():
                held.set()
                assert free.wait(60)
            else:
                # A second writer that gets here has passed the lock: this release ends the wait of the test, whose next
                # assertion then fails. The first writer gets here, too; the loop below takes back these releases.
                lock.asked.release()

    lock = WatchedLock()
    with RecordedDisk(tmp_path / "disk") as disk, Inbox.open(disk.root / "in", SMALL) as inbox:
        inbox._noting = cast("Any", lock)
        inbox.log.append([inbox_record(0)])
        disk.before = before
        first = threading.Thread(target=inbox.trim, args=(0,))
        first.start()
        assert held.wait(60)
        while lock.asked.acquire(blocking=False):
            pass
        inbox.log.append([inbox_record(1)])
        second = threading.Thread(target=inbox.trim, args=(0,))
        second.start()
        assert lock.asked.acquire(timeout=60)
        assert set(writers) == {first.ident}
        free.set()
        first.join()
        second.join()
        assert set(writers) == {first.ident, second.ident}


def inbox_record(number: int) -> bytes:
    return b"\0" + ID + bytes(8) + number.to_bytes(8, "big")


def test_an_older_checkpoint_never_replaces_a_newer_one(tmp_path: Path) -> None:
    """Records that only the older one needs may have been removed, and the inbox could not be opened again."""
    with Inbox.open(tmp_path / "in", SMALL) as inbox:
        inbox.log.append([inbox_record(0)])
        older = inbox._progress()
        for number in range(1, 30):
            inbox.log.append([inbox_record(number)])
            inbox.log.flush()
        inbox.trim(25)
        inbox._note(older)
        assert inbox.log.first_offset > older.offset
    with Inbox.open(tmp_path / "in") as inbox:
        assert [record.number for record in inbox.read(29)] == [29]


@in_loop
async def test_no_checkpoint_is_written_after_the_inbox_is_closed(tmp_path: Path) -> None:
    """A thread writes it. After `close`, another process may have written a newer one."""
    inbox = Inbox.open(tmp_path / "in", SMALL)
    inbox.log.append([b""])
    progress = inbox._progress()
    inbox.close()
    inbox._note(progress)
    assert not (tmp_path / "in" / "inbox.json").exists()
