"""Clause 1.9: any bytes yield the valid packets in them and an account of the rest. Packets and frames agree."""

import itertools
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.strategies import junk, packets, u32
from tunnel.wire.batch import batch_end, frame_of, parse_frames, parse_packets, readdress
from tunnel.wire.encoding import whole_packet
from tunnel.wire.frame import Discarded, Frame
from tunnel.wire.packet import PACKET_SIZE_MAX, Packet, PacketType

Parse = Callable[[bytes], tuple[list[Any], Discarded | None]]
SIZE = struct.Struct("!I")  # at offset 4 of the header
batches = st.lists(packets, max_size=6)
THREE = [
    Packet(PacketType.DATA, 1, 2, 2**32 - 1, b"first", 0),
    Packet(PacketType.SHUTDOWN, 1, 2, 0),
    Packet(PacketType.DATA, 1, 2, 0, bytes(range(256)) * 10, 255),
]
WHOLE = [whole_packet(packet) for packet in THREE]
both = pytest.mark.parametrize("parse", [parse_packets, parse_frames])


def accepted(parsed: tuple[list[Any], Discarded | None]) -> list[bytes]:
    """Return the packets that were accepted, encoded again."""
    return [bytes(item.data) if isinstance(item, Frame) else whole_packet(item) for item in parsed[0]]


@given(batches)
def test_packets_round_trip(many: list[Packet]) -> None:
    assert parse_packets(b"".join(map(whole_packet, many))) == (many, None)


@given(batches)
def test_frames_round_trip(many: list[Packet]) -> None:
    frames, discarded = parse_frames(b"".join(map(whole_packet, many)))
    assert discarded is None
    assert frames == [frame_of(packet) for packet in many]


@both
def test_an_empty_body_has_no_packets(parse: Parse) -> None:
    assert parse(b"") == ([], None)


def test_payloads_and_frames_are_slices_of_the_body() -> None:
    body = b"".join(WHOLE)
    for packet in parse_packets(body)[0]:
        assert isinstance(packet.payload, memoryview)
        assert packet.payload.obj is body
    for frame in parse_frames(body)[0]:
        assert isinstance(frame.data, memoryview)
        assert frame.data.obj is body


@given(packets, u32)
def test_readdress_changes_destination_and_checksum_alone(packet: Packet, destination: int) -> None:  # 3.6
    frame = frame_of(packet)
    packet.destination = destination
    assert readdress(frame, destination=destination) == frame_of(packet)


def test_readdress_leaves_the_original_alone() -> None:
    frame = frame_of(THREE[0])
    readdress(frame, destination=9)
    assert frame == frame_of(THREE[0])


@both
@given(data=junk)
def test_any_bytes_are_accounted_for(parse: Parse, data: bytes) -> None:
    parsed = parse(data)
    kept = sum(map(len, accepted(parsed)))
    assert kept + (parsed[1].bytes if parsed[1] else 0) == len(data)


@both
def test_a_body_cut_anywhere_gives_the_packets_before_the_cut(parse: Parse) -> None:
    body = b"".join(WHOLE)
    ends = list(itertools.accumulate(map(len, WHOLE), initial=0))
    for cut in range(len(body) + 1):
        whole = max(index for index, end in enumerate(ends) if end <= cut)
        rest = cut - ends[whole]
        parsed = parse(body[:cut])
        assert accepted(parsed) == WHOLE[:whole]
        assert parsed[1] == (Discarded(truncated=1, bytes=rest) if rest else None)


@both
def test_no_bit_flip_is_accepted(parse: Parse) -> None:  # 1.2
    for packet in WHOLE[:2]:
        for bit in range(8 * len(packet)):
            damaged = bytearray(packet)
            damaged[bit // 8] ^= 1 << bit % 8
            parsed = parse(bytes(damaged))
            assert parsed[0] == []
            assert parsed[1] is not None
            assert parsed[1].bytes == len(packet)


@both
@given(many=st.lists(packets, min_size=1, max_size=5), data=st.data())
def test_a_damaged_batch_gives_only_what_was_sent(parse: Parse, many: list[Packet], data: st.DataObject) -> None:
    whole = [whole_packet(packet) for packet in many]
    damaged = bytearray(b"".join(whole))
    bit = data.draw(st.integers(0, 8 * len(damaged) - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    kept = accepted(parse(bytes(damaged)))
    remaining = iter(whole)
    assert all(packet in remaining for packet in kept)  # in order, each at most once
    assert len(kept) < len(whole)


@both
@pytest.mark.parametrize("index", [0, 1, 2])
def test_after_a_wrong_checksum_parsing_goes_on(parse: Parse, index: int) -> None:
    damaged = list(WHOLE)
    damaged[index] = damaged[index][:20] + bytes(4) + damaged[index][24:]
    parsed = parse(b"".join(damaged))
    assert accepted(parsed) == WHOLE[:index] + WHOLE[index + 1 :]
    assert parsed[1] == Discarded(bad_checksum=1, bytes=len(damaged[index]))


@both
@pytest.mark.parametrize("size", [0, 23, PACKET_SIZE_MAX + 1, 2**32 - 1])
def test_after_an_invalid_size_the_rest_is_discarded(parse: Parse, size: int) -> None:  # 1.3
    invalid = WHOLE[1][:4] + SIZE.pack(size) + WHOLE[1][8:]
    parsed = parse(WHOLE[0] + invalid + WHOLE[2])
    assert accepted(parsed) == WHOLE[:1]
    assert parsed[1] == Discarded(bad_size=1, bytes=len(invalid + WHOLE[2]))


@both
def test_a_size_beyond_the_end_is_truncation(parse: Parse) -> None:
    long = WHOLE[1][:4] + SIZE.pack(PACKET_SIZE_MAX) + WHOLE[1][8:]
    parsed = parse(WHOLE[0] + long + WHOLE[2])
    assert accepted(parsed) == WHOLE[:1]
    assert parsed[1] == Discarded(truncated=1, bytes=len(long + WHOLE[2]))


@both
def test_reasons_add_up_in_one_batch(parse: Parse) -> None:
    bad = WHOLE[0][:-1] + b"?"
    parsed = parse(bad + WHOLE[1] + bad + WHOLE[2][:100])
    assert accepted(parsed) == [WHOLE[1]]
    assert parsed[1] == Discarded(bad_checksum=2, truncated=1, bytes=2 * len(bad) + 100)


@both
@given(many=batches, tail=st.binary(min_size=1, max_size=23))
def test_junk_too_short_for_a_header_harms_no_earlier_packet(parse: Parse, many: list[Packet], tail: bytes) -> None:
    whole = [whole_packet(packet) for packet in many]
    parsed = parse(b"".join(whole) + tail)
    assert accepted(parsed) == whole
    assert parsed[1] == Discarded(truncated=1, bytes=len(tail))


@both
def test_unknown_types_and_versions_are_parsed(parse: Parse) -> None:  # 1.4
    unknown = whole_packet(Packet(200, 1, 2, 3, b"later", 7, 65535))
    parsed = parse(unknown)
    assert accepted(parsed) == [unknown]
    assert parsed[1] is None


@both
def test_the_largest_packet_is_parsed(parse: Parse) -> None:  # 1.3
    largest = whole_packet(Packet(4, 1, 2, 3, bytes(PACKET_SIZE_MAX - 24)))
    parsed = parse(largest)
    assert len(parsed[0]) == 1
    assert parsed[1] is None


@both
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_every_kind_of_buffer_is_parsed(parse: Parse, kind: type[bytes]) -> None:
    assert accepted(parse(kind(b"".join(WHOLE)))) == WHOLE


def test_the_end_of_a_part_counts_packets_and_those_of_some_types() -> None:
    kinds = [4, 1, 4, 1, 1, 4, 4]
    sizes = [len(whole_packet(Packet(kind, 1, 2, 3, bytes(place)))) for place, kind in enumerate(kinds)]
    batch = b"".join(whole_packet(Packet(kind, 1, 2, 3, bytes(place))) for place, kind in enumerate(kinds))
    assert batch_end(batch, 0, 4) == sum(sizes[:4])
    assert batch_end(batch, 0, 7, (1, 9), 2) == sum(sizes[:4])
    assert batch_end(batch, 0, 3, (1, 9), 2) == sum(sizes[:3])
    assert batch_end(batch, sum(sizes[:2]), 7, (1, 9), 2) == sum(sizes[:5])
    assert batch_end(batch, 0, 9, (1, 9), 4) == len(batch)
