"""The clocks of the writers: what packets and wall clocks tell of their differences."""

from typing import Any

import pytest

from tunnel.analysis.results.clocks import Clock, are_one, clocks_of

SECOND = 1_000_000
DAY = 86_400 * SECOND


def delay(begin: str, end: str, us: int) -> dict[str, Any]:
    return {"begin_writer": begin, "end_writer": end, "us": us}


def of_two(*delays: dict[str, Any], walls: dict[str, int | None] | None = None) -> Clock:
    return clocks_of(walls or {"a": None, "b": None}, list(delays))["b"]


@pytest.mark.parametrize(("there_us", "back_us"), [(20_000, 30_000), (0, 0), (0, 7), (7, 0), (20_000, None), (None, 0)])
def test_clocks_are_one_if_no_packet_arrived_before_it_was_sent(there_us: int | None, back_us: int | None) -> None:
    delays = [delay("a", "b", there_us)] if there_us is not None else []
    delays += [delay("b", "a", back_us)] if back_us is not None else []
    assert of_two(*delays) == Clock(0, "packets")


@pytest.mark.parametrize("ahead_us", [3 * DAY, -3 * DAY, 60_000, -60_000])
def test_a_clock_that_differs_is_placed_in_the_middle_of_its_possible_range(ahead_us: int) -> None:
    there_us, back_us = 20_000 + ahead_us, 20_000 - ahead_us
    assert of_two(delay("a", "b", there_us), delay("b", "a", back_us)) == Clock(ahead_us, "packets")
    clock = of_two(delay("a", "b", there_us + 1), delay("b", "a", back_us))
    assert (clock.ahead_us, type(clock.ahead_us)) == (ahead_us, int)


def test_of_packets_in_one_direction_the_fastest_is_taken_to_need_no_time() -> None:
    assert of_two(delay("a", "b", -5 * SECOND)) == Clock(-5 * SECOND, "packets")
    assert of_two(delay("b", "a", -5 * SECOND)) == Clock(5 * SECOND, "packets")


def test_packets_in_one_direction_that_all_come_implausibly_late_show_a_difference_of_clocks() -> None:
    assert of_two(delay("a", "b", 10 * SECOND - 1)) == of_two(delay("b", "a", 10 * SECOND - 1)) == Clock(0, "packets")
    assert of_two(delay("a", "b", 10 * SECOND)) == Clock(10 * SECOND, "packets")
    assert of_two(delay("b", "a", 10 * SECOND)) == Clock(-10 * SECOND, "packets")


def test_differences_add_up_along_a_chain() -> None:
    delays = [delay("a", "b", 10 * SECOND + 5), delay("b", "a", -10 * SECOND + 5)]
    delays += [delay("c", "b", 4 * SECOND + 7), delay("b", "c", -4 * SECOND + 7)]
    known = clocks_of({"c": None, "b": None, "a": None}, delays)
    assert {name: clock.ahead_us for name, clock in known.items()} == {"a": 0, "b": 10 * SECOND, "c": 6 * SECOND}
    assert known["a"].known_by == "reference"


def test_writers_without_common_packets_are_aligned_by_the_wall_clock() -> None:
    walls: dict[str, int | None] = {"a": 9 * DAY, "b": 9 * DAY - 5 * SECOND, "c": 9 * DAY + 40_000, "d": None}
    assert clocks_of({"a": DAY + 50_000, "b": DAY}, [])["b"].ahead_us == 50_000
    known = clocks_of(walls, [])
    assert known["b"] == Clock(5 * SECOND, "wall clock")
    assert known["c"] == Clock(0, "wall clock")  # the difference is within the error of wall clocks
    assert known["d"] == Clock(0, "nothing")


def test_packets_tell_more_than_wall_clocks() -> None:
    walls: dict[str, int | None] = {"a": 0, "b": 3 * DAY}
    assert of_two(delay("a", "b", 5), delay("b", "a", 5), walls=walls) == Clock(0, "packets")


def test_a_wall_clock_places_the_writers_of_two_groups() -> None:
    walls: dict[str, int | None] = {"a": None, "b": 9 * SECOND, "c": 7 * SECOND, "d": None}
    delays = [delay("a", "b", 2 * SECOND), delay("b", "a", -2 * SECOND), delay("c", "d", 0), delay("d", "c", 0)]
    known = clocks_of(walls, delays)
    assert {name: clock.ahead_us for name, clock in known.items()} == {
        "a": 0, "b": 2 * SECOND, "c": 4 * SECOND, "d": 4 * SECOND,
    }  # fmt: skip


def test_packets_of_writers_that_are_not_in_the_tables_are_ignored() -> None:
    assert of_two(delay("a", "x", 5), delay("x", "b", 5)) == Clock(0, "nothing")


@pytest.mark.parametrize(
    ("walls", "expected"),
    [
        ({}, True),
        ({"a": None}, True),
        ({"a": None, "b": 5}, False),
        ({"a": DAY, "b": DAY + 49_999}, True),
        ({"a": DAY, "b": DAY + 50_000}, False),
    ],
)
def test_equal_wall_clocks_at_zero_mean_one_clock(walls: dict[str, int | None], expected: bool) -> None:
    assert are_one(walls) is expected
