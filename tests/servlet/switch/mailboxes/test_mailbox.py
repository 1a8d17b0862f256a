"""The order in which packets leave a mailbox, and its bounds (PROTOCOL 9.2)."""

from tests.servlet.queues import KIB, Box, packets, put, put_control, sequences
from tests.servlet.support import connect, control, data, key, kinds, read_dropped, read_edge
from tunnel.wire import DropReason, Packet, PacketType, frame_of
from tunnel_servlet.switch.mailboxes.mailbox import Mailbox


def big(source: int, sequence: int, size: int = KIB) -> Packet:
    return data(source, source + 100, sequence, bytes(size))


def rejected(number: int = 0) -> Packet:
    return control(PacketType.REJECTED, number, 0, b"")


def post(mailbox: Mailbox, number: int) -> bool:
    return mailbox.post(("rejected", number), frame_of(rejected(number)))


def test_9_2_a_route_is_refused_when_no_reservation_is_left() -> None:
    box = Box(bytes_max=16 * KIB)
    assert [box.mailbox.open(number) is not None for number in range(4)] == [True, True, True, False]


def test_9_2_notices_and_packets_without_a_route_leave_first_then_control_then_data() -> None:
    box = Box()
    one, two = box.queue(101), box.queue(102)
    put(box, one, big(1, 101))
    put_control(box, two, control(PacketType.ACK, 2, 102))
    post(box.mailbox, 7)
    box.mailbox.notice(9, DropReason.NO_ROUTE)
    assert kinds(box.take()) == ["DROPPED", "REJECTED", "ACK", "DATA"]
    assert not box.mailbox.waiting
    assert box.take() == []


def test_9_2_streams_share_by_deficit_round_robin() -> None:
    box = Box(quantum_bytes=2 * KIB)
    one, two = box.queue(101), box.queue(102)
    put(box, one, *(big(1, 101 + number) for number in range(20)))
    put(box, two, *(big(2, 101 + number, 4 * KIB) for number in range(5)))
    taken = [packet for _ in range(8) for packet in box.take(5 * KIB)]
    sent = {source: sum(len(p.payload) for p in taken if p.source == source) for source in (1, 2)}
    assert abs(sent[1] - sent[2]) <= 4 * KIB + 2 * KIB  # the largest packet plus a quantum
    rest = [*taken, *box.take()]
    assert sequences([packet for packet in rest if packet.source == 1]) == list(range(101, 121))
    assert sequences([packet for packet in rest if packet.source == 2]) == list(range(101, 106))


def test_9_2_a_stream_that_was_silent_precedes_busy_ones() -> None:
    box = Box(quantum_bytes=2 * KIB)
    busy, silent = box.queue(101), box.queue(102)
    put(box, busy, *(big(1, 101 + number) for number in range(20)))
    box.take(4 * KIB)
    put(box, silent, big(2, 101, 10))
    assert [packet.source for packet in box.take(3 * KIB)] == [2, 1, 1]


def test_9_2_streams_that_pause_repeatedly_do_not_starve_a_busy_one() -> None:
    box = Box(quantum_bytes=2 * KIB)
    busy, sly = box.queue(101), box.queue(102)
    put(box, busy, *(big(1, 101 + number) for number in range(20)))
    box.take(4 * KIB)
    sent = {1: 0, 2: 0}
    for turn in range(5):
        put(box, sly, *(big(2, 101 + 2 * turn + number) for number in range(2)))
        for packet in box.take(2 * (KIB + 24)):
            sent[packet.source] += 1
        while sly.has_data:
            box.take(KIB + 24)
    assert sent[1] >= 4


def test_7_6_a_packet_larger_than_the_limit_leaves_on_its_own() -> None:
    box = Box()
    queue = box.queue(101)
    put(box, queue, big(1, 101, 8 * KIB), big(1, 102, 8 * KIB))
    assert sequences(box.take(1000)) == [101]
    post(box.mailbox, 1)
    post(box.mailbox, 2)
    assert kinds(box.take(20)) == ["REJECTED"]
    assert kinds(box.take(8 * KIB + 24)) == ["REJECTED"]
    assert kinds(box.take(8 * KIB + 24)) == ["DATA"]


def test_9_2_control_packets_leave_room_for_streams() -> None:
    box = Box()
    queues = [box.queue(100 + number) for number in range(1, 11)]
    for queue in queues:
        put_control(box, queue, control(PacketType.PING, queue.own_id - 100, queue.own_id, bytes(60)))
    put(box, queues[0], big(1, 101, 400))
    found = box.take(1000)
    assert kinds(found) == ["PING"] * 5 + ["DATA"]
    assert kinds(box.take(1000)) == ["PING"] * 5


def test_9_2_notices_and_packets_without_a_route_stop_at_the_limit() -> None:
    box = Box()
    for number in range(1, 5):
        box.mailbox.notice(number, DropReason.GONE)
        post(box.mailbox, number)
    assert kinds(box.take(80)) == ["DROPPED"] * 2
    assert kinds(box.take(110)) == ["DROPPED"] * 2 + ["REJECTED"]
    assert kinds(box.take(48)) == ["REJECTED"] * 2


def test_6_7_one_notice_waits_for_each_id_up_to_a_total_limit() -> None:
    box = Box(notices_max=2)
    assert box.mailbox.notice(1, DropReason.NO_ROUTE)
    assert box.mailbox.notice(2, DropReason.NO_ROUTE)
    assert box.mailbox.notice(1, DropReason.GONE)
    assert not box.mailbox.notice(3, DropReason.NO_ROUTE)
    found = box.take()
    assert [(packet.destination, read_dropped(packet).reason) for packet in found] == [
        (1, DropReason.GONE),
        (2, DropReason.NO_ROUTE),
    ]


def test_6_7_a_notice_for_an_id_that_has_a_route_again_is_discarded() -> None:
    box = Box()
    box.mailbox.notice(101, DropReason.NO_ROUTE)
    taken = box.mailbox.take(100)
    box.mailbox.notice(101, DropReason.NO_ROUTE)
    box.queue(101)
    assert not box.mailbox.waiting
    box.mailbox.put_back(taken)
    assert not box.mailbox.waiting


def test_a_posted_packet_replaces_one_with_its_key_and_their_number_is_limited() -> None:
    box = Box(general_packets_max=2)
    assert [post(box.mailbox, number) for number in (1, 2, 1, 3)] == [True, True, True, False]
    assert len(box.take()) == 2
    assert box.budget.held == 0
    box.budget.hold(1 << 20)
    assert not post(box.mailbox, 1)


def test_3_2_a_connect_that_is_withdrawn_does_not_leave() -> None:
    box = Box()
    box.mailbox.post_connect(key(1), frame_of(connect(1)))
    box.mailbox.withdraw_connect(key(1))
    box.mailbox.withdraw_connect(key(1))
    assert not box.mailbox.waiting
    assert box.budget.held == 0


def test_3_2_a_returned_connect_leaves_again_if_it_is_still_wanted() -> None:
    box = Box()
    for number in (1, 2, 3):
        box.mailbox.post_connect(key(number), frame_of(connect(number)))
    taken = box.mailbox.take(1 << 20)
    box.mailbox.withdraw_connect(key(2))
    box.mailbox.post_connect(key(3), frame_of(connect(3, attempt=1)))
    box.mailbox.put_back(taken)
    assert [(packet.source, packet.attempt) for packet in box.take()] == [(1, 0), (3, 1)]
    assert box.budget.held == 0


def test_3_2_a_connect_without_room_does_not_wait() -> None:
    box = Box(general_packets_max=1)
    assert [box.mailbox.post_connect(key(number), frame_of(connect(number))) for number in (1, 2)] == [True, False]


def test_a_mailbox_calls_wake_when_something_waits() -> None:
    box = Box()
    queue = box.queue(101)
    assert box.calls == 0
    put(box, queue, big(1, 101), big(1, 102))
    assert box.calls == 1
    put_control(box, queue, control(PacketType.ACK, 1, 101), control(PacketType.ACK, 1, 101))
    assert box.calls == 2
    post(box.mailbox, 1)
    box.mailbox.notice(1, DropReason.GONE)
    assert box.calls == 4
    taken = box.mailbox.take(1 << 20)
    box.mailbox.put_back(taken)
    assert box.calls > 4


def test_7_3_returned_packets_are_first_in_line_in_their_order() -> None:
    box = Box()
    queue = box.queue(101)
    put(box, queue, *(big(1, 101 + number) for number in range(4)))
    post(box.mailbox, 1)
    post(box.mailbox, 2)
    taken = box.mailbox.take(4 * KIB)
    box.mailbox.put_back(taken)
    post(box.mailbox, 3)
    found = box.take()
    assert [packet.source for packet in found[:3]] == [1, 2, 3]
    assert sequences(found[3:]) == [101, 102, 103, 104]
    assert box.counters.packets_taken_back == len(taken)
    assert box.budget.held == box.budget.outstanding == 0


def test_7_3_a_returned_edge_leaves_with_its_current_value() -> None:
    receiver, sender = Box(initial_edge_bytes=KIB), Box()
    there, _ = receiver.pair(101, sender, 1)
    put(receiver, there, big(1, 101, 8 * KIB))
    receiver.take()
    taken = sender.mailbox.take(1 << 20)
    put(receiver, there, big(1, 102, 1))
    receiver.take()
    assert [read_edge(packet).sequence for packet in packets(taken)] == [101]
    sender.mailbox.put_back(taken)
    assert [read_edge(packet).sequence for packet in sender.take()] == [102]


def test_9_5_control_packets_of_a_released_route_still_leave() -> None:
    box = Box()
    queue = box.queue(101)
    put(box, queue, big(1, 101), big(1, 102))
    put_control(box, queue, control(PacketType.SHUTDOWN, 1, 101), control(PacketType.ACK, 1, 101))
    box.mailbox.close(queue)
    assert sorted(kinds(box.take())) == ["ACK", "SHUTDOWN"]
    assert [box.budget.held, box.budget.reserved, box.budget.beyond] == [0, 0, 0]
    assert box.mailbox.queues == {}


def test_9_5_a_busy_queue_may_be_closed() -> None:
    box = Box(quantum_bytes=KIB)
    queue, other = box.queue(101), box.queue(102)
    put(box, queue, *(big(1, 101 + number) for number in range(9)))
    put(box, other, *(big(2, 101 + number) for number in range(9)))
    box.take(3 * KIB)
    box.mailbox.close(queue)
    assert {packet.source for packet in box.take()} == {2}


def test_9_5_returned_packets_of_a_released_route_leave_if_still_useful() -> None:
    receiver, sender = Box(initial_edge_bytes=KIB), Box()
    there, back = receiver.pair(101, sender, 1)
    put(receiver, there, big(1, 101, 8 * KIB))
    put_control(receiver, there, control(PacketType.ABORT, 1, 101))
    post(receiver.mailbox, 5)
    taken, edge = receiver.mailbox.take(1 << 20), sender.mailbox.take(1 << 20)
    receiver.mailbox.close(there)
    sender.mailbox.close(back)
    receiver.mailbox.put_back(taken)
    sender.mailbox.put_back(edge)
    assert kinds(receiver.take()) == ["REJECTED", "ABORT"]
    assert not sender.mailbox.waiting
    assert receiver.budget.held == receiver.budget.outstanding == 0


def test_9_5_returned_packets_of_released_routes_are_bounded() -> None:
    box = Box(general_packets_max=1)
    post(box.mailbox, 1)
    taken = box.mailbox.take(1 << 20)
    post(box.mailbox, 2)
    box.mailbox.put_back(taken)
    assert len(box.take()) == 1
    assert box.budget.held == 0


def test_2_2_a_returned_accepted_finds_its_route_by_its_source() -> None:
    box = Box()
    queue = box.queue(11)
    put_control(box, queue, control(PacketType.ACCEPTED, 11, 22))
    taken = box.mailbox.take(100)
    box.mailbox.put_back(taken)
    assert queue.has_control
    put_control(box, queue, control(PacketType.ACCEPTED, 11, 22))
    assert kinds(box.take()) == ["ACCEPTED"]


def test_9_3_a_queue_whose_packets_were_dropped_does_not_wait_for_a_turn() -> None:
    box = Box(bytes_max=64 * KIB)
    queue = box.queue(101)
    back = box.queue(1)
    queue.back, back.back = back, queue
    box.budget.hold(64 * KIB)
    assert put(box, queue, big(1, 101)) == [False]
    assert put_control(box, queue, control(PacketType.ACK, 1, 101)) == [False]
    assert not queue.listed
    assert not queue.control_listed


def test_9_5_control_packets_of_a_route_that_has_ended_leave_in_their_order() -> None:
    box = Box()
    queue = box.queue(101)
    put_control(box, queue, control(PacketType.ACK, 1, 101), control(PacketType.ACCEPTED, 101, 1))
    put_control(box, queue, control(PacketType.ABORT, 1, 101))
    box.mailbox.close(queue)
    assert kinds(box.take()) == ["ACK", "ACCEPTED", "ABORT"]
