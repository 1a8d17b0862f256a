"""Questions: an endpoint asks what the rules allow, and nothing is opened (PROTOCOL 3.14)."""

import pytest

from tests.servlet.support import (
    DATABASE,
    FORBIDDEN,
    REPORTS,
    SECOND,
    Peer,
    Relay,
    accepted,
    client_and_exit,
    connect,
    kinds,
    option,
    read_rejected,
    reason,
    rejected,
)
from tests.servlet.switch.rig import SILENT, encrypted, got, inline_of, scene, separate
from tunnel.wire import Packet, RejectReason, Target, TargetKind, question_about
from tunnel_servlet.switch.decisions import Decision, Deny, Hand, HandTo


def question(source: int, target: Target = DATABASE, attempt: int = 0) -> Packet:
    return connect(source, target=question_about(target), attempt=attempt)


@pytest.mark.parametrize("target", [DATABASE, REPORTS])
def test_an_allowed_target_is_answered_and_nothing_is_opened(target: Target) -> None:
    relay = Relay()
    client, exit_ = client_and_exit(relay)
    service = Peer(relay, "bob", 3).attached()
    service.listen("reports")
    for attempt in range(2):  # a repeat has the same answer
        (packet,) = client.push(question(11, target, attempt=attempt))
        found = read_rejected(packet)
        assert (packet.source, found.reason, found.text) == (11, RejectReason.ALLOWED, "")
    assert exit_.push() == service.push() == []
    stats = relay.switch.stats()
    assert (stats.routes, stats.counters.connects_refused, stats.timers) == (0, 0, stats.attachments)


def test_a_question_is_answered_while_the_relay_settles_and_without_an_exit() -> None:
    client = Peer(Relay(settle_us=60_000_000)).attached()
    assert reason(client.push(question(11))) == RejectReason.ALLOWED
    assert reason(client.push(question(12, FORBIDDEN))) == RejectReason.DENIED


def test_a_relay_that_drains_answers_no_question() -> None:
    relay = Relay()
    client = Peer(relay).attached()
    relay.switch.drain()
    assert reason(client.push(question(11))) == RejectReason.SHUTTING_DOWN


def test_a_question_with_the_id_of_a_connection_does_not_harm_it() -> None:
    relay = Relay()
    client, exit_ = client_and_exit(relay)
    client.push(connect(11))
    assert reason(client.push(question(11))) == RejectReason.ID_IN_USE
    assert kinds(exit_.push()) == ["CONNECT"]
    assert relay.switch.stats().routes == 1


def test_two_users_a_question_reveals_what_a_connect_reveals_and_no_more() -> None:
    """Whether a service is offered, and whether an exit is attached, is no part of the answer."""
    asked: list[tuple[str, str]] = []

    def authorise(user: str, target: Target) -> Decision:
        asked.append((user, target.host))
        if (user, target.host) == ("ann", "reports") or target.host == "db.internal":
            return Hand(HandTo.SERVICE if target.host == "reports" else HandTo.EXIT)
        return Deny(text=f"no rule for {user}")

    for is_there in (False, True):
        relay = Relay(authorise=authorise)
        ann, bob = Peer(relay).attached(), Peer(relay, "bob", 2).attached()
        if is_there:
            Peer(relay, "exits", 3, is_exit=True).attached()
            Peer(relay, "ann", 4).attached().listen("reports")
        assert reason(ann.push(question(1, REPORTS))) == reason(ann.push(question(2))) == RejectReason.ALLOWED
        denied = [read_rejected(bob.push(packet)[0]) for packet in (question(3, REPORTS), connect(4, target=REPORTS))]
        assert [(one.reason, one.text) for one in denied] == [(RejectReason.DENIED, "no rule for bob")] * 2
    assert {user for user, _ in asked} == {"ann", "bob"}


@pytest.mark.parametrize("target", [DATABASE, FORBIDDEN])
def test_two_users_one_who_asks_for_ever_holds_no_more_memory_than_one_who_connects(target: Target) -> None:
    held = []
    for ask in (True, False):
        relay = Relay(general_packets_max=50)
        client = Peer(relay, answer_bytes_max=1024).attached()
        for source in range(1, 400):
            packet = question(source, target) if ask else connect(source, target=FORBIDDEN)
            client.send(packet)
        held.append(relay.switch.stats().bytes_held)
        assert relay.switch.stats().counters.connects == 399
    assert held[0] <= held[1]


def test_a_question_is_about_a_target_that_rules_can_name() -> None:
    asked: list[Target] = []

    def authorise(user: str, target: Target) -> Decision:
        asked.append(target)
        return Hand(HandTo.EXIT)

    Peer(Relay(authorise=authorise)).attached().push(question(11))
    assert asked == [DATABASE]


# --- why a connection has no answer

DIALS = "the exit has the connection, and the target has not answered"
NO_ROOM = (
    "no endpoint that offers the service takes another unanswered connection of this user, and this one waits for room"
)


def why(client: Peer, target: Target = DATABASE, source: int = 99) -> str:
    """Ask about the target, and return the text of the answer, which must be that the rules allow it."""
    (packet,) = (one for one in client.push(question(source, target)) if one.source == source)
    found = read_rejected(packet)
    assert found.reason == RejectReason.ALLOWED
    return found.text


def test_a_question_tells_of_a_silent_exit_for_which_an_unanswered_connection_waits() -> None:
    relay, _, inline, other, client = scene()
    client.push(connect(1, encryption=b"hello"))
    other.push()
    other.push(encrypted(1, 22))
    assert why(client) == ""  # it is answered
    client.push(connect(2, encryption=b"hello"))
    assert why(client) == DIALS
    relay.advance(2 * SECOND)
    assert why(client) == "the exit has been silent for 2 s"
    relay.advance(3 * SECOND)
    client.push(connect(2, encryption=b"hello", attempt=1))
    kept = "it encrypts, so its connection does not go to an exit in the relay's process, which does not encrypt"
    assert why(client) == f"the exit has been silent for 5 s; {kept}"
    other.push()
    assert why(client) == DIALS
    assert got(inline) == [[]]


def test_a_question_tells_of_a_silent_exit_that_is_the_only_one() -> None:
    relay = Relay()
    only, client = separate(relay), Peer(relay).attached()
    client.push(connect(1))
    relay.advance(SILENT)
    assert why(client) == "the exit has been silent for 5 s"
    only.push()
    only.push(accepted(1, 22))
    assert why(client) == ""


@pytest.mark.parametrize("has_encrypted", [False, True])
@pytest.mark.parametrize("offer", [None, b"hello"])
def test_a_question_says_nothing_that_the_next_repeat_belies(offer: bytes | None, *, has_encrypted: bool) -> None:
    """The relay moves a connection when its initiator repeats it: until then another exit has nothing of it."""
    relay = Relay()
    first, client = separate(relay, 2, "first"), Peer(relay).attached()
    client.push(connect(1, encryption=b"hello"))
    first.push()
    first.push(encrypted(1, 22) if has_encrypted else accepted(1, 22))
    client.push(connect(2, encryption=offer))
    other = separate(relay, 3, "other")
    relay.advance(SILENT)
    other.push()
    told = why(client)
    client.push(connect(2, encryption=offer, attempt=1))
    assert got(other) == [[2]]
    kept = "; it encrypts, so its connection does not go to an exit in the relay's process, which does not encrypt"
    assert told == "the exit has been silent for 5 s" + (kept if offer and has_encrypted else "")
    assert why(client) == DIALS


def test_a_question_tells_of_the_exit_in_the_process_of_the_relay() -> None:
    relay = Relay()
    inline_of(relay)
    client = Peer(relay).attached()
    client.push(connect(1))
    assert why(client) == "the exit in the relay's process has the connection, and the target has not answered"


def test_a_question_tells_of_a_service_whose_endpoint_is_silent_or_has_no_room() -> None:
    relay = Relay()
    service, client = Peer(relay, "bob", 2).attached(), Peer(relay).attached()
    service.listen(backlog=1)
    client.push(connect(1, target=REPORTS))
    relay.advance(3 * SECOND)
    assert why(client, REPORTS) == "the endpoint that offers the service has been silent for 3 s"
    waits = Peer(relay, "ann", 5).attached()
    waits.push(connect(2, target=REPORTS))
    assert why(waits, REPORTS) == NO_ROOM
    service.push()
    service.push(accepted(1, 22))
    assert why(client, REPORTS) == ""
    assert why(waits, REPORTS) == "the endpoint that offers the service has not accepted the connection"


def test_a_pull_interval_of_the_exit_is_no_silence_that_a_question_tells_of() -> None:
    relay, _, _, other, client = scene()
    other.push(option(1, pull_interval_ms=20_000))
    client.push(connect(1))
    relay.advance(20 * SECOND)
    assert why(client) == DIALS
    relay.advance(2 * SECOND)
    assert why(client) == "the exit has been silent for 22 s"


def test_two_users_a_question_tells_of_the_own_connections_of_an_attachment_alone() -> None:
    relay, _, _, _, client = scene()
    bob = Peer(relay, "bob", 5).attached()
    client.push(connect(1))
    relay.advance(SILENT)
    assert why(client) != ""
    assert why(bob) == ""


@pytest.mark.parametrize("ends", [accepted(2, 22), rejected(2, RejectReason.REFUSED)])
def test_a_question_tells_of_the_oldest_connection_whatever_became_of_newer_ones(ends: Packet) -> None:
    relay, _, _, other, client = scene()
    client.push(connect(1), connect(2))
    other.push()
    other.push(ends)
    assert why(client) == DIALS
    client.push(connect(3))
    relay.advance(2 * SECOND)
    assert why(client) == "the exit has been silent for 2 s"
    other.push(accepted(1, 21))
    other.push(rejected(3, RejectReason.REFUSED))
    assert why(client) == ""


def test_a_question_tells_of_no_resume_and_of_no_connection_to_another_target() -> None:
    _, _, _, other, client = scene()
    another = Target(TargetKind.TCP, DATABASE.host, DATABASE.port + 1)
    client.push(connect(1, resume=True, endpoint_id=other.identity), connect(2, target=another))
    assert got(other) == [[1, 2]]
    assert why(client) == ""
    assert why(client, another) == DIALS


def test_two_users_an_endpoint_does_not_learn_of_connections_that_others_open_to_it() -> None:
    relay = Relay()
    service, client = Peer(relay, "bob", 2).attached(), Peer(relay).attached()
    service.listen()
    client.push(connect(1, target=REPORTS))
    relay.advance(2 * SECOND)
    assert why(client, REPORTS) != ""
    assert why(service, REPORTS) == ""


def test_two_users_a_user_does_not_learn_the_name_of_an_exit() -> None:
    """It may be that of a machine of the exit's operator."""
    relay = Relay()
    exit_, client = separate(relay, 2, "payroll-db"), Peer(relay).attached()
    client.push(connect(1))
    assert why(client) == DIALS
    relay.advance(SILENT)
    assert why(client) == "the exit has been silent for 5 s"
    relay.advance(75 * SECOND)
    texts = [read_rejected(packet).text for packet in client.push()]
    assert texts == ["the exit has been silent for 75 s"]
    assert got(exit_) == [[]]


def test_a_user_waits_for_room_that_an_endpoint_keeps_for_others() -> None:
    """The endpoint takes four connections, but not more of one user than are free then."""
    relay = Relay()
    service, client, again = Peer(relay, "bob", 2).attached(), Peer(relay).attached(), Peer(relay, seed=5).attached()
    service.listen(backlog=4)
    client.push(*(connect(source, target=REPORTS) for source in (1, 2)))
    again.push(connect(3, target=REPORTS))
    assert got(service) == [[1, 2]]
    assert why(again, REPORTS) == NO_ROOM
    assert why(client, REPORTS) == "the endpoint that offers the service has not accepted the connection"
