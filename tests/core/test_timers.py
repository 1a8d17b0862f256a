"""The timer table."""

from hypothesis import given
from hypothesis import strategies as st

from tunnel.core.constants import NEVER_US
from tunnel.core.timers import Timer, TimerTable

TIMERS = st.sampled_from(Timer)


def test_a_timer_fires_once() -> None:
    timers = TimerTable()
    assert not timers.due(Timer.DRAIN, NEVER_US - 1)
    timers.set(Timer.DRAIN, 10)
    assert timers.get(Timer.DRAIN) == 10
    assert not timers.due(Timer.DRAIN, 9)
    assert timers.due(Timer.DRAIN, 10)
    assert not timers.due(Timer.DRAIN, 11)


def test_a_cleared_timer_has_no_deadline() -> None:
    timers = TimerTable()
    timers.set(Timer.DRAIN, 10)
    timers.set(Timer.OPEN, 20)
    timers.clear(Timer.DRAIN)
    assert timers.next() == 20
    timers.clear_all()
    assert timers.next() == timers.earliest == NEVER_US


@given(st.lists(st.tuples(TIMERS, st.integers(0, 9) | st.just(NEVER_US))))
def test_earliest_is_never_too_late_and_next_is_exact(steps: list[tuple[Timer, int]]) -> None:
    timers, model = TimerTable(), dict.fromkeys(Timer, NEVER_US)
    for timer, deadline in steps:
        if deadline == NEVER_US:
            timers.clear(timer)
        else:
            timers.set(timer, deadline)
        model[timer] = deadline
        assert timers.earliest <= min(model.values())
        if deadline % 3 == 0:
            assert timers.next() == timers.earliest == min(model.values())
