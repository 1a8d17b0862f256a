"""Faults of single frames of websockets: what reaches the other side, and what is recorded."""

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.faultproxy import FrameBuffer, FrameClose, FrameCut, FrameFaults, FrameFlip, FrameStall
from loadtests.faultproxy.frames import FrameParser, close_frame
from tests.loadtests.faultproxy.rig import Client, Received, Rig, in_loop

SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: WebSocket\r\n\r\n"


def frame(data: bytes, *, masked: bool = True) -> bytes:
    size = len(data)
    length = [size] if size < 126 else [126, *size.to_bytes(2)] if size < 1 << 16 else [127, *size.to_bytes(8)]
    head = bytes([0x82, *length])
    return bytes([head[0], head[1] | 0x80]) + head[2:] + bytes(4) + data if masked else head + data


async def repeating(request: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the upgrade, then send everything back."""
    writer.write(SWITCH.replace(b"WebSocket", request.headers["upgrade"].encode()))
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def opened(rig: Rig, protocol: str = "websocket") -> Client:
    client = await rig.connect()
    head = f"GET /link HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n"
    await client.send(head.encode())
    assert (await client.answer()).status == 101
    return client


MESSAGES = [frame(b""), frame(b"x" * 125), frame(b"y" * 126), frame(b"z" * 70_000), close_frame(1000, masked=True)]


@given(st.lists(st.integers(0, 70_500), max_size=20))
def test_the_parser_finds_frames_however_they_are_cut(places: list[int]) -> None:
    data = b"".join(MESSAGES)
    parser, found = FrameParser(), []
    bounds = sorted({0, len(data), *places})
    for start, end in itertools.pairwise(bounds):
        piece = data[start:end]
        while piece:
            count = min(len(piece), parser.left_bytes)
            parser.left_bytes -= count
            piece = piece[count:]
            if not parser.left_bytes and piece:
                piece = parser.take_head(piece)
                if head := parser.begin():
                    found.append(len(head) + parser.left_bytes)
    assert found == [len(message) for message in MESSAGES]
    assert parser.rest() == b""


NO_FRAME = [
    FrameFaults(cut=FrameCut(1, "response")),
    FrameFaults(stall=FrameStall(1)),
    FrameFaults(flip=FrameFlip(1)),
    FrameFaults(close=FrameClose(1)),
]


@in_loop
@pytest.mark.parametrize("faults", NO_FRAME)
async def test_faults_of_frames_spare_other_protocols(faults: FrameFaults) -> None:
    async with Rig(repeating, frames=faults) as rig:
        client = await opened(rig, "echo")
        await client.send(b"".join(MESSAGES))
        assert await client.reader.readexactly(sum(map(len, MESSAGES))) == b"".join(MESSAGES)
        assert rig.faults == []


@in_loop
async def test_without_a_hit_all_frames_pass() -> None:
    async with Rig(repeating, frames=FrameFaults(cut=FrameCut(1e-9), flip=FrameFlip(1e-9))) as rig:
        client = await opened(rig)
        await client.send(b"".join(MESSAGES) + b"\x82")  # the last byte begins another frame
        client.writer.write_eof()
        assert await client.ended() == b"".join(MESSAGES) + b"\x82"


@in_loop
@pytest.mark.parametrize("side", ["request", "response"])
async def test_a_cut_is_inside_a_frame(side: str) -> None:
    async with Rig(repeating, frames=FrameFaults(cut=FrameCut(1, side))) as rig:
        client = await opened(rig)
        await client.send(frame(b"x" * 1000))
        got = await client.ended()
        (record,) = rig.records
        assert (record.cause, record.text) == (f"{side}_truncated", f"frame_cut {side}")
        assert 0 < record.size_bytes < 1008
        assert got in (None, b"", frame(b"x" * 1000)[: record.size_bytes])


@in_loop
async def test_a_stall_ends_after_its_time_and_loses_nothing() -> None:
    async with Rig(repeating, frames=FrameFaults(stall=FrameStall(0.5, "request", 20_000))) as rig:
        client = await opened(rig)
        data = b"".join(MESSAGES) * 4
        await client.send(data)
        assert await client.reader.readexactly(len(data)) == data
        assert {record.latency_us for record in rig.records} == {20_000}
        assert {record.cause for record in rig.records} == {"request_delayed"}


@in_loop
async def test_after_a_stall_for_ever_only_the_end_of_the_direction_passes() -> None:
    async with Rig(repeating, frames=FrameFaults(stall=FrameStall(1, "response"))) as rig:
        client = await opened(rig)
        await client.send(frame(b"x" * 1000) * 10)
        client.writer.write_eof()
        got = await client.ended()
        assert got is not None
        assert 0 < len(got) < 1008
        assert [record.cause for record in rig.records] == ["response_lost"]


@in_loop
async def test_one_bit_of_each_frame_flips() -> None:
    async with Rig(repeating, frames=FrameFaults(flip=FrameFlip(1, "response"))) as rig:
        client = await opened(rig)
        data = frame(b"x" * 1000) * 20
        await client.send(data)
        got = await client.reader.readexactly(len(data))
        for start in range(0, len(data), 1008):
            changed = int.from_bytes(got[start : start + 1008]) ^ int.from_bytes(data[start : start + 1008])
            assert changed.bit_count() == 1
        assert [(record.cause, record.count) for record in rig.records] == [("response_corrupted", 1)] * 20


@in_loop
async def test_frames_that_are_held_back_pass_together() -> None:
    async with Rig(repeating, frames=FrameFaults(buffer=FrameBuffer(1, 50_000, "request"))) as rig:
        client = await opened(rig)
        arrived: list[int] = []
        await client.send(frame(b"a"))
        await rig.turns(5)
        await client.send(frame(b"b"))
        reading = asyncio.ensure_future(client.reader.read(1000))
        arrived.append(len(await reading))
        assert arrived == [2 * len(frame(b"a"))]
        assert [(record.cause, record.latency_us) for record in rig.records] == [("request_delayed", 50_000)]


@in_loop
async def test_bytes_held_back_pass_when_they_are_too_many_and_at_the_end() -> None:
    async with Rig(repeating, frames=FrameFaults(buffer=FrameBuffer(1, 60_000_000))) as rig:
        client = await opened(rig)
        await client.send(frame(b"a" * 1_500_000))  # more than may be held back
        assert (await client.reader.readexactly(1_500_014)) == frame(b"a" * 1_500_000)
        await client.send(frame(b"b"))
        client.writer.write_eof()
        assert await client.ended() == frame(b"b")


@in_loop
@pytest.mark.parametrize("side", ["request", "response"])
async def test_a_close_frame_comes_in_place_of_a_frame(side: str) -> None:
    heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def hearing(request: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SWITCH)
        writer.write(frame(b"hi", masked=False))
        heard.set_result(await reader.read(-1))

    async with Rig(hearing, frames=FrameFaults(close=FrameClose(1, side, 1012))) as rig:
        client = await opened(rig)
        await client.send(frame(b"hello"))
        got = await client.reader.read(-1)
        if side == "response":
            assert got == bytes.fromhex("880203f4")
        else:
            assert got in (b"", frame(b"hi", masked=False))
            assert await heard == bytes.fromhex("88820000000003f4")
        (record,) = rig.records
        assert (record.cause, record.status, record.text) == ("answer_replaced", 1012, f"frame_close {side}")


GRAMMAR = [
    (FrameCut, "0.5", FrameCut(0.5)),
    (FrameCut, "1:request", FrameCut(1, "request")),
    (FrameStall, "0.1", FrameStall(0.1)),
    (FrameStall, "0.1:for=2s:response", FrameStall(0.1, "response", 2_000_000)),
    (FrameFlip, "0.1:response", FrameFlip(0.1, "response")),
    (FrameBuffer, "0.1:50ms", FrameBuffer(0.1, 50_000)),
    (FrameBuffer, "0.1:50ms:request", FrameBuffer(0.1, 50_000, "request")),
    (FrameClose, "0.1", FrameClose(0.1, "", 1001)),
    (FrameClose, "0.1:code=1012:request", FrameClose(0.1, "request", 1012)),
]


@pytest.mark.parametrize(("kind", "text", "value"), GRAMMAR)
def test_valid_frame_faults_are_parsed(kind: Any, text: str, value: object) -> None:
    assert kind.parse(text) == value


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (FrameCut, "2", "not a probability"),
        (FrameCut, "0.1:request:response", "only one of these"),
        (FrameCut, "0.1:for=1s", "'for=1s' in '0.1:for=1s' is not known; expected after the value: request, response"),
        (FrameStall, "0.1:for=0s", "no time at all"),
        (FrameStall, "0.1:for=2", "not a duration"),
        (FrameBuffer, "0.1", "too few parts"),
        (FrameBuffer, "0.1:0s", "no time at all"),
        (FrameClose, "0.1:code=999", "code='999' is not a close code from 1000 to 4999"),
        (FrameClose, "0.1:code=5000", "not a close code"),
        (FrameClose, "0.1:code=x", "not a close code"),
    ],
)
def test_invalid_frame_faults_are_refused_with_a_reason(kind: Any, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind.parse(text)
