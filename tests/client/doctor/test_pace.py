"""The budget of the doctor: what may begin, and when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.client.doctor.limiters import Seen, Weighted
from tunnel_client.doctor.pace import Budget
from tunnel_client.doctor.trials import CONNECTIONS_S, REQUESTS, REQUESTS_S, SLOW_CONNECTIONS


def test_a_full_window_makes_the_next_one_wait_for_the_oldest() -> None:
    budget = Budget(2, 10.0)
    assert [budget.take(now_s) for now_s in (0.0, 3.0, 4.0, 5.0)] == [0.0, 3.0, 10.0, 13.0]
    assert budget.take(100.0) == 100.0


def test_what_may_begin_at_once_is_at_most_the_budget() -> None:
    budget = Budget(3, 10.0)
    budget.take(1.0)
    assert [budget.free_s(2.0, count) for count in (1, 2, 3, 99)] == [2.0, 2.0, 11.0, 11.0]


def test_a_slower_budget_knows_what_has_begun() -> None:
    budget = Budget(5, 1.0)
    for now_s in (0.0, 0.1, 0.2):
        budget.take(now_s)
    slow = budget.with_limits(1, 2.0)
    assert slow.take(0.3) == 2.2
    assert slow.take(0.3) == 4.2


@pytest.mark.parametrize(
    ("most", "window_s", "limit"), [(REQUESTS, REQUESTS_S, 50), (SLOW_CONNECTIONS, CONNECTIONS_S, 5)]
)
def test_bursts_stay_below_known_limits_as_haproxy_counts_them(most: int, window_s: float, limit: int) -> None:
    for tenth in range(10):
        budget = Budget(most, window_s)
        rule = Weighted(limit, window_s, ban_s=60.0, begin_s=tenth * window_s / 10)
        assert not any(rule.judge(Seen(budget.take(0.0), True)).status for _ in range(10 * most))


@given(st.integers(1, 5), st.lists(st.floats(0, 3), min_size=1, max_size=30))
def test_no_window_ever_holds_more(most: int, steps: list[float]) -> None:
    budget, now_s, begun = Budget(most, 1.0), 0.0, []
    for step in steps:
        now_s += step
        begun.append(budget.take(now_s))
        assert begun[-1] >= now_s
    assert begun == sorted(begun)
    assert all(later >= earlier + 1.0 for earlier, later in zip(begun, begun[most:], strict=False))
