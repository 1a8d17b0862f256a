"""The rate of requests: found where the path limits it, and left alone where refusals have another cause."""

from random import Random

import pytest

from tests.exchange.limits import Bucket, Passes, Window, refused_at_random
from tunnel.exchange.backoff import Backoff, Refusal
from tunnel.exchange.path.request_pace import RequestPace

MS = 1_000
SECOND = 1_000_000
LANES = 4
NEVER_US = 1 << 62


class Traffic:
    """Lanes that always have something to send, on a path that lets some requests pass. `surely`: it refuses the others
    with 429, so that the back-off makes them pause, too."""

    def __init__(self, passes: Passes, *, surely: bool = False, round_trip_us: int = 2 * MS) -> None:
        self.pace = RequestPace()
        self.backoff = Backoff(Random(1))
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
            self._step()

    def transfer(self, requests: int, pause_s: float) -> None:
        """Let so many requests pass, and then send nothing for a time."""
        self.passed = self.refused = 0
        while self.passed < requests:
            self._step()
        while self._flights:
            self.now = max(self.now, self._flights[0][0])
            self._end(*self._flights.pop(0)[1:])
        self.now += int(pause_s * SECOND)

    def request(self) -> None:
        """Let one request pass, while no other one is under way."""
        self.passed = 0
        while not self.passed:
            self.now = max(self.now, self.backoff.next_us)
            if not self.pace.allows(self.now):
                self.now = self.pace.next_us
            self._begin()
            self.now = self._flights[0][0]
            self._end(*self._flights.pop()[1:])

    def _step(self) -> None:
        while self._flights and self._flights[0][0] <= self.now:
            self._end(*self._flights.pop(0)[1:])
        while len(self._flights) < LANES and self.pace.allows(self.now) and self.now >= self.backoff.next_us:
            self._begin()
        self.now = min([answered_us for answered_us, _, _ in self._flights[:1]] + [self._free_us()])

    def _begin(self) -> None:
        self.pace.on_sent(self.now, self.backoff.next_us)
        self.backoff.on_sent(self.now)
        self._flights.append((self.now + self._round_trip_us, self.now, self._passes(self.now)))

    def _free_us(self) -> int:
        """Return when the next request may leave; far in the future while no lane is free."""
        return max(self.now + 1, self.pace.next_us, self.backoff.next_us) if len(self._flights) < LANES else NEVER_US

    def _end(self, sent_us: int, passed: bool) -> None:
        if passed:
            self.passed += 1
            self.backoff.on_answered(sent_us)
            self.pace.on_answered(sent_us, self.now)
        else:
            self.refused += 1
            if self._surely:
                self.backoff.on_refused(Refusal.BANNED, sent_us, self.now)
            self.pace.on_refused(sent_us, self.now, surely=self._surely)


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
        pace.on_sent(now, 0)
        if number % 7:
            pace.on_answered(now, now + 20 * MS)
        else:
            pace.on_refused(now, now + 20 * MS, surely=False)
        assert pace.gap_us <= 300 * MS


def test_a_limit_that_counts_refused_requests_is_found_if_it_surely_caused_the_refusals() -> None:
    traffic = Traffic(Bucket(50 * MS, 20, counts_all=True), surely=True)
    traffic.run(20)
    traffic.run(60)
    assert traffic.passed > 0.6 * 60 * 20
    assert traffic.refused < 0.1 * 60 * 20


@pytest.mark.parametrize("round_trip_us", [200, 2 * MS, 20 * MS])
@pytest.mark.parametrize(
    ("interval_ms", "burst", "requests", "pause_s"),
    [(100, 20, 30, 0.3), (50, 5, 60, 5), (200, 30, 10, 0.1), (200, 20, 10, 0.1), (300, 50, 10, 0.1), (200, 20, 60, 60)],
)
def test_a_burst_that_passes_whole_does_not_show_that_429s_have_another_cause(
    interval_ms: int, burst: int, requests: int, pause_s: float, round_trip_us: int
) -> None:
    """After a pause, ten requests pass at any gap, and then a gap eight times as large may still be too small."""
    traffic = Traffic(Bucket(interval_ms * MS, burst), surely=True, round_trip_us=round_trip_us)
    for _ in range(8):
        traffic.transfer(requests, pause_s)
    passed = refused = 0
    for _ in range(8):
        traffic.transfer(requests, pause_s)
        passed, refused = passed + traffic.passed, refused + traffic.refused
    assert refused < 0.3 * passed
    assert traffic.pace.gap_us < 2 * interval_ms * MS


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


@pytest.mark.parametrize(("share", "every_s"), [(0.01, 0.4), (0.05, 1), (0.05, 3), (0.1, 3)])
def test_429s_at_random_leave_an_application_that_sends_little_its_short_waits(share: float, every_s: float) -> None:
    """No request of it needed the gap. A larger one would change nothing but its waits, which would grow to seconds."""
    traffic, late_us = Traffic(refused_at_random(share), surely=True, round_trip_us=20 * MS), []
    for number in range(1000):
        traffic.now = due_us = max(traffic.now, int(number * every_s * SECOND))
        traffic.request()
        late_us.append(traffic.now - due_us)
        traffic.request()  # as a pull, after what was asked for has come
    assert sorted(late_us)[950] < 700 * MS
    assert traffic.pace.gap_us < SECOND


def test_a_limit_that_becomes_lower_is_found_at_its_new_pace() -> None:
    limit = [Bucket(20 * MS, 30)]
    traffic = Traffic(lambda now: limit[0](now), surely=True)
    for _ in range(200):
        traffic.transfer(100, 1)
    limit[0] = Bucket(300 * MS, 30)
    for _ in range(10):
        traffic.transfer(60, 0.3)
    assert 250 * MS < traffic.pace.gap_us < 600 * MS
    assert traffic.refused < 20


def test_a_gap_that_seldom_requests_need_still_goes_back_when_a_smaller_one_is_refused() -> None:
    """Two requests a second keep to a limit of ten, but not when the second one follows at once."""
    traffic, refused = Traffic(Bucket(100 * MS), surely=True), 0
    for number in range(500):
        traffic.now = max(traffic.now, number * SECOND)
        for _ in range(2):
            traffic.refused = 0
            traffic.request()
            refused += traffic.refused
    assert refused < 50


@pytest.mark.parametrize("share", [0.02, 0.05, 0.1, 0.15, 0.3])
def test_429s_at_random_do_not_slow_requests_down_for_ever(share: float) -> None:
    """Each one is a pause of 100 ms. The gap grows until it shows that it does not help; then there is none for a time,
    which doubles."""
    traffic = Traffic(refused_at_random(share), surely=True)
    traffic.run(5 * 60)
    traffic.run(5 * 60)
    assert traffic.passed > 5 * 60 * 5


@pytest.mark.parametrize(("requests", "pause_s"), [(60, 40), (100, 40), (150, 120)])
def test_pauses_between_transfers_do_not_make_429s_at_random_look_like_a_slow_limit(
    requests: int, pause_s: float
) -> None:
    """Few requests leave in a pause, but not because of the path."""
    traffic, took_s = Traffic(refused_at_random(0.05), surely=True, round_trip_us=20 * MS), []
    for _ in range(25):
        began_us = traffic.now
        traffic.transfer(requests, pause_s)
        took_s.append((traffic.now - began_us) / SECOND - pause_s)
    assert sum(took_s) / len(took_s) < 15


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
        traffic.pace.on_sent(traffic.now, 0)
        traffic.pace.on_answered(traffic.now, traffic.now + 2 * MS)
        gaps_us.append(traffic.pace.gap_us)
    assert len(set(gaps_us[40:])) == 1  # it may have changed once before, because a request had waited
    assert gaps_us[-1] > 80 * MS


def test_refusals_of_requests_that_left_before_the_gap_changed_do_not_count_again() -> None:
    pace = RequestPace()
    for sent_us in range(1, 10):
        pace.on_refused(sent_us, 3 * MS, surely=True)
    pace.on_answered(3 * MS, 3 * MS)
    assert pace.gap_us == 5 * MS
    for sent_us in range(11, 100):
        pace.on_refused(sent_us, 4 * MS, surely=True)
    pace.on_answered(4 * MS, 4 * MS)
    assert pace.gap_us == 5 * MS
    pace.on_sent(7 * MS, 0)
    assert not pace.allows(12 * MS - 1)
    assert pace.allows(12 * MS)


def test_a_gap_because_of_429s_has_a_maximum_and_then_they_have_another_cause() -> None:
    pace = RequestPace()
    now, gaps_us = SECOND, [0]
    while gaps_us[-1] or len(gaps_us) < 2:
        pace.on_refused(now, now, surely=True)
        now += max(SECOND, min(3 * pace.gap_us, 9 * SECOND))
        pace.on_answered(now, now)
        gaps_us.append(pace.gap_us)
    assert gaps_us == [*sorted(gaps_us[:-1]), 0]
    assert 3 * SECOND < max(gaps_us) <= 4 * SECOND


def test_a_request_that_passes_after_a_429_shows_the_pace() -> None:
    """Twenty requests pass in half a second, and the next ones a second later: the gap is the average of this time."""
    pace = RequestPace()
    for number in range(20):
        pace.on_answered(number * 25 * MS, number * 25 * MS)
    pace.on_refused(500 * MS, 510 * MS, surely=True)
    pace.on_refused(501 * MS, 510 * MS, surely=True)
    pace.on_answered(475 * MS, 520 * MS)  # it left before the 429 came
    assert pace.gap_us == 0
    pace.on_answered(1500 * MS, 1510 * MS)
    assert pace.gap_us == 1500 * MS // 21


def test_a_gap_grows_by_a_quarter_once_it_has_worked_so_that_others_get_their_part_of_a_limit() -> None:
    pace, now = RequestPace(), 0
    pace.on_banned(200 * MS, 0)
    for number in range(1, 31):
        now = number * 200 * MS
        pace.on_answered(now, now)
    pace.on_refused(now, now, surely=True)
    pace.on_answered(now + 2 * SECOND, now + 2 * SECOND)
    assert pace.gap_us == 250 * MS


def test_a_gap_after_a_ban_is_kept_for_ten_minutes() -> None:
    traffic = Traffic(lambda now: True)
    traffic.pace.on_banned(250 * MS, 0)
    traffic.run(599)
    assert traffic.pace.gap_us == 250 * MS
    assert 2390 <= traffic.passed <= 2397
    traffic.run(60)
    assert traffic.pace.gap_us < 250 * MS


def test_another_ban_meanwhile_doubles_the_gap_and_a_later_one_does_not() -> None:
    pace = RequestPace()
    pace.on_banned(250 * MS, 0)
    pace.on_banned(100 * MS, 60 * SECOND)
    assert pace.gap_us == 500 * MS
    pace.on_banned(100 * MS, 700 * SECOND)
    assert pace.gap_us == 500 * MS
    pace.on_refused(760 * SECOND, 760 * SECOND, surely=True)
    pace.on_banned(MS, 820 * SECOND)  # the gap was in use for 60 s, and then nothing passed for 60 s
    assert pace.gap_us == 1000 * MS
    for minute in range(20, 30):
        pace.on_banned(MS, minute * 60 * SECOND)
    assert pace.gap_us == 10 * SECOND
