"""More of the send window: receipts of earlier attempts, old words of the relay and of the peer, and what is lost."""

from tests.core.send.test_window import FIRST, carry, make, take
from tunnel.core.send.window import Segment
from tunnel.wire import PacketType


def test_receipts_of_earlier_attempts_are_kept_and_others_are_unknown() -> None:  # 4.5
    segment = Segment(FIRST, PacketType.DATA, b"x", 0, 1)
    assert segment.receipt_of(0) == segment.receipt_of(5) == -1
    segment.receipt_us = 0  # the clock may begin there
    segment.next_attempt()
    assert (segment.receipt_of(0), segment.receipt_of(1), segment.receipt_of(2)) == (0, -1, -1)


def test_receipts_may_become_void_those_of_earlier_attempts_too() -> None:  # 4.5
    segment = Segment(FIRST, PacketType.DATA, b"x", 0, 1)
    segment.receipt_us = 40
    segment.next_attempt()
    segment.receipt_us = 50
    segment.void_receipts()
    assert (segment.receipt_of(0), segment.receipt_of(1)) == (-1, -1)


def test_what_was_lost_and_is_acknowledged_has_no_size() -> None:
    window = make()
    first, second = carry(window, b"a", b"bc")
    window.lose(first, "cause")
    window.lose(second, "cause")
    window.acknowledge(FIRST, [])
    assert window.lost_size() == 2
    window.acknowledge(FIRST + 1, [])
    assert window.lost_size() == 0


def test_an_edge_from_before_the_stream_is_ignored() -> None:  # 2.10
    window = make()
    carry(window, b"a", b"b")
    before = window.edge_bytes
    window.announce_edge(FIRST - 2, 5)
    assert window.edge_bytes == before
    window.announce_edge(FIRST - 1, 5)
    assert window.edge_bytes == 5


def test_an_edge_from_before_the_route_is_ignored() -> None:  # 7.12
    window = make()
    carry(window, b"a", b"b")
    window.acknowledge(FIRST, [])
    window.reset_edge(1000)
    window.announce_edge(FIRST - 1, 5)
    assert window.edge_bytes == 1000
    window.announce_edge(FIRST, 5)
    assert window.edge_bytes == 5


def test_writing_nothing_costs_no_copy_of_what_follows() -> None:
    window = make()
    window.write(b"")
    data = bytes(100_000)
    window.write(data)
    assert take(window).payload is data


def test_what_is_sent_again_waits_no_more() -> None:
    window = make()
    for segment in carry(window, b"aaa", b"bb"):
        window.lose(segment, "cause")
    assert window.waiting_bytes == 5
    take(window)
    assert window.waiting_bytes == 2


def test_an_old_ack_still_says_what_had_come_beyond_it() -> None:  # 4.4: ACKs overtake each other
    window = make()
    segments = carry(window, b"a", b"b", b"c", b"d")
    assert window.acknowledge(FIRST, []) == segments[:1]
    assert window.acknowledge(FIRST - 1, [(FIRST, FIRST), (FIRST + 1, FIRST + 1)]) == segments[1:2]
    assert window.acknowledge(FIRST - 1, [(FIRST, FIRST), (FIRST + 3, FIRST + 3)]) == segments[3:]
