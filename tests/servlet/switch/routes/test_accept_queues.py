"""CONNECTs that wait for a listener with room, as in the accept queue of TCP (PROTOCOL 2.8, 3.2)."""

from typing import Any

import pytest

from tests.servlet.support import (
    REPORTS,
    SECOND,
    Peer,
    Relay,
    accepted,
    connect,
    control,
    data,
    key,
    kinds,
    listen_state,
    read_connect,
    read_rejected,
    rejected,
)
from tunnel.wire import PacketType, RejectReason, Target, TargetKind
from tunnel_servlet.switch.routes.accept_queues import AcceptQueues

CONNECT, ABORT, SHUTDOWN = PacketType.CONNECT, PacketType.ABORT, PacketType.SHUTDOWN


def scene(*users: str, backlog: int = 1, **settings: Any) -> tuple[Relay, Peer, list[Peer]]:
    """Return a relay, a listener, and one client of each user."""
    limits: dict[str, Any] = {"routes_per_attachment_max": 100, "routes_max": 1000, "routes_per_user_max": 1000}
    relay = Relay(**{**limits, **settings})
    listener = Peer(relay, "server", 2).attached()
    listener.listen(backlog=backlog)
    return relay, listener, [Peer(relay, user, 10 + number).attached() for number, user in enumerate(users)]


def burst(client: Peer, *sources: int) -> None:
    """Open connections to the service all at once."""
    assert client.push(*(connect(source, target=REPORTS, route_key=key(source)) for source in sources)) == []


def handed(listener: Peer) -> list[int]:
    """Return the initiators whose CONNECTs the listener gets."""
    return [packet.source for packet in listener.push() if packet.type == CONNECT]


def accept(listener: Peer, source: int) -> list[int]:
    """Accept a connection; return the initiators whose CONNECTs come back at once."""
    packets = listener.push(accepted(source, 1000 + source, route_key=key(source)))
    return [packet.source for packet in packets if packet.type == CONNECT]


def waiting(relay: Relay) -> int:
    return relay.switch.stats().routes_waiting


def refusals(client: Peer) -> list[tuple[int, int, str]]:
    found = [(packet.source, read_rejected(packet)) for packet in client.push() if packet.type == PacketType.REJECTED]
    return [(source, refusal.reason, refusal.text) for source, refusal in found]


def test_2_8_connects_beyond_the_backlog_wait_and_are_handed_on_in_order() -> None:
    relay, listener, (client,) = scene("ann", backlog=3)
    burst(client, 1, 2, 3, 4, 5)
    assert (handed(listener), waiting(relay)) == ([1, 2], 3)
    assert accept(listener, 2) == [3]
    assert accept(listener, 1) == [4]
    assert accept(listener, 3) == [5]
    assert (accept(listener, 5), waiting(relay)) == ([], 0)
    assert kinds(client.push()) == ["ACCEPTED"] * 4
    assert relay.counters.connects_refused == 0


def test_2_8_users_take_turns_so_that_a_burst_of_one_delays_another_by_one_place() -> None:
    _, listener, (ann, bob, eve) = scene("ann", "bob", "eve")
    burst(ann, *range(1, 40))
    burst(bob, 101, 102)
    burst(eve, 201)
    order = handed(listener)
    for _ in range(6):
        order += accept(listener, order[-1])
    assert order == [1, 2, 101, 201, 3, 102, 4]


def test_2_8_two_users_one_whose_connects_nobody_answers_leaves_the_other_room() -> None:
    """No user may have more unanswered CONNECTs at a listener than are free there."""
    relay, listener, (eve, again, bob, ann) = scene("eve", "eve", "bob", "ann", backlog=8)
    burst(eve, *range(1, 40))
    burst(again, *range(51, 60))
    assert handed(listener) == [1, 2, 3, 4]
    burst(bob, 101, 102, 103)
    assert handed(listener) == [101, 102]
    burst(ann, 201, 202)
    assert handed(listener) == [201]
    assert accept(listener, 101) == [103]
    assert accept(listener, 102) == [202]  # it is eve's turn, who has as many as are free
    relay.advance(relay.config.pending_timeout_us)
    assert {number for number, reason, _ in refusals(eve) if reason == RejectReason.TIMED_OUT} == {1, 2, 3, 4}


def test_2_8_the_attachments_of_one_user_share_their_turns() -> None:
    _, listener, (first, second, bob) = scene("ann", "ann", "bob")
    burst(first, 1, 2, 3)
    burst(second, 11, 12)
    burst(bob, 101, 102)
    order = handed(listener)
    for _ in range(6):
        order += accept(listener, order[-1])
    assert order == [1, 2, 101, 3, 102, 11, 12]


def test_2_8_a_later_connect_does_not_overtake_those_that_wait() -> None:
    """ACCEPTED and CONNECT may come in one batch: the room belongs to the one that waits."""
    relay = Relay()
    peer = Peer(relay, "ann", 2).attached()
    peer.listen(backlog=1)
    other = Peer(relay, "ann", 3).attached()
    burst(other, 1, 2)
    assert handed(peer) == [1]
    again = peer.push(accepted(1, 1001, route_key=key(1)), connect(31, target=REPORTS, route_key=key(31)))
    assert [packet.source for packet in again if packet.type == CONNECT] == [2]
    assert waiting(relay) == 1


def test_2_8_the_backlog_has_room_again_when_a_connect_is_refused_or_times_out() -> None:
    relay, listener, (client,) = scene("ann")
    burst(client, 1, 2, 3)
    assert handed(listener) == [1]
    packets = listener.push(rejected(1, RejectReason.BUSY, key(1)))
    assert [packet.source for packet in packets if packet.type == CONNECT] == [2]
    relay.advance(10 * SECOND)
    client.push()
    burst(client, 4)
    relay.advance(relay.config.pending_timeout_us - 10 * SECOND)
    text = "the endpoint that offers the service has been silent for 75 s"
    assert (2, RejectReason.TIMED_OUT, text) in refusals(client)
    assert handed(listener) == [4]  # connection 3 timed out together with 2, as it had waited as long


def test_2_8_a_connect_that_waits_too_long_is_refused_as_busy() -> None:
    relay, listener, (client,) = scene("ann")
    for source in (1, 2, 3):
        burst(client, source)
        relay.advance(10 * SECOND)
    assert handed(listener) == [1]
    relay.advance(relay.config.pending_timeout_us - 30 * SECOND)
    assert [source for source, _, _ in refusals(client)] == [1]
    assert handed(listener) == [2]
    relay.advance(19 * SECOND)
    assert refusals(client) == []
    relay.advance(SECOND)
    assert refusals(client) == [(3, RejectReason.BUSY, "no listener had room for the connection in time")]
    assert waiting(relay) == 0


def test_3_3_a_repeat_of_a_connect_that_waits_keeps_its_place_and_its_time() -> None:
    relay, listener, (client,) = scene("ann")
    burst(client, 1, 2, 3)
    assert handed(listener) == [1]
    assert client.push(connect(2, target=REPORTS, route_key=key(2), attempt=1, keepalive_ms=7)) == []
    assert waiting(relay) == 2
    packets = listener.push(accepted(1, 1001, route_key=key(1)))
    (packet,) = [packet for packet in packets if packet.type == CONNECT]
    found = read_connect(packet)
    assert (packet.source, packet.attempt, found.options.keepalive_ms, found.options.user) == (2, 1, 7, "ann")
    client.push()
    (answer,) = client.push(connect(3, route_key=key(3)))  # another target under the same id
    assert read_rejected(answer).reason == RejectReason.ID_IN_USE


@pytest.mark.parametrize("kind", [ABORT, SHUTDOWN])
def test_a_client_that_gives_up_leaves_the_queue(kind: PacketType) -> None:
    relay, listener, (client,) = scene("ann")
    burst(client, 1, 2, 3)
    client.push(control(kind, 2, 0))
    assert waiting(relay) == 1
    assert handed(listener) == [1]
    assert accept(listener, 1) == [3]


def test_early_data_of_a_connection_that_waits_is_dropped_and_the_connection_keeps_its_place() -> None:
    relay, listener, (client,) = scene("ann")
    burst(client, 1, 2)
    assert client.push(data(2, 0, 501)) == []
    assert waiting(relay) == 1
    assert handed(listener) == [1]
    assert accept(listener, 1) == [2]


def test_a_client_that_is_replaced_leaves_the_queue() -> None:
    relay, listener, (bob,) = scene("bob")
    burst(bob, 101)
    burst(Peer(relay, "ann", 50, "laptop").attached(), 1, 2)
    assert waiting(relay) == 2
    Peer(relay, "ann", 51, "laptop").attached().push()
    assert waiting(relay) == 0
    assert handed(listener) == [101]


def test_2_8_more_backlog_and_more_listeners_are_used_at_once() -> None:
    relay, listener, (client,) = scene("ann")
    burst(client, *range(1, 8))
    assert handed(listener) == [1]
    more = listener.push(listen_state(version=2, backlog=5))
    assert [packet.source for packet in more if packet.type == CONNECT] == [2, 3]
    second = Peer(relay, "server", 3).attached()
    assert [packet.source for packet in second.listen(backlog=3)] == [4, 5]
    assert waiting(relay) == 2


def test_2_8_connects_that_wait_are_refused_when_the_service_goes_down() -> None:
    relay, listener, (client,) = scene("ann")
    relay.advance(relay.config.settle_us)
    burst(client, 1, 2)
    listener.push(listen_state(version=2, up=False))
    assert refusals(client) == [(2, RejectReason.NO_SUCH_SERVICE, "no endpoint listens under this name")]
    assert relay.counters.connects_refused == 1


def test_6_5_soon_after_a_restart_connects_that_wait_are_not_refused_as_the_service_may_come_back() -> None:
    relay, listener, (client,) = scene("ann", settle_us=5 * SECOND)
    burst(client, 1, 2)
    listener.push(listen_state(version=2, up=False))
    assert refusals(client) == []
    assert waiting(relay) == 0  # the initiator repeats its CONNECT


def test_2_8_connects_to_other_services_do_not_wait() -> None:
    relay, listener, (client,) = scene("ann")
    listener.listen("other", backlog=1)
    burst(client, 1, 2)
    client.push(connect(3, target=Target(TargetKind.SERVICE, "other"), route_key=key(3)))
    assert handed(listener) == [1, 3]
    assert waiting(relay) == 1


def test_3_2_a_waiting_connect_whose_key_is_in_use_is_refused_when_its_turn_comes() -> None:
    relay, listener, (ann, bob) = scene("ann", "bob")
    burst(ann, 1)
    bob.push(connect(101, target=REPORTS, route_key=key(1)))
    assert handed(listener) == [1]
    assert waiting(relay) == 1
    assert accept(listener, 1) == []
    assert refusals(bob) == [(101, RejectReason.ID_IN_USE, "another connection has this route key")]


def test_9_2_whatever_number_of_routes_one_user_has_another_user_has_room() -> None:
    """A ninth of what a mailbox can reserve stays free for others: here 5 of 48 routes."""
    _, listener, (ann, bob) = scene("ann", "bob", backlog=1000, mailbox_bytes_max=1 << 20, reserved_bytes=16 << 10)
    for source in range(1, 44):
        burst(ann, source)
    (answer,) = ann.push(connect(44, target=REPORTS, route_key=key(44)))
    assert (read_rejected(answer).reason, read_rejected(answer).text) == (
        RejectReason.BUSY,
        "the acceptor's mailbox has no room left for this user",
    )
    burst(bob, 101, 102)
    mine = handed(listener)
    assert mine == [*range(1, 44), 101, 102]
    for source in mine:
        listener.push(rejected(source, RejectReason.REFUSED, key(source)))
    ann.push()
    burst(ann, 45)
    assert handed(listener) == [45]


def test_a_service_for_which_no_route_waits_has_no_queue_to_look_at() -> None:
    queues = AcceptQueues()
    assert len(queues) == 0
    assert "reports" not in queues
    assert list(queues.firsts("reports")) == []
    queues.look_at("reports")
    assert queues.poll_changed() is None


def test_services_are_looked_at_in_the_order_in_which_they_changed() -> None:
    relay, listener, (ann, bob) = scene("ann", "bob")
    listener.listen("other", backlog=1)
    burst(ann, 1, 2)
    others = [
        connect(source, target=Target(TargetKind.SERVICE, "other"), route_key=key(source)) for source in (101, 102)
    ]
    bob.push(*others)
    assert handed(listener) == [1, 101]
    packets = listener.push(*(accepted(source, 1000 + source, route_key=key(source)) for source in (101, 1)))
    assert [packet.source for packet in packets if packet.type == CONNECT] == [102, 2]
    assert waiting(relay) == 0
