"""Datagrams keep their boundaries, the oldest make room, and what rests ends."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.loops import in_loop
from tunnel.datagrams import DATAGRAM_BYTES_MAX, DatagramSide, Deframer, frame_datagram
from tunnel.splice import Side, splice

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


class Stream(Side):
    """The other side of the pair: what a tunnel would be."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.ends: list[str] = []

    @property
    def is_over(self) -> bool:
        return False

    def write(self, data: bytes) -> bool:
        self.written += data
        return True

    def close(self) -> None:
        self.ends.append("closed")

    def abort(self) -> None:
        self.ends.append("aborted")

    def resume_reading(self) -> None:
        """There is nothing to read."""

    @property
    def datagrams(self) -> list[bytes]:
        return list(Deframer().feed(bytes(self.written)))


@in_loop
async def test_what_is_offered_waits_for_the_other_side_and_while_it_is_full() -> None:
    heard: list[bytes] = []
    side, stream = DatagramSide(heard.append), Stream()
    side.offer(b"early")
    splice(side, stream)
    side.offer(b"now")
    assert stream.datagrams == [b"early", b"now"]
    stream.pause_writing()  # what a transport calls that has no room
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
async def test_the_oldest_make_room() -> None:
    side, stream = DatagramSide(lambda datagram: None), Stream()
    for number in range(300):
        side.offer(b"%d" % number)
    assert side.dropped == 44
    for _ in range(20):
        side.offer(bytes(60_000))
    side.offer(bytes(DATAGRAM_BYTES_MAX + 1))
    splice(side, stream)
    assert [len(datagram) for datagram in stream.datagrams] == [60_000] * 8
    assert side.dropped == 300 + 12 + 1
    side.close()
    side.offer(b"too late")
    assert side.dropped == 300 + 12 + 2


@in_loop
async def test_ends_are_those_of_the_pair() -> None:
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


@in_loop
async def test_what_rests_ends_and_what_is_used_does_not() -> None:
    over = asyncio.Event()
    side, stream = DatagramSide(lambda datagram: None, lambda side, error: over.set(), idle_seconds=0.05), Stream()
    splice(side, stream)
    for _ in range(4):
        side.offer(b"x")
        await asyncio.sleep(0.02)
    await over.wait()
    assert stream.ends == ["closed"]
    assert len(stream.datagrams) >= 1  # four, unless this machine rested
