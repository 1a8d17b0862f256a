"""How many pulls may be held: fewer where a held pull takes a push's turn."""

import pytest

from tunnel.exchange.held_pulls import HeldPulls

MS = 1_000
SECOND = 1_000_000
LEAST_US = 5 * MS


def block(held: HeldPulls, now: int, *, lanes: int = 8, after_us: int = 2 * MS, took_us: int = 500 * MS) -> bool:
    """Let a hold end at `now`, and an exchange that was sent long before be answered just after it."""
    held.expired(now)
    return held.answered(now + after_us - took_us, LEAST_US, lanes, now + after_us)


def quick(held: HeldPulls, now: int) -> bool:
    return held.answered(now - 100 * MS, LEAST_US, 8, now)


def test_two_pulls_may_be_held_at_first() -> None:
    assert HeldPulls().most == 2


def test_exchanges_that_wait_for_holds_lower_the_number() -> None:
    held = HeldPulls()
    assert [block(held, second * SECOND) for second in range(1, 5)] == [False, True, False, True]
    assert held.most == 0
    assert [block(held, second * SECOND) for second in range(5, 7)] == [False, True]
    assert held.most == 0


def test_on_two_lanes_the_number_falls_from_one_to_none() -> None:
    held = HeldPulls()
    assert [block(held, second * SECOND, lanes=2) for second in range(1, 3)] == [False, True]
    assert held.most == 0


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda held, now: quick(held, now), id="quick"),
        pytest.param(lambda held, now: block(held, now, after_us=31 * MS), id="long after the hold"),
        pytest.param(lambda held, now: block(held, now, took_us=106 * MS), id="sent shortly before its end"),
        pytest.param(lambda held, now: held.answered(now - SECOND, LEAST_US, 8, now), id="no hold ended"),
    ],
)
def test_other_exchanges_do_not_lower_the_number(other: object) -> None:
    assert callable(other)
    held = HeldPulls()
    for second in range(1, 20, 2):
        assert not block(held, second * SECOND)
        assert not other(held, (second + 1) * SECOND)
    assert held.most == 2


def test_the_window_after_a_hold_includes_two_round_trips() -> None:
    held = HeldPulls()
    assert [block(held, second * SECOND, after_us=30 * MS) for second in (1, 2)] == [False, True]


def test_more_pulls_may_be_held_again_after_waits_that_double() -> None:
    held = HeldPulls()
    lowered_us = 2 * SECOND + 2 * MS
    block(held, SECOND)
    assert block(held, 2 * SECOND)
    assert not quick(held, lowered_us + 60 * SECOND - 1)
    assert quick(held, lowered_us + 60 * SECOND)
    assert held.most == 2
    block(held, 70 * SECOND)
    assert block(held, 71 * SECOND)
    assert not quick(held, 71 * SECOND + 2 * MS + 120 * SECOND - 1)
    assert quick(held, 71 * SECOND + 2 * MS + 120 * SECOND)
