"""The actions of the state table, one by one; how long the drain lasts; and what the end of the peer proves."""

import pytest

from tests.core.solo import KEY, PEER, SERVICE, TARGET, Solo
from tunnel.core import Closed, Connected, EndpointConfig, Event, Incoming, Lost, LostReason, State
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


@pytest.mark.parametrize("target", [SERVICE, TARGET])
def test_surface_reports_incoming_for_a_service_and_connected_for_a_target(target: object) -> None:  # 3.5
    solo = Solo()
    solo.endpoint.listen("s", 4, solo.now)
    solo.request(target)  # type: ignore[arg-type]
    own = solo.connection.id
    assert act(solo, Action.SURFACE) == [Incoming(own, "s", "") if target is SERVICE else Connected(own)]
    assert not solo.connection.handshake.unseen


def test_discarding_records_the_last_number_in_order_for_our_close() -> None:  # 5.2, 2.5
    solo = Solo().opened()
    solo.data(0, b"abc")
    solo.data(7, b"abc")
    act(solo, Action.DISCARD_RECEIVED)
    assert solo.connection.sender.window.close_received == 2**32 + 2**32 - 1
    assert solo.connection.receiver.window.discarding
    early = Solo().connect()
    act(early, Action.DISCARD_RECEIVED)
    assert early.connection.sender.window.close_received is None  # the peer's numbers are not known yet


def test_close_is_queued_after_everything_written() -> None:  # 5.2
    solo = Solo().opened()
    solo.connection.write(b"abc", solo.now)
    act(solo, Action.QUEUE_CLOSE)
    assert solo.types() == [PacketType.DATA, PacketType.CLOSE]
    assert solo.connection.closing.finished_writing


def test_junking_stops_the_senders_timers_and_records_the_loss() -> None:  # 5.3
    solo = Solo().opened()
    solo.connection.write(b"abc", solo.now)
    solo.out()
    act(solo, Action.JUNK_SEND)
    assert solo.connection.timers.get(Timer.RETRANSMIT) == NEVER_US
    assert solo.connection.closing.loss == (LostReason.PEER_CLOSED, "3 bytes were not acknowledged")


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


def test_a_release_that_has_begun_does_not_begin_again_and_the_last_shutdown_awaits_no_answer() -> None:  # 5.7
    solo = Solo().opened()
    act(solo, Action.SEND_SHUTDOWN)
    assert [packet.attempt for packet in solo.out()] == [0]
    act(solo, Action.SEND_SHUTDOWN)
    assert solo.out() == []
    solo.connection.state = State.DRAIN
    solo.wait(SECOND_US)
    assert [packet.attempt for packet in solo.out()] == [1]
    act(solo, Action.SEND_SHUTDOWN)
    assert solo.out() == []
    act(solo, Action.SEND_LAST_SHUTDOWN)
    assert [packet.attempt for packet in solo.out()] == [0]


@pytest.mark.parametrize(("user_timeout_s", "drain_s"), [(10, 60), (300, 300)])
def test_the_drain_lasts_a_minute_or_the_user_timeout_if_longer(user_timeout_s: int, drain_s: int) -> None:  # 5.7
    solo = Solo(EndpointConfig(budget_bytes=1 << 20, user_timeout_us=user_timeout_s * SECOND_US)).opened()
    expected = drain_s * SECOND_US
    solo.connection.state = State.DRAIN
    act(solo, Action.START_DRAIN)
    assert solo.connection.timers.get(Timer.DRAIN) == solo.now + expected
    assert solo.connection.timers.get(Timer.KEEPALIVE) == NEVER_US
    assert solo.endpoint.budget.granted_bytes == 0


def test_the_drain_ends_at_once_when_the_peer_has_sent_shutdown() -> None:  # 5.7
    solo = Solo().opened()
    solo.connection.closing._peer_released = True
    solo.connection.state = State.DRAIN
    act(solo, Action.START_DRAIN)
    assert solo.in_state(State.CLOSED)
    assert solo.types() == [PacketType.SHUTDOWN]


def test_forgetting_frees_everything_but_the_id() -> None:  # 3.1
    solo = Solo().opened()
    solo.data(0, b"abc")
    solo.connection.write(b"abc", solo.now)
    solo.connection.state = State.CLOSED
    act(solo, Action.FORGET)
    assert solo.endpoint.connections == {}
    assert solo.endpoint.tombstones.has_id(solo.connection.id)
    assert solo.endpoint.budget.granted_bytes == 0
    assert solo.connection.timers.next() == NEVER_US
    assert not solo.connection.sender.window.outstanding
    assert solo.endpoint.tombstones.answer(("", KEY), solo.now) is None
    assert solo.endpoint.tombstones.answer(("", solo.route_key), solo.now) is None  # an initiator answers no CONNECT


def test_forgetting_keeps_the_answer_of_an_acceptor() -> None:  # 3.3
    solo = Solo()
    solo.request()
    solo.connection.state = State.CLOSED
    act(solo, Action.FORGET)
    assert solo.endpoint.tombstones.answer(("", KEY), solo.now) is not None


def test_the_drain_goes_on_without_a_route_for_the_user_timeout() -> None:  # 5.7, 4.15
    solo = Solo().served()
    solo.end(0)
    solo.out()
    assert solo.in_state(State.DRAIN)
    solo.relay(PacketType.DROPPED, encode_dropped(Dropped(DropReason.NO_ROUTE, 0, 0, 0)))
    solo.wait(299 * SECOND_US)
    assert solo.in_state(State.DRAIN)
    solo.wait(61 * SECOND_US)
    assert solo.in_state(State.CLOSED)


def test_a_peer_that_ended_without_a_close_has_received_everything() -> None:  # 5.7
    solo = Solo().opened()
    solo.connection.write(b"abc", solo.now)
    solo.connection.close(solo.now)
    solo.out()
    solo.connection.all_received(solo.now)
    assert solo.in_state(State.DRAIN)
    assert solo.events() == [Closed(solo.connection.id)]


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
