"""Clauses 3.3 to 3.5, 3.10 and 6.6: which CONNECTs are accepted and which are refused."""

import pytest

from tests.core.solo import KEY, PEER, SERVICE, TARGET, Solo
from tunnel.core import ConnectRequested, EndpointConfig, Incoming, Lost, LostReason, State
from tunnel.core.constants import SECOND_US
from tunnel.core.tombstones import COHORT_US
from tunnel.wire import (
    Accepted,
    Connect,
    Options,
    Packet,
    PacketType,
    Rejected,
    RejectReason,
    Target,
    TargetKind,
    decode_accepted,
    decode_rejected,
    encode_connect,
    question_about,
)

ANN, BOB = Options(user="ann"), Options(user="bob")


def rejection(solo: Solo) -> Rejected:
    """Take the only REJECTED that leaves."""
    (packet,) = solo.out()
    assert (packet.type, packet.source, packet.destination, packet.sequence) == (PacketType.REJECTED, PEER, 0, 0)
    rejected = decode_rejected(packet.payload)
    assert rejected is not None
    assert rejected.route_key == KEY
    return rejected


def acceptance(solo: Solo) -> Accepted:
    """Take the only ACCEPTED that leaves; an ACK may leave with it."""
    (packet,) = [packet for packet in solo.out() if packet.type == PacketType.ACCEPTED]
    accepted = decode_accepted(packet.payload)
    assert accepted is not None
    return accepted


# CONNECT


def test_an_exit_asks_the_application() -> None:
    solo = Solo()
    solo.request(TARGET, ANN)
    assert solo.event(ConnectRequested) == ConnectRequested(solo.connection.id, TARGET, "ann")
    assert solo.out() == []
    solo.request(TARGET, ANN)
    assert solo.events() == []  # not answered yet, and asked only once (3.3)
    solo.endpoint.accept(solo.connection.id, solo.now)
    acceptance(solo)
    solo.request(TARGET, ANN)
    acceptance(solo)


def test_a_connect_of_another_user_or_key_is_not_a_repeat() -> None:  # 3.3
    solo = Solo()
    solo.request(TARGET, ANN)
    solo.request(TARGET, BOB, source=PEER + 1)
    solo.route_key = bytes(16)
    solo.request(TARGET, ANN, source=PEER + 2)
    assert len(solo.endpoint.connections) == 3


def test_malformed_requests_are_discarded() -> None:
    solo = Solo()
    solo.receive(Packet(PacketType.CONNECT, PEER, 0, 1, b"junk"))
    solo.request(TARGET, source=0)
    assert solo.endpoint.packets_discarded == 2
    assert solo.out() == []


@pytest.mark.parametrize(
    ("config", "target", "options", "reason"),
    [
        (EndpointConfig(exit=True), SERVICE, Options(), RejectReason.NO_SUCH_SERVICE),
        (EndpointConfig(), TARGET, Options(), RejectReason.DENIED),
        (EndpointConfig(exit=True), TARGET, Options(versions=(2, 3)), RejectReason.VERSION),
    ],
)
def test_a_connect_that_cannot_be_served_is_refused(
    config: EndpointConfig, target: object, options: Options, reason: RejectReason
) -> None:
    solo = Solo(config)
    solo.request(target, options)  # type: ignore[arg-type]
    rejected = rejection(solo)
    assert rejected.reason == reason
    assert rejected.text == ""
    assert rejected.options.versions == ((1, 1) if reason is RejectReason.VERSION else None)  # 3.4
    assert solo.events() == []


def test_connects_beyond_connections_max_are_refused() -> None:
    solo = Solo(EndpointConfig(exit=True, connections_max=1))
    solo.request(TARGET, ANN)
    solo.request(TARGET, BOB)
    assert rejection(solo).reason == RejectReason.BUSY


def test_an_endpoint_accepts_connects_beyond_its_backlog() -> None:
    """The relay enforces the backlog, and lets users take turns. An endpoint's own refusals could hit any user."""
    solo = Solo()
    solo.endpoint.listen("s", 1, solo.now)
    for number in range(3):
        solo.route_key = bytes([number] * 16)
        solo.request(SERVICE, ANN)
        acceptance(solo)
    assert len(solo.endpoint.connections) == 3
    assert solo.events() == []
    solo.endpoint.unlisten("s", solo.now)
    solo.ack()
    assert isinstance(solo.event(Incoming), Incoming)  # it was accepted before unlisten()


def test_a_service_connection_that_was_never_reported_ends_without_an_event() -> None:
    solo = Solo(EndpointConfig(user_timeout_us=10 * SECOND_US))
    solo.endpoint.listen("s", 1, solo.now)
    solo.request(SERVICE, ANN)
    solo.wait(10 * SECOND_US)
    assert solo.connection.state is State.CLOSED
    assert solo.events() == []
    exit_ = Solo(EndpointConfig(user_timeout_us=10 * SECOND_US, exit=True))
    exit_.request(TARGET)
    exit_.endpoint.accept(exit_.connection.id, exit_.now)
    exit_.wait(10 * SECOND_US)
    assert exit_.events()[1:] == [Lost(exit_.connection.id, LostReason.TIMEOUT, "")]


def test_the_answer_outlives_the_connection() -> None:  # 3.3
    solo = Solo()
    solo.request(TARGET, ANN)
    solo.endpoint.refuse(solo.connection.id, RejectReason.UNREACHABLE, "text", solo.now)
    assert rejection(solo).text == "text"
    solo.events()
    solo.request(TARGET, ANN)
    assert rejection(solo).reason == RejectReason.UNREACHABLE
    solo.wait(240 * SECOND_US)
    solo.request(TARGET, ANN)
    assert rejection(solo).reason == RejectReason.UNREACHABLE
    solo.wait(COHORT_US)
    solo.request(TARGET, ANN)
    assert isinstance(solo.event(ConnectRequested), ConnectRequested)


# resume


def test_a_resume_is_answered_when_everything_matches() -> None:  # 6.6
    solo = Solo().served()
    connection = solo.connection
    connection.write(b"abc", solo.now)
    solo.out()
    solo.request(SERVICE, resume=True, destination=connection.id)
    packets = solo.out()
    assert [packet.type for packet in packets] == [PacketType.ACCEPTED, PacketType.ACK, PacketType.DATA]
    accepted = decode_accepted(packets[0].payload)
    assert accepted is not None
    assert accepted.resumed
    assert packets[2].attempt == 1  # 4.10


@pytest.mark.parametrize("wrong", ["source", "destination", "user", "key"])
def test_a_resume_that_does_not_match_is_refused(wrong: str) -> None:  # 6.6
    solo = Solo().served()
    own = solo.connection.id
    if wrong == "key":
        solo.route_key = bytes(16)
    solo.receive()
    source = PEER + 1 if wrong == "source" else PEER
    destination = own + 1 if wrong == "destination" else own
    solo.request(SERVICE, BOB if wrong == "user" else None, resume=True, source=source, destination=destination)
    (packet,) = solo.out()
    rejected = decode_rejected(packet.payload)
    assert (packet.type, packet.source, packet.destination, packet.sequence) == (PacketType.REJECTED, source, 0, 0)
    assert rejected is not None
    assert rejected.reason == RejectReason.GONE
    assert solo.connection.state is State.OPEN


def test_a_target_is_not_taken_for_a_service_of_the_same_name() -> None:
    solo = Solo()
    solo.endpoint.listen("db", 8, solo.now)
    solo.out()
    solo.request(TARGET)
    assert isinstance(solo.event(ConnectRequested), ConnectRequested)
    assert solo.connection.identity.target.kind == TargetKind.TCP
    assert solo.out() == []


def test_a_repeated_connect_is_not_discarded_and_opens_nothing() -> None:  # 3.3
    solo = Solo()
    solo.request()
    solo.request()
    assert solo.endpoint.packets_discarded == 0
    assert len(solo.endpoint.connections) == 1


@pytest.mark.parametrize("exits", [False, True])
@pytest.mark.parametrize("target", [TARGET, SERVICE])
def test_a_question_that_reaches_an_endpoint_is_refused_as_malformed(target: Target, exits: bool) -> None:  # 3.14
    solo = Solo(EndpointConfig(exit=exits))
    solo.endpoint.listen(SERVICE.host, 8, solo.now)
    solo.out()
    question = Connect(KEY, False, question_about(target), 1 << 16, ANN)
    solo.receive(Packet(PacketType.CONNECT, PEER, 0, 1, encode_connect(question)))
    (packet,) = solo.out()
    refused = decode_rejected(packet.payload)
    assert refused is not None
    assert (refused.route_key, refused.reason) == (KEY, RejectReason.MALFORMED)
    assert (solo.endpoint.packets_discarded, list(solo.endpoint.connections)) == (1, [])
