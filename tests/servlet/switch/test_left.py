"""Endpoints that have left: when their place is free, what their peers hear, and their names (PROTOCOL 6.4, 9.6)."""

import pytest

from tests.servlet.support import (
    REPORTS,
    SECOND,
    Peer,
    Relay,
    accepted,
    bind,
    connect,
    control,
    data,
    kinds,
    listen_state,
    option,
    reason,
    resume,
)
from tests.servlet.switch.rig import LEAVING, aborted, scene, separate
from tunnel.wire import (
    Abort,
    AbortReason,
    Attached,
    DropReason,
    Packet,
    PacketType,
    RejectReason,
    Status,
    StatusCode,
    decode_dropped,
    encode_abort,
)

SHUTDOWN, ACK = PacketType.SHUTDOWN, PacketType.ACK
LEFT = 6 * SECOND  # the silence after which an endpoint that asked for no pull interval has left, and some


def abort(own: int, peer: int) -> Packet:
    return Packet(PacketType.ABORT, own, peer, 0, encode_abort(Abort(AbortReason.APPLICATION)))


def told(packets: list[Packet]) -> list[DropReason]:
    """Return the reasons of the DROPPED among the packets."""
    found = [decode_dropped(packet.payload) for packet in packets if packet.type == PacketType.DROPPED]
    return [DropReason(one.reason) for one in found if one is not None]


@pytest.mark.parametrize("last", [abort(11, 22), control(SHUTDOWN, 11, 22)], ids=["abort", "shutdown"])
def test_9_6_a_command_that_ends_its_connection_alone_gives_its_place_free_soon(last: Packet) -> None:
    """The exit hears how the connection ended, even if it asks late, and nothing that says that it was lost."""
    relay, _, _, exit_, client = scene()
    bind(client, exit_, 11, 22)
    client.push(last, LEAVING)
    relay.advance(LEFT)
    assert relay.counters.attachments_left == 1
    assert [packet.type for packet in exit_.push()] == [last.type]
    assert (relay.counters.routes_closed, relay.counters.routes_lost) == (1, 0)
    assert exit_.push(control(SHUTDOWN, 22, 11)) == []


def test_9_6_the_last_acknowledgement_of_a_command_that_has_left_arrives() -> None:
    relay, _, _, exit_, client = scene()
    bind(client, exit_, 11, 22)
    client.push(Packet(PacketType.ACK, 11, 22, 0, bytes(40)), control(SHUTDOWN, 11, 22), LEAVING)
    relay.advance(LEFT)
    assert relay.counters.attachments_left == 1
    assert kinds(exit_.push()) == ["ACK", "SHUTDOWN"]


def test_9_6_what_had_left_for_the_peer_and_did_not_arrive_leaves_again_after_the_farewell() -> None:
    relay, _, _, exit_, client = scene()
    bind(client, exit_, 11, 22)
    client.push(abort(11, 22), LEAVING)
    exit_.send()  # its answer is lost, and the ABORT in it
    relay.advance(LEFT)
    assert relay.counters.attachments_left == 1
    exit_.attach(generation=2)
    assert kinds(exit_.push()) == ["ABORT"]


@pytest.mark.parametrize("by", ["client", "listener"])
def test_9_6_the_peer_of_a_command_that_did_not_end_its_connection_hears_that_it_is_gone(by: str) -> None:
    relay = Relay()
    server, client = Peer(relay, "bob", 2).attached(), Peer(relay).attached()
    server.listen()
    client.push(connect(11, target=REPORTS))
    server.push()
    server.push(accepted(11, 22))
    client.push()
    leaver, other = (client, server) if by == "client" else (server, client)
    leaver.push(LEAVING)
    relay.advance(LEFT)
    assert relay.counters.attachments_left == 1
    assert told(other.push()) == [DropReason.GONE]
    assert relay.counters.routes_lost == 1


def test_9_6_a_listener_that_has_ended_its_connections_gives_its_place_free_soon() -> None:
    relay = Relay()
    server, client = Peer(relay, "bob", 2).attached(), Peer(relay).attached()
    server.listen()
    client.push(connect(11, target=REPORTS))
    server.push()
    server.push(accepted(11, 22), abort(22, 11), LEAVING)
    relay.advance(LEFT)
    assert relay.counters.attachments_left == 1
    assert kinds(client.push()) == ["ACCEPTED", "ABORT"]


def test_9_6_an_exit_that_leaves_keeps_the_connections_that_it_has_not_ended() -> None:
    relay, _, _, exit_, client = scene()
    bind(client, exit_, 11, 22)
    bind(client, exit_, 12, 23)
    exit_.push(abort(22, 11), LEAVING)
    relay.advance(100 * SECOND)
    client.push(data(12, 23, 101))
    assert kinds(exit_.push()) == ["DATA"]
    exit_.push(abort(23, 12))
    relay.advance(12 * SECOND)
    assert relay.counters.attachments_left == 1
    assert told(client.push()) == []


def test_9_6_a_connect_that_its_client_gave_up_is_released_soon_after_the_exit_has_accepted_it() -> None:
    """The exit hears it, so that it keeps no connection to the target."""
    relay, _, _, exit_, client = scene()
    client.push(connect(1))
    assert kinds(exit_.push()) == ["CONNECT"]
    client.push(LEAVING)
    exit_.push(accepted(1, 22))
    relay.advance(LEFT)
    assert relay.counters.attachments_left == 1
    assert told(exit_.push()) == [DropReason.GONE]


def test_9_6_an_exit_that_accepts_when_the_client_has_left_is_told_at_once() -> None:
    relay, _, _, exit_, client = scene()
    client.push(connect(1))
    assert kinds(exit_.push()) == ["CONNECT"]
    client.push(LEAVING)
    relay.advance(LEFT)
    assert relay.counters.attachments_left == 1
    assert aborted(exit_.push(accepted(1, 22))) == AbortReason.GONE
    assert relay.counters.routes_lost == 0


def test_9_6_a_connect_that_waits_for_the_exit_ends_with_the_client_that_has_left() -> None:
    relay, _, _, exit_, client = scene()
    client.push(connect(1), LEAVING)
    relay.advance(LEFT)
    assert exit_.push() == []


def test_9_6_of_the_connects_that_clients_gave_up_the_relay_remembers_as_many_as_there_may_be_routes() -> None:
    relay = Relay(routes_max=4)
    exit_ = separate(relay)
    for number in range(1, 11):
        client = Peer(relay, "eve", 10 + number).attached()
        client.push(connect(number))
        assert kinds(exit_.push()) == ["CONNECT"]
        client.push(LEAVING)
        relay.advance(LEFT)
    answers = [exit_.push(accepted(number, 100 + number)) for number in range(1, 11)]
    assert [kinds(answer) for answer in answers] == [["DROPPED"]] * 6 + [["ABORT"]] * 4


def test_9_6_a_user_who_comes_and_leaves_all_the_time_takes_no_place_of_another_one() -> None:
    relay = Relay(attachments_per_user_max=3, attachments_max=4)
    exit_, ann = separate(relay), Peer(relay).attached()
    ann.push()
    bind(ann, exit_, 11, 22)
    for seed in range(10, 40):
        client = Peer(relay, "eve", seed, "tool").attached()
        client.push(connect(seed))
        exit_.push()
        client.push(abort(seed, 0), LEAVING)
        exit_.push(accepted(seed, 100 + seed))
        relay.advance(LEFT)
        exit_.push()
        assert ann.push(data(11, 22, seed)) == []
        assert kinds(exit_.push()) == ["DATA"]
    assert relay.counters.attachments_left == 30
    assert relay.switch.stats().attachments == 2
    assert relay.switch.stats().routes == 1


def unanswered(relay: Relay, owner: str = "bob") -> tuple[Peer, Peer]:
    """Return a listener, and a client of another user whose CONNECT it has and has not answered."""
    server, client = Peer(relay, owner, 2).attached(), Peer(relay).attached()
    server.listen()
    client.push(connect(11, target=REPORTS))
    assert kinds(server.push()) == ["CONNECT"]
    return server, client


def test_6_10_two_users_a_client_hears_at_once_that_the_listener_has_left_and_the_place_is_free_soon() -> None:
    relay = Relay(attachments_per_user_max=1)
    server, client = unanswered(relay)
    server.push(LEAVING)
    assert reason(client.push()) == RejectReason.SHUTTING_DOWN
    assert reason(client.push(connect(12, target=REPORTS))) == RejectReason.NO_SUCH_SERVICE
    assert relay.switch.stats().routes == 0
    assert relay.counters.connects_refused_by_reason == {"shutting_down": 1, "no_such_service": 1}
    relay.advance(LEFT)
    assert relay.counters.attachments_left == 1
    assert isinstance(Peer(relay, "bob", 3).attach(), Attached)


def test_6_10_a_listener_that_has_left_before_it_got_a_connect_gets_none() -> None:
    relay = Relay()
    server, client = Peer(relay, "bob", 2).attached(), Peer(relay).attached()
    server.listen()
    client.push(connect(11, target=REPORTS))
    assert kinds(server.push(LEAVING)) == ["OPTION"]
    assert reason(client.push()) == RejectReason.SHUTTING_DOWN


def test_6_10_an_announcement_that_comes_after_the_farewell_brings_no_service_up() -> None:
    """It came by another lane, or in a batch that was repeated."""
    relay = Relay()
    server, client = Peer(relay, "bob", 3).attached(), Peer(relay).attached()
    server.push(LEAVING)
    assert server.push(listen_state()) == [listen_state(backlog=0, up=False)]
    assert reason(client.push(connect(11, target=REPORTS))) == RejectReason.NO_SUCH_SERVICE
    exit_ = separate(relay)  # may have a service until it takes that down
    exit_.push(LEAVING)
    assert exit_.listen() == []


def test_6_10_two_users_another_listener_gets_what_one_that_has_left_did_not_answer() -> None:
    relay = Relay()
    server, client = unanswered(relay)
    other = Peer(relay, "carl", 4).attached()
    other.listen()
    server.push(LEAVING)
    assert kinds(other.push()) == ["CONNECT"]
    other.push(accepted(11, 33))
    assert kinds(client.push()) == ["ACCEPTED"]
    client.push(data(11, 33, 101))
    assert kinds(other.push()) == ["DATA"]
    relay.advance(LEFT)  # although it may still accept, by a request that was repeated
    assert relay.counters.attachments_left == 1


def test_6_10_a_resume_waits_until_the_listener_that_has_left_is_forgotten() -> None:
    relay = Relay()
    server, client = Peer(relay, "bob", 2).attached(), Peer(relay).attached()
    server.listen()
    client.push(resume(11, 22, server, target=REPORTS))
    assert kinds(server.push()) == ["CONNECT"]
    server.push(LEAVING)
    assert client.push() == []
    relay.advance(LEFT)
    assert reason(client.push()) == RejectReason.GONE
    assert relay.counters.attachments_left == 1


def test_9_6_an_exit_that_leaves_answers_what_it_has_until_it_is_silent() -> None:
    relay = Relay()
    exit_, client = separate(relay), Peer(relay).attached()
    client.push(connect(1))
    assert kinds(exit_.push()) == ["CONNECT"]
    exit_.push(LEAVING)
    assert client.push() == []
    relay.advance(4 * SECOND)
    exit_.push()
    relay.advance(4 * SECOND)
    assert client.push() == []
    relay.advance(2 * SECOND)
    assert reason(client.push()) == RejectReason.SHUTTING_DOWN
    assert relay.counters.attachments_left == 1


def test_9_6_a_resume_keeps_an_exit_that_leaves() -> None:
    """Its path may be cut for a while, and its last connections wait for it."""
    relay, _, _, exit_, client = scene()
    client.push(resume(12, 23, exit_))
    assert kinds(exit_.push()) == ["CONNECT"]
    exit_.push(LEAVING)
    relay.advance(20 * SECOND)
    assert client.push() == []
    exit_.push(accepted(12, 23, resumed=True))
    assert kinds(client.push()) == ["ACCEPTED"]


# --- names


def test_6_4_a_resume_to_an_exit_that_has_left_and_was_succeeded_is_refused() -> None:
    relay, _, _, old, client = scene()
    old.push(LEAVING)
    relay.advance(11 * SECOND)
    separate(relay, seed=9)
    assert reason(client.push(resume(12, 23, old))) == RejectReason.GONE


def test_6_4_a_resume_that_waits_for_an_exit_that_has_left_is_refused_when_that_is_succeeded() -> None:
    relay, _, _, old, client = scene()
    old.push(LEAVING)
    relay.advance(11 * SECOND)
    assert client.push(resume(12, 23, old)) == []
    separate(relay, seed=9)
    assert reason(client.push()) == RejectReason.GONE


def test_6_4_an_exit_that_has_left_and_was_succeeded_does_not_take_its_name_back() -> None:
    relay, _, _, old, client = scene()
    old.push(LEAVING)
    relay.advance(11 * SECOND)
    new = separate(relay, seed=9)
    bind(client, new, 11, 22)
    found = old.attach()
    assert isinstance(found, Status)
    assert found.code == StatusCode.DENIED
    client.push(data(11, 22, 101))
    assert kinds(new.push()) == ["DATA"]


def test_6_4_an_endpoint_that_takes_the_name_later_succeeds_the_one_that_has_left() -> None:
    relay, _, _, old, client = scene()
    old.push(LEAVING)
    relay.advance(11 * SECOND)
    new = separate(relay, 9, "another")
    new.attach(generation=2, name="exit")
    assert reason(client.push(resume(12, 23, old))) == RejectReason.GONE


def test_6_4_an_exit_that_was_forgotten_while_it_left_comes_back_if_nobody_has_its_name() -> None:
    relay, _, _, old, client = scene()
    old.push(LEAVING)
    relay.advance(11 * SECOND)
    assert client.push(resume(12, 23, old)) == []
    assert isinstance(old.attach(generation=2), Attached)
    assert kinds(old.push(option(2, leaving=True))) == ["CONNECT", "OPTION"]


def test_6_4_a_late_attach_of_a_dead_endpoint_does_not_succeed_one_that_has_left() -> None:
    relay, _, _, old, _ = scene()
    old.push(LEAVING)
    relay.advance(11 * SECOND)
    Peer(relay, "exits", 9, "exit", is_exit=True).attach()  # nothing else comes from it
    assert isinstance(old.attach(), Attached)


def test_6_4_another_user_does_not_succeed_an_exit_that_has_left() -> None:
    relay, _, _, old, _ = scene()
    old.push(LEAVING)
    relay.advance(11 * SECOND)
    Peer(relay, "eve", 9, "exit").attached()
    assert isinstance(old.attach(), Attached)


def test_6_4_a_name_without_an_owner_is_forgotten_after_the_attachment_timeout() -> None:
    relay, _, _, old, _ = scene()
    old.push(LEAVING)
    relay.advance(320 * SECOND)
    separate(relay, seed=9)
    assert isinstance(old.attach(), Attached)
