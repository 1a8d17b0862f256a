"""The tries of connections: their tables, and what each state allows (8.6)."""

from random import Random

import pytest

from tunnel.exchange import Next, Refusal, RoadTries, Try
from tunnel.exchange.backoff import Backoff
from tunnel.exchange.path.pulls import NEVER_US
from tunnel.exchange.roads.road_tries import NEXT_TRANSITIONS, TRY_TRANSITIONS, NextEvent, TryEvent

SECOND = 1_000_000


def idle() -> RoadTries:
    return RoadTries(Random(1), Backoff(Random(2)))


def trying(*, carries: bool = True) -> RoadTries:
    tries = idle()
    assert tries.want("link", 0, is_narrow=False, carries=carries)
    return tries


def test_every_state_is_reached_and_left() -> None:
    assert {state for state, _ in TRY_TRANSITIONS} == set(TRY_TRANSITIONS.values()) == set(Try)
    assert {event for _, event in TRY_TRANSITIONS} == set(TryEvent)
    assert {state for state, _ in NEXT_TRANSITIONS} == set(NEXT_TRANSITIONS.values()) == set(Next)
    assert {event for _, event in NEXT_TRANSITIONS} == set(NextEvent)


def test_each_try_ends_as_idle_and_a_lost_generation_makes_it_stale() -> None:
    for state in (Try.WANTED, Try.SPARE, Try.STALE):
        assert TRY_TRANSITIONS[state, TryEvent.ENDED] is Try.IDLE
        assert (state, TryEvent.BEGAN) not in TRY_TRANSITIONS, "one connection is opened at a time"
    for state in (Try.WANTED, Try.SPARE):
        assert TRY_TRANSITIONS[state, TryEvent.DETACHED] is Try.STALE


def test_a_lost_generation_forgets_the_road_that_waits() -> None:
    for state in (Next.END, Next.PULL, Next.TAKEN):
        assert NEXT_TRANSITIONS[state, NextEvent.DETACHED] is Next.NONE


def test_a_wanted_road_is_tried_at_once_if_nothing_hinders() -> None:
    tries = trying()
    assert (tries.state, tries.next, tries.road) == (Try.WANTED, Next.NONE, "link")
    assert (tries.next_due_us, tries.spare_due_us) == (NEVER_US, NEVER_US)
    assert tries.end() is Try.WANTED
    assert tries.state is Try.IDLE


def test_a_wanted_road_waits_for_the_end_of_the_present_try() -> None:
    tries = idle()
    tries.begin_spare("link", 0)
    assert not tries.want("websocket", 0, is_narrow=False, carries=True)
    assert (tries.state, tries.next, tries.road, tries.next_due_us) == (Try.SPARE, Next.END, "link", NEVER_US)
    assert tries.end() is Try.SPARE
    assert (tries.next_due_us, tries.spare_due_us) == (0, NEVER_US), "the road that waits goes first"
    assert tries.begin_next(0, carries=True)
    assert (tries.state, tries.next, tries.road) == (Try.WANTED, Next.NONE, "websocket")


def test_a_road_that_waits_also_waits_for_a_pause_of_all_requests() -> None:
    backoff = Backoff(Random(2))
    tries = RoadTries(Random(1), backoff)
    tries.begin_spare("link", 0)
    tries.want("link", 0, is_narrow=False, carries=True)
    tries.end()
    backoff.on_refused(Refusal.BANNED, 0, 0, retry_after_us=25 * SECOND)
    assert tries.next_due_us == 25 * SECOND
    assert tries.spare_due_us == NEVER_US


@pytest.mark.parametrize("end", ["end", "detached"])
def test_on_a_narrow_path_a_road_waits_for_the_turn_of_a_pull_and_keeps_it_until_its_end(end: str) -> None:
    tries = idle()
    assert not tries.want("link", 0, is_narrow=True, carries=False)
    assert (tries.state, tries.next, tries.may_hold, tries.next_due_us) == (Try.IDLE, Next.PULL, False, 0)
    assert tries.begin_next(5, carries=False)
    assert (tries.state, tries.next, tries.may_hold, tries.began_us) == (Try.WANTED, Next.TAKEN, False, 5)
    if end == "end":
        assert tries.end() is Try.WANTED
    else:
        tries.on_detached()
        assert tries.state is Try.STALE
    assert (tries.next, tries.may_hold) == (Next.NONE, True)


def test_a_road_whose_turn_comes_during_another_try_waits_for_its_end() -> None:
    tries = trying()
    tries.on_detached()
    tries.want("websocket", 0, is_narrow=True, carries=False)
    assert (tries.next, tries.next_due_us) == (Next.PULL, 0)
    assert not tries.begin_next(0, carries=False)
    assert (tries.state, tries.next, tries.next_due_us) == (Try.STALE, Next.END, NEVER_US)
    tries.end()
    assert tries.next_due_us == 0
    assert tries.begin_next(0, carries=False)
    assert (tries.state, tries.next, tries.road) == (Try.WANTED, Next.NONE, "websocket")


def test_a_road_that_waits_for_a_pull_is_forgotten_when_a_spare_has_proven_it() -> None:
    tries = idle()
    tries.want("link", 0, is_narrow=True, carries=False)
    tries.on_used()
    assert (tries.next, tries.may_hold, tries.next_due_us) == (Next.NONE, True, NEVER_US)


def test_a_connection_in_use_needs_no_turn_of_a_pull() -> None:
    assert idle().want("link", 0, is_narrow=True, carries=True)


def test_a_path_on_which_an_exchange_had_to_wait_counts_as_narrow_for_ten_minutes() -> None:
    tries = trying(carries=False)
    assert tries.began_us == 0
    tries.make_way(7 * SECOND)
    assert tries.began_us is None
    tries.end()
    assert not tries.want("link", 606 * SECOND, is_narrow=False, carries=False)
    assert tries.next is Next.PULL
    tries.on_used()
    assert tries.want("link", 607 * SECOND, is_narrow=False, carries=False)


def test_only_a_try_for_which_exchanges_may_wait_counts_since_its_beginning() -> None:
    assert trying(carries=False).began_us == 0
    assert trying(carries=True).began_us is None
    spare = idle()
    spare.begin_spare("link", 3)
    assert spare.began_us is None


def test_a_generation_that_ends_while_nothing_is_tried_leaves_the_next_try_as_it_is() -> None:
    tries = idle()
    tries.on_detached()
    assert tries.want("link", 0, is_narrow=False, carries=False)
    assert tries.state is Try.WANTED
