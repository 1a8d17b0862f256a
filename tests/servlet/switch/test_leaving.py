"""Endpoints that leave or are silent: who gets their connections, and the unanswered ones (PROTOCOL 6.10)."""

from typing import Any

import pytest

from tests.servlet.support import (
    DATABASE,
    MS,
    REPORTS,
    SECOND,
    Peer,
    Relay,
    accepted,
    bind,
    connect,
    control,
    data,
    frames_of,
    key,
    kinds,
    listen_state,
    of_kind,
    option,
    reason,
    rejected,
    resume,
)
from tests.servlet.switch.test_exit_choice import Expected, got, inline_of, separate
from tunnel.wire import (
    AbortReason,
    Accepted,
    Options,
    Packet,
    PacketType,
    RejectReason,
    StatusCode,
    Target,
    decode_abort,
    decode_option,
    encode_accepted,
)
from tunnel_servlet.switch.decisions import Decision, Deny, Hand, HandTo

SILENT = 5 * SECOND
LEAVING = option(1, leaving=True)


def scene(**settings: Any) -> tuple[Relay, Expected, Peer, Peer, Peer]:
    """Return a relay, what it says of its exits, its inline exit, a separate one, and a client."""
    heard = Expected()
    relay = Relay(separate_exits=heard, **settings)
    inline, other = inline_of(relay), separate(relay)
    return relay, heard, inline, other, Peer(relay).attached()


def aborted(packets: list[Packet]) -> AbortReason:
    """Return the reason of an ABORT, which must be the only packet."""
    (packet,) = packets
    assert packet.type == PacketType.ABORT
    found = decode_abort(packet.payload)
    assert found is not None
    return AbortReason(found.reason)


def test_an_exit_that_leaves_gets_no_further_connections() -> None:
    _, heard, inline, other, client = scene()
    client.push(connect(1))
    assert got(inline, other) == [[], [1]]
    (answer,) = other.push(accepted(1, 2), LEAVING)
    settled = decode_option(answer.payload)
    assert settled is not None
    assert (settled.version, settled.options.pull_interval_ms) == (1, 0)
    client.push(connect(3))
    assert got(inline, other) == [[3], []]
    assert heard.news == ["exits/exit took over", "left"]


def test_the_open_connections_of_an_exit_that_leaves_go_on_and_can_be_resumed() -> None:
    relay, _, _, other, client = scene()
    bind(client, other, 11, 22)
    other.push(LEAVING)
    client.push(data(11, 22, 101))
    assert kinds(other.push()) == ["DATA"]
    client.push(resume(12, 23, other))
    assert kinds(other.push()) == ["CONNECT"]
    other.push(accepted(12, 23, resumed=True))
    assert relay.counters.routes_resumed == 1


def test_a_connection_that_an_exit_has_not_accepted_before_it_leaves_goes_to_another_exit() -> None:
    relay, _, inline, other, client = scene()
    client.push(connect(1), data(1, 0, 101, b"early"), data(1, 0, 102, b"more"))
    assert got(other) == [[1]]
    other.push(LEAVING)
    assert got(inline, other) == [[1], []]
    assert relay.counters.connects_moved == 1
    assert aborted(other.push(accepted(1, 22))) == AbortReason.GONE
    early = inline.push(accepted(1, 33))
    assert kinds(client.push()) == ["ACCEPTED"]
    assert [(packet.destination, packet.sequence) for packet in early] == [(33, 101), (33, 102)]
    inline.push(data(33, 1, 501))
    assert kinds(client.push()) == ["DATA"]


def test_a_connect_that_has_not_left_the_relay_leaves_only_for_the_other_exit() -> None:
    _, _, inline, other, client = scene()
    client.push(connect(1))
    assert kinds(other.push(LEAVING)) == ["OPTION"]
    assert got(inline) == [[1]]


def test_without_another_exit_the_one_that_leaves_still_answers_and_new_connections_are_refused_at_once() -> None:
    relay = Relay()
    only, client = separate(relay), Peer(relay).attached()
    client.push(connect(1), connect(2))
    assert got(only) == [[1, 2]]
    only.push(LEAVING)
    only.push(accepted(1, 22), rejected(2, RejectReason.SHUTTING_DOWN))
    assert kinds(client.push()) == ["REJECTED", "ACCEPTED"]
    assert reason(client.push(connect(3))) == RejectReason.UNREACHABLE


def test_of_two_exits_the_other_one_gets_everything_when_one_leaves() -> None:
    relay, heard, inline, berlin, client = scene()
    paris = separate(relay, 3, "paris")
    client.push(connect(1), connect(2))
    assert got(berlin, paris) == [[1], [2]]
    berlin.push(LEAVING)
    client.push(connect(3))
    assert got(inline, berlin, paris) == [[], [], [1, 3]]
    assert heard.news == ["exits/exit took over"]


def test_an_exit_that_leaves_stays_out_when_it_attaches_again() -> None:
    _, _, inline, other, client = scene()
    other.push(LEAVING)
    other.attach(generation=2)
    client.push(connect(1))
    assert got(inline, other) == [[1], []]


def test_a_late_farewell_does_not_remove_the_exit_that_was_started_again() -> None:
    relay, heard, inline, old, client = scene()
    new = separate(relay, 3)  # with the same name
    assert old.status(old.send(LEAVING)).code == StatusCode.UNKNOWN
    client.push(connect(1))
    assert got(inline, new) == [[], [1]]
    assert heard.news == ["exits/exit took over"]


def test_an_exit_that_leaves_and_comes_back_at_once_gets_connections_again() -> None:
    relay, heard, inline, old, client = scene()
    old.push(LEAVING)
    new = separate(relay, 3)
    client.push(connect(1))
    assert got(inline, new) == [[], [1]]
    assert heard.news == ["exits/exit took over", "left", "exits/exit took over"]


def test_2_7_a_farewell_with_an_old_version_does_not_count_and_a_repeated_one_is_answered_again() -> None:
    _, _, inline, other, client = scene()
    other.push(option(2, pull_interval_ms=0))
    assert other.push(option(1, leaving=True)) == []
    client.push(connect(1))
    assert got(inline, other) == [[], [1]]
    other.push(accepted(1, 22))
    for _ in range(2):
        assert kinds(other.push(option(3, leaving=True))) == ["OPTION"]
    client.push(connect(2))
    assert got(inline, other) == [[2], []]


def test_a_farewell_of_an_endpoint_that_is_no_exit_concerns_no_service() -> None:
    relay = Relay()
    server, client = Peer(relay, "bob", 2).attached(), Peer(relay).attached()
    server.listen()
    assert kinds(server.push(LEAVING)) == ["OPTION"]
    client.push(connect(1, target=REPORTS))
    assert got(server) == [[1]]


def test_two_users_cannot_send_each_others_exits_away() -> None:
    relay, _, inline, other, client = scene()
    eve = Peer(relay, "eve", 9, "exit").attached()
    eve.push(LEAVING)
    stolen = Peer(relay, "eve", other.seed, epoch=other.epoch)  # with the id of the exit
    assert stolen.status(stolen.send(LEAVING)).code == StatusCode.UNKNOWN
    client.push(connect(1))
    assert got(inline, other) == [[], [1]]


def test_a_connection_that_a_rule_gives_to_one_exit_is_not_given_to_another() -> None:
    relay = Relay(authorise=lambda user, target: Hand(HandTo.EXIT, "exit"))
    inline, named, paris = inline_of(relay), separate(relay), separate(relay, 3, "paris")
    client = Peer(relay).attached()
    client.push(connect(1))
    assert got(named) == [[1]]
    named.push(LEAVING)
    assert got(inline, paris) == [[], []]
    named.push(accepted(1, 22))
    assert kinds(client.push()) == ["ACCEPTED"]


def test_a_connection_that_the_rules_have_come_to_deny_is_not_given_to_another_exit() -> None:
    rules: list[Decision] = [Hand(HandTo.EXIT)]
    relay = Relay(authorise=lambda user, target: rules[0])
    inline, other, client = inline_of(relay), separate(relay), Peer(relay).attached()
    client.push(connect(1))
    rules[0] = Deny()
    other.push(LEAVING)
    assert got(inline) == [[]]


def test_a_resume_stays_with_the_exit_that_it_names() -> None:
    _, _, inline, other, client = scene()
    client.push(resume(11, 22, other))
    assert kinds(other.push()) == ["CONNECT"]
    other.push(LEAVING)
    assert got(inline) == [[]]
    other.push(accepted(11, 22, resumed=True))
    assert kinds(client.push()) == ["ACCEPTED"]


def test_an_exit_without_room_does_not_take_over() -> None:
    relay = Relay(exit_mailbox_bytes_max=64 << 10, mailbox_bytes_max=1 << 20)
    leaving, full, client = separate(relay, 2, "berlin"), separate(relay, 3, "paris"), Peer(relay).attached()
    for source in range(1, 7):
        client.push(connect(source))
    mine, theirs = got(leaving, full)
    assert len(mine) == len(theirs) == 3
    leaving.push(LEAVING)
    assert got(full) == [[]]
    leaving.push(accepted(mine[0], 22))
    assert "ACCEPTED" in kinds(client.push())


def test_a_farewell_is_not_held_against_an_exit_that_gets_the_connection_back() -> None:
    """It was silent for a while, and the exit that took the connection over leaves."""
    relay = Relay()
    first, second, client = separate(relay, 2, "berlin"), separate(relay, 3, "paris"), Peer(relay).attached()
    client.push(connect(1))
    assert got(first) == [[1]]
    client.push(connect(1, attempt=1))
    relay.advance(SILENT)
    client.push(connect(1, attempt=2))
    assert got(second) == [[1]]
    first.push()
    second.push(LEAVING)
    assert got(first) == [[1]]
    first.push(accepted(1, 22))
    assert kinds(client.push()) == ["ACCEPTED"]


def test_an_answer_that_comes_when_all_is_forgotten_finds_no_route() -> None:
    relay, _, inline, other, client = scene()
    client.push(connect(1))
    other.push()
    other.push(LEAVING)
    inline.push()
    inline.push(accepted(1, 33))
    relay.advance(75 * SECOND)
    assert kinds(other.push(accepted(1, 22))) == ["DROPPED"]


# --- services


def test_2_8_a_connection_that_a_listener_has_not_accepted_before_it_is_down_goes_to_another_listener() -> None:
    relay = Relay()
    first, second = Peer(relay, "bob", 2).attached(), Peer(relay, "bob", 3).attached()
    first.listen(), second.listen()
    client = Peer(relay).attached()
    client.push(connect(1, target=REPORTS))
    assert got(first) == [[1]]
    first.push(listen_state(version=2, up=False), rejected(1, RejectReason.NO_SUCH_SERVICE))
    assert got(second) == [[1]]
    assert client.push() == []
    assert aborted(first.push(accepted(1, 22))) == AbortReason.GONE
    second.push(accepted(1, 33))
    assert kinds(client.push()) == ["ACCEPTED"]


def test_2_8_without_another_listener_the_one_that_is_down_answers() -> None:
    relay = Relay()
    only, client = Peer(relay, "bob", 2).attached(), Peer(relay).attached()
    only.listen()
    client.push(connect(1, target=REPORTS))
    assert got(only) == [[1]]
    only.push(listen_state(version=2, up=False))
    only.push(rejected(1, RejectReason.NO_SUCH_SERVICE))
    assert reason(client.push()) == RejectReason.NO_SUCH_SERVICE


@pytest.mark.parametrize("late", [listen_state(version=0, up=False), listen_state(version=1, up=False)])
def test_2_8_a_late_announcement_moves_nothing(late: Packet) -> None:
    relay = Relay()
    first, second = Peer(relay, "bob", 2).attached(), Peer(relay, "bob", 3).attached()
    first.listen(), second.listen()
    client = Peer(relay).attached()
    client.push(connect(1, target=REPORTS))
    first.push(late)
    assert got(second) == [[]]


def test_2_8_a_listener_without_room_does_not_take_over() -> None:
    relay = Relay()
    first, second = Peer(relay, "bob", 2).attached(), Peer(relay, "bob", 3).attached()
    first.listen(backlog=1), second.listen(backlog=1)
    client = Peer(relay).attached()
    client.push(connect(1, target=REPORTS), connect(2, target=REPORTS))
    assert got(first, second) == [[1], [2]]
    first.push(listen_state(version=2, up=False))
    assert got(second) == [[]]


def test_a_listener_that_is_silent_gets_connections_only_if_there_is_no_other() -> None:
    relay = Relay()
    first, second = Peer(relay, "bob", 2).attached(), Peer(relay, "bob", 3).attached()
    first.listen(), second.listen()
    client = Peer(relay).attached()
    client.push(connect(1, target=REPORTS))
    relay.advance(SILENT)
    for source in (2, 3):
        client.push(connect(source, target=REPORTS))
    client.push(connect(1, target=REPORTS, attempt=1))
    assert got(second) == [[2, 3, 1]]
    second.push(listen_state(version=2, up=False))
    client.push(connect(4, target=REPORTS))
    assert got(first) == [[4]]


def test_a_listener_that_is_silent_gets_a_connection_before_it_waits_for_room() -> None:
    relay = Relay()
    first, second = Peer(relay, "bob", 2).attached(), Peer(relay, "bob", 3).attached()
    first.listen(backlog=4), second.listen(backlog=1)
    client = Peer(relay).attached()
    client.push(connect(1, target=REPORTS), connect(2, target=REPORTS))
    second.push()
    relay.advance(SILENT)
    client.push(connect(3, target=REPORTS))
    assert got(first) == [[1, 3]]
    assert relay.switch.stats().routes_waiting == 0


def test_an_endpoint_that_takes_the_place_of_an_exit_gets_what_that_has_not_accepted() -> None:
    relay, _, inline, old, client = scene()
    client.push(connect(1))
    assert got(old) == [[1]]
    new = Peer(relay, "exits", 3, "exit", is_exit=True)
    new.attach()
    assert got(inline, new) == [[], [1]]
    assert client.push() == []


# --- silence


def test_an_exit_from_which_nothing_comes_after_a_connection_gets_no_others_until_something_comes() -> None:
    relay, heard, inline, other, client = scene()
    client.push(connect(1))
    relay.advance(SILENT - MS)
    client.push(connect(2))
    assert got(inline) == [[]]
    relay.advance(MS)
    client.push(connect(3), connect(4))
    assert got(inline) == [[3, 4]]
    assert heard.news[1:] == ["exits/exit is silent"]
    other.push()
    client.push(connect(5))
    assert got(inline) == [[]]


def test_the_repeat_of_a_connection_whose_exit_is_silent_goes_to_another_exit() -> None:
    relay, heard, inline, other, client = scene()
    client.push(connect(1), data(1, 0, 101))
    relay.advance(3 * SECOND)
    client.push(connect(1, attempt=1))
    assert got(inline) == [[]]
    relay.advance(4 * SECOND)
    client.push(connect(1, attempt=2))
    (packet,) = inline.push()
    assert (packet.source, packet.attempt) == (1, 2)
    assert kinds(inline.push(accepted(1, 33))) == ["DATA"]
    assert heard.news[1:] == ["exits/exit is silent"]
    assert aborted(other.push(accepted(1, 22))) == AbortReason.GONE


def test_an_exit_that_dials_slowly_but_pulls_is_not_silent() -> None:
    relay, _, inline, other, client = scene()
    client.push(connect(1))
    for _ in range(4):
        relay.advance(SILENT - MS)
        other.push()
    client.push(connect(1, attempt=1), connect(2))
    assert got(inline) == [[]]


def test_an_exit_that_was_idle_for_long_is_not_silent() -> None:
    relay, _, inline, other, client = scene()
    relay.advance(60 * SECOND)
    client.push(connect(1))
    assert got(inline, other) == [[], [1]]


def test_the_pull_interval_is_no_silence() -> None:
    relay, _, inline, other, client = scene()
    other.push(option(1, pull_interval_ms=20_000))
    client.push(connect(1))
    relay.advance(20 * SECOND + SILENT - MS)
    client.push(connect(2))
    assert got(inline) == [[]]
    relay.advance(MS)
    client.push(connect(3))
    assert got(inline) == [[3]]


@pytest.mark.parametrize("sign", ["packets", "receipt", "new link", "ATTACH"])
def test_whatever_comes_ends_the_silence(sign: str) -> None:
    relay, _, inline, other, client = scene()
    switch = relay.switch
    assert switch.link_opened(7, other.user, other.identity, other.epoch, other.generation, relay.now)
    client.push(connect(1))
    assert kinds_on_link(relay, 7) == ["CONNECT"]
    relay.advance(SILENT)
    if sign == "packets":
        switch.link_packets(7, frames_of(control(PacketType.NOOP, 0, 0)), relay.now)
    elif sign == "receipt":
        switch.link_receipted(7, 1, relay.now)
    elif sign == "ATTACH":
        other.attach()
    else:
        assert switch.link_opened(8, other.user, other.identity, other.epoch, other.generation, relay.now)
    client.push(connect(2))
    assert got(inline) == [[]]


def kinds_on_link(relay: Relay, link: int) -> list[str]:
    found = [PacketType(frame.type).name for frame in relay.switch.poll_link(link, 1 << 20, relay.now)]
    relay.settle()
    return found


def test_each_silence_is_reported_once() -> None:
    relay, heard, inline, other, client = scene()
    for round_ in range(1, 3):
        client.push(connect(10 * round_))
        relay.advance(SILENT)
        client.push(connect(10 * round_ + 1), connect(10 * round_, attempt=1))
        assert heard.news[1:] == ["exits/exit is silent"] * round_
        other.push(), inline.push()


def test_a_silent_exit_without_another_gets_connections_and_nothing_is_reported() -> None:
    heard = Expected()
    relay = Relay(separate_exits=heard)
    only, client = separate(relay), Peer(relay).attached()
    client.push(connect(1))
    relay.advance(SILENT)
    client.push(connect(1, attempt=1), connect(2))
    assert got(only) == [[1, 2]]
    assert heard.news == []


def encrypted(initiator: int, own: int) -> Packet:
    payload = encode_accepted(Accepted(key(initiator), False, 1 << 16, Options(encryption=b"")))
    return Packet(PacketType.ACCEPTED, initiator, own, 500, payload)


def test_a_connection_that_a_silent_exit_would_encrypt_waits_for_it_and_not_for_the_inline_one() -> None:
    """The inline exit never encrypts, and many clients would go on in clear."""
    relay, heard, inline, other, client = scene()
    client.push(connect(1, encryption=b"hello"))
    other.push()
    other.push(encrypted(1, 22))
    client.push(connect(2, encryption=b"hello"))
    relay.advance(SILENT)
    client.push(connect(2, encryption=b"hello", attempt=1), connect(3, encryption=b"hello"), connect(4))
    assert got(inline, other) == [[4], [2, 3]]
    assert heard.news[1:] == ["exits/exit is silent"]


def test_a_connection_that_a_silent_exit_would_encrypt_goes_to_another_exit() -> None:
    relay, _, inline, other, client = scene()
    client.push(connect(1, encryption=b"hello"))
    other.push()
    other.push(encrypted(1, 22))
    client.push(connect(2, encryption=b"hello"))
    relay.advance(SILENT)
    paris = separate(relay, 3, "paris")
    client.push(connect(2, encryption=b"hello", attempt=1), connect(3, encryption=b"hello"))
    assert got(inline, paris) == [[], [2, 3]]


def test_a_connection_that_an_exit_would_have_encrypted_goes_to_the_inline_one_when_the_exit_leaves() -> None:
    _, _, inline, other, client = scene()
    client.push(connect(1, encryption=b"hello"))
    other.push()
    other.push(encrypted(1, 22))
    client.push(connect(2, encryption=b"hello"))
    other.push(LEAVING)
    assert got(inline) == [[2]]


def test_a_silent_inline_exit_is_not_reported() -> None:
    """It is silent only while the whole relay is."""
    heard = Expected()
    relay = Relay(separate_exits=heard)
    _, client = inline_of(relay), Peer(relay).attached()
    client.push(connect(1))
    relay.advance(SILENT)
    other = separate(relay)
    client.push(connect(2))
    assert got(other) == [[2]]
    assert heard.news == ["exits/exit took over"]


def test_an_exit_that_died_after_it_had_pulled_is_found_silent_by_the_repeats() -> None:
    relay, _, inline, other, client = scene()
    client.push(connect(1))
    assert got(other) == [[1]]
    other.push()  # it has the CONNECT, and is killed before it has dialled
    client.push(connect(1, attempt=1))
    relay.advance(SILENT)
    client.push(connect(1, attempt=2))
    assert got(inline) == [[1]]


def test_a_rule_that_names_an_exit_holds_although_it_is_silent() -> None:
    def authorise(user: str, target: Target) -> Decision:
        return Hand(HandTo.EXIT, "exit")

    relay = Relay(authorise=authorise)
    inline, named, client = inline_of(relay), separate(relay), Peer(relay).attached()
    client.push(connect(1, target=DATABASE))
    relay.advance(SILENT)
    client.push(connect(1, attempt=1), connect(2))
    assert got(inline, named) == [[], [1, 2]]


def test_two_users_do_not_wait_for_the_silence_that_one_of_them_found() -> None:
    relay, _, inline, _, client = scene()
    bob = Peer(relay, "bob", 5).attached()
    client.push(connect(1))
    relay.advance(SILENT)
    bob.push(connect(1, route_key=bytes(range(16))))
    assert [packet.source for packet in of_kind(inline.push(), PacketType.CONNECT)] == [1]
