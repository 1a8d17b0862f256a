"""How many pulls may be held: fewer where pushes have to wait for held pulls."""

import pytest

from tunnel.exchange.path.held_pulls import HeldPulls

MS = 1_000
SECOND = 1_000_000
LEAST_US = 5 * MS


def block(held: HeldPulls, now: int, *, lanes: int = 8, after_us: int = 2 * MS, took_us: int = 500 * MS) -> bool:
    """Let a hold end at `now`, and an exchange that was sent long before be answered just after it."""
    expired = held.on_expired(lanes, now)
    return held.on_answered(now + after_us - took_us, LEAST_US, lanes, 2, now + after_us) or expired


def block_before(held: HeldPulls, now: int, *, before_us: int = 2 * MS, took_us: int = 500 * MS) -> bool:
    """Let the answer that waited for the hold arrive before the answer to the held pull, which came at `now`."""
    answered_us = now - before_us
    return held.on_answered(answered_us - took_us, LEAST_US, 8, 2, answered_us) or held.on_expired(8, now)


def quick(held: HeldPulls, now: int, *, held_pulls: int = 2) -> bool:
    return held.on_answered(now - 100 * MS, LEAST_US, 8, held_pulls, now)


def test_two_pulls_may_be_held_at_first() -> None:
    assert HeldPulls().most == 2


def test_exchanges_that_wait_for_holds_lower_the_number() -> None:
    held = HeldPulls()
    assert [block(held, second * SECOND) for second in range(1, 5)] == [False, True, False, True]
    assert held.most == 0
    assert [block(held, second * SECOND) for second in range(5, 7)] == [False, True]
    assert held.most == 0


@pytest.mark.parametrize(("lanes", "most"), [(2, 0), (3, 1)])
def test_on_two_lanes_the_number_falls_from_one_to_none(lanes: int, most: int) -> None:
    held = HeldPulls()
    assert [block(held, second * SECOND, lanes=lanes) for second in range(1, 3)] == [False, True]
    assert held.most == most


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda held, now: quick(held, now), id="quick"),
        pytest.param(lambda held, now: held.on_answered(now - SECOND, LEAST_US, 8, 2, now), id="no hold ended"),
    ],
)
def test_three_other_exchanges_outweigh_one_that_waited(other: object) -> None:
    assert callable(other)
    held = HeldPulls()
    for second in range(4, 100, 4):
        assert not block(held, second * SECOND)
        for after in range(1, 4):
            assert not other(held, (second + after) * SECOND)
    assert held.most == 2


def test_pushes_that_pass_while_fewer_pulls_are_held_say_nothing() -> None:
    """After a hold has ended, some pushes pass before the next pull takes the slot; then a push waits again."""
    held = HeldPulls()
    assert not block(held, 20 * SECOND)
    for ms in range(200, 900, 20):
        assert not quick(held, 20 * SECOND + ms * MS, held_pulls=1)
    assert not quick(held, 30 * SECOND + 2 * MS, held_pulls=1)
    assert block(held, 31 * SECOND)


def test_pushes_that_pass_long_after_one_that_waited_outweigh_it() -> None:
    held = HeldPulls()
    for minute in range(1, 20):
        assert not block(held, 60 * minute * SECOND)
        for second in range(5, 50, 5):
            assert not quick(held, (60 * minute + second) * SECOND, held_pulls=1)
    assert held.most == 2


def test_pushes_that_wait_while_requests_are_refused_lower_nothing() -> None:
    """Because of refusals fewer connections are used, and a push may then wait for one."""
    held = HeldPulls()
    assert not block(held, SECOND)
    for second in range(1, 100):
        if second % 8 == 1:
            held.on_refused(second * SECOND)
        assert not block(held, second * SECOND)
    assert not block(held, 107 * SECOND - 2 * MS)  # ten seconds after the last refusal
    for lowered_s in (108, 109):
        quick(held, lowered_s * SECOND - 200 * MS)
        assert block(held, lowered_s * SECOND) is (lowered_s == 109)


@pytest.mark.parametrize(("passed", "enough"), [(1, 3), (2, 4)])
def test_few_pushes_that_pass_beside_held_pulls_do_not_hide_those_that_wait(passed: int, enough: int) -> None:
    """One that waits outweighs three that pass. What has lowered the number once does not count again."""
    held = HeldPulls()
    for most in (1, 0):
        lowered = []
        for second in range(1, enough + 1):
            for _ in range(passed if second > 1 else 0):
                assert not quick(held, second * SECOND - 200 * MS)
            lowered.append(block(held, second * SECOND))
        assert lowered == [False] * (enough - 1) + [True]
        assert held.most == most


def test_an_exchange_that_waited_may_be_answered_just_before_the_hold() -> None:
    held = HeldPulls()
    assert [block_before(held, second * SECOND, before_us=20 * MS) for second in (1, 2)] == [False, True]


@pytest.mark.parametrize(
    ("before_us", "took_us"),
    [
        pytest.param(20 * MS + 1, 500 * MS, id="long before the hold's end"),
        pytest.param(2 * MS, 105 * MS, id="sent shortly before its end"),
    ],
)
def test_an_answer_long_before_a_hold_ends_lowers_nothing(before_us: int, took_us: int) -> None:
    held = HeldPulls()
    for second in range(1, 20):
        assert not block_before(held, second * SECOND, before_us=before_us, took_us=took_us)


def test_an_answer_counts_for_one_hold_only() -> None:
    held = HeldPulls()
    assert not block_before(held, SECOND)
    assert not any(held.on_expired(8, SECOND + ms * MS) for ms in range(1, 10))


def test_the_window_after_a_hold_includes_two_round_trips() -> None:
    held = HeldPulls()
    after_us, took_us = 30 * MS, 135 * MS
    found = [block(held, second * SECOND, after_us=after_us, took_us=took_us) for second in (1, 2)]
    assert found == [False, True]


def test_more_pulls_may_be_held_again_after_waits_that_double() -> None:
    """Each try ends with the first exchange that waits for a hold."""
    held = HeldPulls()
    block(held, SECOND)
    now = 2 * SECOND
    for wait in (8, 16, 32, 64, 128, 256, 512, 600, 600):
        assert block(held, now)
        lowered_us = now + 2 * MS
        assert not quick(held, lowered_us + wait * SECOND - 1)
        assert quick(held, lowered_us + wait * SECOND)
        assert held.most == 2
        now = lowered_us + (wait + 12) * SECOND


def test_a_try_to_hold_more_is_over_when_three_pushes_have_passed() -> None:
    held = HeldPulls()
    block(held, SECOND)
    assert block(held, 2 * SECOND)
    assert [quick(held, (11 + second) * SECOND) for second in range(4)] == [True, False, False, False]
    assert not block(held, 16 * SECOND)


def test_the_second_pull_may_be_held_again_soon_after_the_first() -> None:
    held = HeldPulls()
    for second in range(1, 5):
        block(held, second * SECOND)
    assert held.most == 0
    first_us = 4 * SECOND + 2 * MS + 16 * SECOND
    assert quick(held, first_us)
    assert not quick(held, first_us + 8 * SECOND - 1)
    assert quick(held, first_us + 8 * SECOND)
    assert held.most == 2


@pytest.mark.parametrize(("lasted_us", "wait"), [(60 * SECOND - 1, 16), (60 * SECOND, 8)])
def test_the_wait_is_short_again_when_all_pulls_were_held_for_a_minute(lasted_us: int, wait: int) -> None:
    held = HeldPulls()
    block(held, SECOND)
    assert block(held, 2 * SECOND)
    full_us = 2 * SECOND + 2 * MS + 8 * SECOND
    assert quick(held, full_us)
    lowered_us = full_us + lasted_us
    assert block(held, lowered_us - 2 * MS)
    assert not quick(held, lowered_us + wait * SECOND - 1)
    assert quick(held, lowered_us + wait * SECOND)


def test_one_hold_counts_once() -> None:
    """In a queue of uploads, several bodies are answered just after a hold, by chance or because they waited for it."""
    held = HeldPulls()
    for second in range(1, 3):
        held.on_expired(8, second * SECOND)
        lowered = [
            held.on_answered(second * SECOND - 500 * MS, LEAST_US, 8, 2, second * SECOND + ms) for ms in range(5)
        ]
        assert any(lowered) is (second == 2)
    held = HeldPulls()
    assert not block_before(held, SECOND)
    assert not held.on_answered(SECOND - 500 * MS, LEAST_US, 8, 2, SECOND + MS)


@pytest.mark.parametrize(
    ("sent_us", "answered_us"),
    [
        pytest.param(-500 * MS, 30 * MS + 1, id="long after the hold"),
        pytest.param(-105 * MS + 1, 3 * MS, id="sent shortly before its end"),
        pytest.param(-1, 200 * MS, id="sent just before its end"),
    ],
)
def test_a_late_exchange_that_travelled_when_a_hold_ended_changes_nothing(sent_us: int, answered_us: int) -> None:
    """It may have waited behind another one that waited for the hold."""
    held = HeldPulls()
    assert not block(held, SECOND)
    held.on_expired(8, 2 * SECOND)
    for _ in range(9):
        assert not held.on_answered(2 * SECOND + sent_us, LEAST_US, 8, 2, 2 * SECOND + answered_us)
    assert block(held, 3 * SECOND)


def test_a_late_exchange_that_left_when_a_hold_ended_is_evidence_against() -> None:
    held = HeldPulls()
    assert not block(held, SECOND)
    held.on_expired(8, 2 * SECOND)
    for _ in range(3):
        assert not held.on_answered(2 * SECOND, LEAST_US, 8, 2, 2 * SECOND + 200 * MS)
    assert not block(held, 3 * SECOND)
