"""How many bytes may have no receipt on a path (PROTOCOL 7.20, 8.3, 8.7)."""

import pytest

from tunnel.exchange.config import KIB, MIB
from tunnel.exchange.path.window import PathWindow

MS = 1_000
SECOND = 1_000_000
BATCH_BYTES = 16 * KIB


class Path:
    """A path of `rate` bytes per second and `delay_us`, always full, whose buffers have room for everything."""

    def __init__(self, rate: int, delay_us: int) -> None:
        self.window = PathWindow()
        self.rate, self.delay_us = rate, delay_us
        self.took_us = 0  # from the newest batch to its receipt
        self.carried_bytes = 0
        self._now = self._free_us = 0
        self._under_way: list[tuple[int, int]] = []  # when each batch was sent, and when its receipt comes

    def run(self, until_us: int) -> "Path":
        while self._now < until_us:
            while self.window.allows(len(self._under_way) * BATCH_BYTES):
                self._free_us = max(self._free_us, self._now) + BATCH_BYTES * SECOND // self.rate
                last_us = self._under_way[-1][1] if self._under_way else 0
                self._under_way.append((self._now, max(last_us, self._free_us + self.delay_us)))
            sent_us, self._now = self._under_way.pop(0)
            self.took_us = self._now - sent_us
            self.carried_bytes += BATCH_BYTES
            self.window.on_receipted(BATCH_BYTES, sent_us, sent_us, self._now, waits=bool(self._under_way))
        return self


def test_a_link_begins_with_what_gets_a_receipt_at_once() -> None:
    window = PathWindow()
    assert window.allows(256 * KIB - 1)
    assert not window.allows(256 * KIB)


def test_what_waits_on_a_slow_path_waits_for_two_seconds() -> None:
    path = Path(64 * KIB, 50 * MS).run(60 * SECOND)
    assert path.window.window_bytes == pytest.approx(128 * KIB, rel=0.05)
    assert path.took_us == pytest.approx(2 * SECOND, rel=0.15)


@pytest.mark.parametrize("delay_us", [MS, 100 * MS, 600 * MS])
def test_a_fast_path_soon_has_the_greatest_window(delay_us: int) -> None:
    assert Path(200 * MIB, delay_us).run(10 * delay_us).window.window_bytes == 8 * MIB


def test_a_queue_of_others_does_not_take_the_path_away() -> None:
    path = Path(1_000_000, 50 * MS).run(10 * SECOND)
    path.delay_us += 1_500 * MS
    before = path.run(20 * SECOND).carried_bytes
    assert path.run(120 * SECOND).carried_bytes - before > 0.95 * 100 * 1_000_000


def full(window: PathWindow, rate: int, now: int) -> int:
    """Let a receipt show this rate, in bytes per second, while the window is full; return the window."""
    assert not window.allows(window.window_bytes)
    window.on_receipted(rate // 10, now - SECOND // 10, now - SECOND // 10, now, waits=False)
    return window.window_bytes


def test_the_highest_rate_counts_for_ten_to_twenty_seconds() -> None:
    window = PathWindow()
    assert full(window, 1_000_000, 50 * SECOND) == 2_000_000
    assert {full(window, 100_000, second * SECOND) for second in range(51, 70)} == {2_000_000}
    assert full(window, 100_000, 70 * SECOND) == 200_000


def test_a_rate_is_forgotten_if_the_next_receipt_comes_twenty_seconds_later() -> None:
    for later_us, window_bytes in ((20 * SECOND - 1, 2_000_000), (20 * SECOND, 200_000)):
        window = PathWindow()
        full(window, 1_000_000, 10 * SECOND)
        assert full(window, 100_000, 10 * SECOND + later_us) == window_bytes


def test_the_window_is_never_below_64_kib() -> None:
    path = Path(4 * KIB, 50 * MS).run(300 * SECOND)
    assert path.window.window_bytes == 64 * KIB
    assert not path.window.allows(64 * KIB)


def test_an_application_that_sends_little_shrinks_no_window() -> None:
    window = PathWindow()
    for second in range(60):
        window.on_receipted(100, second * SECOND, second * SECOND, second * SECOND + 50 * MS, waits=False)
    assert window.window_bytes == 256 * KIB


def test_one_receipt_for_all_counts_from_when_they_were_sent() -> None:
    window = PathWindow()
    assert not window.allows(256 * KIB)
    window.on_receipted(256 * KIB, 0, 0, SECOND // 2, waits=False)
    assert window.window_bytes == 1024 * KIB


def test_a_receipt_may_take_twice_as_long_as_the_longest() -> None:
    window = PathWindow()
    window.on_receipted(KIB, 0, 0, SECOND, waits=False)
    assert window.queued_us == 2 * SECOND


def test_bytes_that_an_application_sends_now_and_then_show_no_high_rate() -> None:
    """A confirmation waits for up to 300 ms (7.20), and then covers what had come long before the newest bytes."""
    window = PathWindow()
    window.on_receipted(30 * KIB, 0, 299 * MS, 300 * MS, waits=False)
    assert window.window_bytes == 256 * KIB


def test_a_part_is_an_eighth_of_the_window_and_at_least_16_kib() -> None:
    window = PathWindow()
    assert window.part_bytes == 32 * KIB
    window.window_bytes = 8 * MIB
    assert window.part_bytes == MIB
    window.window_bytes = 64 * KIB
    assert window.part_bytes == 16 * KIB


def test_patience_is_a_second_or_four_times_the_least_time_or_twice_the_longest_up_to_eight_seconds() -> None:
    window = PathWindow()
    assert window.patience_us == SECOND
    window.note_wait(200 * MS, 0)
    assert window.patience_us == SECOND
    window.note_wait(2 * SECOND, 0)
    assert window.patience_us == 4 * SECOND
    window.note_wait(6 * SECOND, 0)
    assert window.patience_us == 8 * SECOND
    slow = PathWindow()
    slow.note_wait(3 * SECOND, 0)
    assert slow.patience_us == 12 * SECOND


def test_a_failure_halves_the_window_and_what_earlier_rates_count() -> None:
    window = PathWindow()
    full(window, 1_000_000, 10 * SECOND)
    window.on_failed()
    assert window.window_bytes == 1_000_000
    assert full(window, 100_000, 11 * SECOND) == 1_000_000
    full(window, 900_000, 20 * SECOND)
    assert full(window, 100_000, 30 * SECOND) == 1_800_000
    window.on_failed()
    assert full(window, 100_000, 31 * SECOND) == 900_000
    for _ in range(9):
        window.on_failed()
    assert window.window_bytes == 64 * KIB
