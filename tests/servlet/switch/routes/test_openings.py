"""CONNECT, ACCEPTED and REJECTED as they pass the relay (PROTOCOL 3.2, 3.6, 6.5, 6.6)."""

from typing import Any

import pytest

from tests.servlet.support import (
    DATABASE,
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
    control,
    data,
    key,
    kinds,
    of_kind,
    read_connect,
    read_dropped,
    read_rejected,
    reason,
    rejected,
    resume,
)
from tunnel.core.constants import BACKOFF_MAX_US
from tunnel.wire import DropReason, Packet, PacketType, RejectReason, Target, TargetKind
from tunnel_servlet.switch.decisions import Decision, Deny, Hand, HandTo


def test_3_2_connect_is_stamped_with_the_user_and_handed_on() -> None:
    client, exit_ = client_and_exit(Relay())
    assert client.push(connect(11, user="root", keepalive_ms=5, sequence=77, attempt=3)) == []
    (packet,) = exit_.push()
    found = read_connect(packet)
    assert (found.options.user, found.options.keepalive_ms, found.route_key) == ("ann", 5, key(11))
    assert (packet.source, packet.destination, packet.sequence, packet.attempt) == (11, 0, 77, 3)


def test_3_2_a_target_that_no_rule_allows_is_refused() -> None:
    client, exit_ = client_and_exit(Relay())
    (packet,) = client.push(connect(11, target=FORBIDDEN))
    found = read_rejected(packet)
    assert (packet.source, found.route_key) == (11, key(11))
    assert (found.reason, found.text) == (RejectReason.DENIED, "not for you")
    assert exit_.push() == []


def test_3_2_the_rules_receive_user_and_target() -> None:
    asked: list[tuple[str, Target]] = []

    def authorise(user: str, target: Target) -> Decision:
        asked.append((user, target))
        return Deny(RejectReason.BUSY)

    client, _ = client_and_exit(Relay(authorise=authorise))
    assert reason(client.push(connect(11))) == RejectReason.BUSY
    assert asked == [("ann", DATABASE)]


def test_3_2_exits_take_turns_or_are_chosen_by_name() -> None:
    relay = Relay(
        authorise=lambda user, target: Hand(HandTo.EXIT, "second" if target.host == "named" else ""),
    )
    client = Peer(relay).attached()
    exits = [Peer(relay, "exits", seed, name, is_exit=True).attached() for seed, name in ((2, "first"), (3, "second"))]
    for source, target in ((1, "any"), (2, "any"), (3, "any"), (4, "named"), (5, "named")):
        client.push(connect(source, target=Target(TargetKind.TCP, target, 1)))
    assert [[packet.source for packet in exit_.push()] for exit_ in exits] == [[1, 3], [2, 4, 5]]


def test_3_2_accepted_from_the_chosen_acceptor_binds_the_route() -> None:
    relay = Relay()
    client, exit_ = client_and_exit(relay)
    client.push(connect(11))
    exit_.push()
    exit_.push(accepted(11, 22))
    (packet,) = client.push()
    assert (packet.type, packet.source, packet.destination) == (PacketType.ACCEPTED, 11, 22)
    assert relay.switch.stats().routes_bound == relay.counters.routes_bound == 1


def test_3_2_accepted_from_another_attachment_binds_nothing() -> None:
    relay = Relay()
    client, _exit = client_and_exit(relay)
    other = Peer(relay, user="eve", seed=9, is_exit=True)
    client.push(connect(11))
    other.attached()
    assert [read_dropped(packet).reason for packet in other.push(accepted(11, 22))] == [DropReason.NO_ROUTE]
    assert client.push() == []
    assert relay.switch.stats().routes_bound == 0


def test_3_2_accepted_with_another_key_or_id_binds_nothing() -> None:
    relay = Relay()
    client, exit_ = client_and_exit(relay)
    client.push(connect(11))
    assert kinds(exit_.push(accepted(11, 22, route_key=key(99)))) == ["DROPPED", "CONNECT"]
    assert kinds(exit_.push(accepted(12, 22, route_key=key(11)))) == ["DROPPED"]
    assert client.push() == []
    exit_.push(accepted(11, 0), control(PacketType.ACCEPTED, 11, 22, b"short"))
    assert relay.counters.packets_invalid == 2
    assert client.push() == []


def test_9_1_an_acceptors_id_that_has_a_route_is_not_bound_again() -> None:
    relay = Relay()
    client, exit_ = bound(relay, 11, 22)
    client.push(connect(12))
    exit_.push()
    assert exit_.push(accepted(12, 22)) == []
    assert client.push() == []
    assert relay.counters.packets_misaddressed == 1
    assert exit_.push(accepted(13, 22, route_key=key(13))) == []
    exit_.push(accepted(12, 23))
    assert kinds(client.push()) == ["ACCEPTED"]


def test_3_5_a_repeated_accepted_is_forwarded_again() -> None:
    client, exit_ = bound(Relay())
    exit_.push(accepted(11, 22))
    assert kinds(client.push()) == ["ACCEPTED"]
    exit_.push(accepted(11, 23))
    assert client.push() == []


def test_3_3_a_repeated_connect_goes_to_the_same_attachment() -> None:
    relay = Relay()
    client, exit_ = client_and_exit(relay)
    client.push(connect(11))
    Peer(relay, "exits", 3, is_exit=True).attached()
    client.push(connect(11, attempt=1))
    assert [packet.attempt for packet in exit_.push()] == [1]
    client.push(connect(11, attempt=2))
    assert [packet.attempt for packet in exit_.push()] == [2]
    exit_.push(accepted(11, 22))
    client.push(connect(11, attempt=3))
    assert [packet.attempt for packet in exit_.push()] == [3]
    assert relay.switch.stats().routes == 1
    assert relay.counters.connects == 4


def test_3_2_a_repeated_connect_must_not_change_the_request() -> None:
    """An acceptor that has not seen the first CONNECT would take the repeat for the first one, and dial."""
    client, exit_ = client_and_exit(Relay())
    client.push(connect(11))
    assert reason(client.push(connect(11, target=FORBIDDEN, attempt=1))) == RejectReason.ID_IN_USE
    assert [read_connect(packet).target for packet in exit_.push()] == [DATABASE]


def test_3_2_an_id_that_has_another_route_is_refused() -> None:
    client, exit_ = client_and_exit(Relay())
    client.push(connect(11))
    assert reason(client.push(connect(11, route_key=key(99)))) == RejectReason.ID_IN_USE
    exit_.push(accepted(11, 22))
    assert reason(exit_.push(connect(22, target=REPORTS))) == RejectReason.ID_IN_USE


def test_2_1_a_malformed_connect_is_refused_if_it_can_be_answered() -> None:
    relay = Relay()
    client, _ = client_and_exit(relay)
    assert reason(client.push(control(PacketType.CONNECT, 11, 0, key(11) + b"junk"))) == RejectReason.MALFORMED
    long = Packet(PacketType.CONNECT, 11, 0, 1, bytes(connect(11).payload) + b"\xff\x10\x00" + bytes(4096))
    assert reason(client.push(long)) == RejectReason.MALFORMED
    assert client.push(control(PacketType.CONNECT, 11, 0, b"short"), connect(0, route_key=key(1))) == []
    assert relay.counters.packets_invalid == 2
    assert relay.counters.connects_refused == 2


@pytest.mark.parametrize("limit", ["routes_max", "routes_per_user_max", "routes_per_attachment_max"])
def test_9_2_connect_is_refused_as_busy_beyond_the_limits(limit: str) -> None:
    limits: dict[str, Any] = {limit: 1}
    relay = Relay(**limits)
    client, exit_ = client_and_exit(relay)
    client.push(connect(11))
    assert reason(client.push(connect(12))) == RejectReason.BUSY
    exit_.push()
    exit_.push(rejected(11, RejectReason.REFUSED))
    assert kinds(client.push(connect(12))) == ["REJECTED"]
    assert kinds(exit_.push()) == ["CONNECT"]


def test_2_3_rejected_is_forwarded_only_from_the_chosen_acceptor() -> None:
    relay = Relay()
    client, exit_ = client_and_exit(relay)
    other = Peer(relay, user="eve", seed=9).attached()
    client.push(connect(11), data(11, 0, 101))
    other.push(rejected(11, RejectReason.REFUSED))
    exit_.push(rejected(12, RejectReason.REFUSED, key(11)), control(PacketType.REJECTED, 11, 0, b"junk"))
    assert client.push() == []
    assert relay.counters.packets_invalid == 3
    exit_.push(rejected(11, RejectReason.UNREACHABLE))
    assert reason(client.push()) == RejectReason.UNREACHABLE
    assert exit_.push() == []
    assert relay.switch.stats().routes == relay.switch.stats().bytes_reserved == 0


def test_3_2_a_connect_lost_after_the_relay_is_repeated_before_it_times_out() -> None:
    relay = Relay()
    client, exit_ = client_and_exit(relay)
    client.push(connect(11))
    assert kinds(exit_.push()) == ["CONNECT"]  # this answer is lost: the exit never sees it
    relay.advance(BACKOFF_MAX_US)  # the longest pause of an initiator
    client.push(connect(11))
    assert kinds(exit_.push()) == ["CONNECT"]
    relay.advance(10 * SECOND)
    exit_.push(accepted(11, 22))
    assert kinds(client.push()) == ["ACCEPTED"]


def test_a_draining_relay_refuses_openings_and_leaves_resumes_to_its_successor() -> None:
    relay = Relay()
    client, exit_ = client_and_exit(relay)
    relay.switch.drain()
    assert reason(client.push(connect(11))) == RejectReason.SHUTTING_DOWN
    assert client.push(resume(12, 23, exit_)) == []
    assert exit_.push() == []


# --- early data


def test_3_6_data_before_accepted_is_held_until_the_route_is_bound() -> None:
    client, exit_ = client_and_exit(Relay())
    client.push(connect(11, sequence=100), data(11, 0, 101, b"hello"), data(11, 0, 102, bytes(60_000)))
    client.push(control(PacketType.PING, 11, 0, b"ping"))
    assert kinds(exit_.push()) == ["CONNECT"]
    found = exit_.push(accepted(11, 22))
    assert kinds(found) == ["PING", "DATA", "DATA"]
    assert {packet.destination for packet in found} == {22}
    assert [len(packet.payload) for packet in found[1:]] == [5, 60_000]
    # The client has not seen ACCEPTED yet, so that its next packet still has no destination.
    client.push(data(11, 0, 103))
    assert [(packet.destination, packet.sequence) for packet in exit_.push()] == [(22, 103)]


def test_3_6_at_most_64_kib_are_held_and_the_rest_is_reported_dropped() -> None:
    client, exit_ = client_and_exit(Relay())
    answers = client.push(connect(11), *(data(11, 0, 101 + number, bytes(16_384)) for number in range(5)))
    assert read_dropped(of_kind(answers, PacketType.DROPPED)[0]).first == 105
    exit_.push()
    assert len(exit_.push(accepted(11, 22))) == 4


def test_several_routes_between_two_endpoints_stay_separate() -> None:
    client, exit_ = bound(Relay(), 1, 101)
    for number in range(2, 5):
        bind(client, exit_, number, 100 + number)
    client.push(*(data(number, 100 + number, 101, bytes([number])) for number in range(1, 5)))
    assert [(packet.destination, packet.payload[0]) for packet in exit_.push()] == [
        (100 + number, number) for number in range(1, 5)
    ]


def test_6_5_a_relay_that_has_just_started_does_not_refuse_for_missing_acceptors() -> None:
    relay = Relay(settle_us=5 * SECOND)
    client = Peer(relay).attached()
    assert client.push(connect(11), connect(12, target=REPORTS)) == []
    assert relay.switch.stats().routes == 0
    relay.advance(5 * SECOND)
    refusals = [read_rejected(packet).reason for packet in client.push(connect(11), connect(12, target=REPORTS))]
    assert refusals == [RejectReason.NO_EXIT, RejectReason.NO_SUCH_SERVICE]


def refusal(packets: list[Packet]) -> tuple[int, str]:
    (packet,) = packets
    found = read_rejected(packet)
    return found.reason, found.text


def resume_of(initiator: int, **options: Any) -> Packet:
    return connect(initiator, resume=True, destination=22, **options)


def test_refusals_for_a_missing_service_or_exit_give_the_reason() -> None:
    client = Peer(Relay()).attached()
    assert refusal(client.push(connect(1, target=REPORTS))) == (
        RejectReason.NO_SUCH_SERVICE,
        "no endpoint listens under this name",
    )
    assert refusal(client.push(connect(2))) == (RejectReason.NO_EXIT, "no exit is attached")


def test_a_listener_without_room_is_passed_over() -> None:
    relay = Relay()
    client = Peer(relay).attached()
    first, second = (Peer(relay, "exits", seed, str(seed), is_exit=True).attached() for seed in (2, 3))
    first.listen(backlog=1)
    second.listen(backlog=5)
    for source in range(1, 5):
        assert client.push(connect(source, target=REPORTS)) == []
    assert len(first.push()) == 1
    assert len(second.push()) == 3


def test_refusals_for_an_id_or_route_key_in_use_give_the_reason() -> None:
    relay = Relay()
    client, exit_ = client_and_exit(relay)
    bind(client, exit_, 11, 22)
    assert refusal(client.push(connect(11, route_key=key(99)))) == (
        RejectReason.ID_IN_USE,
        "another connection has this id",
    )
    other = Peer(relay, user="bob", seed=5).attached()
    assert refusal(other.push(connect(12, route_key=key(11)))) == (
        RejectReason.ID_IN_USE,
        "another connection has this route key",
    )


def test_a_refusal_when_the_exits_mailbox_is_full_gives_the_reason() -> None:
    relay = Relay(exit_mailbox_bytes_max=64 << 10, routes_per_attachment_max=100)
    client, _exit = client_and_exit(relay)
    refusals = [refusal(found) for source in range(1, 10) if (found := client.push(connect(source)))]
    assert set(refusals) == {(RejectReason.BUSY, "the acceptor's mailbox has no room left for this user")}


def test_a_resume_must_name_its_acceptor_and_is_refused_if_that_was_replaced() -> None:  # 6.5, 6.4
    relay = Relay()
    client, old = client_and_exit(relay, name="exit")
    assert refusal(client.push(resume_of(11))) == (
        RejectReason.MALFORMED,
        "a resume must name the acceptor's endpoint id",
    )
    Peer(relay, "exits", 9, "exit", is_exit=True).attached()
    assert refusal(client.push(resume_of(12, endpoint_id=old.identity))) == (
        RejectReason.GONE,
        "the endpoint was replaced",
    )


def test_a_repeated_resume_of_another_endpoint_changes_nothing() -> None:  # 6.5
    relay = Relay()
    client, exit_ = client_and_exit(relay)
    absent = Peer(relay, "exits", 9, is_exit=True)
    client.push(resume_of(11, endpoint_id=absent.identity))
    relay.advance(4 * SECOND)
    client.push(resume_of(11, endpoint_id=exit_.identity))
    relay.advance(2 * SECOND)  # the repeat was not parked again
    assert relay.switch.stats().routes == 0


def test_misaddressed_answers_and_parked_resumes_are_counted() -> None:
    relay = Relay()
    client, exit_ = client_and_exit(relay)
    before = relay.counters.packets_without_route
    for own in (22, 23):
        exit_.push(accepted(11, own))
    assert relay.counters.packets_without_route == before + 2
    for source in (11, 12):
        bind(client, exit_, source, source + 20)
        exit_.push(accepted(source, source + 40))
    assert relay.counters.packets_misaddressed == 2
    absent = Peer(relay, "exits", 9, is_exit=True)
    for source in (13, 14):
        client.push(resume_of(source, endpoint_id=absent.identity))
    assert relay.counters.resumes_parked == 2


def test_a_connect_of_a_later_version_keeps_its_version() -> None:  # 1.4
    relay = Relay()
    client, exit_ = client_and_exit(relay)
    packet = connect(11)
    packet.version = 3
    client.push(packet)
    (found,) = exit_.push()
    assert found.version == 3
    assert read_connect(found).options.user == "ann"


@pytest.mark.parametrize("name", ["", "second"])
def test_a_connect_goes_to_the_exit_that_the_rules_name_or_else_to_the_first(name: str) -> None:
    relay = Relay(authorise=lambda user, target: Hand(HandTo.EXIT, name))
    client = Peer(relay).attached()
    exits = [
        Peer(relay, "exits", seed, called, is_exit=True).attached() for seed, called in ((2, "first"), (3, "second"))
    ]
    client.push(connect(1))
    assert [kinds(exit_.push()) for exit_ in exits] == ([["CONNECT"], []] if not name else [[], ["CONNECT"]])


def test_refusals_by_the_relay_itself_give_the_reason() -> None:
    relay = Relay(routes_per_attachment_max=1)
    client, exit_ = client_and_exit(relay)
    broken = connect(1)
    broken.payload = bytes(broken.payload)[:16] + b"?"
    assert refusal(client.push(broken)) == (RejectReason.MALFORMED, "the relay does not understand the request")
    bind(client, exit_, 11, 22)
    assert refusal(client.push(connect(12))) == (RejectReason.BUSY, "the relay has no room for another connection")
    relay.switch.drain()
    assert refusal(client.push(connect(13))) == (RejectReason.SHUTTING_DOWN, "the relay is shutting down")
