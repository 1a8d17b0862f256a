"""The actions of the state table, and what a peer that lies about the end cannot do."""

import pytest

from tests.core.solo import PEER, Solo
from tunnel.core import EndpointConfig, Event, Lost, LostReason, State
from tunnel.core.connection.connection import ACTIONS
from tunnel.core.connection.state import Action
from tunnel.core.constants import SECOND_US
from tunnel.wire import Dropped, DropReason, PacketType, encode_dropped


def test_every_action_can_be_carried_out() -> None:
    assert set(ACTIONS) == set(Action)


def test_data_that_never_left_does_not_count_as_received() -> None:
    """Only a peer that lies can claim to have ended before our CLOSE reached it."""
    solo = Solo().opened()
    solo.connection.write(b"abc", solo.now)
    solo.connection.close(solo.now)
    solo.connection.all_received(solo.now)
    assert solo.events() == [Lost(solo.connection.id, LostReason.PEER_CLOSED, "3 bytes were not acknowledged")]


def act(solo: Solo, action: Action) -> list[Event]:
    """Carry out an action and return the events that it caused."""
    solo.events()
    ACTIONS[action](solo.connection, solo.now)
    solo.endpoint.touch(solo.connection)
    return solo.events()


@pytest.mark.parametrize("action", [Action.SEND_SHUTDOWN, Action.SEND_LAST_SHUTDOWN])
def test_shutdown_is_sent_only_when_the_peers_id_is_known(action: Action) -> None:
    solo = Solo().opened()
    act(solo, action)
    (packet,) = solo.out()
    assert (packet.type, packet.source, packet.destination) == (PacketType.SHUTDOWN, solo.connection.id, PEER)
    assert packet.sequence == 0
    alone = Solo().connect()
    act(alone, action)
    assert alone.out() == []


def test_a_drain_that_expires_without_a_route_starts_again() -> None:  # 5.7, 4.15
    solo = Solo(EndpointConfig(exit=True, user_timeout_us=100 * SECOND_US)).served()
    solo.end(0)
    solo.out()
    solo.wait(90 * SECOND_US)
    solo.relay(PacketType.DROPPED, encode_dropped(Dropped(DropReason.NO_ROUTE, 0, 0, 0)))
    solo.wait(99 * SECOND_US)
    assert solo.in_state(State.DRAIN)
    solo.wait(101 * SECOND_US)
    assert solo.in_state(State.CLOSED)
