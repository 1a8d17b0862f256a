"""Resuming after the relay, or its memory, was lost (PROTOCOL 6.5, 6.6)."""

from tests.servlet.support import (
    FORBIDDEN,
    REPORTS,
    SECOND,
    Peer,
    Relay,
    accepted,
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
from tunnel.wire import Attached, RejectReason, attachment_id, inline_exit_id


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


def test_6_6_after_a_resume_streams_go_on_where_they_were() -> None:
    client, exit_ = client_and_exit(Relay())
    client.push(resume(11, 22, exit_))
    exit_.push()
    exit_.push(accepted(11, 22, resumed=True))
    client.push()
    client.push(data(11, 22, 2**32 - 1), data(11, 22, 0))
    assert [packet.sequence for packet in exit_.push(data(22, 11, 9000))] == [2**32 - 1, 0]
    assert [packet.sequence for packet in client.push()] == [9000]


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


def test_6_5_a_resume_waits_for_five_seconds_in_silence() -> None:
    relay = Relay()
    client = Peer(relay).attached()
    exit_ = Peer(relay, "exits", 2, is_exit=True)
    client.push(resume(11, 22, exit_), resume(12, 23, exit_))
    client.push(resume(11, 22, Peer(relay, seed=5), attempt=1))
    relay.advance(5 * SECOND)
    assert relay.switch.stats().routes == 0
    exit_.attached()
    assert exit_.push() == client.push() == []


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


def test_6_4_a_resume_that_was_handed_on_is_refused_when_its_endpoint_is_replaced() -> None:
    relay = Relay(general_packets_max=1)
    client = Peer(relay).attached()
    first = Peer(relay, "exits", 2, "exit", is_exit=True).attached()
    client.push(resume(11, 21, first))
    Peer(relay, "exits", 3, "exit", is_exit=True).attached()
    assert reason(client.push()) == RejectReason.GONE


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
