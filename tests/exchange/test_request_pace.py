"""The rate of requests: found where the path limits it, and left alone where refusals have another cause."""

import pytest

from tests.exchange.limits import Bucket, Passes, Window, refused_at_random
from tunnel.exchange.request_pace import RequestPace

MS = 1_000
SECOND = 1_000_000
LANES = 4
NEVER_US = 1 << 62


class Traffic:
    """Lanes that always have something to send, on a path that lets some requests pass."""

    def __init__(self, passes: Passes, *, surely: bool = False, round_trip_us: int = 2 * MS) -> None:
        self.pace = RequestPace()
        self.now = 0
        self.passed = self.refused = 0
        self._passes = passes
        self._surely = surely
        self._round_trip_us = round_trip_us
        self._flights: list[tuple[int, int, bool]] = []  # when answered (sorted by this), when sent, whether it passed

    def run(self, seconds: float) -> None:
        self.passed = self.refused = 0
        end_us = self.now + int(seconds * SECOND)
        while self.now < end_us:
            while self._flights and self._flights[0][0] <= self.now:
                self._end(*self._flights.pop(0)[1:])
            while len(self._flights) < LANES and self.pace.allows(self.now):
                self.pace.sent(self.now)
                self._flights.append((self.now + self._round_trip_us, self.now, self._passes(self.now)))
            self.now = min([answered_us for answered_us, _, _ in self._flights[:1]] + [self._free_us()])

    def _free_us(self) -> int:
        """Return when the next request may leave; far in the future while no lane is free."""
        return max(self.now + 1, self.pace.next_us) if len(self._flights) < LANES else NEVER_US

    def _end(self, sent_us: int, passed: bool) -> None:
        if passed:
            self.passed += 1
            self.pace.answered(sent_us, self.now)
        else:
            self.refused += 1
            self.pace.refused(sent_us, self.now, surely=self._surely)


def test_without_refusals_requests_leave_at_once() -> None:
    traffic = Traffic(lambda now: True)
    traffic.run(10)
    assert (traffic.pace.gap_us, traffic.pace.next_us, traffic.refused) == (0, 0, 0)
    assert traffic.passed > 10_000


@pytest.mark.parametrize("burst", [1, 5, 20])
@pytest.mark.parametrize("interval_ms", [20, 50, 100, 500])
def test_a_limit_is_found_and_used(interval_ms: int, burst: int) -> None:
    traffic = Traffic(Bucket(interval_ms * MS, burst))
    traffic.run(60)
    traffic.run(60)
    possible = 60_000 / interval_ms
    assert traffic.passed > 0.75 * possible
    assert traffic.refused < 0.15 * possible


@pytest.mark.parametrize("burst", [1, 5, 20])
@pytest.mark.parametrize("round_trip_ms", [100, 250, 300])
def test_a_limit_is_found_by_an_endpoint_that_is_hardly_faster(round_trip_ms: int, burst: int) -> None:
    """On a slow path or a busy machine, small gaps change nothing, so that refusals seem to have another cause."""
    traffic = Traffic(Bucket(100 * MS, burst), round_trip_us=round_trip_ms * MS)
    traffic.run(60)
    traffic.run(60)
    assert traffic.passed > 0.75 * 600
    assert traffic.refused < 0.15 * 600


def test_refusals_at_random_do_not_hold_up_a_user_who_types() -> None:
    pace = RequestPace()
    for number in range(200):
        now = number * 700 * MS
        pace.sent(now)
        if number % 7:
            pace.answered(now, now + 20 * MS)
        else:
            pace.refused(now, now + 20 * MS, surely=False)
        assert pace.gap_us <= 300 * MS


def test_a_limit_that_counts_refused_requests_is_found_if_it_surely_caused_the_refusals() -> None:
    traffic = Traffic(Bucket(50 * MS, 20, counts_all=True), surely=True)
    traffic.run(20)
    traffic.run(60)
    assert traffic.passed > 0.6 * 60 * 20
    assert traffic.refused < 0.1 * 60 * 20


@pytest.mark.parametrize("most", [10, 20, 50])
def test_a_limit_of_the_requests_in_the_last_second_is_used_almost_whole(most: int) -> None:
    """When a trial of a smaller gap has failed, the last second is full of requests; that must not enlarge the gap."""
    traffic = Traffic(Window(most), surely=True)
    traffic.run(20)
    traffic.run(60)
    assert traffic.passed > 0.85 * 60 * most
    assert traffic.refused < 0.05 * 60 * most


def test_a_limit_that_ends_is_forgotten() -> None:
    limit: list[Passes] = [Bucket(50 * MS)]
    traffic = Traffic(lambda now: limit[0](now))
    traffic.run(20)
    assert traffic.pace.gap_us > 40 * MS
    limit[0] = lambda now: True
    traffic.run(120)
    assert traffic.pace.gap_us == 0


@pytest.mark.parametrize("share", [0.02, 0.05, 0.1, 0.15, 0.3])
def test_refusals_at_random_do_not_slow_requests_down_for_long(share: float) -> None:
    traffic = Traffic(refused_at_random(share))
    traffic.run(20)
    traffic.run(50)
    unlimited = Traffic(lambda now: True)
    unlimited.run(50)
    assert traffic.passed > 0.9 * (1 - share) * unlimited.passed


@pytest.mark.parametrize("away_s", [0.5, 3.0, 60.0])
def test_a_relay_that_was_away_is_no_limit(away_s: float) -> None:
    """The proxy in front of it answers 503 to every request meanwhile."""
    traffic = Traffic(lambda now: not 5 * SECOND <= now < (5 + away_s) * SECOND)
    traffic.run(5 + away_s + 0.2)
    assert traffic.pace.gap_us <= 5 * MS
    traffic.run(5)
    assert traffic.pace.gap_us == 0


def test_a_gap_that_no_request_waits_for_does_not_shrink() -> None:
    traffic = Traffic(Bucket(100 * MS))
    traffic.run(20)
    gaps_us = []
    for _ in range(200):
        traffic.now += SECOND
        assert traffic.pace.allows(traffic.now)
        traffic.pace.sent(traffic.now)
        traffic.pace.answered(traffic.now, traffic.now + 2 * MS)
        gaps_us.append(traffic.pace.gap_us)
    assert len(set(gaps_us[40:])) == 1  # it may have changed once before, because a request had waited
    assert gaps_us[-1] > 80 * MS


def test_refusals_of_requests_that_left_before_the_gap_changed_do_not_count_again() -> None:
    pace = RequestPace()
    for sent_us in range(1, 10):
        pace.refused(sent_us, 3 * MS, surely=True)
    pace.answered(10, 3 * MS)
    assert pace.gap_us == 5 * MS
    for sent_us in range(11, 100):
        pace.refused(sent_us, 4 * MS, surely=True)
    assert pace.gap_us == 5 * MS
    pace.sent(7 * MS)
    assert not pace.allows(12 * MS - 1)
    assert pace.allows(12 * MS)


def test_the_gap_has_a_maximum() -> None:
    pace = RequestPace()
    now = 0
    for _ in range(1000):
        now += 20 * SECOND
        pace.refused(now, now, surely=True)
    assert pace.gap_us == 10 * SECOND
