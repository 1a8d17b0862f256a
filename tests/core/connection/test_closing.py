"""The actions of the state table, one by one; how long the drain lasts; and what the end of the peer proves."""

import pytest

from tests.core.solo import PEER, SERVICE, Solo
from tunnel.core import Closed, Connected, EndpointConfig, Event, Lost, LostReason, State
from tunnel.core.connection.connection import ACTIONS
from tunnel.core.connection.state import Action
from tunnel.core.constants import NEVER_US, SECOND_US
from tunnel.core.timers import Timer
from tunnel.wire import Dropped, DropReason, PacketType, encode_dropped


def act(solo: Solo, action: Action) -> list[Event]:
    """Carry out an action and return the events that it caused."""
    solo.events()
    ACTIONS[action](solo.connection, solo.now)
    solo.endpoint.touch(solo.connection)
    return solo.events()


def test_every_action_can_be_carried_out() -> None:
    assert set(ACTIONS) == set(Action)


def test_begin_starts_keepalive_and_reports_connected_to_an_initiator() -> None:
    solo = Solo().connect()
    solo.connection.write(b"early", solo.now)
    solo.out()
    solo.connection.sender.suspend()
    assert act(solo, Action.BEGIN) == [Connected(solo.connection.id)]
    assert not solo.connection.sender.suspended
    assert not solo.connection.sender.window.ends_held
    assert solo.connection.timers.get(Timer.OPEN) == NEVER_US
    assert solo.connection.timers.get(Timer.KEEPALIVE) == solo.now + 60 * SECOND_US
    assert solo.connection.timers.get(Timer.RETRANSMIT) == solo.now + SECOND_US
    acceptor = Solo()
    acceptor.request()
    assert act(acceptor, Action.BEGIN) == []
    assert not acceptor.connection.sender.suspended


def test_answers_have_the_initiators_id_as_their_source() -> None:
    solo = Solo()
    solo.request()
    act(solo, Action.SEND_ACCEPTED)
    solo.connection.state = State.ACCEPTED
    act(solo, Action.BEGIN)
    act(solo, Action.SEND_REJECTED)
    packets = {packet.type: packet for packet in solo.out()}
    assert set(packets) == {PacketType.ACCEPTED, PacketType.REJECTED}
    assert {packet.source for packet in packets.values()} == {PEER}


def test_the_end_is_reported_only_for_a_connection_that_was_reported() -> None:
    solo = Solo().opened()
    assert act(solo, Action.REPORT_CLOSED) == [Closed(solo.connection.id)]
    solo.connection.closing.loss = (LostReason.RESET, "text")
    assert act(solo, Action.REPORT_CLOSED) == [Lost(solo.connection.id, LostReason.RESET, "text")]
    hidden = Solo()
    hidden.endpoint.listen("s", 4, hidden.now)
    hidden.request(SERVICE)
    assert act(hidden, Action.REPORT_CLOSED) == []


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


def test_data_that_never_left_does_not_count_as_received() -> None:
    """Only a peer that lies can claim to have ended before our CLOSE reached it."""
    solo = Solo().opened()
    solo.connection.write(b"abc", solo.now)
    solo.connection.close(solo.now)
    solo.connection.all_received(solo.now)
    assert solo.events() == [Lost(solo.connection.id, LostReason.PEER_CLOSED, "3 bytes were not acknowledged")]


def test_data_that_has_left_counts_as_received_when_the_peer_has_ended() -> None:
    solo = Solo().opened()
    solo.connection.write(b"abc", solo.now)
    solo.out()
    solo.connection.close(solo.now)
    solo.connection.all_received(solo.now)
    assert solo.events() == [Closed(solo.connection.id)]


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
