"""The window that limits queued bytes by time, on paths of any speed."""

from collections import deque
from collections.abc import Iterator
from random import Random

import pytest

from tunnel.messages.packets.pacing import PROBE_US, WINDOW_BYTES_MAX, WINDOW_BYTES_START, TimeWindow

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
                self.window.on_sent(size, self.now)
                self.answers.append((self.arrival() + self.delay_us, self.total))
            due, total = self.answers.popleft()
            self.now = max(self.now, round(due))
            assert self.window.on_received(total, self.now)
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
        window.on_sent(100, number * 1000)
        assert window.room() > 0
        assert window.on_received(number * 100, number * 1000 + 200)
    assert window.window_bytes == WINDOW_BYTES_START
    assert window.in_flight_bytes == 0


def test_impossible_acknowledgements_are_noticed() -> None:
    window = TimeWindow()
    window.on_sent(100, 0)
    assert not window.on_received(101, 10)
    assert window.on_received(50, 10)
    assert window.on_received(50, 20)
    assert not window.on_received(49, 30)
    assert window.on_received(100, 40)


class Rounds:
    """Drives a window by hand, in most rounds with a single part."""

    def __init__(self, window: TimeWindow | None = None) -> None:
        self.window = window or TimeWindow()
        self.now = 0

    def go(self, took_us: int, size: int | None = None) -> int:
        """Send and report one part of `size` bytes, or one that fills the window if `size` is None.

        Return the new size of the window.
        """
        window = self.window
        room = window.room()
        window.on_sent(room if size is None else size, self.now)
        if size is None:
            assert window.room() == 0
        self.now += took_us
        assert window.on_received(window.sent_bytes, self.now)
        return window.window_bytes

    def until_probe(self, took_us: int) -> None:
        """Go on with small parts until the window shrinks to measure the path."""
        for _ in range(10_000):
            if self.window.room() < self.window.window_bytes:
                return
            self.go(took_us, 1)
        pytest.fail("there is no probe")


def after(rounds: Rounds, took_us: int, size: int) -> int:
    """Set the window to `size` bytes, run one round that takes `took_us`, and return the new size."""
    rounds.window.window_bytes = size
    return rounds.go(took_us)


START = WINDOW_BYTES_START


def test_the_window_doubles_in_each_round_trip_while_nothing_waits() -> None:
    rounds = Rounds()
    assert [rounds.go(1000) for _ in range(3)] == [2 * START, 4 * START, 8 * START]
    assert rounds.window.base_us == 1000
    assert rounds.go(1999) == 16 * START  # a quarter of the target is hardly any waiting


@pytest.mark.parametrize(("took_us", "factor"), [(6_250, 0.8), (10_000, 0.5), (50_000, 0.5)])
def test_the_window_shrinks_until_parts_wait_for_about_the_target(took_us: int, factor: float) -> None:
    rounds = Rounds(TimeWindow(4_000))
    rounds.go(1_000)
    rounds.window.window_bytes = 1_000_000
    assert rounds.go(took_us) == 1_000_000 * factor  # (1 ms of travel + 4 ms of waiting) / the time it took


def test_a_window_that_is_not_used_shrinks_but_does_not_grow() -> None:
    rounds = Rounds()
    assert rounds.go(1000, 1) == START
    assert rounds.go(1000, START - 1) == START
    rounds.window.window_bytes = 1_000_000
    assert rounds.go(6_250, 1) == 800_000


def test_a_window_has_room_until_it_is_full() -> None:
    window = TimeWindow()
    assert window.room() == START
    window.on_sent(START - 1, 0)
    assert window.room() == 1
    assert window.on_received(START - 1, 1000)
    assert window.window_bytes == START  # one byte of room was left
    window.on_sent(START + 10, 2000)
    assert (window.room(), window.in_flight_bytes) == (-10, START + 10)


def test_the_window_grows_by_a_tenth_at_most_while_data_waits_and_doubles_after_four_rounds_without() -> None:
    rounds = Rounds(TimeWindow(4_000))
    rounds.go(5_000)
    assert after(rounds, 6_000, 100_000) == 110_000  # a quarter of the target was waited
    assert [after(rounds, 5_999, 100_000) for _ in range(4)] == [110_000, 110_000, 110_000, 200_000]
    assert after(rounds, 8_700, 100_000) == round(100_000 * 9_000 / 8_700)


def test_rounds_that_do_not_fill_the_window_do_not_count_as_rounds_without_waiting() -> None:
    rounds = Rounds(TimeWindow(4_000))
    rounds.go(5_000)
    rounds.go(6_000)
    for _ in range(10):
        rounds.go(5_000, 1)
    assert after(rounds, 5_000, 100_000) == 110_000


def test_the_window_stays_within_its_bounds() -> None:
    assert after(Rounds(), 1_000, WINDOW_BYTES_MAX - 1) == WINDOW_BYTES_MAX
    rounds = Rounds()
    rounds.go(1_000, 1)
    assert after(rounds, 50_000, 5_000) == 4_096


def test_the_time_of_a_round_is_between_the_shortest_and_the_mean_of_its_parts() -> None:
    """On a busy machine parts arrive in bursts, and the first of a burst never waits."""
    window = TimeWindow(4_000)
    for _ in range(2):
        window.on_sent(100, 0)
    assert window.on_received(100, 1_000)  # it ends a round, in which nothing waited
    window.window_bytes = 1_000_000
    window.on_sent(100, 5_000)
    assert window.on_received(200, 9_000)  # sent before the round began, it does not end it
    assert window.window_bytes == 1_000_000
    assert window.on_received(300, 10_000)
    assert window.window_bytes == round(1_000_000 * 5_000 / 6_000)  # 5 ms, and 7 ms on average


def test_a_report_of_several_parts_gives_the_time_of_the_last() -> None:
    """The earlier parts arrived before the report, at unknown times."""
    window = TimeWindow()
    for at in (0, 100, 700):
        window.on_sent(10, at)
    assert window.on_received(25, 1000)
    assert window.base_us == 900
    assert window.on_received(30, 1000)
    window.on_sent(10, 1000)
    assert window.on_received(40, 2000)
    assert window.base_us == 300


def test_a_part_takes_at_least_a_microsecond() -> None:
    rounds = Rounds()
    assert rounds.go(0) == 2 * START
    assert rounds.window.base_us == 1


def test_a_report_that_completes_no_part_gives_no_time() -> None:
    window = TimeWindow()
    window.on_sent(100, 0)
    assert window.on_received(50, 10)
    assert (window.base_us, window.in_flight_bytes) == (None, 50)
    assert window.on_received(100, 40)
    assert (window.base_us, window.in_flight_bytes) == (40, 0)


def test_parts_are_small_at_first_and_then_a_share_of_the_window() -> None:
    """Several fill the window, and each takes at most half of the target."""
    rounds = Rounds()
    assert rounds.window.part_bytes == START // 16
    rounds.go(1000)

    def parts(*sizes: int) -> list[int]:
        found = []
        for size in sizes:
            rounds.window.window_bytes = size
            found.append(rounds.window.part_bytes)
        return found

    assert parts(100_000, 300_000, 400_000, 1_000_000) == [25_000, 65_536, 65_536, 125_000]
    rounds.go(50_000)
    assert parts(100_000, 1_000_000) == [100_000 * 4_000 // 100_000, 1_000_000 * 4_000 // 100_000]


def rooms(rounds: Rounds, took_us: int, count: int) -> list[float]:
    """Fill the window in `count` rounds; return, for each round, the share of the window that there was room for."""
    found = []
    for _ in range(count):
        found.append(rounds.window.room() / rounds.window.window_bytes)
        rounds.go(took_us)
    return found


@pytest.mark.parametrize(("took_us", "pause_us"), [(1_000, 1_000_000), (50_000, 1_250_000), (500_000, 5_000_000)])
def test_the_path_is_measured_soon_and_then_about_every_second(took_us: int, pause_us: int) -> None:
    """A probe costs a round trip: with long ones it is made less often, but at least every five seconds."""
    rounds = Rounds()
    rounds.until_probe(took_us)
    assert rounds.now == max(took_us, 100_000)
    for _ in range(3):
        rounds.go(took_us)
        ended = rounds.now
        while rounds.window.room() < rounds.window.window_bytes:
            rounds.go(took_us)
        rounds.until_probe(took_us)
        assert rounds.now == ended + pause_us


def test_a_probe_sends_three_quarters_and_then_the_window_opens_by_a_quarter_in_each_round() -> None:
    """The whole window at once would form a queue by itself."""
    rounds = Rounds()
    rounds.window.window_bytes = 1 << 20
    rounds.until_probe(1_000)
    assert rooms(rounds, 1_000, 5) == [0.75, 0.75, 0.9375, 1.0, 1.0]
    assert rounds.window.window_bytes > 1 << 20


@pytest.mark.parametrize(("took_us", "share"), [(1_000, 0.75), (2_000, 0.375), (50_000, 0.125)])
def test_a_probe_sends_less_where_more_was_waiting(took_us: int, share: float) -> None:
    rounds = Rounds()
    rounds.go(1_000, 1)
    rounds.now = 100_000 - took_us
    rounds.go(took_us, 1)
    assert rooms(rounds, 1_000, 1) == [share]


def test_a_path_that_became_longer_is_believed_after_three_probes_and_a_shorter_one_at_once() -> None:
    rounds = Rounds()
    rounds.go(1_000, 1)
    found = []
    for _ in range(4):
        rounds.until_probe(5_000)
        found.append(rounds.window.base_us)
        while rounds.window.room() < rounds.window.window_bytes:
            rounds.go(5_000)
    assert found == [1_000] * 4
    assert rounds.window.base_us == 5_000
    rounds.go(700, 1)
    assert rounds.window.base_us == 700


def test_a_probe_that_waited_for_other_traffic_does_not_lengthen_the_path() -> None:
    """A base that is too long would let the queue grow."""
    rounds = Rounds()
    for _ in range(5):
        rounds.until_probe(1_000)
        rounds.go(9_000)
        while rounds.window.room() < rounds.window.window_bytes:
            rounds.go(1_000)
        assert rounds.window.base_us == 1_000


def test_parts_stay_as_they_are_during_a_probe() -> None:
    """Its times say nothing about those of a full window."""
    rounds = Rounds()
    rounds.window.window_bytes = 100_000
    rounds.until_probe(1_000)
    for _ in range(3):
        assert rounds.window.part_bytes == 25_000
        rounds.go(50_000)
    rounds.go(50_000)
    assert rounds.window.part_bytes < 25_000


def steady() -> Rounds:
    """Return rounds on a path that has carried 100 bytes per microsecond, with 10 ms for each part."""
    rounds = Rounds(TimeWindow(4_000))
    after(rounds, 10_000, 1_000_000)
    return rounds


def test_delays_with_other_causes_do_not_close_the_window_below_the_proven_rate() -> None:
    """The proven rate (100 bytes per microsecond) times the target (4 ms) is 400,000 bytes."""
    assert after(steady(), 50_000, 1_000_000) == 500_000
    assert after(steady(), 50_000, 500_000) == 400_000
    assert after(steady(), 50_000, 200_000) == 300_000  # it grows by a half at most


@pytest.mark.parametrize("took_us", [10_000, 14_000])
def test_a_window_that_is_not_used_does_not_grow_to_the_proven_rate_either(took_us: int) -> None:
    rounds = steady()
    rounds.window.window_bytes = 100_000
    assert rounds.go(10_000, 1) == rounds.go(took_us, 1) == 100_000


def delayed(rounds: Rounds, until_us: int) -> int:
    """After a probe, set the window to 350,000 bytes, and let a round take until `until_us`; return the new size."""
    rounds.until_probe(10_000)
    while rounds.window.room() < rounds.window.window_bytes:
        rounds.go(10_000)
    return after(rounds, until_us - rounds.now, 350_000)


def test_a_rate_is_proven_for_a_second() -> None:
    """Then the highest rate measured since takes the place of the expired one."""
    assert delayed(steady(), 1_010_000) == 400_000
    assert delayed(steady(), 1_010_001) == 175_000
    for until_us, size in ((1_010_000, 400_000), (1_010_001, 200_000)):
        rounds = steady()
        after(rounds, 10_000, 500_000)
        assert delayed(rounds, until_us) == size


def test_the_highest_of_the_proven_rates_counts() -> None:
    rounds = Rounds(TimeWindow(4_000))
    after(rounds, 10_000, 500_000)
    after(rounds, 10_000, 1_000_000)
    assert after(rounds, 50_000, 500_000) == 400_000


def test_a_rate_is_measured_over_five_milliseconds_at_least() -> None:
    """After a pause, held-up data arrives in a burst, faster than the path can carry for long."""
    rounds = steady()
    after(rounds, 4_999, 2_000_000)  # 400 bytes in a microsecond
    assert after(rounds, 50_000, 500_000) == 400_000
    rounds = steady()
    after(rounds, 5_000, 2_000_000)
    assert after(rounds, 50_000, 500_000) == 750_000
