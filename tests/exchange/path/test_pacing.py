"""Sizes, lanes and holds: how they grow, how they shrink, and that they grow again."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from tunnel.exchange.path.pacing import BodyLimit, HoldLimit, LaneCount

KIB = 1024
MS = 1_000
SECOND = 1_000_000


def body() -> BodyLimit:
    return BodyLimit(64 * KIB, 16 * KIB, 1024 * KIB)


# bodies


def test_a_body_is_full_at_three_quarters() -> None:
    limit = body()
    assert limit.is_full(48 * KIB)
    assert not limit.is_full(48 * KIB - 1)


def test_between_the_two_time_bounds_only_lanes_may_grow() -> None:
    limit = body()
    assert limit.on_answered(0, 100 * MS, 1)
    assert limit.on_answered(0, 500 * MS, 1)
    assert limit.limit_bytes == 64 * KIB


def exchanges(limit: BodyLimit, extra_us: Callable[[int], int], now: int, seconds: int) -> int:
    """Let full bodies follow each other for `seconds`; each takes `extra_us(its size)`. Return the time at the end."""
    end_us = now + seconds * SECOND
    while now < end_us:
        took_us = extra_us(limit.limit_bytes)
        limit.on_answered(now, took_us, now + took_us)
        now += took_us + MS
    return now


@pytest.mark.parametrize("turn_ms", [99, 150, 400, 900, 3000])
def test_bodies_grow_if_their_time_does_not_depend_on_their_size(turn_ms: int) -> None:
    """The exchanges wait for a turn, so larger bodies carry more in the same number of turns."""
    limit = body()
    exchanges(limit, lambda size: turn_ms * MS + size // 1000, 0, 60)
    assert limit.limit_bytes == 1024 * KIB
    assert limit.queue_us == pytest.approx(turn_ms * MS, rel=0.1)


@pytest.mark.parametrize("turn_ms", [150, 400])
def test_bodies_grow_until_their_size_makes_exchanges_slow(turn_ms: int) -> None:
    limit = body()
    now = exchanges(limit, lambda size: turn_ms * MS + size * 60_000 // (64 * KIB), 0, 60)
    sizes = []
    for _ in range(50):
        now = exchanges(limit, lambda size: turn_ms * MS + size * 60_000 // (64 * KIB), now, 1)
        sizes.append(limit.limit_bytes)
    assert set(sizes) <= {64 * KIB, 128 * KIB, 256 * KIB}


def test_a_trial_of_a_larger_body_that_takes_longer_is_undone_and_repeated_seldom() -> None:
    limit = body()
    now, changes, size = 0, [], limit.limit_bytes
    while now < 400 * SECOND:
        now = exchanges(limit, lambda size: size * 200_000 // (64 * KIB), now, 1)
        if limit.limit_bytes != size:
            size = limit.limit_bytes
            changes.append((now // SECOND, size // KIB))
    begun = [second for second, kib in changes if kib == 128]
    assert {kib for _, kib in changes} == {64, 128}
    assert [30 < (later - earlier) / 2**i < 35 for i, (earlier, later) in enumerate(pairwise(begun))] == [True] * 3


def test_a_trial_compares_the_mean_times_of_three_bodies_that_waited_for_none_of_the_other_size() -> None:
    limit = body()
    for number, extra_ms in enumerate((200, 400, 240, 360)):
        assert limit.on_answered(number, extra_ms * MS, number + 1)
    begin_us = 1 + 2 * SECOND  # two seconds after the first of them
    assert limit.on_answered(4, 300 * MS, begin_us - 1)
    assert not limit.on_answered(5, 300 * MS, begin_us)
    assert limit.limit_bytes == 128 * KIB
    free_us = begin_us + 300 * MS
    assert limit.on_answered(free_us - 1, 490 * MS, free_us)
    for sent_us, extra_ms, queue_ms in ((free_us, 440, 160), (free_us + 1, 480, 140)):
        assert limit.on_answered(sent_us, extra_ms * MS, free_us + SECOND)
        assert limit.queue_us == queue_ms * MS
    assert not limit.on_answered(free_us + 2, 460 * MS, free_us + SECOND)
    assert limit.limit_bytes == 64 * KIB


def test_a_wait_for_turns_that_has_ended_is_forgotten_at_once() -> None:
    limit = body()
    now = exchanges(limit, lambda size: 400 * MS, 0, 20)
    assert limit.queue_us == 400 * MS
    limit.on_answered(now, 3 * MS, now + 3 * MS)
    assert limit.queue_us == 3 * MS


def test_a_refusal_ends_a_trial() -> None:
    limit = body()
    now = 0
    while limit.limit_bytes == 64 * KIB:
        now = exchanges(limit, lambda size: size * 200_000 // (64 * KIB), now, 1)
    assert limit.on_refused(128 * KIB, now)
    assert limit.limit_bytes == 64 * KIB
    exchanges(limit, lambda size: size * 200_000 // (64 * KIB), now + MS, 1)
    assert limit.limit_bytes == 64 * KIB


def test_a_body_halves_when_exchanges_take_long_but_not_below_the_minimum() -> None:
    limit = body()
    for now in range(1, 10):
        assert not limit.on_answered(now - 1, 501 * MS, now)
    assert limit.limit_bytes == 16 * KIB


def test_exchanges_sent_before_a_change_do_not_count() -> None:
    limit = body()
    assert not limit.on_answered(0, 0, 10)
    assert not limit.on_answered(9, 0, 11)
    assert limit.limit_bytes == 128 * KIB


def test_a_body_that_may_not_grow_asks_for_lanes() -> None:
    limit = BodyLimit(64 * KIB, 16 * KIB, 64 * KIB)
    assert limit.on_answered(0, 0, 1)
    assert limit.limit_bytes == 64 * KIB


def test_a_413_halves_the_size_that_was_refused_however_often_it_is_reported() -> None:
    limit = body()
    assert [limit.on_refused(64 * KIB, 1) for _ in range(3)] == [True] * 3
    assert limit.limit_bytes == 32 * KIB
    assert limit.on_refused(17 * KIB, 2)
    assert limit.limit_bytes == 17 * KIB // 2


def test_refusals_lower_the_limit_to_1536_bytes_whatever_the_minimum_for_slow_paths() -> None:
    limit = body()
    assert limit.on_refused(1537, 1)
    assert limit.limit_bytes == 1536
    assert not limit.on_refused(1536, 2)
    assert limit.limit_bytes == 1536


def test_slowness_keeps_no_limit_below_the_minimum_for_slow_paths() -> None:
    """Only refusals and silence lower it so far; and where round trips vary, hardly any exchange is quick."""
    limit = body()
    limit.on_refused(1024 * KIB, 1, passed_bytes=0)
    assert limit.limit_bytes == 1536
    seen = [(limit.on_answered(now, 501 * MS, now), limit.limit_bytes)[1] for now in range(2, 9)]
    assert seen == [3072, 6144, 12288, 24576, 16384, 16384, 16384]


def test_a_size_that_is_tried_no_longer_does_not_make_slow_bodies_ask_for_lanes() -> None:
    limit = body()
    limit.on_refused(1537, 1)
    limit.on_refused(1540, 1)
    assert not limit.on_answered(2, 501 * MS, 2)
    assert limit.on_answered(2, 400 * MS, 2)
    assert limit.limit_bytes == 1536


@pytest.mark.parametrize(
    ("passed", "limit_bytes"),
    [(0, 768), (700, 1024), (1024, 1024), (1025, 2048), (60 * KIB, 64 * KIB), (64 * KIB, 64 * KIB)],
)
def test_after_silence_the_limit_grows_again_from_what_has_passed(passed: int, limit_bytes: int) -> None:
    limit = BodyLimit(128 * KIB, 16 * KIB, 1024 * KIB, 768)
    assert limit.on_refused(128 * KIB, 1, passed_bytes=passed)
    assert limit.limit_bytes == limit_bytes


def test_a_relay_may_set_a_lower_floor() -> None:
    limit = body()
    limit.limit_to(700)
    assert not limit.on_refused(700, 1)
    assert limit.limit_bytes == 700


def test_a_refused_size_is_tried_again_after_delays_that_double() -> None:
    limit = body()
    limit.on_refused(64 * KIB, 0)
    assert limit.on_answered(1, 0, 30 * SECOND - 1)
    assert limit.limit_bytes == 32 * KIB
    assert not limit.on_answered(1, 0, 30 * SECOND)
    assert limit.limit_bytes == 64 * KIB
    limit.on_refused(64 * KIB, 30 * SECOND)
    assert limit.on_answered(31 * SECOND, 0, 90 * SECOND - 1)
    assert not limit.on_answered(31 * SECOND, 0, 90 * SECOND)
    assert limit.limit_bytes == 64 * KIB


def test_a_refused_size_and_larger_ones_count_as_refused_for_as_long() -> None:
    limit = body()
    assert not limit.is_refused(64 * KIB, 0)
    limit.on_refused(64 * KIB, 0)
    found = [limit.is_refused(size, now) for size, now in ((65536, 30 * SECOND - 1), (65535, 1), (65536, 30 * SECOND))]
    assert found == [True, False, False]


def test_below_a_refused_size_a_body_grows_as_usual() -> None:
    limit = body()
    limit.on_refused(1024 * KIB, 0)
    limit.on_answered(0, 0, 1)
    assert limit.limit_bytes == 128 * KIB


def test_the_relay_bounds_a_body_and_may_allow_more_the_next_time() -> None:
    limit = body()
    limit.limit_to(8 * KIB)
    assert limit.limit_bytes == 8 * KIB
    limit.limit_to(1 << 30)
    for now in range(1, 10):
        limit.on_answered(now - 1, 0, now)
    assert limit.limit_bytes == 1024 * KIB


# lanes


def test_a_lane_is_added_while_exchanges_in_flight_do_not_fill_the_round_trip() -> None:
    lanes = LaneCount(2, 8, adapt=True)
    assert not lanes.on_pressed(0, 150 * MS, 100 * MS, 1)
    assert lanes.on_pressed(0, 149 * MS, 100 * MS, 1)
    assert lanes.count == 3


def test_lanes_are_added_one_at_a_time_and_not_while_exchanges_fail() -> None:
    lanes = LaneCount(2, 8, adapt=True)
    assert lanes.on_pressed(0, 0, 0, 10)
    assert not lanes.on_pressed(9, 0, 0, 11)
    lanes.on_failed(20)
    assert not lanes.on_pressed(20, 0, 0, 21)
    assert lanes.on_pressed(21, 0, 0, 22)


@pytest.mark.parametrize("lanes", [LaneCount(2, 2, adapt=True), LaneCount(2, 8, adapt=False)])
def test_no_lane_is_added_beyond_the_maximum_or_without_adapt(lanes: LaneCount) -> None:
    assert not lanes.on_pressed(0, 0, 0, 1)


def test_lanes_beyond_the_initial_ones_are_given_back_when_idle() -> None:
    lanes = LaneCount(2, 8, adapt=True)
    assert lanes.idle_until_us(7) is None
    lanes.on_pressed(0, 0, 0, 1)
    assert lanes.idle_until_us(7) == 5 * SECOND + 7
    lanes.give_back()
    assert lanes.idle_until_us(7) is None


def test_a_lane_may_be_added_for_a_probe_up_to_the_maximum() -> None:
    lanes = LaneCount(2, 4, adapt=True)
    assert [lanes.add() for _ in range(3)] == [True, True, False]
    assert lanes.count == 4
    lanes.give_back()
    assert lanes.count == 3


def test_two_lanes_stay_once_there_are_two() -> None:
    lanes = LaneCount(1, 8, adapt=True)
    lanes.on_pressed(0, 0, 0, 1)
    assert lanes.idle_until_us(7) is None


def test_the_relay_bounds_lanes_and_may_allow_more_the_next_time() -> None:
    lanes = LaneCount(4, 8, adapt=True)
    lanes.limit_to(0)
    assert (lanes.count, lanes.most) == (1, 1)
    lanes.limit_to(100)
    assert (lanes.count, lanes.most) == (4, 8)


# holds


def hold() -> HoldLimit:
    return HoldLimit(15 * SECOND, 2 * SECOND)


def test_cuts_at_different_ages_leave_the_hold() -> None:
    limit = hold()
    for age in (4, 9, 14, 5):
        limit.cut(age * SECOND)
    assert limit.hold_us == 15 * SECOND


def test_a_cut_before_the_shortest_hold_leaves_the_hold() -> None:
    limit = hold()
    limit.cut(SECOND)
    limit.cut(SECOND)
    assert limit.hold_us == 15 * SECOND


def test_holds_do_not_shrink_below_the_minimum() -> None:
    limit = hold()
    for _ in range(20):
        limit.cut(2 * SECOND)
    assert limit.hold_us == 2 * SECOND


def test_the_relay_bounds_the_hold_and_may_allow_more_the_next_time() -> None:
    limit = hold()
    limit.limit_to(0)
    assert limit.hold_us == 0
    limit.limit_to(60 * SECOND)
    assert limit.hold_us == 2 * SECOND
    for _ in range(100):
        limit.on_endured(limit.hold_us)
    assert limit.hold_us == 15 * SECOND


# to the byte and to the microsecond


def test_a_body_halves_exactly_and_has_at_least_a_byte() -> None:
    limit = body()
    limit.on_answered(0, 501 * MS, 1)
    assert limit.limit_bytes == 32 * KIB
    limit.limit_to(0)
    assert limit.limit_bytes == 1


def test_half_a_round_trip_is_rounded_down() -> None:
    assert not LaneCount(2, 8, adapt=True).on_pressed(0, 100 * MS, 1, 1)


def test_four_endured_holds_double_the_hold() -> None:
    limit = hold()
    limit.limit_to(4 * SECOND)
    limit.limit_to(15 * SECOND)
    counts = []
    while limit.hold_us < 15 * SECOND:
        before, count = limit.hold_us, 0
        while limit.hold_us == before:
            limit.on_endured(before)
            count += 1
        counts.append((count, limit.hold_us // SECOND))
    assert counts == [(4, 8), (4, 15)]


def test_growing_back_never_takes_more_than_64_holds() -> None:
    limit = hold()
    counts = []
    for _ in range(6):
        limit.cut(10 * SECOND)
        limit.cut(10 * SECOND)
        count = 0
        while limit.hold_us < 15 * SECOND:
            limit.on_endured(limit.hold_us)
            count += 1
        counts.append(count)
    assert counts == [4, 8, 16, 32, 64, 64]


def test_a_hold_that_shrinks_twice_does_not_grow_back_more_slowly_for_it() -> None:
    limit = hold()
    for cuts in (2, 4):
        for _ in range(cuts):
            limit.cut(3 * SECOND)
        if cuts == 2:
            for _ in range(4):
                limit.on_endured(15 * SECOND)
            assert limit.hold_us == 15 * SECOND
    holds = []
    for _ in range(8):
        holds.append(limit.hold_us)
        limit.on_endured(limit.hold_us)
    assert (set(holds), limit.hold_us) == ({3_750_000}, 7_500_000)


def test_holds_endured_at_the_maximum_do_not_slow_growing_back() -> None:
    limit = hold()
    for _ in range(100):
        limit.on_endured(15 * SECOND)
    limit.cut(10 * SECOND)
    limit.cut(10 * SECOND)
    for _ in range(4):
        limit.on_endured(limit.hold_us)
    assert limit.hold_us == 15 * SECOND


@pytest.mark.parametrize(("age_us", "counts"), [(3_000_000, True), (2_999_999, False)])
def test_three_quarters_of_a_hold_count_as_endured(age_us: int, counts: bool) -> None:
    limit = hold()
    limit.limit_to(4 * SECOND)
    limit.limit_to(15 * SECOND)
    for _ in range(4):
        limit.on_endured(age_us)
    assert (limit.hold_us > 4 * SECOND) is counts


def test_three_quarters_of_the_age_of_a_cut_clear_the_suspicion() -> None:
    limit = hold()
    limit.cut(8 * SECOND)
    limit.on_endured(6 * SECOND)
    limit.cut(8 * SECOND)
    assert limit.hold_us == 15 * SECOND


def test_ages_that_differ_by_a_quarter_are_similar() -> None:
    limit = hold()
    limit.cut(10 * SECOND)
    limit.cut(12_500_000)
    assert limit.hold_us == 7_500_000


def test_a_single_cut_leaves_the_hold_whatever_came_before() -> None:
    limit = HoldLimit(16 * SECOND, SECOND)
    limit.cut(SECOND)
    assert limit.hold_us == 16 * SECOND
    limit.cut(SECOND)
    assert limit.hold_us == 8 * SECOND
    limit.cut(SECOND)
    assert limit.hold_us == 8 * SECOND
    limit.on_endured(SECOND)
    limit.cut(SECOND)
    assert limit.hold_us == 8 * SECOND


def trial() -> HoldLimit:
    """Return a limit with a hold of 30 s that no response has endured yet."""
    limit = HoldLimit(55 * SECOND, 2 * SECOND, 15 * SECOND)
    assert limit.hold_us == 15 * SECOND
    for _ in range(4):
        limit.on_endured(15 * SECOND)
    assert limit.hold_us == 30 * SECOND
    return limit


@pytest.mark.parametrize(("start_us", "hold_us"), [(1, 2 * SECOND), (15 * SECOND, 15 * SECOND), (1 << 43, 55 * SECOND)])
def test_a_hold_starts_within_its_bounds(start_us: int, hold_us: int) -> None:
    assert HoldLimit(55 * SECOND, 2 * SECOND, start_us).hold_us == hold_us


def test_one_cut_ends_a_trial_and_the_next_trial_comes_later() -> None:
    limit = trial()
    counts = []
    for _ in range(6):
        limit.cut(15 * SECOND)
        assert limit.hold_us == 15 * SECOND
        count = 0
        while limit.hold_us == 15 * SECOND:
            limit.on_endured(15 * SECOND)
            count += 1
        counts.append(count)
    assert counts == [8, 16, 32, 64, 64, 64]


def test_a_cut_before_the_usual_hold_does_not_end_a_trial() -> None:
    limit = trial()
    limit.cut(15 * SECOND - 1)
    assert limit.hold_us == 30 * SECOND
    limit.cut(15 * SECOND - 1)
    assert limit.hold_us == 15 * SECOND


def test_a_trial_is_over_when_a_response_has_waited_for_three_quarters_of_it() -> None:
    limit = trial()
    limit.on_endured(22_499_999)
    limit.cut(30 * SECOND)
    assert limit.hold_us == 15 * SECOND
    limit = trial()
    limit.on_endured(22_500_000)
    limit.cut(30 * SECOND)
    assert limit.hold_us == 30 * SECOND
    limit.cut(30 * SECOND)
    assert limit.hold_us == 15 * SECOND


def test_a_shrink_within_a_trial_counts_as_its_end() -> None:
    limit = trial()
    limit.cut(4 * SECOND)
    limit.cut(4 * SECOND)
    assert limit.hold_us == 15 * SECOND
    limit.cut(15 * SECOND)
    assert limit.hold_us == 15 * SECOND


def test_a_relay_that_allows_less_ends_a_trial() -> None:
    limit = trial()
    limit.limit_to(10 * SECOND)
    assert limit.hold_us == 10 * SECOND
    limit.cut(10 * SECOND)
    assert limit.hold_us == 10 * SECOND
    limit.cut(10 * SECOND)
    assert limit.hold_us == 5 * SECOND


def test_the_hold_to_which_a_trial_falls_back_has_the_same_minimum() -> None:
    limit = HoldLimit(55 * SECOND, 2 * SECOND, 15 * SECOND)
    limit.limit_to(0)
    limit.limit_to(60 * SECOND)
    assert limit.hold_us == 2 * SECOND
    limit.cut(2 * SECOND)
    assert limit.hold_us == 2 * SECOND


def test_a_hold_endured_in_between_clears_the_suspicion() -> None:
    limit = hold()
    limit.cut(10 * SECOND)
    limit.on_endured(7 * SECOND)
    assert limit._cut_us
    limit.on_endured(10 * SECOND)
    limit.cut(10 * SECOND)
    assert limit.hold_us == 15 * SECOND
