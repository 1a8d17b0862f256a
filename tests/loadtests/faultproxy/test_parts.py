"""Unit tests of the small parts: gates, delay lines, streams."""

import asyncio

import pytest

from loadtests.faultproxy import sources
from loadtests.faultproxy.gate import Gate, Gates
from loadtests.faultproxy.recorder import Recorder
from loadtests.faultproxy.sources import DelayLine, Source, collected
from loadtests.faultproxy.stream import BUFFER_BYTES, SMALL_BYTES, Stream
from tests.loadtests.faultproxy.rig import Client, in_loop


@in_loop
async def test_a_gate_is_open_when_it_was_opened_as_often_as_shut() -> None:
    gate, called = Gate(), []
    gate.call(lambda: called.append("at once"))
    gate.shut()
    gate.shut()
    gate.call(lambda: called.append("later"))
    waiting = asyncio.ensure_future(gate.passed())
    gate.open()
    assert (gate.is_open, called) == (False, ["at once"])
    gate.open()
    assert (gate.is_open, called) == (True, ["at once", "later"])
    gate.shut()  # before the waiting task gets its turn
    await asyncio.sleep(0)
    assert not waiting.done()
    gate.open()
    await waiting


@in_loop
async def test_a_blackhole_without_a_trace_shuts_its_gate_and_is_counted() -> None:
    recorder = Recorder("node", None)
    gates = Gates(recorder)
    with gates.blackhole("request"):
        assert (gates.request.is_open, gates.response.is_open) == (False, True)
    assert (gates.request.is_open, recorder.counts.faults["blackhole"]) == (True, 1)


def pieces_of(*pieces: bytes, error: Exception | None = None) -> Source:
    left = list(pieces)

    async def read() -> bytes | None:
        if not left and error is not None:
            raise error
        return left.pop(0) if left else None

    return read


async def all_of(source: Source) -> list[bytes]:
    found = []
    while (piece := await source()) is not None:
        found.append(piece)
    return found


@in_loop
async def test_sources_return_all_pieces_in_order() -> None:
    assert await all_of(collected(b"whole")) == [b"whole"]
    assert await all_of(collected(b"")) == []
    async with DelayLine(pieces_of(b"a", b"bc", b"d"), 1_000) as line:
        assert await all_of(line) == [b"a", b"bc", b"d"]


@in_loop
async def test_a_delay_line_delivers_an_error_in_its_turn() -> None:
    async with DelayLine(pieces_of(b"a", error=ConnectionResetError("x")), 1_000) as line:
        assert await line() == b"a"
        with pytest.raises(ConnectionResetError):
            await line()


@in_loop
async def test_a_delay_line_holds_a_bounded_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "LINE_BYTES_MAX", 10)
    taken = 0

    async def read() -> bytes | None:
        nonlocal taken
        taken += 1
        return b"12345678" if taken <= 100 else None

    async with DelayLine(read, 1) as line:
        for number in range(100):
            await line()
            assert taken <= number + 5
        assert await line() is None


@in_loop
async def test_a_delay_line_that_is_left_early_stops() -> None:
    async def never() -> bytes | None:
        await asyncio.Event().wait()
        return None

    async with DelayLine(never, 1):
        pass


class Pair:
    """A stream, and the client at its other end."""

    async def __aenter__(self) -> tuple[Stream, Client]:
        made: asyncio.Future[Stream] = asyncio.get_running_loop().create_future()
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Stream(Gate(), made.set_result), "127.0.0.1", 0
        )
        self._client = Client(*await asyncio.open_connection(*self._server.sockets[0].getsockname()))
        self._stream = await made
        return self._stream, self._client

    async def __aexit__(self, *_: object) -> None:
        self._stream.abort()
        await self._stream.wait_closed()
        await self._client.close()
        self._server.close()
        await self._server.wait_closed()


@in_loop
async def test_small_writes_leave_in_order_with_large_ones() -> None:
    async with Pair() as (stream, client):
        large = b"L" * SMALL_BYTES
        for data in (b"a", b"", b"b", large, b"c", large + large, b"d"):
            stream.write(data)
        stream.finish()
        assert await client.ended() == b"ab" + large + b"c" + large + large + b"d"
        await stream.drain()


@in_loop
async def test_bytes_that_are_put_back_are_read_again() -> None:
    async with Pair() as (stream, client):
        await client.send(b"later")
        assert await stream.read() == b"later"
        stream.unread(b"")
        stream.unread(b"first")
        assert (stream.buffered_bytes, await stream.read()) == (5, b"first")
        client.writer.write_eof()
        assert await stream.read() == b""
        assert stream.has_ended
        called: list[int] = []
        stream.when_ended(lambda: called.append(1))
        assert called == [1]


@in_loop
async def test_a_stream_discards_input_on_request() -> None:
    async with Pair() as (stream, client):
        await client.send(bytes(4 * BUFFER_BYTES))
        client.writer.write_eof()
        await stream.swallow()
        assert (stream.has_ended, stream.is_closed) == (True, False)


@in_loop
async def test_a_stream_buffers_a_bounded_amount_of_unread_data() -> None:
    async with Pair() as (stream, client):
        total = 64 << 20
        sending = asyncio.ensure_future(client.send(bytes(total)))
        size = 0
        while size < total:
            size += len(await stream.read())
            assert stream.buffered_bytes <= 2 * BUFFER_BYTES
        await sending


@in_loop
async def test_a_muted_stream_discards_both_directions() -> None:
    async with Pair() as (stream, client):
        stream.data_received(bytes(BUFFER_BYTES + 1))  # reading pauses
        stream.mute()
        stream.write(b"unheard")
        await stream.drain()
        stream.finish()
        await client.send(b"unread")
        client.writer.write_eof()
        await stream.swallow()
        assert stream.buffered_bytes == 0
        stream.close()
        assert not await client.ended()


@in_loop
async def test_on_a_broken_connection_only_drain_raises() -> None:
    async with Pair() as (stream, client):
        stream.write(b"small")
        stream.reset()
        await stream.wait_closed()
        stream.write(b"more")
        for nothing in (stream.finish, stream.close, stream.abort, stream.reset, stream.mute):
            nothing()
        assert await stream.read() == b""
        assert await client.ended() is None
    async with Pair() as (stream, client):
        stream.abort()
        await stream.wait_closed()
        with pytest.raises(ConnectionResetError):
            await stream.drain()


@in_loop
async def test_a_writer_is_woken_when_the_connection_breaks() -> None:
    async with Pair() as (stream, _):
        while True:
            stream.write(bytes(1 << 20))
            draining = asyncio.ensure_future(stream.drain())
            await asyncio.sleep(0)
            if not draining.done():
                break
        stream.abort()
        with pytest.raises(ConnectionResetError):
            await draining
