"""One budget for all receive windows."""

from hypothesis import given
from hypothesis import strategies as st

from tunnel.core.budget import WindowBudget


@given(st.lists(st.integers(0, 40), max_size=20), st.integers(0, 200))
def test_grants_never_exceed_the_budget(wishes: list[int], total: int) -> None:
    budget = WindowBudget(total)
    granted = [budget.grant(wish) for wish in wishes]
    assert all(0 <= got <= wish for got, wish in zip(granted, wishes, strict=True))
    assert budget.granted_bytes == sum(granted) == min(total, sum(wishes))
    for got in granted:
        budget.release(got)
    assert budget.granted_bytes == 0
