"""Requests and responses on one connection: order, errors, timeouts, cancellation, limits."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.messages.streams import Gated, served, stream_pair
from tests.support.loops import HANGING_S, in_loop, in_loop_within
from tunnel.messages.calls.calls import CallChannel, CallHandler, Request, Response
from tunnel.messages.calls.frames import (
    FRAME_BYTES_MAX,
    CallHeader,
    FrameDecoder,
    FrameFlag,
    ResponseCode,
    encode_frame,
)
from tunnel.messages.errors import ChannelClosedError, MalformedFrameError, MessageTooLargeError, RemoteCallError


@asynccontextmanager
async def channels(
    handlers: Mapping[int, CallHandler] | None = None, **options: Any
) -> AsyncIterator[tuple[CallChannel, CallChannel]]:
    """A caller and an answerer, which has the handlers."""
    async with (
        stream_pair() as (near, far),
        CallChannel(*near) as caller,
        CallChannel(*far, handlers, **options) as answerer,
    ):
        yield caller, answerer


def echo(request: Request) -> Response:
    return Response(request.body, request.fields)


@in_loop
async def test_answers_come_in_any_order() -> None:
    gated = Gated()
    async with channels({1: gated, 2: echo}) as (caller, _):
        slow = [asyncio.ensure_future(caller.call(1, body)) for body in (b"a", b"b", b"c")]
        fast = await caller.call(2, b"fast", {"key": "value"})
        assert (fast.body, fast.fields) == (b"fast", {"key": "value"})
        for body in (b"c", b"a", b"b"):
            gated.gate(body).set()
        assert [response.body for response in await asyncio.gather(*slow)] == [b"A", b"B", b"C"]


@in_loop
async def test_many_callers_share_one_connection_both_ways() -> None:
    handlers = {1: echo}
    async with (
        stream_pair() as (near, far),
        CallChannel(*near, handlers) as one,
        CallChannel(*far, handlers) as other,
    ):
        bodies = [b"%d" % number for number in range(300)]
        calls = [channel.call(1, body) for body in bodies for channel in (one, other)]
        answers = [response.body for response in await asyncio.gather(*calls)]
        assert answers == [body for body in bodies for _ in range(2)]


@in_loop
async def test_errors_of_the_handler_reach_the_caller() -> None:
    async def fail(request: Request) -> Response:
        raise ValueError("no such thing")

    def fail_at_once(request: Request) -> Response:
        raise KeyError("nothing")

    async def own_code(request: Request) -> Response:
        raise RemoteCallError(123, "mine")

    async def no_file(request: Request) -> Response:
        raise FileNotFoundError("x")

    def too_much(request: Request) -> Response:
        return Response(bytes(FRAME_BYTES_MAX))

    handlers: dict[int, CallHandler] = {1: fail, 2: fail_at_once, 3: own_code, 4: no_file, 5: too_much, 6: echo}
    async with channels(handlers) as (caller, _):
        cases = [
            (1, ResponseCode.SYSTEM_ERROR, "ValueError: no such thing"),
            (2, ResponseCode.SYSTEM_ERROR, "KeyError: 'nothing'"),
            (3, 123, "mine"),
            (4, ResponseCode.SYSTEM_ERROR, "FileNotFoundError: x"),
            (5, ResponseCode.SYSTEM_ERROR, "MessageTooLargeError"),
            (9, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "code 9"),
        ]
        for code, answer, text in cases:
            with pytest.raises(RemoteCallError, match=text) as caught:
                await caller.call(code)
            assert caught.value.code == answer
        with pytest.raises(MessageTooLargeError):
            await caller.call(6, bytes(FRAME_BYTES_MAX))
        assert (await caller.call(6, b"still here")).body == b"still here"


@in_loop
async def test_one_way_calls_are_not_answered() -> None:
    heard: list[tuple[bytes, bool]] = []
    later = asyncio.Event()

    def note(request: Request) -> None:
        heard.append((request.body, request.is_one_way))

    async def note_later(request: Request) -> None:
        note(request)
        later.set()

    def fail(request: Request) -> None:
        raise ValueError("nobody hears of it")

    async with channels({1: note, 2: note_later, 3: fail}) as (caller, _):
        for code in (1, 2, 3, 9):
            await caller.send(code, b"%d" % code)
        assert (await caller.call(1, b"asked")).body == b""
        await later.wait()
        assert sorted(heard) == [(b"1", True), (b"2", True), (b"asked", False)]
        assert caller.late_answers == 0


@in_loop_within(HANGING_S)
async def test_a_timeout_and_a_cancellation_reach_the_handler() -> None:
    gated = Gated()
    async with channels({1: gated, 2: echo}) as (caller, answerer):
        with pytest.raises(TimeoutError, match=r"code 1 within 0\.01 s"):
            await caller.call(1, b"timeout", timeout=0.01)
        cancelled = asyncio.ensure_future(caller.call(1, b"cancelled", timeout=None))
        while len(gated.gates) < 2:
            await caller.call(2)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        while len(gated.cancelled) < 2:
            await caller.call(2)
        assert gated.cancelled == [b"timeout", b"cancelled"]
        assert not answerer._handling
        # to cancel or to answer an unknown request is harmless
        caller._frames.put(encode_frame(CallHeader(1, 9999, FrameFlag.CANCEL)))
        answerer._frames.put(encode_frame(CallHeader(0, 9999, FrameFlag.RESPONSE)))
        await caller.call(2)
        assert caller.late_answers == 1


@in_loop
async def test_requests_over_the_limit_are_refused_and_not_queued() -> None:
    gated = Gated()
    async with channels({1: gated, 2: gated}, handled_max=2, handled_bytes_max=10_000) as (caller, _):
        first = asyncio.ensure_future(caller.call(1, b"a"))
        await asyncio.sleep(0)
        await caller.send(1, b"b")
        with pytest.raises(RemoteCallError) as caught:
            await caller.call(1, b"c")
        assert caught.value.code == ResponseCode.SYSTEM_BUSY
        gated.gate(b"a").set()
        assert (await first).body == b"A"
        with pytest.raises(RemoteCallError, match="too many"):
            await caller.call(1, bytes(10_000))
        gated.gate(b"d").set()
        assert (await caller.call(1, b"d")).body == b"D"


@in_loop
async def test_a_caller_that_never_reads_is_disconnected() -> None:
    def much(request: Request) -> Response:
        return Response(bytes(100_000))

    async with stream_pair() as (near, far), CallChannel(*far, {1: much}, handled_bytes_max=1000) as answerer:
        number = 0
        while answerer.is_open:
            number += 1
            near[1].write(b"".join(encode_frame(CallHeader(1, number))))
            await asyncio.sleep(0)
        assert "reads no answers" in str(answerer.error)


@in_loop
async def test_the_end_of_the_connection_cancels_calls_and_handlers_of_calls_but_no_one_way_handler() -> None:
    gated = Gated()
    async with channels({1: gated}) as (caller, answerer):
        call = asyncio.ensure_future(caller.call(1, b"x"))
        await caller.send(1, b"y")
        while len(gated.gates) < 2:
            gated.came.clear()
            await gated.came.wait()
        caller._writer.transport.abort()
        with pytest.raises(ChannelClosedError):
            await call
        await answerer.wait_closed()
        while not gated.cancelled:
            gated.came.clear()
            await gated.came.wait()
        gated.gate(b"y").set()
        await answerer.wait_handled()
        assert gated.cancelled == [b"x"]
        assert not caller.is_open
        for again in (caller.call(1), caller.send(1)):
            with pytest.raises(ChannelClosedError):
                await again
        caller._frames.put([b"goes nowhere"])


@in_loop
async def test_closing_ends_calls_and_is_no_error_for_the_peer() -> None:
    async with channels({1: echo}) as (caller, answerer):
        call = asyncio.ensure_future(caller.call(1, b"x"))
        assert (await call).body == b"x"
        pending = asyncio.ensure_future(caller.call(1, b"y"))
        await asyncio.sleep(0)
        await caller.close()
        with pytest.raises(ChannelClosedError):
            await pending
        await answerer.wait_closed()
        assert answerer.error is None


@in_loop
async def test_a_peer_that_breaks_the_framing_is_disconnected() -> None:
    for data, kind in ((b"GET / HTTP/1.1\r\n", MalformedFrameError), (b"\x00\x00", ChannelClosedError)):
        async with stream_pair() as (near, far), CallChannel(*far) as channel:
            near[1].write(data)
            near[1].write_eof()
            await channel.wait_closed()
            assert isinstance(channel.error, kind)


@in_loop
async def test_a_channel_works_over_tcp() -> None:
    async with served({1: echo}) as address:
        host, port = address.split(":")
        async with CallChannel(*await asyncio.open_connection(host, int(port))) as channel:
            assert (await channel.call(1, b"hello")).body == b"hello"


@in_loop
async def test_handled_requests_make_room_for_others() -> None:
    """A limit of bytes at once must not become one of bytes in all: the channel would be busy for ever."""

    async def later(request: Request) -> Response:
        await asyncio.sleep(0)
        return Response(request.body)

    async with channels({1: later}, handled_bytes_max=3000) as (caller, answerer):
        for _ in range(5):
            assert (await caller.call(1, bytes(60))).body == bytes(60)
        assert answerer._handled_bytes == 0


@in_loop
async def test_a_repeated_number_of_a_request_is_refused_and_the_first_one_stays_known() -> None:
    """Otherwise the first handler could be neither cancelled nor counted."""
    gated = Gated()
    async with stream_pair() as (near, far), CallChannel(*far, {1: gated, 2: echo}) as answerer:
        _, writer = near
        writer.writelines(encode_frame(CallHeader(1, 7), b"first"))
        writer.writelines(encode_frame(CallHeader(1, 7), b"second"))
        writer.writelines(encode_frame(CallHeader(2, 8), b"after them"))
        decoder = FrameDecoder()
        answers: list[tuple[CallHeader, bytes]] = []
        while not answers or answers[-1][0].opaque != 8:
            answers += decoder.feed(await near[0].read(1000))
        assert [(header.code, header.opaque) for header, _ in answers] == [
            (ResponseCode.SYSTEM_BUSY, 7),
            (ResponseCode.SUCCESS, 8),
        ]
        assert list(gated.gates) == [b"first"]
        assert list(answerer._handling) == [7]
        writer.writelines(encode_frame(CallHeader(1, 7, FrameFlag.CANCEL | FrameFlag.ONE_WAY)))
        while not gated.cancelled:
            gated.came.clear()
            await gated.came.wait()
        assert gated.cancelled == [b"first"]


@in_loop
async def test_a_call_that_times_out_cancels_its_handler_within_the_next_three_calls() -> None:
    gated = Gated()
    async with channels({1: gated, 2: echo}) as (caller, _):
        with pytest.raises(TimeoutError):
            await caller.call(1, b"late", timeout=0.01)
        for _ in range(3):  # requests of one connection are handled in their order
            await caller.call(2)
        assert gated.cancelled == [b"late"]
