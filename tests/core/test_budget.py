"""One budget for all windows and send buffers, and the share of each user."""

from hypothesis import given
from hypothesis import strategies as st

from tunnel.core.budget import BudgetShares, WindowBudget


@given(st.lists(st.integers(0, 40), max_size=20), st.integers(0, 200))
def test_grants_never_exceed_the_budget(wishes: list[int], total: int) -> None:
    budget = WindowBudget(total)
    granted = [budget.grant(wish) for wish in wishes]
    assert all(0 <= got <= wish for got, wish in zip(granted, wishes, strict=True))
    assert budget.granted_bytes == sum(granted) == min(total, sum(wishes))
    for got in granted:
        budget.release(got)
    assert budget.granted_bytes == 0


@given(st.lists(st.tuples(st.sampled_from(["", "ann", "bob"]), st.integers(0, 300)), max_size=20))
def test_shares_never_exceed_the_budget_and_are_given_back(wishes: list[tuple[str, int]]) -> None:
    pool = WindowBudget(1000)
    shares = BudgetShares(pool)
    held = []
    for user, wish in wishes:
        budget = shares.enter(user)
        held.append((user, budget, budget.grant(wish)))
    assert pool.granted_bytes == sum(got for _, _, got in held) <= 1000
    for user, budget, got in held:
        budget.release(got)
        shares.leave(user)
    assert (pool.granted_bytes, len(shares)) == (0, 0)


def test_two_users_no_user_holds_more_than_stays_free_for_others() -> None:
    pool = WindowBudget(900)
    shares = BudgetShares(pool)
    ann, bob = shares.enter("ann"), shares.enter("bob")
    assert sum(ann.grant(1000) for _ in range(20)) == 450
    assert sum(bob.grant(1000) for _ in range(20)) == 225
    assert shares.enter("ann") is ann
    assert shares.enter("") is pool
