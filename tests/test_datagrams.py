"""Datagrams keep their boundaries, the oldest ones are dropped when the queue is full, and an idle side is closed."""

from __future__ import annotations

import asyncio

import pytest

from tests.rig import Stream
from tests.support.loops import in_loop
from tunnel.streams.datagrams import DATAGRAM_BYTES_MAX, DatagramSide, Deframer, frame_datagram
from tunnel.streams.splice import Side, splice

SAMPLES = [b"", b"x", b"hello", bytes(300), bytes(DATAGRAM_BYTES_MAX)]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000, 1 << 20])
def test_boundaries_are_kept_however_the_stream_is_cut(size: int) -> None:
    stream = b"".join(map(frame_datagram, SAMPLES))
    deframer = Deframer()
    found = [part for start in range(0, len(stream), size) for part in deframer.feed(stream[start : start + size])]
    assert found == SAMPLES


def test_a_datagram_has_a_limit() -> None:
    with pytest.raises(ValueError, match="at most 65535 bytes, not 65536"):
        frame_datagram(bytes(DATAGRAM_BYTES_MAX + 1))


@in_loop
async def test_datagrams_wait_for_the_other_side_and_while_it_is_full() -> None:
    heard: list[bytes] = []
    side, stream = DatagramSide(heard.append), Stream()
    side.offer(b"early")
    splice(side, stream)
    side.offer(b"now")
    assert stream.datagrams == [b"early", b"now"]
    stream.pause_writing()  # as a transport does whose buffer is full
    side.offer(b"late")
    assert stream.datagrams == [b"early", b"now"]
    stream.resume_writing()
    assert stream.datagrams == [b"early", b"now", b"late"]
    side.write(frame_datagram(b"back")[:3])
    side.write(frame_datagram(b"back")[3:] + frame_datagram(b"again"))
    assert heard == [b"back", b"again"]
    assert side.dropped == 0
    side.abort()


@in_loop
async def test_the_oldest_datagrams_are_dropped_for_new_ones() -> None:
    side, stream = DatagramSide(lambda datagram: None), Stream()
    for number in range(300):
        side.offer(b"%d" % number)
    assert side.dropped == 44
    for _ in range(20):
        side.offer(bytes(60_000))
    side.offer(bytes(DATAGRAM_BYTES_MAX + 1))
    splice(side, stream)
    assert [len(datagram) for datagram in stream.datagrams] == [60_000]
    assert side.dropped == 300 + 19 + 1
    side.pause_reading()
    for _ in range(20):  # of those that wait for a side that takes them, more are kept
        side.offer(bytes(60_000))
    side.resume_reading()
    assert [len(datagram) for datagram in stream.datagrams] == [60_000] * 9
    assert side.dropped == 300 + 19 + 1 + 12
    side.close()
    side.offer(b"too late")
    assert side.dropped == 300 + 19 + 1 + 13


@in_loop
async def test_ending_one_side_ends_the_other() -> None:
    ended: list[Side] = []
    closing, stream = DatagramSide(lambda datagram: None, lambda side, error: ended.append(side)), Stream()
    splice(closing, stream)
    closing.end_writing()
    closing.close()
    assert (stream.ends, ended) == (["closed"], [closing])
    assert closing.is_over
    cut, stream = DatagramSide(lambda datagram: None), Stream()
    splice(cut, stream)
    cut.abort()
    assert stream.ends == ["aborted"]


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_side_on_which_datagrams_pass_in_one_direction_only_is_not_idle(
    direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @in_loop
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        began_s, passed_s = loop.time(), 0.0
        monkeypatch.setattr(loop, "time", lambda: began_s + passed_s)
        side, stream = DatagramSide(lambda datagram: None, idle_seconds=60.0), Stream()
        splice(side, stream)
        passed_s = 59.0
        if direction == "up":
            side.offer(b"question")
        else:
            side.write(frame_datagram(b"answer"))
        for passed_s, ends in ((61.0, []), (118.0, []), (120.0, ["closed"])):
            for _ in range(3):  # rounds of the loop, which runs the timers that are due
                await asyncio.sleep(0)
            assert (passed_s, stream.ends) == (passed_s, ends)

    scenario()
