"""The sending half of a stream: numbers, segments, and the limits on what is in flight."""

import pytest
from xxhash import xxh3_128

from tunnel.core.send.window import NO_EDGE, Segment, SegmentState, SendWindow
from tunnel.wire import PacketType, decode_end

FIRST = 2**32 - 2  # the wire's numbers wrap soon
KIB = 1024
BIG = 1 << 30


def make(peer_edge: int = BIG, buffer_bytes_max: int = 2**20) -> SendWindow:
    return SendWindow(FIRST, buffer_bytes_max, peer_edge)


def take(window: SendWindow, size_max: int = BIG) -> Segment:
    segment = window.take(size_max)
    assert segment is not None
    return segment


def carry(window: SendWindow, *payloads: bytes) -> list[Segment]:
    """Put one segment in flight for each payload."""
    segments = []
    for payload in payloads:
        assert window.write(payload) == len(payload)
        segments.append(take(window))
    return segments


# writing and cutting


def test_write_takes_as_much_as_there_is_room_for() -> None:
    window = make(buffer_bytes_max=10)
    assert window.write(b"") == 0
    assert window.write(b"1234567") == 7
    assert window.write(b"abcdef") == 3
    assert window.write(b"x") == 0
    assert window.room == 0
    assert (window.pending_bytes, window.unacknowledged_bytes) == (10, 10)
    assert bytes(take(window).payload) == b"1234567abc"
    assert window.write(b"x") == 0
    window.acknowledge(FIRST, [])
    assert window.write(b"x") == 1
    window.buffer_bytes_max = 0
    assert window.room == 0


def test_a_buffer_that_may_change_is_copied() -> None:
    window = make()
    mine = bytearray(b"abc")
    window.write(memoryview(mine))
    mine[:] = b"xyz"
    assert bytes(take(window).payload) == b"abc"


def test_small_chunks_are_joined_and_large_ones_are_not() -> None:
    window = make()
    window.write(b"a" * 10)
    window.write(b"b" * 10)
    window.write(b"c" * 64 * KIB)
    assert bytes(take(window, 15).payload) == b"a" * 10 + b"b" * 5
    joined = take(window, 64 * KIB)
    assert bytes(joined.payload) == b"b" * 5 + b"c" * (64 * KIB - 5)
    large = b"d" * 64 * KIB
    window.write(large)
    window.write(b"e")
    assert bytes(take(window).payload) == b"c" * 5 + large + b"e"
    window.write(large)
    window.write(b"e")
    segment = take(window)
    assert segment.payload is large  # handed on, not copied, and not joined with what follows
    assert bytes(take(window).payload) == b"e"


def test_segments_know_their_place_in_the_stream() -> None:
    window = make()
    first, second = carry(window, b"abc", b"de")
    assert (first.sequence, first.offset, first.size) == (FIRST, 0, 3)
    assert (second.sequence, second.offset, second.size) == (FIRST + 1, 3, 2)
    assert window.find(FIRST + 1) is second
    assert window.find(2**32 - 1) is second
    assert window.find(5) is None
    assert window.digest() == xxh3_128(b"abcde").digest()


def test_a_close_may_lack_the_received_number() -> None:
    window = make()
    window.end(PacketType.CLOSE)
    end = decode_end(take(window).payload)
    assert end is not None
    assert end.received is None


def test_idle_means_all_acknowledged_and_exhausted_means_all_sent() -> None:
    window = make()
    assert window.idle
    window.write(b"x")
    assert not window.idle
    assert not window.is_exhausted
    segment = take(window)
    assert window.is_exhausted
    assert not window.idle
    window.lose(segment, "")
    assert not window.is_exhausted
    take(window)
    window.acknowledge(FIRST, [])
    assert window.idle
    window.end(PacketType.FINISH)
    assert not window.idle
    assert not window.is_exhausted


# the peer's window


def test_no_small_segment_leaves_while_others_are_in_flight() -> None:  # RFC 9293 3.8.6.2.1
    window = make(peer_edge=100)
    window.write(b"x" * 5000)
    assert take(window).size == 100
    window.peer_edge = 1123
    assert not window.sendable()
    assert window.take(BIG) is None
    window.peer_edge = 1124
    assert window.sendable()
    assert take(window).size == 1024
    window.peer_edge = 1125
    assert window.take(BIG) is None
    window.acknowledge(FIRST + 1, [])
    assert take(window).size == 1  # nothing is in flight: a small one is better than none


# acknowledgement and loss


@pytest.mark.parametrize(
    ("cumulative", "ranges"),
    [(FIRST + 1, []), (FIRST - 1, [(FIRST + 1, FIRST + 1)]), (FIRST - 1, [(FIRST, FIRST + 1)])],
)
def test_a_packet_that_has_a_number_and_was_never_sent_cannot_be_acknowledged(
    cumulative: int, ranges: list[tuple[int, int]]
) -> None:  # 4.4
    window = make()
    carry(window, b"a")
    window.insert(PacketType.OPTION, b"option")
    assert window.acknowledge(cumulative, ranges) is None
    assert window.acknowledge(FIRST, []) is not None
    option = take(window)
    assert (option.type, option.sequence) == (PacketType.OPTION, FIRST + 1)
    window.lose(option, "cause")
    assert window.acknowledge(FIRST + 1, []) == [option]
    assert window.idle


def test_an_edge_cannot_name_a_packet_that_was_never_sent() -> None:  # 2.10
    window = make()
    carry(window, b"x" * 100)
    window.insert(PacketType.OPTION, b"option")
    assert not window.announce_edge(FIRST + 1, 10)
    assert window.edge_used == 100
    take(window)
    assert window.announce_edge(FIRST + 1, 10)
    assert window.edge_used == 0


def test_after_the_end_of_the_peer_packets_that_were_never_sent_count_as_acknowledged_too() -> None:  # 5.7
    window = make()
    carry(window, b"a")
    window.insert(PacketType.OPTION, b"option")
    window.acknowledge_all()
    assert window.idle
    assert window.take(BIG) is None


def test_the_oldest_loss_leaves_first_and_with_its_cause() -> None:
    window = make()
    segments = carry(window, b"a", b"b", b"c")
    window.write(b"new")
    for segment in reversed(segments):
        window.lose(segment, "cause")
        window.lose(segment, "other")
    assert window.lost_size() == 1
    assert (window.lost_bytes, window.waiting_bytes) == (3, 6)
    assert [take(window) for _ in segments] == segments
    assert [(segment.attempt, segment.cause) for segment in segments] == [(1, "cause")] * 3
    assert take(window).attempt == 0
    assert window.lost_size() == 0


def test_acknowledged_packets_are_not_sent_again() -> None:
    window = make()
    first, second = carry(window, b"a", b"b")
    window.lose(second, "cause")
    window.acknowledge(FIRST - 1, [(FIRST + 1, FIRST + 1)])
    assert window.take(BIG) is None
    window.lose(second, "cause")
    assert second.state is SegmentState.ACKNOWLEDGED
    assert window.lost_bytes == 0
    window.lose(first, "cause")
    assert window.lost_bytes == 1
    window.acknowledge(FIRST + 1, [])
    assert window.lost_bytes == 0
    assert not window.sendable()


def test_packets_without_bytes_need_no_window() -> None:  # 3.5, 2.7
    window = make(peer_edge=0)
    window.insert(PacketType.ACCEPTED, b"answer")
    window.insert(PacketType.OPTION, b"option")
    first, second = take(window), take(window)
    assert (first.type, first.sequence, first.attempt) == (PacketType.ACCEPTED, FIRST, 0)
    assert (second.type, second.sequence, second.attempt) == (PacketType.OPTION, FIRST + 1, 0)
    assert (window.sent_offset, window.edge_used) == (0, 0)


def test_junk_drops_unacknowledged_data_and_keeps_the_acknowledged_offset() -> None:  # 5.3, 5.4
    window = make()
    carry(window, b"abc", b"defg")
    window.write(b"hij")
    window.end(PacketType.CLOSE)
    window.acknowledge(FIRST, [])
    assert window.junk() == 7
    assert window.acknowledged_offset == 3
    assert window.idle
    assert window.is_exhausted
    assert (window.edge_used, window.unacknowledged_bytes, window.pending_bytes) == (0, 0, 0)
    assert window.take(BIG) is None
    assert not window.is_blocked
    assert window.acknowledge(FIRST + 1, [(FIRST + 1, FIRST + 1)]) is None
    assert window.acknowledge(FIRST + 1, []) == []
    assert window.junk() == 0
    assert window.edge_bytes == NO_EDGE


def test_receipts_of_earlier_attempts_are_kept_and_others_are_unknown() -> None:  # 4.5
    segment = Segment(FIRST, PacketType.DATA, b"x", 0, 1)
    assert segment.receipt_of(0) == segment.receipt_of(5) == -1
    segment.receipt_us = 0  # a valid time: clocks may start at 0
    segment.next_attempt()
    assert (segment.receipt_of(0), segment.receipt_of(1), segment.receipt_of(2)) == (0, -1, -1)


def test_voiding_receipts_includes_those_of_earlier_attempts() -> None:  # 4.5
    segment = Segment(FIRST, PacketType.DATA, b"x", 0, 1)
    segment.receipt_us = 40
    segment.next_attempt()
    segment.receipt_us = 50
    segment.void_receipts()
    assert (segment.receipt_of(0), segment.receipt_of(1)) == (-1, -1)


def test_an_edge_from_before_the_stream_is_ignored() -> None:  # 2.10
    window = make()
    carry(window, b"a", b"b")
    before = window.edge_bytes
    window.announce_edge(FIRST - 2, 5)
    assert window.edge_bytes == before
    window.announce_edge(FIRST - 1, 5)
    assert window.edge_bytes == 5


def test_an_empty_write_does_not_cause_a_copy_of_the_next_one() -> None:
    window = make()
    window.write(b"")
    data = bytes(100_000)
    window.write(data)
    assert take(window).payload is data


def test_the_ranges_of_an_old_ack_still_count() -> None:  # 4.4: ACKs overtake each other
    window = make()
    segments = carry(window, b"a", b"b", b"c", b"d")
    assert window.acknowledge(FIRST, []) == segments[:1]
    assert window.acknowledge(FIRST - 1, [(FIRST, FIRST), (FIRST + 1, FIRST + 1)]) == segments[1:2]
    assert window.acknowledge(FIRST - 1, [(FIRST, FIRST), (FIRST + 3, FIRST + 3)]) == segments[3:]
