"""One direction of one route: order, copies, limits, notices (PROTOCOL 9.2 to 9.4)."""

from tests.servlet.queues import KIB, Box, put, put_control, sequences
from tests.servlet.support import control, data, kinds, read_dropped, read_edge
from tunnel.wire import Dropped, DropReason, Edge, Packet, PacketType, frame_of
from tunnel_servlet.switch.mailboxes.queues import RouteQueue

CLOSE, FINISH, ACK, PING = PacketType.CLOSE, PacketType.FINISH, PacketType.ACK, PacketType.PING


def big(sequence: int, size: int = KIB) -> Packet:
    return data(11, 22, sequence, bytes(size))


def two_boxes(**settings: int) -> tuple[Box, RouteQueue, Box, RouteQueue]:
    receiver, sender = Box(**settings), Box(**settings)
    there, back = receiver.pair(22, sender, 11)
    return receiver, there, sender, back


def test_9_2_the_stream_keeps_its_order_and_close_does_not_overtake() -> None:
    box = Box()
    queue = box.queue(22)
    put(box, queue, control(CLOSE, 11, 22, bytes(24), 103), big(101), big(102))
    put_control(box, queue, control(ACK, 11, 22))
    assert kinds(box.take()) == ["ACK", "DATA", "DATA", "CLOSE"]
    assert queue.control_bytes == box.budget.held == 0


def test_9_2_a_later_attempt_replaces_the_earlier_copy_in_its_place() -> None:
    box = Box()
    queue = box.queue(22)
    later = data(11, 22, 101, b"hello", attempt=2)
    put(box, queue, data(11, 22, 101, attempt=1), data(11, 22, 102), later, data(11, 22, 101, attempt=1))
    taken = box.take()
    assert sequences(taken) == [101, 102]
    assert taken[0].attempt == 2
    assert box.counters.packets_replaced == 2


def test_9_2_a_copy_of_another_size_or_type_does_not_replace() -> None:
    box = Box()
    queue = box.queue(22)
    put(box, queue, data(11, 22, 101, b"hello"), data(11, 22, 101, b"longer", attempt=1))
    put(box, queue, control(FINISH, 11, 22, b"hello", 101))
    assert bytes(box.take()[0].payload) == b"hello"
    assert box.budget.held == 0


def test_9_3_a_packet_beyond_the_limit_is_dropped_and_reported() -> None:
    receiver, there, sender, _ = two_boxes(route_bytes_max=4 * KIB)
    assert put(receiver, there, *(big(101 + number) for number in range(6))) == [True] * 4 + [False] * 2
    assert read_dropped(sender.take()[0]) == Dropped(DropReason.FULL, 105, 106, 0)
    assert receiver.counters.packets_dropped_full == 2


def test_9_3_a_packet_is_admitted_to_an_empty_queue_whatever_its_size() -> None:
    receiver, there, _, _ = two_boxes(route_bytes_max=4 * KIB)
    assert put(receiver, there, big(101, 100 * KIB), big(102, 1)) == [True, False]


def test_9_3_nothing_is_admitted_beyond_the_hard_cap() -> None:
    receiver, there, sender, _ = two_boxes(bytes_max=64 * KIB)
    receiver.budget.hold(64 * KIB)
    assert put(receiver, there, big(101, 1)) == [False]
    assert put_control(receiver, there, control(ACK, 11, 22), control(PING, 11, 22)) == [False, False]
    assert put(receiver, there, control(FINISH, 11, 22, bytes(24), 102)) == [False]
    assert read_dropped(sender.take()[0]) == Dropped(DropReason.FULL, 101, 102, 0)


def test_9_3_an_earlier_packet_displaces_the_last_ones() -> None:
    receiver, there, sender, _ = two_boxes(route_bytes_max=4 * KIB)
    put(receiver, there, control(FINISH, 11, 22, bytes(24), 110), big(105), big(106), big(107), big(108))
    assert put(receiver, there, big(104), big(103)) == [True, True]
    assert sequences(receiver.take()) == [103, 104, 105, 106]
    # The last packets are dropped first: FINISH, which frees no room, and 108 for 104; then 107 for 103.
    assert [read_dropped(packet) for packet in sender.take()[:2]] == [
        Dropped(DropReason.FULL, 110, 110, 0),
        Dropped(DropReason.FULL, 107, 108, 0),
    ]
    assert receiver.budget.held == there.control_bytes == there.data_bytes == 0


def test_9_3_a_late_packet_is_displaced_by_an_earlier_one() -> None:
    receiver, there, _, _ = two_boxes(route_bytes_max=4 * KIB)
    put(receiver, there, big(110))
    receiver.take()
    put(receiver, there, *(big(sequence) for sequence in (103, 104, 105, 106)))
    assert there.ledger.late_bytes == 4 * KIB
    assert put(receiver, there, big(102)) == [True]
    assert there.ledger.late_bytes == 4 * KIB
    assert sequences(receiver.take()) == [102, 103, 104, 105]


def test_9_2_a_queue_uses_no_more_of_the_pool_than_it_leaves_free() -> None:
    box = Box(bytes_max=128 * KIB, route_bytes_max=1024 * KIB)
    first, second = box.queue(1), box.queue(2)
    assert first.limit() == 4 * KIB + (96 - 8) * KIB // 2
    count = sum(put(box, first, *(big(101 + number) for number in range(100))))
    assert count == 48
    assert second.limit() == 4 * KIB + (96 - 8 - 44) * KIB // 2
    box.take()
    assert box.budget.beyond == 0


def test_9_2_the_reservation_holds_when_the_pool_is_used_up() -> None:
    box = Box(bytes_max=64 * KIB)
    queue = box.queue(1)
    box.budget.exceed(60 * KIB)
    assert queue.limit() == 4 * KIB
    assert put(box, queue, *(big(101 + number) for number in range(5))) == [True] * 4 + [False]


def test_9_2_only_the_newest_eight_acks_wait() -> None:
    box = Box()
    queue = box.queue(22)
    assert all(put_control(box, queue, *(control(ACK, 11, 22, bytes([number])) for number in range(10))))
    assert [packet.payload[0] for packet in box.take()] == list(range(2, 10))
    assert box.budget.held == 0


def test_9_2_only_one_of_each_other_control_type_waits() -> None:
    box = Box()
    queue = box.queue(22)
    put_control(
        box, queue, control(PING, 11, 22, b"1"), control(PacketType.ABORT, 11, 22), control(PING, 11, 22, b"22")
    )
    assert [bytes(packet.payload) for packet in box.take()] == [b"22", b""]
    assert box.budget.held == queue.control_bytes == 0


def test_1_4_packets_of_unknown_types_wait_within_the_room_for_control() -> None:
    box = Box(control_bytes_max=2 * KIB)
    queue = box.queue(22)
    kept = put_control(box, queue, *(control(99, 11, 22, b"", number) for number in range(10)))
    assert kept == [True] * 7 + [False] * 3
    assert len(box.take()) == 7


def test_9_4_an_edge_is_announced_when_a_quarter_has_left() -> None:
    receiver, there, sender, _ = two_boxes(route_bytes_max=16 * KIB, initial_edge_bytes=16 * KIB)
    put(receiver, there, *(big(101 + number) for number in range(8)))
    receiver.take(3 * (KIB + 24))
    assert not sender.mailbox.waiting
    receiver.take(KIB + 24)
    assert [read_edge(packet) for packet in sender.take()] == [Edge(104, 16 * KIB)]
    receiver.take(3 * (KIB + 24))
    assert not sender.mailbox.waiting
    receiver.take(KIB + 24)
    assert [read_edge(packet) for packet in sender.take()] == [Edge(108, 16 * KIB)]


def test_9_4_only_the_latest_edge_of_a_route_waits() -> None:
    receiver, there, sender, _ = two_boxes(route_bytes_max=8 * KIB, initial_edge_bytes=8 * KIB)
    for number in range(8):
        put(receiver, there, big(101 + number))
        receiver.take()
    assert [read_edge(packet) for packet in sender.take()] == [Edge(108, 8 * KIB)]


def test_9_4_after_a_drop_an_empty_queue_is_announced() -> None:
    receiver, there, sender, _ = two_boxes(route_bytes_max=512 * KIB, initial_edge_bytes=512 * KIB)
    receiver.budget.exceed(768 * KIB)
    put(receiver, there, *(big(101 + number) for number in range(5)))
    receiver.budget.exceed(-768 * KIB)
    assert kinds(sender.take()) == ["DROPPED"]
    receiver.take()
    (edge,) = sender.take()
    assert read_edge(edge).sequence == 104
    put(receiver, there, big(105, 10))
    receiver.take()
    assert not sender.mailbox.waiting


def test_9_4_late_packets_reduce_the_room_beyond_s() -> None:
    receiver, there, sender, _ = two_boxes(route_bytes_max=8 * KIB, initial_edge_bytes=4 * KIB)
    put(receiver, there, big(110, 2 * KIB))
    receiver.take()
    put(receiver, there, big(105))
    assert [read_edge(packet) for packet in sender.take()] == [Edge(110, 7 * KIB)]
    receiver.take()
    assert [read_edge(packet) for packet in sender.take()] == [Edge(110, 8 * KIB)]


def test_7_3_a_returned_packet_is_first_in_line_unless_a_newer_copy_waits() -> None:
    box = Box()
    queue = box.queue(22)
    put(box, queue, big(101), big(102))
    put_control(box, queue, control(PING, 11, 22, b"old"), control(ACK, 11, 22, b"1"), control(PacketType.PONG, 11, 22))
    taken = box.mailbox.take(1 << 20)
    put(box, queue, big(103), data(11, 22, 102, bytes(KIB), attempt=1))
    put_control(box, queue, control(ACK, 11, 22, b"2"), control(PING, 11, 22, b"new"))
    box.mailbox.put_back(taken)
    found = box.take()
    assert [bytes(packet.payload) for packet in found[:4]] == [b"1", b"2", b"", b"new"]
    assert [(packet.sequence, packet.attempt) for packet in found[4:]] == [(101, 0), (102, 1), (103, 0)]
    assert box.budget.held == box.budget.outstanding == 0


def test_7_3_returned_acks_do_not_displace_newer_ones() -> None:
    box = Box()
    queue = box.queue(22)
    put_control(box, queue, control(ACK, 11, 22, b"old"))
    taken = box.mailbox.take(1 << 20)
    put_control(box, queue, *(control(ACK, 11, 22, bytes([number])) for number in range(8)))
    box.mailbox.put_back(taken)
    assert [packet.payload[0] for packet in box.take()] == list(range(8))
    assert box.budget.held == 0


def test_3_6_held_packets_leave_with_the_peers_id_when_the_route_is_bound() -> None:
    box = Box(early_bytes_max=2 * KIB)
    queue = box.queue(0)
    queue.blocked = True
    early = [data(11, 0, 101 + number, bytes(KIB)) for number in range(3)]
    assert put(box, queue, *early) == [True, True, False]
    put_control(box, queue, control(PacketType.ABORT, 11, 0), control(ACK, 11, 0))
    assert not box.mailbox.waiting
    box.mailbox.adopt(queue, 22)
    queue.bind(22)
    found = box.take()
    assert kinds(found) == ["ACK", "ABORT", "DATA", "DATA"]
    assert {packet.destination for packet in found} == {22}


def test_3_6_held_packets_are_discarded_if_the_route_is_not_bound() -> None:
    box = Box()
    queue = box.mailbox.open(0)
    assert queue is not None
    queue.blocked = True
    put(box, queue, big(101, 8 * KIB))
    put_control(box, queue, control(ACK, 11, 0))
    box.mailbox.close(queue)
    assert not box.mailbox.waiting
    assert [box.budget.held, box.budget.reserved, box.budget.beyond] == [0, 0, 0]


def test_9_5_closing_a_queue_returns_its_control_packets() -> None:
    box = Box()
    queue = box.queue(22)
    put(box, queue, big(101))
    put_control(box, queue, control(ACK, 11, 22), control(PacketType.SHUTDOWN, 11, 22))
    assert [frame.type for frame in queue.close()] == [ACK, PacketType.SHUTDOWN]
    assert not queue.has_data
    assert not queue.has_control


def test_9_5_a_queue_without_reservation_uses_only_the_pool() -> None:
    box = Box()
    queue = box.queue(22)
    put(box, queue, big(101))
    box.budget.unreserve(queue.shrink())
    assert box.budget.reserved == 0
    assert box.budget.beyond == KIB
    assert queue.shrink() == 0


def test_2_9_ranges_of_drops_are_joined_and_bounded() -> None:
    box = Box()
    queue = box.queue(11)
    for sequence in (10, 11, 9, 20, 30, 40, 50, 60, 70, 80, 90):
        queue.note_dropped(DropReason.FULL, sequence, 0)
    queue.note_dropped(DropReason.TOO_LARGE, 91, 1000)
    found = [read_dropped(packet) for packet in box.take()]
    assert [(dropped.first, dropped.last) for dropped in found] == [
        (9, 11), *((start, start) for start in (20, 30, 40, 50, 60, 70, 80))
    ]  # fmt: skip


def test_2_9_drops_for_different_reasons_are_reported_separately() -> None:
    box = Box()
    queue = box.queue(11)
    queue.note_dropped(DropReason.FULL, 10, 0)
    queue.note_dropped(DropReason.TOO_LARGE, 11, 1000)
    assert [read_dropped(packet) for packet in box.take()] == [
        Dropped(DropReason.FULL, 10, 10, 0),
        Dropped(DropReason.TOO_LARGE, 11, 11, 1000),
    ]


def test_2_9_a_notice_that_does_not_fit_waits() -> None:
    box = Box()
    queue = box.queue(11)
    put_control(box, queue, control(PING, 22, 11, bytes(30)))
    queue.note_dropped(DropReason.FULL, 10, 0)
    queue.note_dropped(DropReason.FULL, 20, 0)
    assert queue.pop_control(39) is None
    assert kinds(box.take(40)) == ["DROPPED"]
    assert kinds(box.take(79)) == ["DROPPED"]
    assert queue.pop_control(53) is None
    assert kinds(box.take()) == ["PING"]
    assert queue.pop_control(1000) is None


def test_2_9_an_ack_that_does_not_fit_waits() -> None:
    box = Box()
    queue = box.queue(11)
    put_control(box, queue, control(ACK, 22, 11, bytes(20)))
    assert queue.pop_control(43) is None
    assert queue.pop_control(44) is not None
    box.mailbox.release_taken([])


def test_2_9_a_notice_that_did_not_arrive_is_sent_again() -> None:
    receiver, there, sender, back = two_boxes(route_bytes_max=4 * KIB)
    put(receiver, there, *(big(101 + number) for number in range(6)))
    taken = sender.mailbox.take(1 << 20)
    sender.mailbox.put_back(taken)
    assert read_dropped(sender.take()[0]) == Dropped(DropReason.FULL, 105, 106, 0)
    for sequence in range(1000, 1016, 2):
        back.note_dropped(DropReason.FULL, sequence, 0)
    sender.mailbox.put_back(taken)
    assert len(sender.take()) == 8


def test_9_2_a_small_packet_does_not_keep_its_body_in_memory() -> None:
    box = Box()
    queue = box.queue(22)
    frame = frame_of(data(11, 22, 101))
    frame.data = memoryview(bytes(frame.data) + bytes(10_000))[: frame.size]
    again = frame_of(data(11, 22, 101, attempt=1))
    again.data = memoryview(bytes(again.data) + bytes(10_000))[: again.size]
    for found in (frame, again):
        box.mailbox.put(queue, found)
        assert isinstance(found.data, bytes)


def test_7_12_the_initial_edge_may_be_larger_than_the_room() -> None:
    box = Box(initial_edge_bytes=64 * KIB, bytes_max=256 * KIB)
    queue = box.queue(22)
    assert not queue.is_promised_too_much()
    box.budget.exceed(100 * KIB)
    assert queue.is_promised_too_much()
