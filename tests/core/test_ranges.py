"""The range set against a plain set of numbers."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunnel.core.ranges import RangeSet

NUMBERS = st.integers(0, 60)
RANGES = st.tuples(NUMBERS, st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))
ADD, REMOVE = "add", "remove"
STEPS = st.lists(
    st.one_of(st.tuples(st.just(ADD), RANGES), st.tuples(st.just(REMOVE), NUMBERS.map(lambda number: (number, number))))
)


def members(ranges: list[tuple[int, int]]) -> set[int]:
    return {number for first, last in ranges for number in range(first, last + 1)}


@given(STEPS)
def test_a_range_set_behaves_like_a_set_of_numbers(steps: list[tuple[str, tuple[int, int]]]) -> None:
    subject, model = RangeSet(), set[int]()
    for kind, (first, last) in steps:
        if kind == ADD:
            new = subject.add(first, last)
            added = set(range(first, last + 1))
            assert members(new) == added - model
            assert new == sorted(new)
            assert sum(b - a + 1 for a, b in new) == len(added - model)
            model |= added
        else:
            subject.remove_up_to(first)
            model = {number for number in model if number > first}
        ranges = subject.ranges()
        assert members(ranges) == model
        assert len(subject) == len(ranges)
        # sorted, disjoint and not adjacent: else two ranges could be one
        assert all(a <= b for a, b in ranges)
        assert all(before[1] + 1 < after[0] for before, after in pairwise(ranges))
        for number in range(75):
            assert (number in subject) == (number in model)
            found = subject.range_of(number)
            if found is None:
                assert number not in model
            else:
                assert found in ranges
                assert found[0] <= number <= found[1]


@pytest.mark.parametrize(
    ("first", "last", "new", "after"),
    [
        (1, 2, [(1, 2)], [(1, 2), (5, 6), (10, 12)]),
        (3, 4, [(3, 4)], [(3, 6), (10, 12)]),
        (7, 9, [(7, 9)], [(5, 12)]),
        (5, 6, [], [(5, 6), (10, 12)]),
        (1, 20, [(1, 4), (7, 9), (13, 20)], [(1, 20)]),
        (6, 10, [(7, 9)], [(5, 12)]),
        (11, 15, [(13, 15)], [(5, 6), (10, 15)]),
        (14, 15, [(14, 15)], [(5, 6), (10, 12), (14, 15)]),
    ],
)
def test_add_merges_neighbours(first: int, last: int, new: list[tuple[int, int]], after: list[tuple[int, int]]) -> None:
    subject = RangeSet()
    subject.add(5, 6)
    subject.add(10, 12)
    assert subject.add(first, last) == new
    assert subject.ranges() == after
