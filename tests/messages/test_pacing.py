"""The window: bytes by time, on paths of any speed."""

from collections import deque

import pytest

from tunnel.messages.pacing import PROBE_US, WINDOW_BYTES_MAX, WINDOW_BYTES_START, TimeWindow


class Path:
    """A path of some rate and delay, with a queue that never drops."""

    def __init__(self, bytes_per_second: float, delay_us: int) -> None:
        self.rate = bytes_per_second
        self.delay_us = delay_us
        self.window = TimeWindow()
        self.now = 0
        self.free_at = 0.0  # when the path has carried everything
        self.waits: list[float] = []
        self.answers: deque[tuple[float, int]] = deque()
        self.total = 0

    def run(self, until_us: int) -> int:
        """Send as much as allowed; bytes taken meanwhile."""
        before = self.window.received_bytes
        while self.now < until_us:
            while self.window.room() > 0:
                size = max(1024, min(256 * 1024, self.window.part_bytes))
                self.waits.append(max(0.0, self.free_at - self.now))
                self.free_at = max(self.free_at, self.now) + size / self.rate * 1e6
                self.total += size
                self.window.sent(size, self.now)
                self.answers.append((self.free_at + self.delay_us, self.total))
            due, total = self.answers.popleft()
            self.now = max(self.now, round(due))
            assert self.window.received(total, self.now)
        return self.window.received_bytes - before


@pytest.mark.parametrize("delay_us", [100, 20_000, 200_000])
@pytest.mark.parametrize("rate", [100e3, 10e6, 1e9])
def test_what_waits_is_bounded_by_time_and_the_path_is_used(rate: float, delay_us: int) -> None:
    path = Path(rate, delay_us)
    path.run(15_000_000)
    path.waits.clear()
    start = path.now
    taken = path.run(25_000_000)
    path.waits.sort()
    part_us = 1024 / rate * 1e6
    # On long paths opening the window after a probe shows, against a ping that is long there anyway.
    assert path.waits[int(len(path.waits) * 0.99)] < 8_000 + 8 * part_us + delay_us / 5
    if delay_us * rate / 1e6 < WINDOW_BYTES_MAX / 2:
        assert taken > 0.85 * rate * (path.now - start) / 1e6


def test_a_path_that_changes_is_learned_anew() -> None:
    path = Path(50e6, 200)
    path.run(2_000_000)
    assert path.window.base_us is not None
    assert path.window.base_us < 10_000
    path.delay_us = 50_000
    path.run(path.now + 12 * PROBE_US)
    assert path.window.base_us >= 50_000
    start = path.now
    assert path.run(start + 5_000_000) > 0.7 * 50e6 * (path.now - start) / 1e6


def test_it_does_not_grow_while_it_is_not_used() -> None:
    window = TimeWindow()
    for number in range(1, 100):
        window.sent(100, number * 1000)
        assert window.room() > 0
        assert window.received(number * 100, number * 1000 + 200)
    assert window.window_bytes == WINDOW_BYTES_START
    assert window.in_flight_bytes == 0


def test_answers_that_cannot_be_are_noticed() -> None:
    window = TimeWindow()
    window.sent(100, 0)
    assert not window.received(101, 10)
    assert window.received(50, 10)
    assert window.received(50, 20)
    assert not window.received(49, 30)
    assert window.received(100, 40)
