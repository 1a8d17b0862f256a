"""Every state against every input, on real connections: an input without a row in TRANSITIONS changes nothing."""

from collections.abc import Callable

import pytest

from tests.core.connection.rig import REACH
from tests.core.solo import Solo
from tunnel.core.connection.state import LIVE, TRANSITIONS, Action, Input, State
from tunnel.core.errors import TunnelError
from tunnel.core.timers import Timer
from tunnel.wire import PacketType

TIMERS = [timer for timer in Timer if timer is not Timer.FAREWELL]  # FAREWELL repeats SHUTDOWN, whatever arrives


@pytest.mark.parametrize("event", Input, ids=[event.name for event in Input])
@pytest.mark.parametrize("state", State, ids=[state.name for state in State])
def test_only_inputs_with_a_row_have_an_effect(state: State, event: Input) -> None:
    solo = Solo()
    REACH[state](solo)
    connection = solo.connection
    assert connection.state is state
    solo.out()
    solo.events()
    row = TRANSITIONS.get((state, event))
    deadlines = [connection.timers.get(timer) for timer in TIMERS]
    assert connection.apply(event, solo.now) == (row is not None)
    if row is None:
        assert connection.state is state
        assert deadlines == [connection.timers.get(timer) for timer in TIMERS]
        assert (solo.events(), solo.out()) == ([], [])
        return
    target, actions = row
    assert connection.state is target
    events = solo.events()
    told = [action for action in actions if action in (Action.REPORT_CLOSED, Action.SURFACE)]
    assert len(events) >= len(told)
    solo.endpoint.touch(connection)
    types = [packet.type for packet in solo.out()]
    shutdowns = [action for action in actions if action in (Action.SEND_SHUTDOWN, Action.SEND_LAST_SHUTDOWN)]
    assert types.count(PacketType.SHUTDOWN) == len(shutdowns)
    assert (connection.id in solo.endpoint.connections) == (target is not State.CLOSED)
    assert connection.receiver.window.discarding or target not in (State.DRAIN, State.CLOSED, State.CLOSING)


@pytest.mark.parametrize("state", [state for state in State if state in LIVE])
def test_every_live_connection_can_be_aborted(state: State) -> None:
    solo = Solo()
    REACH[state](solo)
    solo.connection.abort(solo.now)
    assert solo.in_state(State.CLOSED)
    assert solo.endpoint.connections == {}
    assert solo.endpoint.budget.granted_bytes == 0
    assert solo.endpoint.next_timeout() is None


def succeeds(command: Callable[..., object], *arguments: object) -> bool:
    """Return whether the command was allowed; errors other than TunnelError are raised."""
    try:
        command(*arguments)
    except TunnelError:
        return False
    return True


@pytest.mark.parametrize("state", State, ids=[state.name for state in State])
def test_a_command_that_raises_leaves_the_state_as_it_was(state: State) -> None:
    for command in ("write", "read", "finish", "close", "abort"):
        solo = Solo()
        REACH[state](solo)
        before = solo.connection.state
        arguments = {"write": (b"x", solo.now), "read": (10, solo.now)}.get(command, (solo.now,))
        if not succeeds(getattr(solo.connection, command), *arguments):
            assert solo.connection.state is before
        solo.out()
        solo.wait(1_000_000_000)
        solo.out()
