"""One lane's numbers, serials and pieces (PROTOCOL 7.3, 7.5, 7.6)."""

import pytest

from tests.exchange.loop import data_packet
from tunnel.exchange.flight import Flight
from tunnel.exchange.lanes.lane import Lane
from tunnel.wire import Answer, Attached, Exchange, encode_packets, whole_packet

ATTACHED = Attached(b"i" * 16, 77, 3, True, 1 << 20, 1 << 20, 15_000, 0, 65536, 8)
PACKET = whole_packet(data_packet(7, 1000))


def lane() -> Lane:
    return Lane(2, 4096, 5)


def fly(target: Lane, exchange: Exchange) -> Exchange:
    target.flight = Flight(exchange, 0, wait_us=1, repeat_us=1, attempts_max=3)
    return exchange


def test_exchanges_are_numbered_from_1_and_name_the_attachment() -> None:
    it = lane()
    pull = it.start_pull(ATTACHED, 2_000_000, 65536)
    assert (pull.attachment_id, pull.epoch, pull.generation, pull.lane) == (b"i" * 16, 77, 3, 2)
    assert (pull.number, pull.serial_received, pull.hold_ms, pull.answer_bytes_max) == (1, 0, 2000, 65536)
    assert (pull.pull, pull.piece) == (True, False)
    push = it.start_push(ATTACHED, 9, encode_packets([data_packet(1)]), 65536)
    assert (push.number, push.pull, push.hold_ms, push.data) == (2, False, 0, whole_packet(data_packet(1)))


def test_an_answer_ends_the_exchange_and_the_next_one_confirms_its_serial() -> None:
    it = lane()
    assert (it.idle, it.used_us) == (True, 5)
    fly(it, it.start_push(ATTACHED, 9, [PACKET], 65536))
    assert not it.idle
    packets, discarded = it.accept(Answer(2, 1, 41, payload=PACKET), 100)
    assert ([packet.sequence for packet in packets], discarded) == ([7], None)
    assert it.take_receipt() == 9
    assert it.take_receipt() is None
    assert (it.idle, it.owes, it.used_us) == (True, True, 100)
    assert it.start_pull(ATTACHED, 0, 65536).serial_received == 41
    it.accept(Answer(2, 2, 42), 200)
    assert not it.owes


def test_a_cut_packet_keeps_the_lane_until_its_last_piece_is_receipted() -> None:
    it = lane()
    it.cut(9, PACKET)
    sent: list[tuple[int, int, int, bool]] = []
    token: int | None = None
    answers = 0
    while it.unsent:
        assert not it.idle
        exchange = fly(it, it.start_piece(ATTACHED, 400, 65536))
        assert not it.unsent
        sent.append((exchange.number, exchange.piece_offset, len(exchange.data), exchange.piece))
        answers += 1
        it.accept(Answer(2, exchange.number, answers), 0)
        token = it.take_receipt()
    assert sent == [(1, 0, 400, True), (2, 400, 400, True), (3, 800, 224, True)]
    assert (token, it.idle) == (9, True)


def test_without_a_cut_packet_there_is_no_piece() -> None:
    with pytest.raises(ValueError, match="no packet is cut"):
        lane().start_piece(ATTACHED, 400, 65536)


def test_giving_up_frees_the_lane_and_names_the_batch() -> None:
    it = lane()
    it.cut(9, PACKET)
    fly(it, it.start_piece(ATTACHED, 400, 65536))
    assert it.give_up() == 9
    assert it.give_up() is None
    assert it.idle


def test_the_rest_of_a_packet_is_expected_on_this_lane() -> None:
    it = lane()
    it.accept(Answer(2, 1, 1, piece=True, payload=PACKET[:500]), 0)
    assert it.expects
    packets, _ = it.accept(Answer(2, 2, 2, piece=True, piece_offset=500, payload=PACKET[500:]), 0)
    assert ([packet.sequence for packet in packets], it.expects) == ([7], False)


def test_a_lane_is_exhausted_before_its_numbers_or_serials_wrap() -> None:
    it = lane()
    assert not it.is_exhausted
    it.number = 2**32 - 2**16
    assert it.is_exhausted
    it = lane()
    it.serial_received = 2**32 - 2**16
    assert it.is_exhausted


def test_a_push_that_is_not_cut_has_no_offset() -> None:
    it = lane()
    assert it.start_push(ATTACHED, 9, encode_packets([data_packet(1)]), 65536).piece_offset == 0
    with pytest.raises(ValueError, match=r"^no packet is cut on this lane: call cut\(\) first$"):
        it.start_piece(ATTACHED, 400, 65536)
