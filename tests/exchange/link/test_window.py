"""How many bytes may have no receipt on a link that carries alone (PROTOCOL 8.3)."""

import pytest

from tunnel.exchange.config import KIB, MIB
from tunnel.exchange.link.window import LinkWindow

MS = 1_000
SECOND = 1_000_000
BATCH_BYTES = 16 * KIB


class Path:
    """A path of `rate` bytes per second and `delay_us`, always full, whose buffers have room for everything."""

    def __init__(self, rate: int, delay_us: int) -> None:
        self.window = LinkWindow()
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
            self.window.on_receipted(BATCH_BYTES, sent_us, self._now, waits=bool(self._under_way))
        return self


def test_a_link_begins_with_what_gets_a_receipt_at_once() -> None:
    window = LinkWindow()
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


def test_a_path_that_becomes_slow_is_remembered_as_fast_for_20_seconds_at_most() -> None:
    path = Path(1_000_000, 50 * MS).run(10 * SECOND)
    assert path.window.window_bytes > 1_800_000
    path.rate = 256 * KIB
    assert path.run(45 * SECOND).window.window_bytes == pytest.approx(512 * KIB, rel=0.05)


def test_a_long_wait_for_receipts_leaves_nothing_of_the_earlier_rate() -> None:
    path = Path(1_000_000, 50 * MS).run(10 * SECOND)
    path.rate = 32 * KIB
    assert path.run(130 * SECOND).window.window_bytes == 64 * KIB


def test_the_window_is_never_below_64_kib() -> None:
    path = Path(4 * KIB, 50 * MS).run(300 * SECOND)
    assert path.window.window_bytes == 64 * KIB
    assert not path.window.allows(64 * KIB)


def test_an_application_that_sends_little_shrinks_no_window() -> None:
    window = LinkWindow()
    for second in range(60):
        window.on_receipted(100, second * SECOND, second * SECOND + 50 * MS, waits=False)
    assert window.window_bytes == 256 * KIB


def test_one_receipt_for_all_counts_from_when_they_were_sent() -> None:
    window = LinkWindow()
    assert not window.allows(256 * KIB)
    window.on_receipted(256 * KIB, 0, SECOND // 2, waits=False)
    assert window.window_bytes == 1024 * KIB


def test_a_receipt_may_take_twice_as_long_as_the_longest() -> None:
    window = LinkWindow()
    window.on_receipted(KIB, 0, SECOND, waits=False)
    assert window.queued_us == 2 * SECOND
