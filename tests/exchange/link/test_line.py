"""One of several links that share the load: its window, and when it stalls (PROTOCOL 8.7)."""

from tunnel.exchange.config import KIB
from tunnel.exchange.link.line import Line
from tunnel.exchange.path.pulls import NEVER_US

MS = 1_000
SECOND = 1_000_000


def test_a_line_has_room_until_its_window_is_full() -> None:
    line = Line()
    assert line.room(0) == line.room(64 * KIB - 1) == 16 * KIB
    assert line.room(64 * KIB) == 0


def test_the_window_and_the_batches_grow_while_receipts_come_at_once() -> None:
    line = Line()
    for number in range(8):
        line.on_sent(number * SECOND)
        assert not line.room(1 << 30)
        line.on_receipted(number * SECOND, number * SECOND + MS, waits=False)
    assert line.room(7 << 20) == 1024 * KIB


def test_a_line_that_waits_stalls_after_a_second_without_a_receipt() -> None:
    line = Line()
    assert line.stalls_us == NEVER_US
    line.on_sent(5)
    line.on_sent(SECOND // 2)  # a later batch changes nothing
    assert line.stalls_us == SECOND + 5
    line.on_receipted(5, SECOND, waits=True)
    assert line.stalls_us > 2 * SECOND
    line.on_receipted(SECOND // 2, SECOND + 1, waits=False)
    assert line.stalls_us == NEVER_US


def test_receipts_that_came_late_because_of_a_queue_make_a_line_wait_for_longer() -> None:
    line = Line()
    line.on_sent(0)
    line.on_receipted(0, 10 * MS, waits=False)
    line.on_sent(SECOND)
    line.on_receipted(SECOND, 4 * SECOND, waits=True)
    assert line.stalls_us == 4 * SECOND + 6 * SECOND
    line.on_sent(4 * SECOND)
    line.on_receipted(4 * SECOND, 24 * SECOND, waits=True)
    assert line.stalls_us == 24 * SECOND + 8 * SECOND  # the most


def test_nothing_leaves_on_a_line_that_stalls_until_a_receipt_comes() -> None:
    line = Line()
    line.on_sent(0)
    assert line.dead_us == NEVER_US
    line.stall(SECOND)
    assert (line.is_stalled, line.room(0), line.stalls_us, line.dead_us) == (True, 0, NEVER_US, 11 * SECOND)
    line.on_late(0, 2 * SECOND, waits=False)
    assert (line.is_stalled, line.room(0), line.dead_us) == (False, 16 * KIB, NEVER_US)


def test_a_receipt_after_a_stall_doubles_the_patience_once_up_to_eight_seconds() -> None:
    line = Line()
    waits = []
    for start in range(0, 100 * SECOND, 20 * SECOND):
        for _ in range(40):  # the late receipts are forgotten, and the patience stays
            line.on_receipted(start, start + MS, waits=False)
        line.on_sent(start)
        waits.append(line.stalls_us - start)
        line.stall(line.stalls_us)
        for _ in range(3):  # of three batches that were taken back
            line.on_late(start, start + 15 * SECOND, waits=False)
    assert waits == [SECOND, 2 * SECOND, 4 * SECOND, 8 * SECOND, 8 * SECOND]


def test_small_batches_do_not_count_as_load() -> None:
    assert Line.load(0) == Line.load(16 * KIB - 1) < Line.load(16 * KIB)


def test_receipts_of_what_was_taken_back_teach_the_line_how_long_they_take() -> None:
    line = Line()
    line.on_sent(0)
    line.stall(SECOND)
    line.on_late(0, 2 * SECOND, waits=False)
    assert line.stalls_us == NEVER_US
    line.on_sent(2 * SECOND)
    assert line.stalls_us == 2 * SECOND + 8 * SECOND  # four times the shortest
    line.on_late(0, 5 * SECOND, waits=True)
    assert line.stalls_us == 5 * SECOND + 8 * SECOND
