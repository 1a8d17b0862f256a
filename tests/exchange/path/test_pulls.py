"""When to pull, how many pulls at once, and with which hold (PROTOCOL 7.15)."""

import pytest

from tunnel.exchange.path.pulls import NEVER_US, Pulled, PullMode, PullPolicy

MS = 1_000
SECOND = 1_000_000
HOLD_US = 15 * SECOND


def policy(interval_us: int = 0, *, can_hold: bool = True) -> PullPolicy:
    pulls = PullPolicy(SECOND)
    if can_hold and not interval_us:
        return pulls
    pulls.configure(interval_us, can_hold=can_hold, held_max=2)
    return pulls


def pulled(
    *,
    pull: bool = True,
    empty: bool = True,
    more: bool = False,
    hold_us: int = 0,
    took_us: int = 10 * MS,
    repeated: bool = False,
) -> Pulled:
    return Pulled(pull, empty, more, hold_us, took_us, repeated)


def test_the_mode_follows_from_interval_and_path() -> None:
    assert policy().mode is PullMode.HOLDING
    assert policy(can_hold=False).mode is PullMode.POLLING
    assert policy(SECOND).mode is PullMode.INTERVAL


@pytest.mark.parametrize("pulls", [policy(), policy(can_hold=False), policy(SECOND)])
def test_all_lanes_but_one_pull_at_once_without_a_hold_while_more_waits(pulls: PullPolicy) -> None:
    pulls.on_answered(pulled(empty=False, more=True), 100)
    assert [pulls.due_us(out, 4) for out in range(4)] == [0, 0, 0, NEVER_US]
    assert [pulls.due_us(out, 1) for out in range(2)] == [0, NEVER_US]
    assert pulls.on_started(HOLD_US, 100) == 0
    pulls.on_answered(pulled(), 200)
    assert not pulls.more_waits


# holding


def test_one_pull_is_always_in_flight() -> None:
    pulls = policy()
    assert pulls.due_us(0, 4) == 0
    assert pulls.due_us(1, 4) == NEVER_US


def test_two_pulls_are_in_flight_while_packets_flow_if_lanes_allow() -> None:
    pulls = policy()
    pulls.on_answered(pulled(empty=False), 100)
    assert pulls.due_us(1, 3) == 0
    assert pulls.due_us(2, 3) == NEVER_US
    assert pulls.due_us(1, 2) == NEVER_US
    pulls.on_answered(pulled(pull=False), 150)
    assert pulls.due_us(1, 3) == 0
    pulls.on_answered(pulled(hold_us=SECOND, took_us=SECOND), 200)
    assert pulls.due_us(1, 3) == NEVER_US
    pulls.configure(0, can_hold=True, held_max=1)
    pulls.on_answered(pulled(empty=False), 300)
    assert pulls.due_us(1, 3) == NEVER_US


def test_holds_double_while_nothing_comes_and_are_short_after_packets() -> None:
    pulls = policy()
    holds = []
    for _ in range(6):
        hold_us = pulls.on_started(HOLD_US, 0)
        holds.append(hold_us // SECOND)
        pulls.on_answered(pulled(hold_us=hold_us, took_us=hold_us), 0)
    assert holds == [1, 2, 4, 8, 15, 15]
    pulls.on_answered(pulled(empty=False, hold_us=HOLD_US, took_us=HOLD_US), 0)
    assert pulls.on_started(HOLD_US, 0) == SECOND
    assert pulls.on_started(500 * MS, 0) == 500 * MS


def test_a_relay_that_does_not_hold_pulls_is_asked_with_backoff() -> None:
    pulls = policy()
    due = []
    for _ in range(7):
        pulls.on_answered(pulled(hold_us=SECOND, took_us=10 * MS), 0)
        due.append(pulls.due_us(0, 2) // MS)
    assert due == [50, 100, 200, 400, 800, 1000, 1000]
    pulls.on_answered(pulled(hold_us=SECOND, took_us=SECOND), 0)
    assert pulls.due_us(0, 2) == 0
    pulls.on_answered(pulled(hold_us=SECOND, took_us=10 * MS), 0)
    assert pulls.due_us(0, 2) == 50 * MS
    pulls.on_answered(pulled(empty=False), 0)
    assert pulls.due_us(0, 2) == 0


def test_an_empty_answer_to_a_repeat_or_without_a_hold_starts_no_backoff() -> None:
    pulls = policy()
    pulls.on_answered(pulled(hold_us=SECOND, repeated=True), 0)
    pulls.on_answered(pulled(), 0)
    assert pulls.due_us(0, 2) == 0
    assert pulls.on_started(HOLD_US, 0) == SECOND


# polling


def test_polls_follow_packets_at_once_and_back_off_when_nothing_comes() -> None:
    pulls = policy(can_hold=False)
    assert pulls.due_us(0, 1) == 0
    assert pulls.on_started(HOLD_US, 0) == 0
    due = []
    for _ in range(7):
        pulls.on_answered(pulled(), 5)
        due.append((pulls.due_us(0, 1) - 5) // MS)
    assert due == [50, 100, 200, 400, 800, 1000, 1000]
    pulls.on_answered(pulled(empty=False), 7)
    assert pulls.due_us(0, 1) == 7
    pulls.on_answered(pulled(), 8)
    assert pulls.due_us(0, 1) == 8 + 50 * MS


def test_a_push_brings_the_next_poll_forward() -> None:
    pulls = policy(can_hold=False)
    for _ in range(7):
        pulls.on_answered(pulled(), 0)
    pulls.on_answered(pulled(pull=False), 100 * MS)
    assert pulls.due_us(0, 1) == 150 * MS
    pulls.on_answered(pulled(pull=False), 120 * MS)
    assert pulls.due_us(0, 1) == 150 * MS


# interval


def test_pulls_come_at_their_interval() -> None:
    pulls = policy(SECOND)
    assert pulls.due_us(0, 4) == 0
    assert pulls.on_started(HOLD_US, 7) == 0
    pulls.on_answered(pulled(empty=False), 20 * MS)
    assert pulls.due_us(0, 4) == SECOND + 7
    assert pulls.due_us(1, 4) == NEVER_US


def test_configuring_resets_the_policy() -> None:
    pulls = policy(SECOND)
    pulls.on_started(HOLD_US, 7)
    pulls.on_answered(pulled(more=True, empty=False), 8)
    pulls.configure(0, can_hold=True, held_max=2)
    assert (pulls.mode, pulls.more_waits, pulls.interval_us) == (PullMode.HOLDING, False, 0)
    assert pulls.due_us(0, 2) == 0


def test_the_answer_to_a_repeated_pull_does_not_change_the_hold() -> None:
    pulls = policy()
    pulls.on_answered(pulled(hold_us=SECOND, took_us=SECOND, repeated=True), 100)
    assert pulls.on_started(HOLD_US, 100) == SECOND


@pytest.mark.parametrize(("took_us", "hold_us", "due_us"), [(500 * MS, 2 * SECOND, 0), (400 * MS, SECOND, 50 * MS)])
def test_an_answer_after_half_the_hold_shows_that_the_relay_holds(took_us: int, hold_us: int, due_us: int) -> None:
    pulls = policy()
    pulls.on_answered(pulled(hold_us=SECOND, took_us=took_us), 0)
    assert pulls.due_us(0, 4) == due_us
    assert pulls.on_started(HOLD_US, due_us) == hold_us
