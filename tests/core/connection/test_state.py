"""The state table as data: what holds on every path through it."""

from collections.abc import Iterator

import pytest

from tunnel.core.connection.state import CLOSING, LIVE, OPENING, TRANSITIONS, Action, Input, State

STATES = list(State)
INPUTS = list(Input)


def reachable(start: State) -> set[State]:
    found, todo = {start}, [start]
    while todo:
        state = todo.pop()
        for (source, _), (target, _) in TRANSITIONS.items():
            if source is state and target not in found:
                found.add(target)
                todo.append(target)
    return found


@pytest.mark.parametrize("state", STATES)
def test_every_state_can_end(state: State) -> None:
    assert State.CLOSED in reachable(state)
    if state in LIVE:
        target, actions = TRANSITIONS[state, Input.LOST]
        assert target is State.CLOSED
        assert actions == (Action.REPORT_CLOSED, Action.FORGET)


def test_a_closed_connection_has_no_transitions() -> None:
    assert not [row for row in TRANSITIONS if row[0] is State.CLOSED]
    assert TRANSITIONS[State.DRAIN, Input.LOST] == (State.CLOSED, (Action.FORGET,))
    assert State.DRAIN not in LIVE


def test_every_state_is_reached_from_connecting_or_requested() -> None:
    assert reachable(State.CONNECTING) | reachable(State.REQUESTED) == set(State)


def test_the_two_tables_do_not_contradict_each_other() -> None:
    assert not OPENING.keys() & CLOSING.keys()
    assert len(TRANSITIONS) == len(OPENING) + len(CLOSING) + len(LIVE)


def paths(state: State, seen: tuple[State, ...] = ()) -> Iterator[tuple[tuple[Input, tuple[Action, ...]], ...]]:
    """Yield every path from a state to CLOSED that visits no state twice."""
    if state is State.CLOSED:
        yield ()
        return
    for (source, event), (target, actions) in TRANSITIONS.items():
        if source is state and target not in (*seen, state):
            for rest in paths(target, (*seen, state)):
                yield ((event, actions), *rest)


@pytest.mark.parametrize("start", [State.CONNECTING, State.REQUESTED])
def test_on_every_path_the_end_is_reported_at_most_once_and_everything_is_freed_once(start: State) -> None:
    for path in paths(start):
        done = [action for _, actions in path for action in actions]
        assert done.count(Action.FORGET) == 1
        assert done[-1] is Action.FORGET
        told = done.count(Action.REPORT_CLOSED)
        # REJECTED and refuse() are reported by other events
        by_word = any(event in (Input.REJECTED, Input.REFUSE_CALLED) for event, _ in path)
        assert told == (0 if by_word else 1)


def test_the_drain_starts_after_all_other_actions_of_its_row() -> None:
    """The drain ends at once when SHUTDOWN has come before it, and then no action may follow."""
    for actions in (actions for _, actions in TRANSITIONS.values()):
        assert Action.START_DRAIN not in actions[:-1]
        assert Action.FORGET not in actions[:-1]


def test_close_is_queued_once_on_every_path() -> None:
    for start in (State.CONNECTING, State.REQUESTED):
        for path in paths(start):
            closes = [index for index, (_, actions) in enumerate(path) if Action.QUEUE_CLOSE in actions]
            assert len(closes) <= 1
            assert all(path[index][0] is Input.CLOSE_CALLED for index in closes)
