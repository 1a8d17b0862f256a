"""Packets that arrive in pieces (PROTOCOL 7.6)."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.exchange.loop import data_packet
from tunnel.exchange.pieces import PieceAssembler
from tunnel.wire import Answer, Discarded, parse_packets, whole_packet

PACKET = whole_packet(data_packet(7, 1000))


def assembler(packet_bytes_max: int = 4096) -> PieceAssembler:
    return PieceAssembler(packet_bytes_max)


@given(st.lists(st.integers(24, 1023), max_size=8))
def test_pieces_of_any_sizes_make_the_packet_again(cuts: list[int]) -> None:
    held = assembler()
    edges = [0, *sorted(set(cuts)), len(PACKET)]
    results = [held.add(start, PACKET[start:stop]) for start, stop in pairwise(edges)]
    assert results[-1] == (PACKET, None)
    assert all(result == (None, None) for result in results[:-1])
    assert held.held_bytes == 0


def test_a_piece_that_does_not_continue_discards_what_is_held() -> None:
    held = assembler()
    held.add(0, PACKET[:100])
    assert held.add(200, PACKET[200:]) == (None, Discarded(truncated=2, bytes=100 + 824))
    assert held.held_bytes == 0
    assert held.add(100, PACKET[100:]) == (None, Discarded(truncated=1, bytes=924))


def test_offset_zero_starts_again() -> None:
    held = assembler()
    held.add(0, PACKET[:100])
    assert held.add(0, PACKET[:50]) == (None, Discarded(truncated=1, bytes=100))
    assert held.add(50, PACKET[50:]) == (PACKET, None)


def test_a_whole_packet_at_offset_zero_reports_what_it_discarded() -> None:
    held = assembler()
    held.add(0, PACKET[:100])
    assert held.add(0, PACKET) == (PACKET, Discarded(truncated=1, bytes=100))


def test_an_empty_piece_changes_nothing() -> None:
    held = assembler()
    assert held.add(0, b"") == (None, None)
    held.add(0, PACKET[:100])
    assert held.add(100, b"") == (None, None)
    assert held.held_bytes == 100


@pytest.mark.parametrize("piece", [PACKET[:23], b"\x00" * 24, b"\x00\x01\x00\x04\x7f" + b"\x00" * 100])
def test_a_first_piece_without_a_valid_size_is_discarded(piece: bytes) -> None:
    held = assembler()
    assert held.add(0, piece) == (None, Discarded(bad_size=1, bytes=len(piece)))
    assert held.held_bytes == 0


def test_a_packet_above_the_limit_is_discarded_before_it_is_held() -> None:
    assert assembler(1023).add(0, PACKET[:100]) == (None, Discarded(bad_size=1, bytes=100))


def body(payload: bytes, *, offset: int = 0, piece: bool = False) -> Answer:
    return Answer(0, 1, 1, piece_offset=offset, piece=piece, payload=payload)


def names(held: PieceAssembler, message: Answer) -> tuple[list[int], Discarded | None]:
    packets, discarded = held.feed(message, parse_packets)
    return [packet.sequence for packet in packets], discarded


def test_an_empty_body_between_pieces_leaves_them_alone() -> None:
    held = assembler()
    assert names(held, body(PACKET)) == ([7], None)
    assert names(held, body(PACKET[:500], piece=True)) == ([], None)
    assert names(held, body(b"")) == ([], None)  # a pull has an empty body, too; the held pieces stay
    assert names(held, body(PACKET[500:], offset=500, piece=True)) == ([7], None)


def test_packets_between_pieces_end_the_cut_packet() -> None:
    held = assembler()
    names(held, body(PACKET[:500], piece=True))
    assert names(held, body(PACKET)) == ([7], Discarded(truncated=1, bytes=500))
    assert held.clear() is None


def test_damage_in_a_body_is_counted_by_the_parser() -> None:
    assert names(assembler(), body(PACKET + b"x")) == ([7], Discarded(truncated=1, bytes=1))


def test_the_smallest_and_the_largest_packet_are_taken() -> None:
    smallest = whole_packet(data_packet(7, 0))
    assert assembler().add(0, smallest) == (smallest, None)
    assert assembler(len(PACKET)).add(0, PACKET) == (PACKET, None)
