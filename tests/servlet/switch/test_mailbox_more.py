"""More of a mailbox: what it counts."""

from tests.servlet.queues import Box, put, put_control
from tests.servlet.support import control, data
from tunnel.wire import PacketType


def test_every_packet_that_leaves_or_comes_back_counts() -> None:
    box = Box()
    queue = box.queue(7)
    for sequence in (101, 103):
        put(box, queue, data(1, 7, sequence), data(1, 7, sequence + 1))
        box.mailbox.put_back(box.mailbox.take(1 << 20))
        box.take()
    assert (box.counters.packets_sent, box.counters.packets_taken_back) == (8, 4)


def test_every_packet_that_finds_no_room_counts() -> None:  # 9.2
    box = Box(control_bytes_max=1)
    queue = box.queue(7)
    for _ in range(2):
        assert put_control(box, queue, control(PacketType.PING, 1, 7, b"a")) == [False]
    assert box.counters.packets_dropped_full == 2
