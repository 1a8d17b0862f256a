"""One of several links that share the load: its window, and when it stalls (PROTOCOL 8.7)."""

import pytest

from tunnel.exchange.config import KIB, MIB
from tunnel.exchange.link.line import Line
from tunnel.exchange.path.pulls import NEVER_US

MS = 1_000
SECOND = 1_000_000


def receipt(line: Line, sent_us: int, now: int, *, waits: bool = False, left_bytes: int = 0) -> None:
    """A receipt for 1 KiB comes."""
    line.on_receipted(KIB, sent_us, sent_us, now, waits=waits, left_bytes=left_bytes)


class SharedPath:
    """A path of `rate` bytes per second and `delay_us`, on which lines always have something to send, whose buffers
    have room for everything. No line stalls."""

    def __init__(self, lines: int, rate: int, delay_us: int) -> None:
        self.lines = [Line() for _ in range(lines)]
        self.rate, self.delay_us = rate, delay_us
        self.took_us = 0  # from the newest batch to its receipt
        self.carried_bytes = 0
        self._now = self._free_us = 0
        self._left = [0] * lines  # bytes of each line that have no receipt
        self._under_way: list[tuple[int, int, int, int]] = []  # line, size, when it was sent, when its receipt comes

    def run(self, until_us: int) -> "SharedPath":
        while self._now < until_us:
            while any(rooms := [line.room(left) for line, left in zip(self.lines, self._left, strict=True)]):
                number = min((n for n, room in enumerate(rooms) if room), key=lambda n: Line.load(self._left[n]))
                self._send(number, rooms[number])
            number, size, sent_us, self._now = self._under_way.pop(0)
            self.took_us = self._now - sent_us
            self.carried_bytes += size
            self._left[number] -= size
            left = self._left[number]
            self.lines[number].on_receipted(size, sent_us, sent_us, self._now, waits=left > 0, left_bytes=left)
        return self

    def _send(self, number: int, size: int) -> None:
        self._free_us = max(self._free_us, self._now) + size * SECOND // self.rate
        last_us = self._under_way[-1][3] if self._under_way else 0
        self._under_way.append((number, size, self._now, max(last_us, self._free_us + self.delay_us)))
        self._left[number] += size
        self.lines[number].on_sent(self._now)


@pytest.mark.parametrize("lines", [2, 4])
def test_a_queue_of_others_does_not_take_the_path_away(lines: int) -> None:
    path = SharedPath(lines, 1_000_000, 50 * MS).run(10 * SECOND)
    path.delay_us += 1_500 * MS
    before = path.run(20 * SECOND).carried_bytes
    assert path.run(120 * SECOND).carried_bytes - before > 0.95 * 100 * 1_000_000


@pytest.mark.parametrize("rate", [256 * KIB, 1_000_000, 4_000_000])
def test_what_waits_on_the_path_of_four_lines_waits_for_two_seconds_in_all(rate: int) -> None:
    assert SharedPath(4, rate, 50 * MS).run(60 * SECOND).took_us == pytest.approx(2 * SECOND, rel=0.2)


@pytest.mark.parametrize(("delay_us", "most_us"), [(100 * MS, 300 * MS), (500 * MS, 2_000 * MS)])
def test_four_new_lines_soon_fill_a_fast_path(delay_us: int, most_us: int) -> None:
    assert SharedPath(4, 50_000_000, delay_us).run(most_us).carried_bytes > MIB


def test_a_line_has_room_until_its_window_is_full() -> None:
    line = Line()
    assert line.room(0) == line.room(64 * KIB - 1) == 16 * KIB
    assert line.room(64 * KIB) == 0


def test_a_line_that_waits_stalls_after_a_second_without_a_receipt() -> None:
    line = Line()
    assert line.stalls_us == NEVER_US
    line.on_sent(5)
    line.on_sent(SECOND // 2)  # a later batch changes nothing
    assert line.stalls_us == SECOND + 5
    receipt(line, 5, SECOND, waits=True, left_bytes=KIB)
    assert line.stalls_us > 2 * SECOND
    receipt(line, SECOND // 2, SECOND + 1)
    assert line.stalls_us == NEVER_US


def test_batches_that_were_taken_back_are_not_waited_for() -> None:
    line = Line()
    receipt(line, 0, MS, waits=False, left_bytes=KIB)
    assert line.stalls_us == NEVER_US


def test_receipts_that_came_late_because_of_a_queue_make_a_line_wait_for_longer() -> None:
    line = Line()
    line.on_sent(0)
    receipt(line, 0, 10 * MS)
    line.on_sent(SECOND)
    receipt(line, SECOND, 4 * SECOND, waits=True, left_bytes=KIB)
    assert line.stalls_us == 4 * SECOND + 6 * SECOND
    line.on_sent(4 * SECOND)
    receipt(line, 4 * SECOND, 24 * SECOND, waits=True, left_bytes=KIB)
    assert line.stalls_us == 24 * SECOND + 8 * SECOND  # the most


def test_receipts_that_always_take_seconds_do_not_make_a_line_wait_for_more_than_eight() -> None:
    """Four times the shortest of them would be twelve."""
    line = Line()
    line.on_sent(0)
    receipt(line, 0, 3 * SECOND, waits=True, left_bytes=KIB)
    assert line.stalls_us == 3 * SECOND + 8 * SECOND


def test_nothing_leaves_on_a_line_that_stalls_until_a_receipt_comes() -> None:
    line = Line()
    line.on_sent(0)
    assert line.dead_us == NEVER_US
    line.stall(SECOND)
    assert (line.is_stalled, line.room(0), line.stalls_us, line.dead_us) == (True, 0, NEVER_US, 11 * SECOND)
    receipt(line, 0, 2 * SECOND)
    assert (line.is_stalled, line.room(0), line.dead_us) == (False, 16 * KIB, NEVER_US)


def test_a_receipt_after_a_stall_doubles_the_patience_once_up_to_eight_seconds() -> None:
    line = Line()
    waits = []
    for start in range(0, 100 * SECOND, 20 * SECOND):
        for _ in range(40):  # the late receipts are forgotten, and the patience stays
            receipt(line, start, start + MS)
        line.on_sent(start)
        waits.append(line.stalls_us - start)
        line.stall(line.stalls_us)
        for _ in range(3):  # of three batches that were taken back
            receipt(line, start, start + 15 * SECOND)
    assert waits == [SECOND, 2 * SECOND, 4 * SECOND, 8 * SECOND, 8 * SECOND]


def test_small_batches_do_not_count_as_load() -> None:
    assert Line.load(0) == Line.load(16 * KIB - 1) < Line.load(16 * KIB)


def test_receipts_of_what_was_taken_back_teach_the_line_how_long_they_take() -> None:
    line = Line()
    line.on_sent(0)
    line.stall(SECOND)
    receipt(line, 0, 2 * SECOND)
    assert line.stalls_us == NEVER_US
    line.on_sent(2 * SECOND)
    assert line.stalls_us == 2 * SECOND + 8 * SECOND  # four times the shortest
    receipt(line, 0, 5 * SECOND, waits=True, left_bytes=KIB)
    assert line.stalls_us == 5 * SECOND + 8 * SECOND


def test_a_rate_is_counted_for_a_round_trip_while_batches_that_were_taken_back_are_on_the_way() -> None:
    line = Line()
    line.on_receipted(KIB, 0, 0, 100 * MS, waits=False, left_bytes=64 * KIB)
    line.on_receipted(64 * KIB, 50 * MS, 50 * MS, 101 * MS, waits=False, left_bytes=0)
    assert line.room(64 * KIB) == 0


def test_a_time_without_batches_lowers_no_rate() -> None:
    line = Line()
    line.on_receipted(KIB, 0, 0, 10 * MS, waits=False, left_bytes=0)
    line.on_receipted(64 * KIB, 9 * SECOND, 9 * SECOND, 9 * SECOND + 100 * MS, waits=False, left_bytes=0)
    assert line.room(MIB) > 0
