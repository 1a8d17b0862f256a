"""The window that limits queued bytes by time, on paths of any speed."""

from collections import deque
from collections.abc import Iterator
from random import Random

import pytest

from tunnel.messages.pacing import PROBE_US, WINDOW_BYTES_MAX, WINDOW_BYTES_START, TimeWindow

NEVER = (1 << 62, 0)


def pauses(random: Random) -> Iterator[tuple[int, int]]:
    """Start and length of each pause, as on a machine that runs other programs, too."""
    at = 0
    while True:
        at += random.randint(2_000, 40_000)
        yield at, random.randint(1_000, 8_000)


class Path:
    """A path with some rate and delay, and a queue that never drops."""

    def __init__(self, bytes_per_second: float, delay_us: int, pauses: Iterator[tuple[int, int]] | None = None) -> None:
        self.rate = bytes_per_second
        self.delay_us = delay_us
        self.window = TimeWindow()
        self.now = 0
        self.free_at = 0.0  # when the path will have carried everything
        self.waits: list[float] = []
        self.answers: deque[tuple[float, int]] = deque()
        self.total = 0
        self.pauses = pauses or iter(())
        self.pause = next(self.pauses, NEVER)

    def arrival(self) -> float:
        """Return when the newest data is received. Data that arrives while the receiver pauses is received at the end
        of the pause."""
        while sum(self.pause) < self.free_at:
            self.pause = next(self.pauses, NEVER)
        return self.free_at if self.free_at < self.pause[0] else sum(self.pause)

    def run(self, until_us: int) -> int:
        """Send as much as the window allows; return the number of bytes received meanwhile."""
        before = self.window.received_bytes
        while self.now < until_us:
            while self.window.room() > 0:
                size = max(1024, min(256 * 1024, self.window.part_bytes))
                self.waits.append(max(0.0, self.free_at - self.now))
                self.free_at = max(self.free_at, self.now) + size / self.rate * 1e6
                self.total += size
                self.window.sent(size, self.now)
                self.answers.append((self.arrival() + self.delay_us, self.total))
            due, total = self.answers.popleft()
            self.now = max(self.now, round(due))
            assert self.window.received(total, self.now)
        return self.window.received_bytes - before


@pytest.mark.parametrize("delay_us", [100, 20_000, 200_000])
@pytest.mark.parametrize("rate", [100e3, 10e6, 1e9])
def test_the_queue_is_bounded_in_time_and_the_path_is_used(rate: float, delay_us: int) -> None:
    path = Path(rate, delay_us)
    path.run(15_000_000)
    path.waits.clear()
    start = path.now
    taken = path.run(25_000_000)
    path.waits.sort()
    part_us = 1024 / rate * 1e6
    # On long paths, a probe for more speed builds a queue. A fifth of the delay is allowed for it, which is little
    # compared with the round trip.
    assert path.waits[int(len(path.waits) * 0.99)] < 8_000 + 8 * part_us + delay_us / 5
    if delay_us * rate / 1e6 < WINDOW_BYTES_MAX / 2:
        assert taken > 0.85 * rate * (path.now - start) / 1e6


def test_the_window_adapts_when_the_path_changes() -> None:
    path = Path(50e6, 200)
    path.run(2_000_000)
    assert path.window.base_us is not None
    assert path.window.base_us < 10_000
    path.delay_us = 50_000
    path.run(path.now + 12 * PROBE_US)
    assert path.window.base_us >= 50_000
    start = path.now
    assert path.run(start + 5_000_000) > 0.7 * 50e6 * (path.now - start) / 1e6


@pytest.mark.parametrize("seed", range(3))
def test_pauses_of_a_busy_machine_hardly_change_the_window(seed: int) -> None:
    path = Path(250e6, 200, pauses(Random(seed)))
    path.run(2_000_000)
    sizes: list[int] = []
    start, taken = path.now, 0
    for until in range(2_000_000, 8_000_000, 10_000):
        taken += path.run(until)
        sizes.append(path.window.window_bytes)
    sizes.sort()
    # 4 ms of this rate are a million bytes. Data received at once after a pause suggests a path many times as fast.
    assert sizes[int(len(sizes) * 0.99)] < 3_000_000
    assert sizes[int(len(sizes) * 0.01)] > 700_000
    assert taken > 0.9 * 250e6 * (path.now - start) / 1e6


def test_the_window_does_not_grow_while_it_is_not_used() -> None:
    window = TimeWindow()
    for number in range(1, 100):
        window.sent(100, number * 1000)
        assert window.room() > 0
        assert window.received(number * 100, number * 1000 + 200)
    assert window.window_bytes == WINDOW_BYTES_START
    assert window.in_flight_bytes == 0


def test_impossible_acknowledgements_are_noticed() -> None:
    window = TimeWindow()
    window.sent(100, 0)
    assert not window.received(101, 10)
    assert window.received(50, 10)
    assert window.received(50, 20)
    assert not window.received(49, 30)
    assert window.received(100, 40)
