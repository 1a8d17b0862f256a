"""Answers out of files: they keep their place among other answers, over sockets and over streams without a socket."""

import asyncio
import os
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
import uvloop

from tests.messages.streams import stream_pair
from tests.support.loops import in_loop, run
from tunnel.messages.calls.calls import CallChannel, Request, Response
from tunnel.messages.calls.frame_writer import FrameWriter
from tunnel.messages.errors import ChannelClosedError
from tunnel.messages.sets.file_sets import FileMessageSet

SIZE = 3_000_000  # more than the buffers of a socket hold


class Answerer:
    """Answers code 1 with a file of SIZE bytes, and code 2 with the request."""

    def __init__(self, path: Path) -> None:
        self.content = bytes(range(250)) * (SIZE // 250)
        path.write_bytes(self.content)
        self.file = FileMessageSet.open(path)
        self.handlers = {1: self.whole, 2: self.echo}

    def whole(self, request: Request) -> Response:
        return Response(self.file, {"name": "file"})

    def echo(self, request: Request) -> Response:
        return Response(request.body)


@pytest.mark.parametrize("has_socket", [True, False])
@in_loop
async def test_files_and_other_answers_keep_their_order(tmp_path: Path, has_socket: bool) -> None:
    answerer = Answerer(tmp_path / "file")
    with answerer.file:
        async with stream_pair() as (near, far):
            if not has_socket:
                far[1].get_extra_info = lambda name, default=None: default  # type: ignore[method-assign]
            async with CallChannel(*near) as caller, CallChannel(*far, answerer.handlers):
                codes = [1, 2, 1, 2, 2, 1]
                answers = await asyncio.gather(*(caller.call(code, b"%d" % at) for at, code in enumerate(codes)))
                for at, (code, answer) in enumerate(zip(codes, answers, strict=True)):
                    assert answer.data == (answerer.content if code == 1 else b"%d" % at)


@in_loop
async def test_a_connection_that_ends_within_a_file_ends_the_sending(tmp_path: Path) -> None:
    answerer = Answerer(tmp_path / "file")
    with answerer.file:
        async with stream_pair() as (near, far):
            near[0]._transport.pause_reading()  # type: ignore[attr-defined]
            async with CallChannel(*far, answerer.handlers) as answering:
                caller = CallChannel(*near)
                call = asyncio.ensure_future(caller.call(1))
                while answering._frames._sending is None:  # noqa: ASYNC110
                    await asyncio.sleep(0)
                await caller.close()
                with pytest.raises(ChannelClosedError):
                    await call
                await answering.wait_closed()
                await answering._frames.wait_closed()
                assert answering._frames._sending is None


def test_warming_reads_the_whole_set_once_and_ends_where_the_file_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(SIZE))
    read: list[tuple[int, int]] = []  # begin and end of each read

    def preadv(descriptor: int, buffers: list[bytearray], offset: int) -> int:
        got = real(descriptor, buffers, offset)
        read.append((offset, offset + got))
        return got

    real = os.preadv
    monkeypatch.setattr(os, "preadv", preadv)
    with FileMessageSet.open(path) as file:
        for start, size in ((0, SIZE), (1_000_001, SIZE - 1_000_001), (5, 1_500_000)):
            read.clear()
            part = file.read(start, size)
            part.warm()
            assert read[0][0] == start
            assert read[-1][0] < start + size <= read[-1][1]
            assert all(before[1] == after[0] for before, after in pairwise(read))
            assert part.size_bytes == size
        part = FileMessageSet(file.descriptor, 0, 2 * SIZE)  # as if the file had been shortened meanwhile
        part.warm()
        assert read[-1] == (SIZE, SIZE)


def test_frames_for_a_connection_that_has_ended_are_dropped() -> None:
    """uvloop raises an error for a write after the end. With that error, a channel would count as open for ever."""

    async def check() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            channel = CallChannel(reader, writer)
            frames = FrameWriter(writer, lambda error: None)
            writer.transport.abort()
            with suppress(ConnectionError):
                await writer.wait_closed()
            frames.put([b"late"])
            frames.flush()
            calling = asyncio.ensure_future(channel.call(1))
            await asyncio.sleep(0)
            channel.start()  # it learns of the end while the call waits to be written
            with pytest.raises(ChannelClosedError):
                await calling
            assert not channel.is_open
            await channel.close()

    run(check(), uvloop.new_event_loop)
