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
        backoff.on_sent(now)
        left.append(now)
        backoff.on_refused(refusal, now, now + RTT)
        now = max(now + RTT, backoff.next_us)
    return left


def test_429_for_two_seconds_may_be_a_limit_of_the_rate_and_then_there_is_a_ban() -> None:
    left_ms = [0, 120, 340, 760, 1_580, 3_200, 17_220, 59_240, 143_260]
    assert asks(Refusal.BANNED, 200 * SECOND) == [at_ms * MS for at_ms in left_ms]


def test_429_to_what_left_within_two_seconds_is_no_ban_however_late_it_comes() -> None:
    """A limiter that estimates the requests of a second from this one and the one before refuses them for so long."""
    backoff = Backoff(NoSpread())
    backoff.on_refused(Refusal.BANNED, 0, SECOND)
    backoff.on_refused(Refusal.BANNED, 3 * SECOND - 1, 6 * SECOND)
    assert backoff.next_us == 6 * SECOND + 200 * MS
    backoff.on_refused(Refusal.BANNED, 6 * SECOND, 6 * SECOND + RTT)
    assert backoff.next_us == 20 * SECOND + RTT


def test_429s_to_what_left_before_the_first_one_are_one_refusal_and_one_request_asks_about_them() -> None:
    backoff = Backoff(NoSpread())
    for lane in range(8):
        backoff.on_refused(Refusal.BANNED, lane, SECOND + lane)
    assert (backoff.question, backoff.next_us) == (Question.ANY, SECOND + 100 * MS)
    backoff.on_answered(7)  # it left before, too
    assert backoff.next_us == SECOND + 100 * MS
    backoff.on_sent(asked_us := backoff.next_us)
    assert backoff.next_us == asked_us + 500 * MS
    backoff.on_answered(asked_us)
    assert (backoff.question, backoff.next_us) == (Question.NONE, 0)


def test_403_may_concern_a_body_so_the_pauses_begin_short_and_double_to_84_seconds() -> None:
    left_ms = [0, 20, 90, 210, 430, 850, 1_670, 3_290, 6_510, 12_930, 25_750, 51_370, 102_590, 186_610]
    assert asks(Refusal.FORBIDDEN, 200 * SECOND) == [at_ms * MS for at_ms in left_ms]


@pytest.mark.parametrize("refusal", [Refusal.ASKED, Refusal.BUSY])
def test_407_and_503_with_retry_after_double_from_a_second_to_84(refusal: Refusal) -> None:
    left_ms = [0, 20, 1_040, 3_060, 7_080, 15_100, 31_120, 63_140, 127_160]
    assert asks(refusal, 200 * SECOND) == [at_ms * MS for at_ms in left_ms]


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
        assert sum(now >= 4 * MINUTE for now in left) <= 2
    assert max(after - before for before, after in pairwise(left)) <= 84 * SECOND + RTT


@given(st.integers(0, 2**32), st.sampled_from([(10, 20), (30, 60), (60, 150)]))
def test_a_ban_that_each_request_renews_ends_with_the_first_pause_of_its_length(
    seed: int, times_s: tuple[int, int]
) -> None:
    ban_s, end_s = times_s
    left = asks(Refusal.BANNED, 5 * MINUTE, Random(seed))
    ends = next(after for before, after in pairwise(left) if after - before >= ban_s * SECOND)
    assert ends <= end_s * SECOND


def test_at_most_a_quarter_of_a_pause_is_left_out() -> None:
    class MostSpread(Random):
        def getrandbits(self, k: int) -> int:
            return (1 << k) - 1

    left = asks(Refusal.ASKED, 5 * SECOND, MostSpread())
    assert left[3] - left[2] == pytest.approx(RTT + 1.5 * SECOND, abs=100)


def test_refusals_of_requests_that_left_together_count_once() -> None:
    backoff = Backoff(NoSpread())
    for lane in range(8):
        backoff.on_refused(Refusal.CLOSED, lane, SECOND + lane)
    assert backoff.next_us <= SECOND + 7
    assert backoff.question is Question.NONE


def test_one_request_at_a_time_asks_and_another_one_if_no_answer_comes() -> None:
    backoff = Backoff(NoSpread())
    backoff.on_refused(Refusal.CLOSED, 0, SECOND)
    backoff.on_sent(SECOND)
    assert backoff.next_us <= SECOND  # one refusal delays nothing
    backoff.on_refused(Refusal.CLOSED, SECOND, SECOND + RTT)
    assert (backoff.question is not Question.NONE, backoff.next_us) == (True, SECOND + RTT + 100 * MS)
    backoff.on_sent(2 * SECOND)
    assert backoff.next_us == 2 * SECOND + 500 * MS
    for _ in range(20):
        backoff.on_refused(Refusal.BANNED, backoff.next_us, backoff.next_us + RTT)
    backoff.on_sent(now := backoff.next_us)
    assert backoff.next_us == now + 4 * SECOND


def test_a_password_is_asked_alone_from_the_first_407_on() -> None:
    backoff = Backoff(NoSpread())
    backoff.on_refused(Refusal.ASKED, 0, SECOND)
    assert (backoff.question is not Question.NONE, backoff.next_us) == (True, SECOND)
    backoff.on_sent(SECOND)
    assert backoff.next_us == SECOND + 500 * MS


def test_a_told_pause_counts_from_the_first_refusal_on_and_for_all_requests() -> None:
    backoff = Backoff(NoSpread())
    backoff.on_refused(Refusal.BANNED, 0, SECOND, retry_after_us=10 * SECOND)
    assert backoff.next_us == 11 * SECOND
    backoff.on_refused(Refusal.BANNED, 0, 2 * SECOND, retry_after_us=10 * SECOND)  # it left together with the first
    assert backoff.next_us == 12 * SECOND
    backoff.on_refused(Refusal.BANNED, 0, 3 * SECOND)
    assert backoff.next_us == 12 * SECOND


def test_an_answer_of_the_relay_ends_the_row_if_its_request_left_after_the_first_refusal() -> None:
    backoff = Backoff(NoSpread())
    backoff.on_refused(Refusal.BUSY, 0, SECOND)
    backoff.on_refused(Refusal.BUSY, SECOND, 2 * SECOND)
    backoff.on_answered(SECOND - 1)
    assert backoff.question is Question.ANY
    backoff.on_answered(SECOND)
    assert (backoff.question, backoff.next_us) == (Question.NONE, 0)
    backoff.on_refused(Refusal.BUSY, 3 * SECOND, 4 * SECOND)
    backoff.on_refused(Refusal.BUSY, 4 * SECOND, 5 * SECOND)
    assert backoff.next_us == 6 * SECOND  # the first pause again


def test_a_pause_after_a_ban_does_not_outlive_its_reason() -> None:
    """The relay may be back at any time, even if a limiter had refused requests before it went away."""
    backoff = Backoff(NoSpread())
    for second in range(5):
        backoff.on_refused(Refusal.BANNED, second * SECOND, second * SECOND + RTT)
    backoff.on_refused(Refusal.AWAY, MINUTE, MINUTE + RTT)
    assert backoff.next_us == MINUTE + RTT + SECOND


def test_rows_count_what_came_for_requests_that_left_after_the_newest_one() -> None:
    row = Row()
    assert row.on_refused(0, SECOND)
    assert not row.on_refused(SECOND - 1, 2 * SECOND)
    assert row.on_refused(SECOND, 3 * SECOND)
    assert (row.count, row.first_us) == (2, SECOND)
    assert not row.on_answered(SECOND - 1)
    assert row.on_answered(SECOND)
    assert row.count == 0


def test_in_silence_repeats_leave_one_at_a_time_until_any_answer_comes() -> None:
    backoff = Backoff(NoSpread())
    backoff.on_sent(SECOND)
    assert backoff.repeat_us == 0
    backoff.on_sent(SECOND, silent=2)
    assert (backoff.repeat_us, backoff.next_us) == (2 * SECOND, 0)
    backoff.on_answered(0)
    assert backoff.repeat_us == 0


@pytest.mark.parametrize(
    ("refusal", "wanted"),
    [
        (Refusal.FORBIDDEN, ["NONE", "ANY", "SMALLEST_AS_USUAL", "SMALLEST", "ANY", "SMALLEST_AS_USUAL"]),
        (Refusal.AWAY, ["NONE", "ANY", "SMALLEST_AS_USUAL", "SMALLEST", "ANY", "SMALLEST_AS_USUAL"]),
        (Refusal.CLOSED, ["NONE", "ANY", "SMALLEST_AS_USUAL", "SMALLEST", "ANY", "SMALLEST_AS_USUAL"]),
        (Refusal.BANNED, ["ANY", "ANY", "ANY", "ANY", "ANY", "ANY"]),
        (Refusal.BUSY, ["NONE", "ANY", "ANY", "ANY", "ANY", "ANY"]),
    ],
)
def test_a_row_asks_about_one_thing_at_a_time(refusal: Refusal, wanted: list[str]) -> None:
    backoff = Backoff(NoSpread())
    asked = []
    for at_us in range(0, 6 * SECOND, SECOND):
        backoff.on_refused(refusal, at_us, at_us + RTT)
        asked.append(backoff.question.name)
    assert asked == wanted
    backoff.on_answered(10 * SECOND)
    assert backoff.question is Question.NONE


def test_refusals_that_come_minutes_apart_are_no_row() -> None:
    """As of spare links, while another link carries everything, so that no answer ends a row."""
    for refusal, pause_us, question in ((Refusal.AWAY, 0, Question.NONE), (Refusal.BANNED, 100 * MS, Question.ANY)):
        backoff = Backoff(NoSpread())
        for at_us in range(0, 5 * 60 * MINUTE, 60 * MINUTE):
            backoff.on_refused(refusal, at_us, at_us + RTT)
            assert (backoff.question, backoff.next_us) == (question, at_us + RTT + pause_us)


def with_requests(count: int, until_us: int) -> Backoff:
    """A back-off after that many requests, one each 100 ms, the last at `until_us`; all but the last were answered."""
    backoff = Backoff(NoSpread())
    ask_often(backoff, count, until_us)
    return backoff


def ask_often(backoff: Backoff, count: int, until_us: int) -> int:
    """Send so many requests, and answer all but the last, which leaves at `until_us`. Return that time."""
    for at_us in range(until_us - (count - 1) * 100 * MS, until_us + 1, 100 * MS):
        backoff.on_sent(at_us)
        if at_us < until_us:
            assert backoff.on_answered(at_us) == 0
    return until_us


def test_silence_of_four_seconds_after_many_requests_is_a_ban() -> None:
    backoff = with_requests(50, MINUTE)
    backoff.on_silent(MINUTE)
    backoff.judge_silence(MINUTE + 4 * SECOND - 1)
    assert (backoff.question, backoff.next_us) == (Question.NONE, 0)
    now = MINUTE + 4 * SECOND
    backoff.judge_silence(now)
    for pause_s in (14, 42, 42, 42):
        assert (backoff.question, backoff.next_us) == (Question.ANY, now + pause_s * SECOND)
        backoff.on_sent(asked_us := backoff.next_us)
        assert backoff.next_us == asked_us + 4 * SECOND
        backoff.on_silent(asked_us)
        backoff.judge_silence(now := backoff.next_us)


def test_silence_is_no_ban_after_few_requests_or_while_the_relay_may_be_back() -> None:
    backoff = with_requests(19, MINUTE)
    backoff.on_silent(MINUTE)
    backoff.judge_silence(2 * MINUTE)
    assert backoff.next_us == 0
    backoff = with_requests(50, MINUTE)
    for at_us in (MINUTE, MINUTE + SECOND):
        backoff.on_refused(Refusal.AWAY, at_us, at_us + RTT)
    backoff.on_silent(MINUTE + 2 * SECOND)
    backoff.judge_silence(MINUTE + 7 * SECOND)
    assert backoff.next_us < MINUTE + 2 * SECOND


def test_any_answer_to_what_left_in_silence_ends_it() -> None:
    backoff = with_requests(50, MINUTE)
    backoff.on_silent(MINUTE)
    backoff.on_answered(MINUTE + 1)
    backoff.judge_silence(MINUTE + 5 * SECOND)
    assert backoff.next_us == 0
    backoff.on_silent(MINUTE)  # it left before what was answered
    backoff.judge_silence(MINUTE + 5 * SECOND)
    assert backoff.next_us == 0
    backoff.on_silent(MINUTE + 2)
    backoff.judge_silence(MINUTE + 5 * SECOND)
    assert backoff.next_us == MINUTE + 19 * SECOND
    assert backoff.on_answered(MINUTE + 2) == 0  # late, so nobody has dropped it
    assert (backoff.question, backoff.next_us) == (Question.NONE, 0)


def test_a_late_answer_to_what_left_before_a_silence_ends_it_but_no_other_refusal() -> None:
    """Another answer to it may have been under way, or a held pull. After a deadline, the path has stood still."""
    backoff = with_requests(50, MINUTE)
    backoff.on_silent(MINUTE)
    backoff.judge_silence(now := MINUTE + 4 * SECOND)
    assert backoff.on_answered(MINUTE - SECOND) == 0
    assert backoff.next_us == now + 14 * SECOND
    assert backoff.on_answered(MINUTE - SECOND, is_late=True) == 0
    assert (backoff.question, backoff.next_us) == (Question.NONE, 0)
    backoff = with_requests(50, MINUTE)
    backoff.on_refused(Refusal.BANNED, MINUTE, MINUTE + RTT)
    backoff.on_answered(MINUTE - SECOND, is_late=True)
    assert backoff.next_us > MINUTE


@pytest.mark.parametrize(
    ("refusal", "leaves_gap"),
    [
        (Refusal.BANNED, [True, True, True, True]),
        (Refusal.FORBIDDEN, [False, True, True, False]),
        (Refusal.BUSY, [False, True, True, False]),
        (Refusal.ASKED, [False] * 4),
        (Refusal.AWAY, [False] * 4),
        (Refusal.CLOSED, [False] * 4),
    ],
)
def test_a_ban_that_only_a_long_pause_ended_leaves_a_gap_and_without_429_only_if_it_comes_again(
    refusal: Refusal, leaves_gap: list[bool]
) -> None:
    """It is that of eight tenths of the requests in the ten seconds before the first refusal."""
    backoff, now = Backoff(NoSpread()), 10 * SECOND
    for is_ban, since_s in zip(leaves_gap, (0, 20, 110, 140), strict=True):
        now = ask_often(backoff, 50, now + since_s * SECOND)
        now, gap_us = ban(backoff, refusal, now)
        assert gap_us == (10 * SECOND * 10 // (8 * 50) if is_ban else 0)
        assert backoff.on_answered(now + 1) == 0


def test_refusals_of_two_kinds_are_no_ban_that_comes_again() -> None:
    backoff, now = Backoff(NoSpread()), 10 * SECOND
    for refusal in (Refusal.FORBIDDEN, Refusal.BUSY, Refusal.FORBIDDEN):
        now, gap_us = ban(backoff, refusal, ask_often(backoff, 50, now + 20 * SECOND))
        assert gap_us == 0


def ban(backoff: Backoff, refusal: Refusal, now: int) -> tuple[int, int]:
    """Refuse requests for a minute, the first of which left at `now`, and then answer one. Return when it left, and the
    gap."""
    until_us = now + MINUTE
    backoff.on_refused(refusal, now, now := now + RTT)
    while now < until_us:
        backoff.on_sent(now := max(now, backoff.next_us))
        backoff.on_refused(refusal, now, now := now + RTT)
    backoff.on_sent(now := max(now, backoff.next_us))
    return now, backoff.on_answered(now)


def test_the_late_answer_of_a_proxy_shortens_the_pause_of_a_silence() -> None:
    """Unless a silence has ended shortly before: then a limiter may hold requests before it answers them."""
    backoff, asked_us = Backoff(NoSpread()), 0
    for since_us, is_shortened in ((MINUTE, True), (MINUTE, False), (5 * MINUTE, True)):
        began_us = ask_often(backoff, 50, asked_us + since_us)
        backoff.on_sent(began_us + SECOND)
        backoff.on_silent(began_us)
        backoff.judge_silence(now := began_us + 4 * SECOND)
        assert backoff.next_us == now + 14 * SECOND
        backoff.on_refused(Refusal.AWAY, began_us - 1, now + SECOND)  # it left before
        assert backoff.next_us == now + 14 * SECOND
        backoff.on_refused(Refusal.AWAY, began_us + SECOND, now + SECOND)
        assert (backoff.next_us <= now + 2 * SECOND) is is_shortened
        asked_us = backoff.next_us
        backoff.on_sent(asked_us)
        backoff.on_silent(asked_us)
        backoff.judge_silence(asked_us + 5 * SECOND)
        assert (backoff.next_us <= asked_us + SECOND) is is_shortened  # it is no ban
        backoff.on_sent(asked_us := backoff.next_us)
        backoff.on_answered(asked_us)


def test_a_short_row_leaves_no_gap_nor_does_one_after_few_requests() -> None:
    backoff = with_requests(50, MINUTE)
    for at_us in (MINUTE, MINUTE + SECOND, MINUTE + 2 * SECOND):
        backoff.on_refused(Refusal.FORBIDDEN, at_us, at_us + RTT)
    assert backoff.on_answered(MINUTE + 3 * SECOND) == 0
    backoff = with_requests(10, MINUTE)
    for at_us in (MINUTE, MINUTE + 3 * SECOND):
        backoff.on_refused(Refusal.BANNED, at_us, at_us + RTT)
    assert backoff.next_us == MINUTE + 3 * SECOND + RTT + 14 * SECOND
    assert backoff.on_answered(backoff.next_us) == 0


@pytest.mark.parametrize(
    ("refusal", "count", "gaps_s"),
    [(Refusal.BANNED, 4, [0, 0]), (Refusal.BANNED, 5, [0, 2.5]), (Refusal.FORBIDDEN, 19, [0, 0])],
)
def test_a_ban_after_few_requests_leaves_a_gap_if_429s_tell_it_and_it_comes_again(
    refusal: Refusal, count: int, gaps_s: list[float]
) -> None:
    backoff, now = Backoff(NoSpread()), 10 * SECOND
    for gap_s in gaps_s:
        now, gap_us = ban(backoff, refusal, ask_often(backoff, count, now + 20 * SECOND))
        assert gap_us == gap_s * SECOND


def test_requests_that_left_before_a_pause_say_nothing_about_the_time_after_it() -> None:
    backoff = with_requests(50, MINUTE)
    backoff.on_silent(MINUTE)
    backoff.judge_silence(now := MINUTE + 4 * SECOND)
    backoff.on_sent(asked_us := backoff.next_us)
    backoff.on_silent(now - 1)
    backoff.judge_silence(asked_us)
    assert backoff.next_us == asked_us + 4 * SECOND


def test_what_left_long_before_a_ban_does_not_count() -> None:
    backoff = with_requests(50, MINUTE)
    backoff.on_answered(MINUTE)
    backoff.on_sent(10 * MINUTE)
    backoff.on_silent(10 * MINUTE)
    backoff.judge_silence(11 * MINUTE)
    assert backoff.next_us == 0
