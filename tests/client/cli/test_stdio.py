"""Standard input and output on every kind of descriptor, blocking or not, up to the end of file."""

import asyncio
import os
import pty
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.loops import in_loop
from tunnel_client.cli.stdio import Blocking, Input, Output


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for descriptor in (reader, writer):
        try:
            os.close(descriptor)
        except OSError:
            assert descriptor == writer  # the test closed it


@in_loop
async def test_a_blocking_call_returns_raises_or_is_cancelled() -> None:
    blocking = Blocking("test")
    assert await blocking.call(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await blocking.call(divmod, 7, 0)
    reader, writer = os.pipe()
    waiting = asyncio.ensure_future(blocking.call(os.read, reader, 1))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    os.write(writer, b"x")
    assert await blocking.call(divmod, 7, 2) == (3, 1)
    os.close(reader)
    os.close(writer)


def test_a_call_that_outlives_its_loop_is_harmless() -> None:
    blocking = Blocking("test")
    reader, writer = os.pipe()

    async def give_up() -> None:
        waiting = asyncio.ensure_future(blocking.call(os.read, reader, 1))
        await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(give_up())
    os.write(writer, b"x")

    async def again() -> None:
        assert await blocking.call(divmod, 7, 2) == (3, 1)

    asyncio.run(again())
    os.close(reader)
    os.close(writer)


@in_loop
async def test_files_and_pipes_are_read_to_their_end(tmp_path: Path, pipe: tuple[int, int]) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 100_000)
    with file.open("rb") as opened:
        source = Input(opened.fileno())
        assert not source.is_terminal
        parts = [await source.read() for _ in range(3)]
    assert list(map(len, parts)) == [65536, 34464, 0]
    os.write(pipe[1], b"hello")
    os.close(pipe[1])
    source = Input(pipe[0])
    assert [await source.read(), await source.read()] == [b"hello", b""]


@in_loop
async def test_the_hangup_of_a_terminal_is_the_end_of_file() -> None:
    leader, follower = pty.openpty()
    source = Input(follower)
    assert source.is_terminal
    os.write(leader, b"hello\n")
    assert await source.read() == b"hello\n"
    os.close(leader)
    assert await source.read() == b""
    os.close(follower)


@in_loop
async def test_nonblocking_descriptors_work_too(pipe: tuple[int, int]) -> None:
    for descriptor in pipe:
        os.set_blocking(descriptor, False)
    source, sink = Input(pipe[0]), Output(pipe[1])
    data = os.urandom(1 << 20)
    writing = asyncio.ensure_future(sink.write(data))
    read = bytearray()
    async with asyncio.timeout(10):
        while len(read) < len(data):
            read += await source.read()
        await writing
    assert read == data
    waiting = asyncio.ensure_future(source.read())
    await asyncio.sleep(0)
    await sink.write(b"late")
    assert await waiting == b"late"


def test_output_that_takes_a_few_bytes_at_a_time_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr("tunnel_client.cli.stdio.os.write", lambda descriptor, data: write(descriptor, data[:3]))

    @in_loop
    async def scenario() -> None:
        with (tmp_path / "file").open("wb") as file:
            await Output(file.fileno()).write(b"0123456789")

    scenario()
    assert (tmp_path / "file").read_bytes() == b"0123456789"


@in_loop
async def test_ending_output_to_a_pipe_keeps_its_descriptor_open(pipe: tuple[int, int]) -> None:
    sink = Output(pipe[1])
    await sink.end()
    assert os.read(pipe[0], 1) == b""
    await sink.write(b"to nowhere")
    assert os.fstat(pipe[1]).st_rdev == os.stat(os.devnull).st_rdev


@in_loop
async def test_ending_output_to_a_socket_leaves_input_open() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        await Output(ours.fileno()).end()
        assert theirs.recv(1) == b""
        theirs.send(b"still here")
        assert await Input(ours.fileno()).read() == b"still here"


@in_loop
async def test_output_to_a_closed_reader_is_an_error(pipe: tuple[int, int]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with pytest.raises(BrokenPipeError):
        await Output(writer).write(b"x")
    os.close(writer)
