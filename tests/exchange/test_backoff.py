"""The back-off that all requests to a relay share (7.9)."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunnel.exchange.backoff import Backoff, Question, Refusal, Row

MS = 1_000
SECOND = 1_000_000
MINUTE = 60 * SECOND
RTT = 20 * MS


class NoSpread(Random):
    """Leaves the whole of each pause."""

    def getrandbits(self, k: int) -> int:
        return 0


def asks(refusal: Refusal, until_us: int, random: Random | None = None) -> list[int]:
    """Return when requests leave as early as they may, one after another, if all are refused after 20 ms."""
    backoff = Backoff(random or NoSpread())
    now, left = 0, []
    while now < until_us:
        backoff.sent(now)
        left.append(now)
        backoff.refused(refusal, now, now + RTT)
        now = max(now + RTT, backoff.next_us)
    return left


def test_429_for_a_second_may_be_a_limit_of_the_rate_and_then_there_is_a_ban() -> None:
    left_ms = [0, 20, 140, 360, 780, 1_600, 15_620, 43_640, 99_660, 159_680]
    assert asks(Refusal.BANNED, 200 * SECOND) == [at_ms * MS for at_ms in left_ms]


def test_403_may_concern_a_body_so_the_pauses_begin_short_and_double_to_a_minute() -> None:
    left_ms = [0, 20, 90, 210, 430, 850, 1_670, 3_290, 6_510, 12_930, 25_750, 51_370, 102_590, 162_610]
    assert asks(Refusal.FORBIDDEN, 200 * SECOND) == [at_ms * MS for at_ms in left_ms]


@pytest.mark.parametrize("refusal", [Refusal.ASKED, Refusal.BUSY])
def test_407_and_503_with_retry_after_double_from_a_second_to_a_minute(refusal: Refusal) -> None:
    left_ms = [0, 20, 1_040, 3_060, 7_080, 15_100, 31_120, 63_140, 123_160]
    assert asks(refusal, 150 * SECOND) == [at_ms * MS for at_ms in left_ms]


@pytest.mark.parametrize("refusal", [Refusal.AWAY, Refusal.CLOSED])
def test_a_relay_that_is_away_is_asked_again_after_an_eighth_of_the_time_that_has_passed(
    refusal: Refusal,
) -> None:
    left = asks(refusal, 5 * MINUTE)
    pauses = [after - before - RTT for before, after in pairwise(left)]
    assert pauses[0] == 0
    assert pauses[1] == 100 * MS
    assert max(pauses) == SECOND
    assert all(pause <= max(100 * MS, (before + RTT) // 8) for before, pause in zip(left, pauses, strict=False))


@given(st.integers(0, 2**32), st.sampled_from(list(Refusal)))
def test_every_ban_is_asked_twelve_times_in_the_first_minute_and_twice_in_the_fifth(
    seed: int, refusal: Refusal
) -> None:
    left = asks(refusal, 5 * MINUTE, Random(seed))
    if refusal.is_ban:
        assert sum(now < MINUTE for now in left) <= 12
        assert 1 <= sum(now >= 4 * MINUTE for now in left) <= 2
    assert max(after - before for before, after in pairwise(left)) <= 60 * SECOND + RTT


@given(st.integers(0, 2**32))
def test_a_ban_of_ten_seconds_that_each_request_renews_ends_with_the_first_long_pause(seed: int) -> None:
    left = asks(Refusal.BANNED, MINUTE, Random(seed))
    ends = next(after for before, after in pairwise(left) if after - before >= 10 * SECOND)
    assert ends <= 20 * SECOND


def test_at_most_a_quarter_of_a_pause_is_left_out() -> None:
    class MostSpread(Random):
        def getrandbits(self, k: int) -> int:
            return (1 << k) - 1

    left = asks(Refusal.ASKED, 5 * SECOND, MostSpread())
    assert left[3] - left[2] == pytest.approx(RTT + 1.5 * SECOND, abs=100)


def test_refusals_of_requests_that_left_together_count_once() -> None:
    backoff = Backoff(NoSpread())
    for lane in range(8):
        backoff.refused(Refusal.CLOSED, lane, SECOND + lane)
    assert backoff.next_us <= SECOND + 7
    assert backoff.question is Question.NONE


def test_one_request_at_a_time_asks_and_another_one_if_no_answer_comes() -> None:
    backoff = Backoff(NoSpread())
    backoff.refused(Refusal.CLOSED, 0, SECOND)
    backoff.sent(SECOND)
    assert backoff.next_us <= SECOND  # one refusal delays nothing
    backoff.refused(Refusal.CLOSED, SECOND, SECOND + RTT)
    assert (backoff.question is not Question.NONE, backoff.next_us) == (True, SECOND + RTT + 100 * MS)
    backoff.sent(2 * SECOND)
    assert backoff.next_us == 2 * SECOND + 500 * MS
    for _ in range(20):
        backoff.refused(Refusal.BANNED, backoff.next_us, backoff.next_us + RTT)
    backoff.sent(now := backoff.next_us)
    assert backoff.next_us == now + 4 * SECOND


def test_a_password_is_asked_alone_from_the_first_407_on() -> None:
    backoff = Backoff(NoSpread())
    backoff.refused(Refusal.ASKED, 0, SECOND)
    assert (backoff.question is not Question.NONE, backoff.next_us) == (True, SECOND)
    backoff.sent(SECOND)
    assert backoff.next_us == SECOND + 500 * MS


def test_a_told_pause_counts_from_the_first_refusal_on_and_for_all_requests() -> None:
    backoff = Backoff(NoSpread())
    backoff.refused(Refusal.BANNED, 0, SECOND, retry_after_us=10 * SECOND)
    assert backoff.next_us == 11 * SECOND
    backoff.refused(Refusal.BANNED, 0, 2 * SECOND, retry_after_us=10 * SECOND)  # it left together with the first
    assert backoff.next_us == 12 * SECOND
    backoff.refused(Refusal.BANNED, 0, 3 * SECOND)
    assert backoff.next_us == 12 * SECOND


def test_an_answer_of_the_relay_ends_the_row_if_its_request_left_after_the_first_refusal() -> None:
    backoff = Backoff(NoSpread())
    backoff.refused(Refusal.BUSY, 0, SECOND)
    backoff.refused(Refusal.BUSY, SECOND, 2 * SECOND)
    backoff.answered(SECOND - 1)
    assert backoff.question is Question.ANY
    backoff.answered(SECOND)
    assert (backoff.question, backoff.next_us) == (Question.NONE, 0)
    backoff.refused(Refusal.BUSY, 3 * SECOND, 4 * SECOND)
    backoff.refused(Refusal.BUSY, 4 * SECOND, 5 * SECOND)
    assert backoff.next_us == 6 * SECOND  # the first pause again


def test_a_pause_after_a_ban_does_not_outlive_its_reason() -> None:
    """The relay may be back at any time, even if a limiter had refused requests before it went away."""
    backoff = Backoff(NoSpread())
    for second in range(5):
        backoff.refused(Refusal.BANNED, second * SECOND, second * SECOND + RTT)
    backoff.refused(Refusal.AWAY, MINUTE, MINUTE + RTT)
    assert backoff.next_us == MINUTE + RTT + SECOND


def test_rows_count_what_came_for_requests_that_left_after_the_newest_one() -> None:
    row = Row()
    assert row.refused(0, SECOND)
    assert not row.refused(SECOND - 1, 2 * SECOND)
    assert row.refused(SECOND, 3 * SECOND)
    assert (row.count, row.first_us) == (2, SECOND)
    assert not row.answered(SECOND - 1)
    assert row.answered(SECOND)
    assert row.count == 0


def test_in_silence_repeats_leave_one_at_a_time_until_any_answer_comes() -> None:
    backoff = Backoff(NoSpread())
    backoff.sent(SECOND)
    assert backoff.repeat_us == 0
    backoff.sent(SECOND, in_silence=True)
    assert (backoff.repeat_us, backoff.next_us) == (2 * SECOND, 0)
    backoff.answered(0)
    assert backoff.repeat_us == 0


@pytest.mark.parametrize(
    ("refusal", "wanted"),
    [
        (Refusal.FORBIDDEN, ["NONE", "ANY", "SMALLEST_AS_USUAL", "SMALLEST", "ANY", "SMALLEST_AS_USUAL"]),
        (Refusal.AWAY, ["NONE", "ANY", "SMALLEST_AS_USUAL", "SMALLEST", "ANY", "SMALLEST_AS_USUAL"]),
        (Refusal.CLOSED, ["NONE", "ANY", "SMALLEST_AS_USUAL", "SMALLEST", "ANY", "SMALLEST_AS_USUAL"]),
        (Refusal.BANNED, ["NONE", "ANY", "ANY", "ANY", "ANY", "ANY"]),
        (Refusal.BUSY, ["NONE", "ANY", "ANY", "ANY", "ANY", "ANY"]),
    ],
)
def test_a_row_asks_about_one_thing_at_a_time(refusal: Refusal, wanted: list[str]) -> None:
    backoff = Backoff(NoSpread())
    asked = []
    for at_us in range(0, 6 * SECOND, SECOND):
        backoff.refused(refusal, at_us, at_us + RTT)
        asked.append(backoff.question.name)
    assert asked == wanted
    backoff.answered(10 * SECOND)
    assert backoff.question is Question.NONE


def test_refusals_that_come_minutes_apart_are_no_row() -> None:
    """As of spare links, while another link carries everything, so that no answer ends a row."""
    backoff = Backoff(NoSpread())
    for at_us in range(0, 5 * 60 * MINUTE, 60 * MINUTE):
        backoff.refused(Refusal.BANNED, at_us, at_us + RTT)
        assert (backoff.question, backoff.next_us) == (Question.NONE, at_us + RTT)
