"""One packet or timer hands on a number of CONNECTs at once, however many there are: others have turns meanwhile."""

from __future__ import annotations

import pytest

from tests.servlet.support import (
    REPORTS,
    SECOND,
    Peer,
    Relay,
    accepted,
    connect,
    kinds,
    listen_state,
    rejected,
    resume,
)
from tests.servlet.switch.rig import LEAVING
from tunnel.wire import DropReason, Packet, RejectReason
from tunnel_servlet.switch.model import RouteState
from tunnel_servlet.switch.witness import EndpointEnd

AT_ONCE = 64
MANY = 150


def large() -> Relay:
    return Relay(
        process_bytes_max=256 << 20,
        user_bytes_max=64 << 20,
        mailbox_bytes_max=32 << 20,
        exit_mailbox_bytes_max=32 << 20,
    )


def waiting(relay: Relay, seed: int = 2) -> tuple[Peer, Peer, Peer]:
    """Return two endpoints that offer a service, and a client whose many connections the first has not answered."""
    first, second = Peer(relay, "bob", seed).attached(), Peer(relay, "bob", 3).attached()
    client = Peer(relay, "bob", 4).attached()
    first.listen(backlog=1000)
    client.push(*[connect(number, target=REPORTS) for number in range(1, MANY + 1)])
    assert kinds(first.push()) == ["CONNECT"] * MANY
    second.listen(backlog=1000)
    return first, second, client


def unanswered(relay: Relay, state: RouteState = RouteState.HANDED) -> int:
    return relay.switch._routes.counts[state]


def test_two_users_a_service_that_goes_down_hands_over_some_of_its_connections_at_once() -> None:
    relay = large()
    first, second, client = waiting(relay)
    first.push(listen_state(version=2, up=False))
    assert relay.counters.connects_moved == AT_ONCE
    assert unanswered(relay) == MANY
    assert len(second.push()) == AT_ONCE
    client.push(*[connect(number, target=REPORTS, attempt=1) for number in range(1, MANY + 1)])
    assert relay.counters.connects_moved == MANY
    assert {packet.source for packet in second.push()} >= set(range(AT_ONCE + 1, MANY + 1))


@pytest.mark.parametrize("end", ["leaves", "is removed"])
def test_two_users_an_endpoint_that_ends_hands_over_some_and_the_others_are_asked_for_again(end: str) -> None:
    relay = large()
    first, second, client = waiting(relay)
    if end == "leaves":
        first.push(LEAVING)
    else:
        attachment = relay.switch._registry.by_id[first.identity]
        relay.switch._lifecycle.remove(attachment, DropReason.GONE, relay.now, EndpointEnd.REPLACED)
    assert relay.counters.connects_moved == unanswered(relay) == AT_ONCE
    assert len(second.push()) == AT_ONCE
    assert client.push() == []  # no connection is refused
    assert relay.counters.connects_ignored == MANY - AT_ONCE
    client.push(*[connect(number, target=REPORTS, attempt=1) for number in range(AT_ONCE + 1, MANY + 1)])
    assert unanswered(relay) == MANY


def test_the_connections_that_no_other_endpoint_takes_are_refused_however_many_they_are() -> None:
    relay = large()
    only, client = Peer(relay, "bob", 2).attached(), Peer(relay).attached()
    only.listen(backlog=1000)
    client.push(*[connect(number, target=REPORTS) for number in range(1, MANY + 1)])
    only.push(LEAVING)
    assert kinds(client.push()) == ["REJECTED"] * MANY


def test_an_exit_that_leaves_hands_over_all_its_connections() -> None:
    """Its operator is trusted, and its connections are those of others."""
    relay = large()
    one, other = (Peer(relay, "exits", seed, f"{seed}", is_exit=True).attached() for seed in (2, 3))
    client = Peer(relay).attached()
    client.push(*[connect(number) for number in range(1, 2 * MANY + 1)])
    one.push(LEAVING)
    assert relay.counters.connects_moved == MANY
    assert len(other.push()) >= MANY


@pytest.mark.parametrize("stays", [True, False])
def test_two_users_an_endpoint_that_attaches_gets_the_resumes_that_wait_in_parts(stays: bool) -> None:
    relay = large()
    client, exit_ = Peer(relay, "bob", 4).attached(), Peer(relay, "exits", 2, is_exit=True)
    client.push(*[resume(number, 1000 + number, exit_) for number in range(1, MANY + 1)])
    assert unanswered(relay, RouteState.PARKED) == MANY
    exit_.attach()
    assert (unanswered(relay), unanswered(relay, RouteState.PARKED)) == (AT_ONCE, MANY - AT_ONCE)
    if stays:
        relay.advance(1)
        assert unanswered(relay) == 2 * AT_ONCE
        relay.advance(1)
        assert unanswered(relay) == MANY
        return
    attachment = relay.switch._registry.by_id[exit_.identity]
    relay.switch._lifecycle.remove(attachment, DropReason.NO_ROUTE, relay.now, EndpointEnd.SILENT)
    relay.advance(6 * SECOND)
    assert relay.switch.stats().routes == 0


@pytest.mark.parametrize("end", ["is replaced", "is ended by the operator"])
def test_the_resumes_that_still_wait_for_an_endpoint_that_ends_for_good_are_refused(end: str) -> None:
    relay = large()
    client, exit_ = Peer(relay, "bob", 4).attached(), Peer(relay, "exits", 2, "x", is_exit=True)
    resumes = [resume(number, 1000 + number, exit_) for number in range(1, MANY + 1)]
    client.push(*resumes)
    exit_.attach()
    exit_.push()
    assert unanswered(relay, RouteState.PARKED) == MANY - AT_ONCE
    if end == "is replaced":
        Peer(relay, "exits", 3, "x", is_exit=True).attached()
    else:
        operator = relay.switch.operator
        for _ in operator.kick_attachments(operator.attachments_of("exits"), lambda: relay.now):
            pass
    assert relay.switch.stats().routes == 0
    assert kinds(client.push()) == ["REJECTED"] * MANY


def bogus(number: int, endpoint: Peer) -> Packet:
    """Return a resume of a connection that the endpoint does not have."""
    key = b"bogus" + number.to_bytes(11, "big")
    return resume(number, 1000 + number, endpoint, target=REPORTS, route_key=key)


def test_two_users_resumes_without_an_answer_leave_room_for_the_other() -> None:
    """Who has had a connection to an endpoint knows its id, and can resume connections there that never were."""
    relay = Relay()
    server = Peer(relay, "ann", 2).attached()
    server.listen(backlog=100)
    eve, bob = Peer(relay, "eve", 3).attached(), Peer(relay, "bob", 4).attached()
    eve.push(*[bogus(number, server) for number in range(1, 100)])
    rooms = unanswered(relay)
    assert bob.push(connect(1, target=REPORTS)) == []
    assert unanswered(relay) == rooms + 1
    assert kinds(server.push()) == ["CONNECT"] * (rooms + 1)
    server.push(accepted(1, 22))
    assert "ACCEPTED" in kinds(bob.push())


def test_resumes_that_are_answered_make_room_for_those_that_were_not_handed_on() -> None:
    """After a restart of the relay, a user may have as many connections at an endpoint as before."""
    relay = Relay()
    server, client = Peer(relay, "ann", 2).attached(), Peer(relay, "bob", 4).attached()
    server.listen(backlog=100)
    client.push(*[bogus(number, server) for number in range(1, 49)])
    first = len(server.push())
    assert first < 48
    own = {number: bytes(bogus(number, server).payload[:16]) for number in range(1, 49)}
    server.push(*[accepted(number, 1000 + number, route_key=own[number]) for number in range(1, first + 1)])
    client.push(*[bogus(number, server) for number in range(1, 49)])
    assert len([packet for packet in server.push() if packet.source > first]) == 48 - first
    for number in range(first + 1, 49):
        server.push(rejected(number, RejectReason.GONE, route_key=own[number]))
    assert not relay.switch._registry.by_id[server.identity].resuming
