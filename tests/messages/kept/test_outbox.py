"""From outbox to inbox: each message once, in order, whichever process dies in between."""

import asyncio
import errno
import os
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from tests.messages.streams import stream_pair
from tests.support.loops import HANGING_S, in_loop, in_loop_within
from tunnel.messages.calls.calls import CallChannel
from tunnel.messages.errors import FencedError, LogError, MessageTooLargeError, OutboxError, RemoteCallError
from tunnel.messages.kept.inbox import Inbox
from tunnel.messages.kept.log import LogConfig
from tunnel.messages.kept.outbox import Outbox, OutboxSender, read_batch
from tunnel.messages.sets.codec import Codec
from tunnel.messages.sets.sets import ByteBufferMessageSet


class Wire:
    """Connects senders to an inbox; the test can cut the connection."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self.dials = 0
        self.fails = 0
        self.channels: list[CallChannel] = []
        self.connected = asyncio.Event()
        self._stack: list[object] = []

    async def connect(self) -> CallChannel:
        self.dials += 1
        if self.dials <= self.fails:
            raise ConnectionRefusedError("not yet")
        context = stream_pair()
        near, far = await context.__aenter__()
        self._stack.append(context)
        channel, answerer = CallChannel(*near), CallChannel(*far, self.inbox.handlers)
        channel.start()
        answerer.start()
        self.channels += [channel, answerer]
        self.connected.set()
        return channel

    def cut(self) -> None:
        for channel in self.channels:
            channel._writer.transport.abort()

    async def close(self) -> None:
        for channel in self.channels:
            await channel.close()
        for context in self._stack:
            await context.__aexit__(None, None, None)  # type: ignore[attr-defined]


@asynccontextmanager
async def wire(inbox: Inbox) -> AsyncIterator[Wire]:
    made = Wire(inbox)
    try:
        yield made
    finally:
        await made.close()


def fast(outbox: Outbox, connect: Wire) -> OutboxSender:
    random = Random(1)
    random.random = lambda: -0.999  # type: ignore[method-assign]  # pauses of 0.1 ms
    return OutboxSender(outbox, connect.connect, random=random)


def received(inbox: Inbox) -> list[bytes]:
    return [record.payload for record in inbox.read(0, None)]


@in_loop
async def test_messages_arrive_once_and_in_order(tmp_path: Path) -> None:
    with Outbox.open(tmp_path / "out") as outbox, Inbox.open(tmp_path / "in") as inbox:
        async with wire(inbox) as path, fast(outbox, path):
            assert await outbox.put(b"first") == 0
            assert await outbox.put_many([b"%d" % number for number in range(1, 1000)]) == 1
            await outbox.until_delivered(999)
            assert outbox.messages_undelivered == 0
            await outbox.until_delivered(5)
            await outbox.put(b"last")
            await outbox.until_delivered(1000)
            assert received(inbox) == [b"first", *(b"%d" % number for number in range(1, 1000)), b"last"]
            record = next(iter(inbox.read(0)))
            assert (record.outbox, record.epoch, record.number) == (outbox.id, 1, 0)
            assert inbox.next_number(outbox.id) == 1001


@in_loop
async def test_cuts_and_restarts_lose_and_repeat_no_message(tmp_path: Path) -> None:
    sent = 0
    for life in range(4):
        with Outbox.open(tmp_path / "out") as outbox, Inbox.open(tmp_path / "in") as inbox:
            assert outbox.epoch == life + 1
            async with wire(inbox) as path, fast(outbox, path) as sender:
                path.fails = 2
                for _ in range(5):
                    await outbox.put_many([b"%d" % (sent + index) for index in range(200)])
                    sent += 200
                    path.cut()
                if life % 2:
                    await outbox.until_delivered(sent - 1)
                    assert sender.attempts > 2
            shutil.copytree(tmp_path / "in", tmp_path / f"copy{life}")
    with Inbox.open(tmp_path / "in") as inbox:
        assert received(inbox) == [b"%d" % number for number in range(sent)]
    with Inbox.open(tmp_path / "copy1") as earlier:
        assert received(earlier) == [b"%d" % number for number in range(2000)]


@in_loop
async def test_delivery_to_a_failing_receiver_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Outbox.open(tmp_path / "out") as outbox, Inbox.open(tmp_path / "in") as inbox:
        real, failures = inbox.log.append, iter([LogError("the disk is full")] * 3)

        def append(payloads: list[bytes]) -> int:
            error = next(failures, None)
            if error is not None:
                raise error
            return real(payloads)

        monkeypatch.setattr(inbox.log, "append", append)
        async with wire(inbox) as path, fast(outbox, path) as sender:
            await outbox.put(b"x")
            await outbox.until_delivered(0)
            assert sender.attempts > 3
        assert received(inbox) == [b"x"]


@in_loop_within(HANGING_S)
@pytest.mark.parametrize("is_idle", [True, False], ids=["idle", "before it connects"])
async def test_a_failed_log_ends_its_sender_once_everything_on_disk_is_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_idle: bool
) -> None:
    """The sender must not loop without a pause either: it can send no more until the outbox is opened again."""
    real, asked = os.writev, 0

    def full(descriptor: int, buffers: Sequence[bytes]) -> int:
        if b"lost" in b"".join(buffers):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, buffers)

    monkeypatch.setattr(os, "writev", full)
    with Inbox.open(tmp_path / "in") as inbox, Outbox.open(tmp_path / "out") as outbox:
        flushed = outbox.log.until_flushed

        async def counted(end: int, *, now: bool = False) -> None:
            nonlocal asked
            asked += 1
            await flushed(end, now=now)

        monkeypatch.setattr(outbox.log, "until_flushed", counted)
        async with wire(inbox) as path:
            sender = fast(outbox, path)
            if is_idle:
                sender.start()
                await outbox.put(b"kept")
                await outbox.until_delivered(0)
            else:
                await outbox.put(b"kept")
            with pytest.raises(LogError, match="No space left"):
                await outbox.put(b"lost")
            if not is_idle:
                sender.start()
            with pytest.raises(OutboxError, match=r"No space left.*mend this.*everything on disk was delivered"):
                await sender.wait()
            assert (sender.attempts, path.dials) == (1, 1)
            assert asked < 10
            await sender.close()
        assert received(inbox) == [b"kept"]
        assert outbox.messages_undelivered == 0
    with Inbox.open(tmp_path / "in") as inbox, Outbox.open(tmp_path / "out") as outbox:
        async with wire(inbox) as path, fast(outbox, path):
            await outbox.until_delivered(await outbox.put(b"after"))
        assert received(inbox) == [b"kept", b"after"]


@in_loop_within(HANGING_S)
async def test_delivered_segments_are_removed(tmp_path: Path) -> None:
    config = LogConfig(flush_messages=1, flush_s=0.0, segment_bytes=1000)
    with Outbox.open(tmp_path / "out", config) as outbox, Inbox.open(tmp_path / "in") as inbox:
        async with wire(inbox) as path, fast(outbox, path):
            for number in range(20):
                await outbox.put(bytes(500))
                await outbox.until_delivered(number)
            assert outbox.log.first_offset > 10


@in_loop
async def test_an_old_copy_of_an_outbox_is_noticed(tmp_path: Path) -> None:
    with Outbox.open(tmp_path / "out") as outbox:
        await outbox.put(b"0")
    shutil.copytree(tmp_path / "out", tmp_path / "old")
    with Inbox.open(tmp_path / "in") as inbox:
        async with wire(inbox) as path:
            with Outbox.open(tmp_path / "out") as outbox:
                await outbox.put(b"1")
                async with fast(outbox, path):
                    await outbox.until_delivered(1)
            with Outbox.open(tmp_path / "old") as old, Outbox.open(tmp_path / "out") as new:
                # They have the epochs 2 and 3: `old` is refused as soon as `new` has sent its first message.
                async with fast(new, path):
                    await new.put(b"2")
                    await new.until_delivered(2)
                async with fast(old, path) as sender:
                    with pytest.raises(FencedError, match="newer process"):
                        await sender.wait()
                with pytest.raises(RemoteCallError, match="epoch 2 is over"):
                    inbox._accept(old.id, 2, 3, [b"x"])
            with Outbox.open(tmp_path / "old") as again:
                again.epoch = 99
                async with fast(again, path) as sender:
                    with pytest.raises(OutboxError, match="restored from an old copy"):
                        await sender.wait()
        assert received(inbox) == [b"0", b"1", b"2"]


def test_a_directory_that_is_no_outbox_is_refused(tmp_path: Path) -> None:
    with Outbox.open(tmp_path) as outbox:
        outbox.log.append([b"x"])
        with pytest.raises(LogError, match="another process"):
            Outbox.open(tmp_path)
    identity = (tmp_path / "outbox.json").read_bytes()
    text = f"^{tmp_path} is not an outbox: .*; name the directory of an outbox, or an empty one$"
    for content in (b"[]", b'{"id":"no id","epoch":1}', b'{"id":"00","epoch":"1"}'):
        (tmp_path / "outbox.json").write_bytes(content)
        with pytest.raises(LogError, match=text):
            Outbox.open(tmp_path)
        assert (tmp_path / "outbox.json").read_bytes() == content
    os.unlink(tmp_path / "outbox.json")
    text = f"^{tmp_path}/outbox.json is missing beside a log: restore it, or start with an empty directory$"
    with pytest.raises(LogError, match=text):
        Outbox.open(tmp_path)
    (tmp_path / "outbox.json").write_bytes(identity)
    with Outbox.open(tmp_path) as outbox:
        assert outbox.epoch == 2
        assert read_batch(outbox.log, 0) == (outbox.log.read(0).load(), 1)


def test_each_outbox_has_an_id_of_its_own_and_each_opening_an_epoch_that_is_on_disk(tmp_path: Path) -> None:
    """Inboxes store ids of exactly 16 bytes."""
    ids = set()
    for name in ("one", "two"):
        for epoch in (1, 2):
            with Outbox.open(tmp_path / name) as outbox:
                ids.add(outbox.id)
                assert outbox.epoch == epoch
                stored = (tmp_path / name / "outbox.json").read_bytes()
                assert stored == b'{"id":"%s","epoch":%d}' % (outbox.id.hex().encode(), epoch)
    assert [len(each) for each in ids] == [16, 16]


@in_loop_within(HANGING_S)
async def test_put_flushes_at_once_instead_of_waiting_for_a_group(tmp_path: Path) -> None:
    never = LogConfig(flush_messages=1_000_000, flush_s=3600.0)
    with Outbox.open(tmp_path, never) as outbox:
        assert await outbox.put(b"a") == 0
        assert (outbox.log.end_offset, outbox.messages_undelivered) == (1, 1)
        assert await outbox.put_many([b"b", b"c"]) == 1
        assert (outbox.log.end_offset, outbox.messages_undelivered) == (3, 3)
        assert await outbox.put_many([]) == 3
    with Outbox.open(tmp_path, never) as outbox:
        assert list(outbox.log.read(0).payloads()) == [b"a", b"b", b"c"]


@in_loop_within(HANGING_S)
async def test_a_message_that_no_receiver_would_take_is_not_accepted(tmp_path: Path) -> None:
    """It could never be delivered, and all messages after it would wait for it."""
    with Outbox.open(tmp_path) as outbox:
        with pytest.raises(MessageTooLargeError, match="1000001 bytes, at most 1000000 are allowed"):
            await outbox.put(bytes(1_000_001))
        with pytest.raises(MessageTooLargeError):
            await outbox.put_many([b"a", bytes(1_000_001), b"b"])
        assert outbox.log.next_offset == 0
        assert await outbox.put(bytes(1_000_000)) == 0


@in_loop_within(HANGING_S)
async def test_a_large_message_that_an_older_version_accepted_is_delivered(tmp_path: Path) -> None:
    with Outbox.open(tmp_path / "out") as outbox, Inbox.open(tmp_path / "in") as inbox:
        outbox.log.append([bytes(1_000_001), b"next"])
        async with wire(inbox) as path, fast(outbox, path):
            await outbox.until_delivered(1)
        assert received(inbox) == [bytes(1_000_001), b"next"]


@in_loop_within(HANGING_S)
async def test_each_message_is_delivered_when_the_receiver_has_confirmed_it(tmp_path: Path) -> None:
    with Outbox.open(tmp_path) as outbox:
        await outbox.put_many([b"a", b"b", b"c"])
        waiting = [asyncio.ensure_future(outbox.until_delivered(number)) for number in range(3)]
        given_up = asyncio.ensure_future(outbox.until_delivered(2))
        await asyncio.sleep(0)
        given_up.cancel()
        for number, done in ((0, 0), (1, 1), (1, 1), (3, 3), (2, 3)):
            outbox.confirm(number)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert [each.done() for each in waiting] == [True] * done + [False] * (3 - done)
            assert outbox.messages_undelivered == 3 - done
        await outbox.until_delivered(2)  # at once


@in_loop_within(HANGING_S)
async def test_a_batch_has_whole_messages_and_counts_as_the_log_does(tmp_path: Path) -> None:
    with Outbox.open(tmp_path) as outbox:
        await outbox.put_many([b"%d" % number * 10 for number in range(4)])
        data = outbox.log.read(0).load()
        assert read_batch(outbox.log, 1) == (data[20:], 3)
        assert read_batch(outbox.log, 1, 45) == (data[20:60], 2)
        assert read_batch(outbox.log, 1, 1) == (data[20:40], 1)
        packed = ByteBufferMessageSet.of([b"a", b"b"], codec=Codec.GZIP)
        outbox.log.append_set(packed.data, 1)
        outbox.log.flush()
        assert read_batch(outbox.log, 4) == (packed.data, 1)
