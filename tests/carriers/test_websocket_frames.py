"""The websocket behind a proxy that damages single frames: no byte is lost, and the websocket is used again."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from loadtests.faultproxy import (
    FaultProxy,
    FaultProxyOptions,
    FrameBuffer,
    FrameClose,
    FrameCut,
    FrameFaults,
    FrameFlip,
    FrameStall,
)
from tests.carriers.harness import MIB, end, noise
from tests.carriers.rig import moved_by, until
from tests.support.http_relay import WebSocketTestRelay, token_of
from tests.support.loops import in_loop
from tunnel import Attachment, StreamReader, StreamWriter, attach

HIT = 0.02  # the share of frames that a fault hits; 1 MiB makes some dozens of batches, and their receipts

FAULTS = {
    "cut": FrameFaults(cut=FrameCut(HIT)),
    "flip": FrameFaults(flip=FrameFlip(HIT)),
    "flip up": FrameFaults(flip=FrameFlip(4 * HIT, "request")),
    "flip down": FrameFaults(flip=FrameFlip(4 * HIT, "response")),
    "buffer": FrameFaults(buffer=FrameBuffer(4 * HIT, 100_000)),
    "stall for a time": FrameFaults(stall=FrameStall(HIT, "", 300_000)),
    "stall up": FrameFaults(stall=FrameStall(HIT, "request")),
    "stall down": FrameFaults(stall=FrameStall(HIT, "response")),
    "close": FrameFaults(close=FrameClose(HIT)),
    "close with a code of nobody": FrameFaults(close=FrameClose(HIT, code=4999)),
    "all": FrameFaults(
        close=FrameClose(HIT / 4),
        cut=FrameCut(HIT / 4),
        stall=FrameStall(HIT / 4),
        flip=FrameFlip(HIT / 4),
        buffer=FrameBuffer(HIT / 4, 50_000),
    ),
}


async def digest(reader: StreamReader, writer: StreamWriter) -> None:
    """Send noise, and the digest of what comes."""
    writer.write(noise(2 * MIB, 2))
    found = hashlib.sha256()
    while data := await reader.read(MIB):
        found.update(data)
    writer.write(found.digest())
    writer.close()
    await writer.wait_closed()


async def move(client: Attachment) -> None:
    """Move 2 MiB each way at the same time, and compare the digests."""
    reader, writer = await client.open_connection("digest", timeout=30)
    data = noise(2 * MIB, 1)

    async def send() -> None:
        for start in range(0, len(data), 16 * 1024):
            writer.write(data[start : start + 16 * 1024])
            await writer.drain()
        writer.write_eof()

    sending = asyncio.create_task(send())
    assert await reader.readexactly(2 * MIB) == noise(2 * MIB, 2)
    assert await reader.read(-1) == hashlib.sha256(data).digest()
    await sending
    await end(writer)


@pytest.mark.parametrize("name", FAULTS)
@in_loop
async def test_digests_are_equal_whatever_happens_to_frames(name: str) -> None:
    async with WebSocketTestRelay() as relay, relay.attach("ann", carrier="poll") as service:
        await service.start_server(digest, "digest")
        options = FaultProxyOptions(upstream=("127.0.0.1", relay.port), frames=FAULTS[name], seed=5)
        async with (
            FaultProxy(options) as proxy,
            attach(f"{proxy.url}/prefix", token=token_of("bob"), proxy=None, carrier="websocket") as client,
        ):
            await until(lambda: moved_by(client) == "websocket")
            while not sum(proxy.counts.faults.values()):
                await move(client)
            await move(client)
            await until(lambda: moved_by(client) == "websocket")


@pytest.mark.parametrize("side", ["request", "response"])
@in_loop
async def test_a_frame_that_never_ends_costs_its_user_a_road_and_another_user_nothing(side: str) -> None:
    """The first frame of each websocket of one user stalls. Another user's one websocket goes on."""
    told: list[str] = []

    class Listener:
        def read_closed(self, text: str) -> None:
            told.append(text)

    faults = FrameFaults(stall=FrameStall(1, side))
    async with WebSocketTestRelay() as relay, relay.attach("exit", carrier="poll") as service:
        await service.start_server(digest, "digest")
        options = FaultProxyOptions(upstream=("127.0.0.1", relay.port), frames=faults)
        async with (
            FaultProxy(options) as proxy,
            attach(f"{proxy.url}/prefix", token=token_of("bob"), proxy=None, carrier="websocket") as client,
            relay.attach("ann") as other,
        ):
            await until(lambda: moved_by(other) == "websocket")
            other.add_error_listener(Listener())
            await asyncio.gather(move(client), move(other))
            assert moved_by(client) != "websocket"
            assert moved_by(other) == "websocket"
            assert told == []
            assert proxy.counts.faults["frame_stall"] >= 1
