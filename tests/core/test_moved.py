"""An endpoint that was moved to another relay: it ends the connections of which the other end does not follow (6.3)."""

import pytest

from tests.core.solo import KEY, Solo
from tunnel.core import Lost, LostReason
from tunnel.core.constants import MOVED_US, SECOND_US
from tunnel.wire import PacketType


def move(solo: Solo) -> None:
    solo.endpoint.on_attached(True, 1 << 20, 5000, solo.now, moved=True)


def test_connections_end_soon_that_stay_at_another_relay() -> None:  # 6.3
    solo = Solo().opened()
    initiator = solo.connection
    solo.route_key = KEY
    solo.served()
    acceptor = solo.connection
    solo.events()
    move(solo)
    solo.wait(MOVED_US - 1)
    assert solo.events() == []
    solo.wait(1)
    assert solo.events() == [Lost(made.id, LostReason.MOVED, "") for made in (initiator, acceptor)]
    assert not solo.endpoint.connections
    assert PacketType.ABORT not in solo.types()  # no route leads to the peer


def test_a_connection_of_which_both_ends_were_moved_goes_on() -> None:  # a failover
    solo = Solo().opened()
    move(solo)
    solo.wait(4 * SECOND_US)
    solo.connection.handshake.resume(solo.now)
    solo.endpoint.on_attached(True, 1 << 20, 5000, solo.now)  # the relay restarts, which is no move
    solo.wait(2 * MOVED_US)
    assert solo.events() == []


def test_the_other_end_may_wait_for_a_held_answer_before_it_is_moved() -> None:
    """Its relay dies silently: it learns that when the longest hold is over, 55 s after this side."""
    solo = Solo().opened()
    move(solo)
    solo.wait(56 * SECOND_US)
    assert solo.events() == []
    assert PacketType.CONNECT in solo.types()
    solo.connection.handshake.resume(solo.now)
    solo.wait(2 * MOVED_US)
    assert solo.events() == []


def test_a_second_move_gives_connections_no_further_time() -> None:
    solo = Solo().opened()
    move(solo)
    solo.wait(4 * SECOND_US)
    move(solo)
    solo.wait(MOVED_US - 4 * SECOND_US)
    assert solo.event(Lost).reason is LostReason.MOVED


def test_a_second_move_leaves_behind_what_was_resumed_after_the_first_one() -> None:
    solo = Solo().opened()
    left_first, solo_resumed = solo.connection, solo.opened().connection
    move(solo)
    solo.wait(SECOND_US)
    solo_resumed.handshake.resume(solo.now)
    opened = solo.opened().connection
    solo.wait(3 * SECOND_US)
    move(solo)
    solo.wait(MOVED_US - 4 * SECOND_US)
    assert solo.event(Lost).connection_id == left_first.id
    solo.wait(4 * SECOND_US - 1)
    assert solo.events() == []
    solo.wait(1)
    assert {lost.connection_id for lost in solo.events()} == {solo_resumed.id, opened.id}


def test_each_of_three_moves_counts() -> None:
    solo = Solo()
    made = []
    for _ in range(3):
        made.append(solo.opened().connection.id)
        move(solo)
        solo.wait(SECOND_US)
    solo.wait(MOVED_US - 3 * SECOND_US)
    for connection_id in made:
        assert solo.event(Lost).connection_id == connection_id
        solo.wait(SECOND_US)
    assert solo.events() == []


def test_a_connection_whose_route_is_lost_after_a_move_has_the_user_timeout() -> None:
    """Its other end was moved, too, and answered here: it may come again."""
    solo = Solo().opened()
    move(solo)
    solo.wait(SECOND_US)
    solo.connection.handshake.resume(solo.now)
    solo.connection.handshake.route_lost(solo.now)
    solo.wait(2 * MOVED_US)
    assert solo.events() == []


@pytest.mark.parametrize("absences", [(0, 100), (10, 30), (30, 30)])
def test_the_time_while_no_relay_answers_does_not_count_after_a_move(absences: tuple[int, ...]) -> None:
    solo = Solo().opened()
    move(solo)
    for away_s in absences:
        solo.wait(SECOND_US)
        solo.endpoint.on_detached(solo.now)
        solo.wait(away_s * SECOND_US)
        solo.endpoint.on_detached(solo.now)  # another report of the same absence
        solo.endpoint.handle_timeout(solo.now)
        solo.endpoint.on_attached(False, 1 << 20, 5000, solo.now)
    solo.wait(MOVED_US - len(absences) * SECOND_US - 1)
    assert solo.events() == []
    solo.wait(1)
    assert solo.event(Lost).reason is LostReason.MOVED


def test_the_time_between_two_moves_while_no_relay_answers_does_not_make_a_resumed_connection_old() -> None:
    """The first move's time is over later, but it concerns only what was not resumed since that move."""
    solo = Solo().opened()
    move(solo)
    solo.endpoint.on_detached(solo.now)
    solo.wait(100 * SECOND_US)
    solo.endpoint.on_attached(False, 1 << 20, 5000, solo.now)
    solo.connection.handshake.resume(solo.now)
    solo.connection.handshake.route_lost(solo.now)
    solo.wait(2 * MOVED_US)
    assert solo.events() == []
