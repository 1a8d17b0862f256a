"""More tests of a route's queue: its byte counts, and which copy of a packet stays."""

import pytest

from tests.servlet.queues import KIB, Box, packets, put, put_control
from tests.servlet.support import control, data, read_dropped
from tunnel.wire import Dropped, DropReason, PacketType, frame_of
from tunnel_servlet.switch.config import FRAME_OVERHEAD_BYTES
from tunnel_servlet.switch.mailboxes.budgets import charge
from tunnel_servlet.switch.mailboxes.queues import NOTICE_BYTES, RouteQueue

CLOSE, OPTION, PING = PacketType.CLOSE, PacketType.OPTION, PacketType.PING


def queue_of(box: Box) -> RouteQueue:
    return box.queue(7)


def test_9_2_a_repeat_is_accepted_and_the_latest_attempt_stays() -> None:
    box = Box()
    queue = queue_of(box)
    put(box, queue, data(1, 7, 101, b"first", attempt=200))
    assert put(box, queue, data(1, 7, 101, b"later", attempt=(200 + 127) % 256)) == [True]
    assert put(box, queue, data(1, 7, 101, b"older", attempt=(200 + 127 + 128) % 256)) == [True]
    assert put(box, queue, data(1, 7, 101, b"oldest", attempt=199)) == [True]
    assert [bytes(packet.payload) for packet in box.take()] == [b"later"]
    assert box.counters.packets_replaced == 3


def test_9_2_control_packets_can_use_their_room_to_the_byte() -> None:
    size = 24 + 8 + FRAME_OVERHEAD_BYTES
    box = Box(control_bytes_max=2 * size)
    queue = queue_of(box)
    first, second, third = (control(kind, 1, 7, bytes(8), 105 + kind) for kind in (CLOSE, PING, OPTION))
    assert put(box, queue, first) == [True]
    assert put_control(box, queue, second) == [True]
    assert put(box, queue, third) == [False]
    box.take()
    assert queue.control_bytes == 0
    for packet in (first, third):
        assert put(box, queue, packet) == [True]
    assert queue.control_bytes == 2 * size


def test_9_2_returned_packets_are_counted_again() -> None:
    box = Box()
    queue = queue_of(box)
    put_control(box, queue, control(PING, 1, 7, b"a"), control(PacketType.PONG, 1, 7, b"b"))
    counted = queue.control_bytes
    frames = box.mailbox.take(1 << 20)
    assert (len(frames), queue.control_bytes) == (2, 0)
    for frame in frames:
        assert queue.put_back(frame)
    assert queue.control_bytes == counted == sum(map(charge, frames))


def test_2_10_only_bytes_of_the_stream_move_the_edge() -> None:
    box = Box()
    queue = queue_of(box)
    put(box, queue, control(CLOSE, 1, 7, bytes(40), 101))
    box.take()
    assert (queue.ledger.passed_bytes, queue.ledger.s) == (0, 101)


def test_a_control_packet_leaves_when_it_just_fits() -> None:
    box = Box()
    queue = queue_of(box)
    put_control(box, queue, control(PING, 1, 7, bytes(16)))
    assert queue.pop_control(39) is None
    assert queue.pop_control(40) is not None


@pytest.mark.parametrize("sequence", [0, 1, 101])
def test_2_9_the_first_dropped_packet_is_reported(sequence: int) -> None:
    box = Box()
    queue = box.queue(7, start=0)
    queue.note_dropped(DropReason.FULL, sequence, 0)
    assert len(box.take()) == 1


def test_2_9_ranges_grow_on_both_sides() -> None:
    box = Box()
    queue = queue_of(box)
    for sequence in (105, 106, 104, 107, 103):
        queue.note_dropped(DropReason.FULL, sequence, 0)
    assert [drop[1:3] for drop in queue._drops] == [[103, 107]]


def test_9_3_the_reservation_can_be_used_to_the_byte() -> None:
    box = Box(bytes_max=64 * KIB)
    queue = queue_of(box)
    others = [box.queue(own_id) for own_id in range(8, 12)]
    for other in others:
        put(box, other, data(1, 7, 101, bytes(6 * KIB)))
    assert put(box, queue, data(1, 7, 101, bytes(2 * KIB)), data(1, 7, 102, bytes(2 * KIB))) == [True, True]


def test_a_stored_packet_is_unchanged() -> None:
    box = Box()
    queue = queue_of(box)
    put(box, queue, data(1, 7, 101, b"abc"))
    (found,) = packets([queue.pop()])
    assert (found.sequence, bytes(found.payload)) == (101, b"abc")
    assert frame_of(found).size == 27


def test_9_4_an_edge_that_hardly_moved_is_not_due_for_an_empty_queue() -> None:
    box = Box()
    queue = queue_of(box)
    queue.ledger.on_announced(queue.ledger.room(queue.limit())[1], queue.limit())
    put(box, queue, data(1, 7, 101, bytes(2 * KIB)))
    box.take()
    assert queue.ledger.has_moved()
    assert not queue.edge_is_due()


def test_2_9_a_notice_that_did_not_arrive_is_first_again() -> None:
    box = Box()
    queue = queue_of(box)
    queue.note_dropped(DropReason.FULL, 105, 0)
    queue.note_dropped_again(Dropped(DropReason.FULL, 101, 102, 0))
    assert [read_dropped(packet).first for packet in box.take()] == [101, 105]


def test_9_3_a_returned_packet_that_is_dropped_is_no_longer_late() -> None:
    box = Box()
    queue = queue_of(box)
    put(box, queue, data(1, 7, 101, bytes(100)))
    box.mailbox.put_back(box.mailbox.take(1 << 20))
    assert (queue.ledger.s, queue.ledger.late_bytes) == (101, 100)
    queue._name_dropped(105)
    assert queue.ledger._promised == queue.ledger.passed_bytes  # the waiting packet is not beyond S
    queue._evict()
    assert queue.ledger.late_bytes == 0


def test_9_3_dropping_an_end_frees_no_room_for_bytes() -> None:
    box = Box()
    queue = queue_of(box)
    put(box, queue, control(CLOSE, 1, 7, bytes(40), 101))
    assert queue._evict() == 0


def test_a_notice_leaves_when_it_just_fits() -> None:
    box = Box()
    queue = queue_of(box)
    queue.note_dropped(DropReason.FULL, 105, 0)
    assert queue.pop_control(NOTICE_BYTES - 1) is None
    assert queue.pop_control(NOTICE_BYTES) is not None
