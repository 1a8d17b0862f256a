"""Message sets in files: the same as in memory, sent without being read."""

import asyncio
import errno
import io
import os
import socket
from pathlib import Path

import pytest

from tests.support.loops import in_loop
from tests.support.page_cache import dropped_from_page_cache
from tunnel.messages.errors import ChecksumError, MessageSizeError
from tunnel.messages.sets import file_sets
from tunnel.messages.sets.codec import Codec
from tunnel.messages.sets.file_sets import FileMessageSet
from tunnel.messages.sets.message import encode_payloads
from tunnel.messages.sets.sets import ByteBufferMessageSet

PAYLOADS = [b"one", b"two", bytes(3_000), b"", b"five"]
DATA = encode_payloads(PAYLOADS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "set").write_bytes(DATA)
    return tmp_path / "set"


def test_a_file_set_reads_like_a_set_in_memory(path: Path) -> None:
    with FileMessageSet.open(path) as messages:
        memory = ByteBufferMessageSet(DATA)
        assert list(messages) == list(memory)
        assert list(messages.shallow()) == list(memory.shallow())
        assert messages.size_bytes == messages.valid_bytes == len(DATA)
        part = messages.read(13, 2_000)
        assert list(part.payloads()) == [b"two"]
        assert part.is_truncated
        assert list(messages.read(13, 1 << 30).payloads()) == PAYLOADS[1:]
        part.close()
        assert messages.size_bytes == len(DATA)


def test_messages_larger_than_a_chunk_are_read(path: Path) -> None:
    payloads = [bytes(700_000), bytes(2_500_000), b"last"]
    path.write_bytes(encode_payloads(payloads) + encode_payloads([bytes(2_000_000)])[:-1])
    with FileMessageSet.open(path) as messages:
        messages.message_bytes_max = 3_000_000
        assert list(messages.payloads()) == payloads
        assert messages.is_truncated


def test_a_length_in_a_file_is_not_trusted(path: Path) -> None:
    path.write_bytes(DATA + (3_000_000).to_bytes(4, "big") + b"\x01\x00" + bytes(3_000_000))
    with FileMessageSet.open(path) as messages, pytest.raises(MessageSizeError) as caught:
        list(messages)
    assert caught.value.offset == len(DATA)
    path.write_bytes(DATA + DATA[:-1] + b"x")
    with FileMessageSet.open(path) as messages, pytest.raises(ChecksumError) as damaged:
        list(messages)
    assert damaged.value.offset == len(DATA) * 2 - 14
    path.write_bytes(DATA[:5])
    with FileMessageSet.open(path) as messages:
        assert list(messages) == []


def test_a_file_set_can_be_appended_to(tmp_path: Path) -> None:
    with FileMessageSet.open(tmp_path / "new", writable=True) as messages:
        assert messages.append(ByteBufferMessageSet.of([b"a"])) == 11
        with FileMessageSet.open(tmp_path / "other", writable=True) as other:
            other.append(ByteBufferMessageSet.of([b"b"], codec=Codec.GZIP))
            messages.append(other)
        messages.flush()
        assert list(messages.payloads()) == [b"a", b"b"]
        with pytest.raises(ValueError, match="part of a file"):
            messages.read(0, 5).append(ByteBufferMessageSet.of([b"c"]))


def test_recovery_cuts_off_an_incomplete_message(path: Path) -> None:
    for tail in (b"\x00\x00", DATA[:12], DATA[:-1] + b"x", b"\xff" * 100):
        path.write_bytes(DATA + tail)
        with FileMessageSet.open(path, writable=True) as messages:
            assert messages.truncate() == len(DATA + tail) - messages.size_bytes > 0
            assert list(messages.payloads())[: len(PAYLOADS)] == PAYLOADS
            assert messages.truncate() == 0
            with pytest.raises(ValueError, match="cannot be cut"):
                messages.read(0, 5).truncate()


def test_search_finds_the_nth_message_by_the_headers(path: Path) -> None:
    with FileMessageSet.open(path) as messages:
        starts = [each.offset for each in messages] + [len(DATA)]
        assert [messages.search(0, count) for count in range(6)] == starts
        assert messages.search(starts[1], 2) == starts[3]
        with pytest.raises(IndexError):
            messages.search(0, 6)
    path.write_bytes(DATA[:-1])
    with FileMessageSet.open(path) as messages, pytest.raises(IndexError):
        messages.search(0, 5)


def test_a_file_set_can_be_loaded_into_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pread
    with FileMessageSet.open(path) as messages:
        assert messages.load() == DATA
        monkeypatch.setattr(os, "pread", lambda fd, size, offset: real(fd, min(size, 1000), offset))
        assert messages.load(13) == DATA[13:]
        assert messages.load(13, 2000) == DATA[13:2013]
        assert FileMessageSet(messages.descriptor, 0, len(DATA) + 5).load() == DATA


def test_a_file_set_writes_to_sockets_files_and_descriptors(path: Path, tmp_path: Path) -> None:
    with FileMessageSet.open(path) as messages:
        near, far = socket.socketpair()
        with near, far:
            assert messages.write_to(near, 3, 100) == 100
            assert far.recv(1000) == DATA[3:103]
            near.setblocking(False)
            while messages.write_to(near):
                pass
            assert messages.write_to(near) == 0
        with open(tmp_path / "out", "wb") as out:
            out.write(b"before ")
            messages.write_to(out)
        assert (tmp_path / "out").read_bytes() == b"before " + DATA
        descriptor = os.open(tmp_path / "raw", os.O_WRONLY | os.O_CREAT)
        try:
            assert messages.read(13, 13).write_to(descriptor) == 13
        finally:
            os.close(descriptor)
        assert (tmp_path / "raw").read_bytes() == DATA[13:26]
        sink = io.BytesIO()
        assert messages.write_to(sink, 5) == len(DATA) - 5
        assert sink.getvalue() == DATA[5:]
        assert messages.write_to(sink, len(DATA)) == 0


@in_loop
async def test_a_file_set_writes_to_streams() -> None:
    file = FileMessageSet.open(Path("/dev/null"))
    assert file.view(0, 0).nbytes == 0
    file.close()
    received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.set_result(await reader.read(-1))
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    async with server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        descriptor = os.memfd_create("set")
        try:
            os.write(descriptor, DATA)
            messages = FileMessageSet(descriptor)
            assert messages.write_to(writer, 13) == len(DATA) - 13
            await writer.drain()
        finally:
            os.close(descriptor)
        writer.close()
        assert await received == DATA[13:]
        await writer.wait_closed()


def test_a_set_tells_whether_it_is_in_the_page_cache(tmp_path: Path) -> None:
    with FileMessageSet.open(tmp_path / "set", writable=True) as messages:
        os.write(messages.descriptor, bytes(200_000))
        messages.flush()
        if messages.is_cached() is None:
            pytest.skip("the file system of the temporary directory does not tell")
        assert messages.is_cached()
        for _ in dropped_from_page_cache(messages.descriptor):
            if messages.is_cached() is False:
                break


def test_the_page_cache_is_asked_at_both_ends_and_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {-1}
    asked: list[int] = []

    def preadv(descriptor: int, buffers: list[bytearray], position: int, flags: int) -> int:
        assert flags == os.RWF_NOWAIT
        asked.append(position)
        if position in missing:
            raise BlockingIOError
        return 1

    with FileMessageSet.open(tmp_path / "set", writable=True) as whole:
        os.truncate(whole.descriptor, 200_000)
        monkeypatch.setattr(os, "preadv", preadv)
        part = whole.read(100, 150_000)
        assert part.is_cached() is True
        assert asked == [100, 100 + 65_536, 100 + 131_072, 150_099]
        for position in asked[:]:
            missing = {position}
            assert part.is_cached() is False
        asked.clear()
        assert whole.read(100, 0).is_cached() is True
        assert asked == []


def test_a_file_system_or_machine_that_does_not_tell_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def preadv(*_: object) -> int:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    with FileMessageSet.open(tmp_path / "set", writable=True) as messages:
        os.truncate(messages.descriptor, 1)
        monkeypatch.setattr(os, "preadv", preadv)
        assert messages.is_cached() is None
        monkeypatch.undo()
        monkeypatch.setattr(file_sets, "_NOWAIT", None)
        assert messages.is_cached() is None
