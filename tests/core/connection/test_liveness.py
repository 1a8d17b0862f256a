"""Clauses 4.15 and 4.16: keepalive and user timeout."""

import pytest

from tunnel.core.connection.liveness import PONGS_MAX, Liveness
from tunnel.core.constants import NEVER_US, SECOND_US
from tunnel.core.timers import Timer, TimerTable

RTO_US = SECOND_US


def make(keepalive_us: int = 60 * SECOND_US, user_timeout_us: int = 300 * SECOND_US) -> tuple[Liveness, TimerTable]:
    timers = TimerTable()
    return Liveness(timers, keepalive_us, user_timeout_us, 0), timers


def test_anything_heard_answers_the_ping() -> None:
    liveness, timers = make()
    liveness.begin(0)
    liveness.handle_keepalive(RTO_US, 60 * SECOND_US)
    liveness.on_heard(61 * SECOND_US)
    assert not liveness.packet_due
    assert liveness.pinging_since_us == NEVER_US
    liveness.handle_keepalive(RTO_US, 61 * SECOND_US)
    assert timers.get(Timer.KEEPALIVE) == 121 * SECOND_US
    liveness.handle_keepalive(RTO_US, 121 * SECOND_US)  # silence again: pings start again
    assert liveness.pinging_since_us == 121 * SECOND_US
    assert timers.get(Timer.KEEPALIVE) == 122 * SECOND_US


@pytest.mark.parametrize(
    ("keepalive_us", "is_over", "later_us"),
    [(0, False, NEVER_US), (60 * SECOND_US, False, 67 * SECOND_US), (60 * SECOND_US, True, NEVER_US)],
    ids=["no keepalive", "keepalive", "over"],
)
def test_a_ping_that_was_asked_for_is_repeated_until_the_peer_is_heard(
    keepalive_us: int, is_over: bool, later_us: int
) -> None:
    liveness, timers = make(keepalive_us=keepalive_us)
    liveness.begin(0)
    liveness.ask(RTO_US, 5 * SECOND_US)
    assert liveness.take() == ([], True)
    liveness.handle_keepalive(RTO_US, 6 * SECOND_US, is_over=is_over)
    assert liveness.take() == ([], True)
    assert timers.get(Timer.KEEPALIVE) == 8 * SECOND_US
    liveness.on_heard(7 * SECOND_US)
    timers.clear(Timer.KEEPALIVE)  # it fires
    liveness.handle_keepalive(RTO_US, 8 * SECOND_US, is_over=is_over)
    assert liveness.take() == ([], False)
    assert timers.get(Timer.KEEPALIVE) == later_us


def test_the_user_timeout_counts_from_the_oldest_wait() -> None:
    liveness, timers = make()
    assert timers.get(Timer.USER_TIMEOUT) == 300 * SECOND_US
    assert not liveness.handle_user_timeout(10 * SECOND_US, 300 * SECOND_US)
    assert timers.get(Timer.USER_TIMEOUT) == 310 * SECOND_US
    assert liveness.handle_user_timeout(10 * SECOND_US, 310 * SECOND_US)


def test_with_nothing_unanswered_the_next_check_is_a_whole_user_timeout_later() -> None:
    liveness, timers = make()
    assert not liveness.handle_user_timeout(NEVER_US, 300 * SECOND_US)
    assert timers.get(Timer.USER_TIMEOUT) == 600 * SECOND_US


def test_a_shorter_timeout_of_the_peer_applies_to_waits_under_way() -> None:
    liveness, timers = make()
    liveness.limit(10 * SECOND_US)
    assert timers.get(Timer.USER_TIMEOUT) == 10 * SECOND_US
    assert liveness.handle_user_timeout(0, 10 * SECOND_US)
    liveness.limit(20 * SECOND_US)
    assert liveness.user_timeout_us == 20 * SECOND_US
    assert not liveness.handle_user_timeout(0, 10 * SECOND_US)


def test_a_timeout_shorter_by_a_microsecond_is_adopted() -> None:
    liveness, timers = make()
    liveness.limit(300 * SECOND_US - 1)
    assert timers.get(Timer.USER_TIMEOUT) == 300 * SECOND_US - 1


def test_hearing_the_peer_cancels_our_ping_but_not_the_pongs_that_wait() -> None:
    liveness, _ = make()
    liveness.begin(0)
    liveness.handle_keepalive(RTO_US, 60 * SECOND_US)
    liveness.queue_pong(b"one")
    liveness.on_heard(61 * SECOND_US)
    assert liveness.packet_due
    assert liveness.take() == ([b"one"], False)
    assert not liveness.packet_due
    liveness.queue_pong(b"two")
    liveness.handle_keepalive(RTO_US, 200 * SECOND_US)
    assert liveness.take() == ([b"two"], True)
    assert liveness.take() == ([], False)


def test_the_number_of_waiting_pongs_is_bounded() -> None:
    liveness, _ = make()
    for number in range(PONGS_MAX + 3):
        liveness.queue_pong(bytes([number]))
    assert liveness.take() == ([bytes([number]) for number in range(PONGS_MAX)], False)
