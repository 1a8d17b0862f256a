"""Unconfirmed packets are kept under the serial that first carried them (PROTOCOL 7.20)."""

from tests.exchange.loop import data_frame
from tunnel.exchange.served.ledger import Ledger

SIZE = data_frame(1, 76).size


def make_ledger() -> Ledger:
    ledger = Ledger()
    ledger.add(5, [data_frame(1, 76), data_frame(2, 76)], 10)
    ledger.add(6, [], 15)
    ledger.add(7, [data_frame(3, 76)], 20)
    return ledger


def test_a_serial_confirms_everything_up_to_it() -> None:
    ledger = make_ledger()
    assert ledger.confirm(4).frames == []
    confirmed = ledger.confirm(6)
    assert ([frame.sequence for frame in confirmed.frames], confirmed.sent_us) == ([1, 2], 10)
    assert (ledger.held_bytes, ledger.held_packets, ledger.oldest_us) == (SIZE, 1, 20)
    assert ledger.confirm(2**32 - 1).sent_us == 20
    assert (ledger.held_bytes, ledger.oldest_us) == (0, None)


def test_taking_back_keeps_the_order() -> None:
    ledger = make_ledger()
    assert [frame.sequence for frame in ledger.take_back()] == [1, 2, 3]
    assert (ledger.frames, ledger.held_bytes, ledger.held_packets) == ([], 0, 0)


def test_fitting_keeps_the_first_under_their_serials() -> None:
    ledger = make_ledger()
    assert ledger.fit(3 * SIZE) == []
    assert [frame.sequence for frame in ledger.fit(SIZE)] == [2, 3]
    assert (ledger.held_bytes, ledger.held_packets) == (SIZE, 1)
    assert ledger.confirm(4).frames == []
    assert [frame.sequence for frame in ledger.confirm(5).frames] == [1]
    assert [frame.sequence for frame in make_ledger().fit(0)] == [1, 2, 3]
