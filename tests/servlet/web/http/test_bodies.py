"""Bodies in many chunks: the relay reads them in turns, even after it has refused their requests. It refuses bodies in
too many small chunks. The turns are counted and not timed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import StreamReader
from aiohttp.base_protocol import BaseProtocol

from tests.servlet.rig import TOKENS, Client, attach_body, relay, until
from tests.servlet.web.rig import TurnCounter, answer, close, connect, request
from tests.support.loops import HANGING_S, in_loop_within
from tests.turns.fake_meter import FakeMeter
from tunnel.turns.queues import Turns
from tunnel.turns.shares import TURN_US
from tunnel.wire import Attached, Status, StatusCode, decode_envelope
from tunnel_servlet.web.http.bodies import discard
from tunnel_servlet.web.running import RunningRelay

MANY = 24
READ_US = 5  # what reading a chunk costs on the clock of these tests
PART_US = 2_000
SMALL = b"1\r\nx\r\n"


def head(path: str, token: str) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
        "Content-Type: application/octet-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    ).encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list, empty at first: each function that a test appends to it is called for every chunk that is read."""
    read, found = StreamReader._read_nowait_chunk, list[Any]()

    def note(self: StreamReader, size: int) -> bytes:
        for each in found:
            each()
        return read(self, size)

    monkeypatch.setattr(StreamReader, "_read_nowait_chunk", note)
    return found


def slow(running: RunningRelay, reads: list[Any], counter: TurnCounter) -> None:
    """Count the chunks that are read in each turn, and let each cost processor time."""
    meter = running.relay.host.turns.meter = FakeMeter()

    def note() -> None:
        meter.seconds += READ_US / 1e6
        counter.note()

    reads.append(note)


@pytest.mark.parametrize(("path", "user"), [("/exchange", "nobody"), ("/elsewhere", "bob"), ("/elsewhere", "nobody")])
@in_loop_within(HANGING_S)
async def test_two_users_the_rest_of_refused_bodies_is_read_in_turns(reads: list[Any], path: str, user: str) -> None:
    """The requests of the flood are refused in one turn, for their token or their path."""
    async with relay() as running, Client(running) as victim:
        counter = TurnCounter()
        slow(running, reads, counter)
        body = SMALL * 800
        flood = await asyncio.gather(*(connect(running) for _ in range(MANY)))
        for _, writer in flood:
            writer.write(head(path, TOKENS.get(user, "wrong")) + body)
        await until(lambda: counter.counts.total() >= MANY * 800 * 7 // 8)
        assert isinstance(await victim.attach(), Attached)
        assert counter.stop() <= (TURN_US + PART_US) // READ_US + 10
        for _, writer in flood:
            await close(writer)


@in_loop_within(HANGING_S)
async def test_two_users_bodies_for_which_the_relay_waits_are_read_in_turns(reads: list[Any]) -> None:
    """The next chunks of all of them come at once."""
    async with relay() as running, Client(running) as victim:
        counter = TurnCounter()
        slow(running, reads, counter)
        flood = await asyncio.gather(*(connect(running) for _ in range(MANY)))
        for _, writer in flood:
            writer.write(head("/exchange", TOKENS["bob"]) + SMALL)
        await until(lambda: counter.counts.total() == MANY)
        for _, writer in flood:
            writer.write(SMALL * 300)
        await until(lambda: counter.counts.total() == MANY * 301)
        assert isinstance(await victim.attach(), Attached)
        assert counter.stop() <= (TURN_US + PART_US) // READ_US + MANY + 10
        for _, writer in flood:
            await close(writer)


@in_loop_within(HANGING_S)
async def test_a_body_in_too_many_small_chunks_is_refused_and_its_connection_closed() -> None:
    async with relay() as running:
        reader, writer = await connect(running)
        writer.write(head("/exchange", TOKENS["bob"]) + SMALL * 3000)
        answer = await reader.read(-1)
        assert answer.startswith(b"HTTP/1.1 400")
        status = decode_envelope(answer.partition(b"\r\n\r\n")[2])
        assert isinstance(status, Status)
        assert status.code == StatusCode.CORRUPT
        assert "too many small chunks" in status.text
        await until(lambda: running.connections.held_bytes == 0)
        await close(writer)


@pytest.mark.parametrize("size", [1, 64, 5000])
@in_loop_within(HANGING_S)
async def test_a_body_in_chunks_of_any_usual_size_arrives_whole(size: int) -> None:
    """A body of a few hundred bytes may come in chunks of one byte."""
    async with relay() as running:
        reader, writer = await connect(running)
        body = attach_body(7)
        data = b"".join(chunk(body[start : start + size]) for start in range(0, len(body), size))
        writer.write(head("/exchange", TOKENS["bob"]) + data + b"0\r\n\r\n")
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
        await close(writer)


@in_loop_within(HANGING_S)
async def test_chunks_of_64_bytes_may_fill_the_largest_body() -> None:
    async with relay() as running:
        reader, writer = await connect(running)
        limit = running.relay.config.switch.body_bytes_max
        writer.write(head("/exchange", TOKENS["bob"]) + chunk(bytes(64)) * (limit // 64) + b"0\r\n\r\n")
        answer = await reader.readuntil(b"\r\n\r\n")
        rest = await reader.readexactly(int(answer.partition(b"Content-Length: ")[2].split(b"\r\n")[0]))
        assert b"small chunks" not in rest  # it was read whole, and is no envelope
        assert answer.startswith(b"HTTP/1.1 400")
        await close(writer)


@in_loop_within(HANGING_S)
async def test_two_users_neither_pays_for_the_wait_for_the_rest_of_a_body() -> None:
    """Others work while the relay waits. A part of the body was read before its request was refused."""
    loop, meter, charged = asyncio.get_running_loop(), FakeMeter(), list[float]()
    turns = Turns(meter=meter)
    turns.spend = lambda user, spent_us: charged.append(spent_us)  # type: ignore[method-assign]
    protocol = BaseProtocol(loop)
    protocol.transport = asyncio.Transport()
    content = StreamReader(protocol, 1 << 16, loop=loop)
    content.feed_data(bytes(100))
    await content.read(50)
    discarding = asyncio.ensure_future(discard(content, turns, lambda: "bob", HANGING_S))
    for _ in range(4):
        await asyncio.sleep(0)
    meter.seconds += 0.3
    content.feed_data(b"x")
    content.feed_eof()
    await discarding
    assert content.at_eof()
    assert len(charged) == 2
    assert sum(charged) == 0


@pytest.mark.parametrize("ends", [SMALL + b"0\r\n\r\n", b"0\r\n\r\n"])
@in_loop_within(HANGING_S)
async def test_bodies_are_read_on_after_a_pause_for_too_many_chunks(ends: bytes) -> None:
    """aiohttp's parser stops when 4,096 chunks wait. If it is not told to go on, neither the rest of this body arrives,
    nor the next body."""
    async with relay() as running:
        reader, writer = await connect(running)
        writer.write(head("/exchange", TOKENS["bob"]) + chunk(bytes(250_000)))
        await asyncio.sleep(0.05)
        writer.write(SMALL * 4097)
        await asyncio.sleep(0.05)
        writer.write(ends)
        assert (await answer(reader))[0] == 400  # zeros are no envelope
        writer.write(request(attach_body(7), "bob"))
        assert (await answer(reader))[0] == 200
        await close(writer)


@in_loop_within(HANGING_S)
async def test_two_users_a_body_in_thousands_of_parts_is_taken_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, read = list[int](), StreamReader.readany

    async def note(content: StreamReader) -> bytes:
        data = await read(content)
        taken.append(len(data))
        return data

    monkeypatch.setattr(StreamReader, "readany", note)
    async with relay() as running:
        reader, writer = await connect(running)
        body = attach_body(7)
        whole = request(body, "bob")
        writer.write(whole[: -len(body)])
        for number, byte in enumerate(body):
            writer.write(bytes([byte]))
            await until(lambda number=number: sum(taken) > number)  # type: ignore[misc]
        assert (await answer(reader))[0] == 200
        assert max(taken) == 1
        await close(writer)
