"""More of openings: what a refusal says to a person, what is counted, and turns among exits."""

from typing import Any

import pytest

from tests.servlet.support import (
    REPORTS,
    SECOND,
    Peer,
    Relay,
    accepted,
    bind,
    client_and_exit,
    connect,
    key,
    kinds,
    read_connect,
    read_rejected,
)
from tunnel.wire import Packet, RejectReason
from tunnel_servlet.switch.decisions import Hand, HandTo


def refusal(packets: list[Packet]) -> tuple[int, str]:
    (packet,) = packets
    found = read_rejected(packet)
    return found.reason, found.text


def resume(initiator: int, **options: Any) -> Packet:
    return connect(initiator, resume=True, destination=22, **options)


def test_nobody_is_there() -> None:
    client = Peer(Relay()).attached()
    assert refusal(client.push(connect(1, target=REPORTS))) == (
        RejectReason.NO_SUCH_SERVICE,
        "nobody listens under this name",
    )
    assert refusal(client.push(connect(2))) == (RejectReason.UNREACHABLE, "no exit is attached")


def test_nobody_has_room() -> None:
    client, exit_ = client_and_exit(Relay())
    exit_.listen(backlog=1)
    client.push(connect(1, target=REPORTS))
    assert refusal(client.push(connect(2, target=REPORTS))) == (RejectReason.BUSY, "no listener has room")


def test_one_without_room_is_passed_over() -> None:
    relay = Relay()
    client = Peer(relay).attached()
    first, second = (Peer(relay, "exits", seed, str(seed), is_exit=True).attached() for seed in (2, 3))
    first.listen(backlog=1)
    second.listen(backlog=3)
    for source in range(1, 5):
        assert client.push(connect(source, target=REPORTS)) == []
    assert len(first.push()) == 1
    assert len(second.push()) == 3


def test_an_id_or_a_route_key_is_taken() -> None:
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


def test_an_exit_is_full() -> None:
    relay = Relay(exit_mailbox_bytes_max=64 << 10, routes_per_attachment_max=100)
    client, _exit = client_and_exit(relay)
    refusals = [refusal(found) for source in range(1, 10) if (found := client.push(connect(source)))]
    assert set(refusals) == {(RejectReason.BUSY, "full")}


def test_a_resume_says_whom_it_wants_and_hears_that_he_was_replaced() -> None:  # 6.5, 6.4
    relay = Relay()
    client, old = client_and_exit(relay, name="exit")
    assert refusal(client.push(resume(11))) == (RejectReason.MALFORMED, "a resume names the endpoint")
    Peer(relay, "exits", 9, "exit", is_exit=True).attached()
    assert refusal(client.push(resume(12, endpoint_id=old.identity))) == (
        RejectReason.GONE,
        "the endpoint was replaced",
    )


def test_a_repeated_resume_of_another_endpoint_changes_nothing() -> None:  # 6.5
    relay = Relay()
    client, exit_ = client_and_exit(relay)
    absent = Peer(relay, "exits", 9, is_exit=True)
    client.push(resume(11, endpoint_id=absent.identity))
    relay.advance(4 * SECOND)
    client.push(resume(11, endpoint_id=exit_.identity))
    relay.advance(2 * SECOND)  # it was not parked anew
    assert relay.switch.stats().routes == 0


def test_what_is_counted_of_openings() -> None:
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
        client.push(resume(source, endpoint_id=absent.identity))
    assert relay.counters.resumes_parked == 2


def test_a_connect_of_a_later_version_stays_what_it_is() -> None:  # 1.4
    relay = Relay()
    client, exit_ = client_and_exit(relay)
    packet = connect(11)
    packet.version = 3
    client.push(packet)
    (found,) = exit_.push()
    assert found.version == 3
    assert read_connect(found).options.user == "ann"


@pytest.mark.parametrize("name", ["", "second"])
def test_a_named_exit_alone_is_asked(name: str) -> None:
    relay = Relay(authorise=lambda user, target: Hand(HandTo.EXIT, name))
    client = Peer(relay).attached()
    exits = [
        Peer(relay, "exits", seed, called, is_exit=True).attached() for seed, called in ((2, "first"), (3, "second"))
    ]
    client.push(connect(1))
    assert [kinds(exit_.push()) for exit_ in exits] == ([["CONNECT"], []] if not name else [[], ["CONNECT"]])


def test_what_the_relay_itself_cannot_do() -> None:
    relay = Relay(routes_per_attachment_max=1)
    client, exit_ = client_and_exit(relay)
    broken = connect(1)
    broken.payload = bytes(broken.payload)[:16] + b"?"
    assert refusal(client.push(broken)) == (RejectReason.MALFORMED, "the relay does not understand the request")
    bind(client, exit_, 11, 22)
    assert refusal(client.push(connect(12))) == (RejectReason.BUSY, "no more connections")
    relay.switch.drain()
    assert refusal(client.push(connect(13))) == (RejectReason.SHUTTING_DOWN, "the relay is shutting down")
