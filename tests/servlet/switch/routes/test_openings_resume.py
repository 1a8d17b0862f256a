"""Resuming after the relay, or its memory, was lost (PROTOCOL 6.5, 6.6)."""

from typing import Any

from tests.servlet.support import (
    FORBIDDEN,
    REPORTS,
    SECOND,
    Peer,
    Relay,
    accepted,
    bind,
    bound,
    client_and_exit,
    connect,
    data,
    key,
    kinds,
    read_connect,
    read_rejected,
    reason,
    rejected,
    resume,
)
from tunnel.wire import Attached, Packet, PacketType, RejectReason, attachment_id, encode_leave, inline_exit_id


def test_6_5_a_resume_is_handed_to_the_endpoint_it_names() -> None:
    relay = Relay()
    client, exit_ = client_and_exit(relay)
    Peer(relay, "exits", 3, is_exit=True).attached()
    for number in range(3):
        client.push(resume(11 + number, 21 + number, exit_))
    found = exit_.push()
    assert [(packet.source, packet.destination) for packet in found] == [(11, 21), (12, 22), (13, 23)]
    assert read_connect(found[0]).options.user == "ann"
    exit_.push(accepted(11, 21, resumed=True))
    assert kinds(client.push()) == ["ACCEPTED"]
    assert relay.counters.routes_resumed == 1


def test_6_5_a_resume_waits_for_its_endpoint_and_never_dials() -> None:
    relay = Relay()
    client = Peer(relay).attached()
    exit_ = Peer(relay, "exits", 2, is_exit=True)
    Peer(relay, "exits", 3, is_exit=True).attached()
    assert client.push(resume(11, 22, exit_)) == []
    assert relay.switch.stats().routes_parked == relay.counters.resumes_parked == 1
    relay.advance(4 * SECOND)
    client.push(resume(11, 22, exit_, attempt=1), data(11, 22, 200), connect(11))
    relay.advance(4 * SECOND)
    exit_.attached()
    assert [packet.attempt for packet in exit_.push()] == [1]
    assert client.push(data(11, 22, 201)) == []
    exit_.push(rejected(11, RejectReason.GONE))
    assert reason(client.push()) == RejectReason.GONE


def test_6_5_resumes_for_which_an_endpoint_has_no_room_when_it_attaches_are_counted_and_not_refused() -> None:
    relay = Relay(general_packets_max=2)
    client = Peer(relay).attached()
    exit_ = Peer(relay, "exits", 2, is_exit=True)
    client.push(*(resume(11 + number, 22 + number, exit_) for number in range(5)))
    assert len([packet for packet in exit_.attached().push() if packet.type == PacketType.CONNECT]) == 2
    assert client.push() == []
    assert relay.counters.connects_ignored == 3


def test_6_5_the_wait_for_endpoints_after_a_restart_begins_with_the_first_one() -> None:
    """It must not begin again with each of many that attach."""
    relay = Relay(settle_us=5 * SECOND)
    Peer(relay, "exits", 2, is_exit=True, own_identity=inline_exit_id(relay.switch.epoch)).attached()
    relay.advance(10 * SECOND)
    client = Peer(relay).attached()
    assert client.push(connect(11, target=REPORTS)) == []
    relay.advance(4 * SECOND)
    Peer(relay, "bob", 3).attached()
    assert client.push(connect(11, target=REPORTS)) == []
    relay.advance(SECOND)
    assert reason(client.push(connect(11, target=REPORTS))) == RejectReason.NO_SUCH_SERVICE


def test_6_5_a_resume_is_authorised_as_always() -> None:
    client, exit_ = client_and_exit(Relay())
    packet = connect(11, target=FORBIDDEN, resume=True, destination=22, endpoint_id=exit_.identity)
    assert reason(client.push(packet)) == RejectReason.DENIED


def test_6_5_a_resume_must_name_the_endpoint() -> None:
    client, _ = client_and_exit(Relay())
    assert reason(client.push(connect(11, resume=True, destination=22))) == RejectReason.MALFORMED


def test_6_5_a_resume_that_names_the_inline_exit_of_another_relay_is_refused_at_once() -> None:
    relay = Relay()
    client = Peer(relay).attached()
    for epoch in (0, relay.switch.epoch - 1, relay.switch.epoch ^ 1):
        (packet,) = client.push(connect(11, resume=True, destination=22, endpoint_id=inline_exit_id(epoch)))
        found = read_rejected(packet)
        assert (packet.source, found.route_key, found.reason) == (11, key(11), RejectReason.GONE)
        assert "restarted" in found.text
    assert relay.switch.stats().routes == relay.counters.resumes_parked == 0


def test_6_5_a_resume_that_names_the_inline_exit_of_this_relay_reaches_it() -> None:
    relay = Relay()
    client = Peer(relay).attached()
    inline = Peer(relay, "exits", 2, is_exit=True, own_identity=inline_exit_id(relay.switch.epoch))
    client.push(connect(11, resume=True, destination=22, endpoint_id=inline.identity))
    assert kinds(inline.attached().push()) == ["CONNECT"]


def test_6_5_the_inline_exit_of_another_relay_is_refused_only_after_the_rules() -> None:
    client = Peer(Relay()).attached()
    packet = connect(11, target=FORBIDDEN, resume=True, destination=22, endpoint_id=inline_exit_id(1))
    assert reason(client.push(packet)) == RejectReason.DENIED


def test_6_1_no_endpoint_outside_the_process_gets_the_id_that_it_asks_for() -> None:
    relay = Relay()
    stranger = Peer(relay, "mallory", 3)
    wanted = inline_exit_id(relay.switch.epoch)
    answer = stranger.attach(secret=wanted + bytes(16))
    assert isinstance(answer, Attached)
    assert answer.attachment_id == attachment_id(wanted + bytes(16)) != wanted


def test_6_5_a_resume_that_finds_no_room_is_not_refused() -> None:
    relay = Relay(routes_max=1)
    client, exit_ = client_and_exit(relay)
    client.push(resume(11, 22, exit_))
    assert client.push(resume(12, 23, exit_)) == []
    relay = Relay(general_packets_max=1)
    client, exit_ = client_and_exit(relay)
    client.push(resume(11, 22, exit_))
    assert client.push(resume(12, 23, exit_)) == []
    assert relay.switch.stats().routes == 1


def test_6_5_a_resume_of_a_route_that_is_there_is_handed_on_again() -> None:
    client, exit_ = bound(Relay())
    assert client.push(resume(11, 22, exit_)) == []
    assert kinds(exit_.push()) == ["CONNECT"]
    exit_.push(accepted(11, 22, resumed=True))
    assert kinds(client.push()) == ["ACCEPTED"]


def test_6_4_a_resume_that_names_a_replaced_endpoint_is_refused_at_once() -> None:
    relay = Relay()
    client = Peer(relay).attached()
    first = Peer(relay, "exits", 2, "exit", is_exit=True).attached()
    second = Peer(relay, "exits", 3, "exit", is_exit=True).attached()
    assert reason(client.push(resume(11, 22, first))) == RejectReason.GONE
    assert client.push(resume(11, 22, second)) == []
    relay.advance(200 * SECOND)
    client.push()
    relay.advance(200 * SECOND)
    assert client.push(resume(12, 22, first)) == []


def test_3_2_connects_to_a_service_are_handed_to_its_listeners() -> None:
    client, exit_ = client_and_exit(Relay())
    assert reason(client.push(connect(11, target=REPORTS))) == RejectReason.NO_SUCH_SERVICE
    exit_.listen(backlog=1)
    client.push(connect(12, target=REPORTS))
    assert kinds(exit_.push()) == ["CONNECT"]
    assert client.push(connect(13, target=REPORTS)) == []
    assert kinds(exit_.push(accepted(12, 22))) == ["CONNECT"]
    assert kinds(client.push()) == ["ACCEPTED"]


def test_6_5_a_resume_does_not_become_an_opening() -> None:
    """The resume went to the endpoint that it named, whatever the rules would have chosen for a new connection."""
    client, exit_ = client_and_exit(Relay())
    client.push(resume(11, 22, exit_))
    assert client.push(connect(11, attempt=1)) == []
    assert [read_connect(packet).resume for packet in exit_.push()] == [True]


# connections that move from relay to relay


ELSEWHERE = bytes(range(16))


def moved(initiator: int, acceptor: int, *endpoints: bytes, number: int = 1, **changes: Any) -> Packet:
    """A resume at another relay than the one at which `endpoints[0]` was the acceptor's id."""
    first, *further = endpoints
    ids: dict[str, Any] = {"endpoint_id": first, "further_ids": tuple(further) or None, "move": number}
    return connect(initiator, resume=True, destination=acceptor, **ids, **changes)


def leave(initiator: int, acceptor: int, number: int) -> Packet:
    return Packet(PacketType.LEAVE, initiator, acceptor, 0, encode_leave(number))


def test_6_11_a_resume_reaches_the_endpoint_here_of_those_it_names() -> None:
    relay = Relay()
    client, exit_ = client_and_exit(relay)
    Peer(relay, "exits", 3, is_exit=True).attached()
    client.push(moved(11, 22, ELSEWHERE, Peer(relay, seed=9).identity, exit_.identity))
    (packet,) = exit_.push()
    found = read_connect(packet).options
    assert (found.user, found.move, found.further_ids) == ("ann", 1, (Peer(relay, seed=9).identity, exit_.identity))
    exit_.push(accepted(11, 22, resumed=True))
    assert kinds(client.push()) == ["ACCEPTED"]


def test_6_11_a_resume_waits_for_each_endpoint_it_names() -> None:
    relay = Relay()
    client = Peer(relay).attached()
    exit_, other = Peer(relay, "exits", 2, is_exit=True), Peer(relay, "exits", 3, is_exit=True)
    client.push(moved(11, 22, ELSEWHERE, other.identity, exit_.identity))
    assert relay.switch.stats().routes_parked == 1
    client.push(moved(11, 22, ELSEWHERE, exit_.identity, attempt=1))  # another list is another resume
    assert kinds(exit_.attached().push()) == ["CONNECT"]
    assert relay.switch.stats().routes_parked == 0
    assert other.attached().push() == []


def test_6_11_a_resume_reaches_only_an_endpoint_that_may_accept_it() -> None:
    relay = Relay()
    client, _ = client_and_exit(relay)
    guest = Peer(relay, "bob", 5).attached()
    (packet,) = client.push(moved(11, 22, ELSEWHERE, guest.identity))
    found = read_rejected(packet)
    assert (found.reason, found.text) == (RejectReason.GONE, "no endpoint with this id accepts such connections")
    assert guest.push() == []


def test_6_11_a_resume_of_an_inline_exit_never_moves() -> None:
    relay = Relay()
    client, exit_ = client_and_exit(relay)
    packets = client.push(moved(11, 22, inline_exit_id(1), exit_.identity))
    assert reason(packets) == RejectReason.GONE
    assert exit_.push() == []


def test_6_11_a_resume_that_names_a_replaced_endpoint_or_an_inline_exit_anywhere_is_refused() -> None:
    """The acceptor is gone at this relay too, whichever of its ids it had here: a wait for it would be in vain."""
    relay = Relay()
    client = Peer(relay).attached()
    first = Peer(relay, "exits", 2, "exit", is_exit=True).attached()
    Peer(relay, "exits", 3, "exit", is_exit=True).attached()
    for lost in (first.identity, inline_exit_id(1)):
        assert reason(client.push(moved(11, 22, ELSEWHERE, ELSEWHERE[::-1], lost))) == RejectReason.GONE
    assert relay.switch.stats().routes == 0


def test_6_11_leave_frees_the_route_without_a_word_to_the_acceptor() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    assert client.push(data(11, 22, 101), leave(11, 22, 1)) == exit_.push() == []
    assert relay.switch.stats().routes == 0
    assert (relay.counters.routes_moved, relay.counters.routes_closed, relay.counters.routes_lost) == (1, 0, 0)
    assert kinds(exit_.push(data(22, 11, 9000))) == ["DROPPED"]


def test_6_11_leave_frees_a_route_whose_resume_has_no_answer() -> None:
    relay = Relay()
    client, exit_ = client_and_exit(relay)
    client.push(moved(11, 22, exit_.identity), moved(12, 23, ELSEWHERE, number=3))
    client.push(leave(11, 22, 2), leave(12, 23, 4))
    assert relay.switch.stats().routes == 0


def test_6_11_only_the_initiator_leaves_and_not_what_has_come_back() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    exit_.push(leave(22, 11, 1))
    client.push(leave(11, 21, 1), leave(13, 22, 1), Packet(PacketType.LEAVE, 11, 22, 0, b"?"))
    client.push(moved(11, 22, exit_.identity, number=2), leave(11, 22, 2))
    assert relay.switch.stats().routes_bound == 1
    client.push(leave(11, 22, 3))
    assert relay.switch.stats().routes_bound == 0


def test_6_11_a_user_leaves_no_more_routes_than_may_be_open_while_acceptors_may_keep_them() -> None:
    relay = Relay(routes_per_user_max=2)
    client, exit_ = bound(relay)
    client.push(leave(11, 22, 1))
    bind(client, exit_, 12, 23)
    client.push(leave(12, 23, 1))
    bind(client, exit_, 13, 24)
    client.push(leave(13, 24, 1))
    assert relay.switch.stats().routes_bound == 1
    for _ in range(2):
        relay.advance(relay.config.attachment_timeout_us // 2)
        client.push()
        exit_.push()
    client.push(leave(13, 24, 1))
    assert relay.switch.stats().routes_bound == 0


def test_6_11_of_what_is_left_only_what_waits_at_the_relay_is_undelivered_and_only_what_was_handed_on_counts() -> None:
    relay = Relay(routes_per_user_max=2)
    client, exit_ = bound(relay)
    client.push(leave(11, 22, 1))
    assert relay.counters.packets_ended == 0
    for number in range(1, 4):  # resumes that wait for their endpoint: no acceptor keeps them
        client.push(moved(12, 22, ELSEWHERE), leave(12, 22, 2))
        assert relay.counters.packets_ended == number
    bind(client, exit_, 13, 24)
    client.push(resume(13, 24, exit_), leave(13, 24, 1))  # a resume at the same relay has no number of a move
    assert (relay.switch.stats().routes, relay.counters.packets_ended) == (0, 4)  # with the CONNECT that waited
    bind(client, exit_, 14, 25)
    client.push(leave(14, 25, 1))
    assert (relay.switch.stats().routes, relay.counters.packets_ended) == (1, 5)  # too many were left: this is ignored


def test_two_users_one_leaves_no_route_of_the_other() -> None:
    relay = Relay()
    bound(relay)
    mallory = Peer(relay, "mallory", 7).attached()
    mallory.push(leave(11, 22, 9), leave(22, 11, 9))
    assert relay.switch.stats().routes_bound == 1
    assert relay.counters.routes_moved == 0


def test_two_users_one_does_not_answer_the_resume_of_the_other() -> None:
    """Neither while it waits, nor after it was handed on."""
    relay = Relay()
    client = Peer(relay).attached()
    mallory = Peer(relay, "mallory", 7).attached()
    exit_ = Peer(relay, "exits", 2, is_exit=True)
    client.push(moved(11, 22, ELSEWHERE, exit_.identity))
    forged = [accepted(11, 22, resumed=True), rejected(11, RejectReason.GONE), data(22, 11, 9000)]
    mallory.push(*forged)
    assert (client.push(), relay.switch.stats().routes_parked) == ([], 1)
    exit_.attached()
    assert kinds(exit_.push()) == ["CONNECT"]
    mallory.push(*forged)
    assert client.push() == []
    exit_.push(accepted(11, 22, resumed=True))
    assert kinds(client.push()) == ["ACCEPTED"]


def test_two_users_resumes_that_one_leaves_count_for_no_other() -> None:
    relay = Relay(routes_per_user_max=1)
    client, exit_ = bound(relay)
    client.push(leave(11, 22, 1))
    bind(client, exit_, 12, 23)
    client.push(leave(12, 23, 1))
    assert relay.switch.stats().routes_bound == 1  # ann has left too many
    bob = Peer(relay, "bob", 7).attached()
    bind(bob, exit_, 14, 25)
    bob.push(leave(14, 25, 1))
    assert relay.switch.stats().routes_bound == 1


def test_two_users_resumes_of_one_that_wait_leave_room_for_those_of_the_other() -> None:
    """A user whose acceptors are away asks for each of the connections again and again."""
    relay = Relay(routes_per_user_max=8)
    flood, victim = Peer(relay, "flood", 7).attached(), Peer(relay).attached()
    exit_ = Peer(relay, "exits", 2, is_exit=True)
    for number in range(100, 200):
        flood.push(moved(number, 22, ELSEWHERE, exit_.identity))
    assert relay.switch.stats().routes_parked <= 8
    victim.push(moved(11, 22, ELSEWHERE, exit_.identity))
    exit_.attached()
    found = [read_connect(packet).options.user for packet in exit_.push()]
    assert found.count("ann") == 1
