"""407s in a row: the pauses after them, and their end (7.9)."""

import pytest

from tunnel.exchange.asked_password import AskedPassword

MS = 1_000
SECOND = 1_000_000


def ask_on(spread: int = 0) -> tuple[list[int], int]:
    """Return when requests leave as early as they may, with answers after 20 ms that are all 407; and the end."""
    asked = AskedPassword()
    now, left = 5 * SECOND, []
    while True:
        asked.sent(now)
        left.append(now)
        if asked.refused(now, spread, now + 20 * MS):
            return left, now + 20 * MS
        now = max(now + 20 * MS, asked.next_us)


def test_the_pauses_double_up_to_half_a_minute_and_end_after_a_minute() -> None:
    left, end_us = ask_on()
    left_ms = [0, 20, 1_040, 3_060, 7_080, 15_100, 31_120, 61_140]
    assert [now - left[0] for now in left] == [at_ms * MS for at_ms in left_ms]
    assert end_us == left[-1] + 20 * MS


def test_at_most_a_quarter_of_a_pause_is_left_out() -> None:
    left, _ = ask_on(spread=2**16 - 1)
    assert left[3] - left[2] == pytest.approx(20 * MS + 1.5 * SECOND, abs=100)


def test_three_are_needed_however_long_two_take() -> None:
    asked = AskedPassword()
    assert not asked.refused(0, 0, 1)
    assert not asked.refused(100 * SECOND, 0, 101 * SECOND)
    assert asked.refused(102 * SECOND, 0, 103 * SECOND)


def test_a_minute_is_needed_however_many_come() -> None:
    asked = AskedPassword()
    assert not any(asked.refused(second * SECOND, 0, second * SECOND) for second in range(60))
    assert asked.refused(60 * SECOND, 0, 60 * SECOND)


def test_requests_that_left_before_the_newest_counted_one_came_do_not_count() -> None:
    asked = AskedPassword()
    for now in range(10):
        assert not asked.refused(0, 0, SECOND + now)
    assert asked.next_us == SECOND
    assert not asked.refused(SECOND, 0, SECOND + 1)
    assert asked.next_us == 2 * SECOND + 1


def test_one_request_at_a_time_asks() -> None:
    asked = AskedPassword()
    asked.sent(0)
    assert asked.next_us == 0
    asked.refused(0, 0, SECOND)
    assert (asked.goes_on, asked.next_us) == (True, SECOND)
    asked.sent(SECOND)
    assert asked.next_us == SECOND + 500 * MS
    asked.refused(SECOND, 0, SECOND + MS)
    asked.sent(2 * SECOND + MS)
    assert asked.next_us == 3 * SECOND + MS


def test_an_answer_to_a_request_that_left_after_the_first_ends_the_row() -> None:
    asked = AskedPassword()
    asked.refused(0, 0, SECOND)
    asked.refused(SECOND, 0, 2 * SECOND)
    asked.answered(SECOND - 1)
    assert asked.goes_on
    asked.answered(SECOND)
    assert (asked.goes_on, asked.next_us) == (False, 0)
    asked.refused(3 * SECOND, 0, 4 * SECOND)
    assert asked.next_us == 4 * SECOND
    asked.refused(4 * SECOND, 0, 5 * SECOND)
    assert asked.next_us == 6 * SECOND  # the first pause again
    assert not asked.refused(61 * SECOND, 0, 63 * SECOND)  # the minute counts from the new first one
