"""Bodies in memory and in unnamed files."""

import asyncio
import errno
import os
import tempfile
import threading
from pathlib import Path

import pytest

from tests.support.loops import HANGING_S, in_loop, in_loop_within
from tunnel.messages.errors import MessageError
from tunnel.messages.packets.bodies import FileSource, MemorySource, SpooledBody, ThreadSpoolWriter


def test_memory_is_taken_in_slices() -> None:
    source = MemorySource(b"abcdef")
    assert source.size == 6
    assert [bytes(source.take(4) or b""), bytes(source.take(4) or b"")] == [b"abcd", b"ef"]
    source.close()
    assert MemorySource(b"").size == 0
    assert MemorySource(memoryview(b"abcd").cast("H")).size == 4


async def take_all(source: FileSource, ready: asyncio.Event, size: int) -> bytes:
    found = bytearray()
    while len(found) < source.size:
        piece = source.take(size)
        if piece is None:
            ready.clear()
            await ready.wait()
        else:
            found += piece
    return bytes(found)


@in_loop
async def test_files_are_read_ahead(tmp_path: Path) -> None:
    data = os.urandom(1_700_000)
    (tmp_path / "body").write_bytes(data)
    ready = asyncio.Event()
    with (tmp_path / "body").open("rb") as file:
        source = FileSource(file, ready.set)
    assert await take_all(source, ready, 100_000) == data
    source.close()
    source.close()


@in_loop_within(HANGING_S)
async def test_a_file_that_shrinks_is_an_error_and_one_can_be_closed_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "body"
    path.write_bytes(bytes(3_000_000))
    ready = asyncio.Event()
    with path.open("r+b") as file:
        source = FileSource(file, ready.set)
        file.truncate(10)
        with pytest.raises(MessageError, match="shorter"):
            await take_all(source, ready, 1_000_000)
        source.close()
        file.truncate(3_000_000)
        given_up = FileSource(file, ready.set)
        given_up.close()  # while it reads
        await asyncio.get_running_loop().run_in_executor(None, os.getpid)


@in_loop
async def test_a_file_that_was_sent_leaves_no_descriptor_open(tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(bytes(1000))
    ready = asyncio.Event()
    before = os.listdir("/proc/self/fd")
    for read_first in (True, False):
        with (tmp_path / "body").open("rb") as file:
            source = FileSource(file, ready.set)
        if read_first:
            await take_all(source, ready, 1000)
        source.close()
        while source._reading is not None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(source._descriptor)
    assert len(os.listdir("/proc/self/fd")) <= len(before)


@pytest.mark.parametrize("named", [False, True])
def test_a_spooled_body_has_no_name_until_it_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    if named:
        monkeypatch.delattr(os, "O_TMPFILE")  # as on systems without it
        monkeypatch.setattr(tempfile, "_O_TMPFILE_WORKS", False)
    body = SpooledBody(tmp_path)
    body.write([memoryview(b"some "), memoryview(b""), memoryview(b"text")] + [memoryview(b"!")] * 600)
    assert body.size == 609
    assert list(tmp_path.iterdir()) == []
    body.save(tmp_path / "kept")
    with pytest.raises(FileExistsError):
        body.save(tmp_path / "kept")
    body.close()
    assert (tmp_path / "kept").read_bytes() == b"some text" + b"!" * 600


def test_the_space_of_a_large_file_is_freed_outside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[tuple[str, int]] = []
    done = threading.Event()
    close = os.close

    def watched(descriptor: int) -> None:
        if threading.current_thread().name == "tunnel-free":
            closed.append(("tunnel-free", os.fstat(descriptor).st_ino))
            done.set()
        close(descriptor)

    body = SpooledBody(tmp_path)
    body.write([memoryview(bytes(9 << 20))])
    inode = os.fstat(body.file.fileno()).st_ino
    monkeypatch.setattr(os, "close", watched)
    body.close()
    body.close()
    assert body.file.closed
    assert done.wait(60)
    assert closed == [("tunnel-free", inode)]


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, pieces: real(fd, [pieces[0][:3]]))
    body = SpooledBody(tmp_path)
    body.write([memoryview(b"abcdefgh"), memoryview(b"ij")])
    body.file.seek(0)
    assert body.file.read() == b"abcdefghij"
    body.close()


@in_loop
async def test_one_thread_writes_in_order_and_reports_each_write() -> None:
    writer = ThreadSpoolWriter()
    body = SpooledBody()
    outcomes: list[BaseException | None] = []
    done = asyncio.Event()

    def told(error: BaseException | None) -> None:
        outcomes.append(error)
        if len(outcomes) == 4:
            done.set()

    for text in (b"one ", b"two ", b"three"):
        writer.write(body, [memoryview(text)], told)
    full = SpooledBody()
    full.file.close()
    full.file = open("/dev/full", "r+b", buffering=0)  # noqa: SIM115, ASYNC230 - a full disk
    writer.write(full, [memoryview(b"x")], told)
    await done.wait()
    assert outcomes[:3] == [None] * 3
    assert isinstance(outcomes[3], OSError)
    assert outcomes[3].errno == errno.ENOSPC
    body.file.seek(0)
    assert body.file.read() == b"one two three"
    writer.write(body, [memoryview(b"never told")], told)
    writer.discard(body)
    writer.discard(full)
    writer.close()
    writer.write(body, [memoryview(b"never")], told)
    writer._executor.shutdown()  # type: ignore[union-attr]
    await asyncio.sleep(0)
    assert len(outcomes) == 4
    assert body.file.closed


@in_loop
async def test_a_body_that_was_never_written_is_closed_at_once() -> None:
    writer = ThreadSpoolWriter()
    body = SpooledBody()
    writer.discard(body)
    assert body.file.closed
    writer.close()
