"""More of the relay's half of a lane: counts, bounds to the byte, and pieces of one byte."""

import pytest

from tests.exchange.test_served import FRAME_BYTES, Bench, limit_for, names
from tunnel.wire import Exchange


def test_every_repeat_counts() -> None:
    bench = Bench()
    for _ in range(3):
        bench.request(1)
    assert bench.lane.repeats == 2


def test_a_push_is_never_parked() -> None:
    bench = Bench()
    bench.lane.receive(Exchange(bytes(16), 1, 1, 0, 1, 0, 1000, 4096, pull=False), 1)
    assert bench.lane.answer(0) is not None


def test_an_answer_to_nothing_is_an_error_of_the_caller() -> None:
    text = "there is nothing to answer: receive comes first, and its arrival must apply"
    with pytest.raises(ValueError, match=f"^{text}$"):
        Bench().lane.answer(0)


def test_room_for_a_header_is_room_for_the_smallest_packet() -> None:
    bench = Bench()
    bench.give(1, size=0)
    assert names(bench.request(1, answer_bytes_max=limit_for(24))) == [1]


def test_a_packet_that_fits_to_the_byte_is_not_cut() -> None:
    bench = Bench()
    bench.give(1)
    answer = bench.request(1, answer_bytes_max=limit_for(FRAME_BYTES)).answer
    assert (answer.piece, len(answer.data)) == (False, FRAME_BYTES)


def test_the_last_byte_of_a_packet_is_a_piece() -> None:
    bench = Bench()
    bench.give(1)
    limit = limit_for(FRAME_BYTES - 1)
    first = bench.request(1, answer_bytes_max=limit).answer
    last = bench.request(2, received=1, answer_bytes_max=limit).answer
    assert (first.piece, last.piece, last.piece_offset, len(last.data)) == (True, True, FRAME_BYTES - 1, 1)


def test_an_answer_without_packets_is_no_piece() -> None:
    bench = Bench()
    bench.give(1)
    bench.request(2)
    old = bench.request(1).answer
    assert (old.piece, old.piece_offset, len(old.data)) == (False, 0, 0)
