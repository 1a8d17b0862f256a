"""Clauses 3.1 and 3.3: the tombstones of ids and route keys last for four minutes."""

import tracemalloc

from tunnel.core.constants import SECOND_US
from tunnel.core.tombstones import COHORT_US, Tombstones

REST_US = 240 * SECOND_US


def test_tombstones_last_for_four_minutes_and_not_much_longer() -> None:
    rest = Tombstones()
    rest.add(7, 100)
    rest.add_answer(("ann", b"key"), b"gone", 100)
    assert rest.has_id(7)
    assert not rest.has_id(8)
    assert rest.answer(("ann", b"key"), 100 + REST_US) == b"gone"
    assert rest.answer(("ann", b"key"), 100 + REST_US + COHORT_US - 1) == b"gone"
    assert rest.answer(("bob", b"key"), 100) is None
    assert rest.has_id(7)
    assert rest.answer(("ann", b"key"), 100 + REST_US + COHORT_US) is None
    assert not rest.has_id(7)
    assert len(rest) == 0


def test_a_tombstone_added_late_to_a_cohort_lasts_as_long() -> None:
    rest = Tombstones()
    rest.add(1, 0)
    rest.add(2, COHORT_US)
    rest.add(3, COHORT_US + 1)
    rest.clean(REST_US + COHORT_US - 1)
    assert len(rest) == 3
    rest.clean(REST_US + COHORT_US)
    assert [number for number in (1, 2, 3) if rest.has_id(number)] == [3]
    rest.clean(REST_US + 2 * COHORT_US)
    assert rest.has_id(3)
    rest.clean(REST_US + 2 * COHORT_US + 1)
    assert not rest.has_id(3)


def test_adding_a_tombstone_forgets_old_ones() -> None:
    rest = Tombstones()
    for number in range(1, 100):
        rest.add(number, number * REST_US // 10)
    assert len(rest) == 11
    assert not rest.has_id(88)
    assert rest.has_id(89)


def test_every_cohort_is_searched() -> None:
    rest = Tombstones()
    for number in range(10):
        rest.add(number, number * 2 * COHORT_US)
        rest.add_answer(("ann", bytes([number])), bytes([number]), number * 2 * COHORT_US)
    now = 18 * COHORT_US
    assert all(rest.has_id(number) for number in range(2, 10))
    assert [rest.answer(("ann", bytes([number])), now) for number in range(2, 10)] == [bytes([n]) for n in range(2, 10)]


def test_a_tombstone_may_be_added_twice() -> None:
    rest = Tombstones()
    for now in (100, 200):
        rest.add(7, now)
        rest.add_answer(("ann", b"key"), b"gone", now)
    assert rest.answer(("ann", b"key"), 200 + REST_US) == b"gone"
    assert rest.answer(("ann", b"key"), 300 + REST_US + COHORT_US) is None
    assert len(rest) == 0


def test_an_id_costs_less_than_150_bytes() -> None:
    """A client that opens a hundred connections a second keeps 25,000 of them."""
    rest = Tombstones()
    tracemalloc.start()
    try:
        for number in range(25_000):
            rest.add((number << 16) + 12345, number * 10_000)
        size = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert size < 25_000 * 150
