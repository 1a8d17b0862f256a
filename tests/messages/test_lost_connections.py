"""A connection that is lost while its requests wait: it ends at the first failure, and keeps nothing of the others."""

import asyncio
from types import TracebackType

import pytest

from tests.messages.streams import Gated, stream_pair
from tests.support.loops import in_loop
from tunnel.messages.calls.calls import CallChannel, Request, Response
from tunnel.messages.calls.frame_writer import FrameWriter
from tunnel.messages.calls.frames import CallHeader, encode_frame
from tunnel.messages.errors import ChannelClosedError
from tunnel.messages.payers import Payer


class Waiting(Payer):
    """A payer in debt: it is never its turn."""

    async def turn(self) -> None:
        await asyncio.Event().wait()


def frames(count: int) -> bytes:
    return b"".join(b"".join(encode_frame(CallHeader(1, opaque, 0), b"%d" % opaque)) for opaque in range(count))


def depth(traceback: TracebackType | None) -> int:
    found = 0
    while traceback is not None:
        found, traceback = found + 1, traceback.tb_next
    return found


async def lose(writer: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
    """End a connection so that `far` notices when it writes."""
    writer.transport.abort()
    await asyncio.sleep(0)
    while not far.transport.is_closing():
        far.write(b"x")
        await asyncio.sleep(0)


@in_loop
async def test_the_first_answer_that_fails_ends_the_connection_and_all_requests() -> None:
    """The connection is not read meanwhile: it is not the payer's turn."""
    gated = Gated()
    async with stream_pair() as (near, far):
        channel = CallChannel(*far, {1: gated}, payer=Waiting())
        async with channel:
            near[1].write(frames(100))
            await near[1].drain()
            await gated.came.wait()
            handled = len(gated.gates)
            assert 1 < handled < 100
            await lose(near[1], far[1])
            assert channel.is_open
            gated.gate(b"0").set()
            await channel.wait_closed()
            assert isinstance(channel.error, OSError)
            await asyncio.sleep(0)
            assert len(gated.cancelled) == handled - 1
        assert len(gated.gates) == handled


@in_loop
async def test_requests_that_have_come_are_not_handled_after_the_end() -> None:
    """Before its next turn, a connection has read many requests."""
    handled: list[bytes] = []
    come, turn = asyncio.Event(), asyncio.Event()

    class Later(Payer):
        async def turn(self) -> None:
            await turn.wait()

    def handle(request: Request) -> Response:
        handled.append(request.body)
        come.set()
        return Response()

    async with stream_pair() as (near, far):
        channel = CallChannel(*far, {1: handle}, payer=Later())
        async with channel:
            near[1].write(frames(100))
            await come.wait()
            before = len(handled)
            channel._end(None)
            turn.set()
            for _ in range(20):
                await asyncio.sleep(0)
        assert len(handled) == before < 100


@pytest.mark.parametrize("method", ["drain", "room"])
@in_loop
async def test_a_lost_connection_keeps_no_frames_of_those_who_wait_for_it(method: str) -> None:
    """asyncio raises one exception for all, and an exception keeps the frames that it has passed."""
    lost: list[Exception] = []
    async with stream_pair() as (near, far):
        writer = FrameWriter(far[1], lost.append)
        await lose(near[1], far[1])
        for _ in range(50):
            with pytest.raises(ChannelClosedError):
                await (writer.drain() if method == "drain" else writer.room(0))
        error = far[0].exception()
        assert set(lost) == {error}
        assert error is not None
        assert depth(error.__traceback__) < 5
