"""Endpoints that leave or are silent: who gets their connections, and the unanswered ones (PROTOCOL 6.10)."""

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
    rejected,
    resume,
)
from tests.servlet.switch.rig import LEAVING, SILENT, aborted, got, inline_of, scene, separate
from tunnel.traces.record import TraceEvent, TraceReason
from tunnel.wire import AbortReason, Attached, Packet, PacketType, RejectReason, Status, StatusCode, decode_option
from tunnel_servlet.switch.decisions import Decision, Deny, Hand, HandTo


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


def test_9_6_an_endpoint_that_has_left_keeps_its_place_for_some_seconds_only() -> None:
    """A killed one keeps it for 5 minutes."""
    relay = Relay(attachments_per_user_max=2, trace=True)
    killed, client = Peer(relay, seed=1).attached(), Peer(relay, seed=2).attached()
    killed.push()
    client.push(LEAVING)
    later = Peer(relay, seed=3)
    assert isinstance(later.attach(), Status)
    relay.advance(4 * SECOND)
    client.push()
    relay.advance(4 * SECOND)
    assert relay.switch.stats().attachments == 2
    relay.advance(2 * SECOND)
    assert relay.switch.stats().attachments == relay.counters.attachments_left == 1
    assert isinstance(later.attach(), Attached)
    relay.advance(301 * SECOND)
    assert (relay.counters.attachments_left, relay.counters.attachments_expired) == (1, 2)
    assert relay.counters.attaches_fresh == 3
    gone = [record.reason for record in relay.records if record.event == TraceEvent.DETACHED]
    assert gone == [TraceReason.CLEAN, TraceReason.USER_TIMEOUT, TraceReason.USER_TIMEOUT]


def test_9_6_an_exit_that_leaves_stays_until_its_last_connection_has_ended_and_others_until_their_last_link() -> None:
    relay, _, _, other, client = scene()
    bind(client, other, 11, 22)
    other.push(LEAVING)
    relay.advance(100 * SECOND)
    client.push(data(11, 22, 101))
    assert kinds(other.push()) == ["DATA"]
    client.push(control(PacketType.SHUTDOWN, 11, 22), LEAVING)
    other.push(control(PacketType.SHUTDOWN, 22, 11))
    assert relay.switch.link_opened(1, client.user, client.identity, client.epoch, client.generation, relay.now)
    relay.advance(11 * SECOND)
    assert relay.counters.attachments_left == 1
    relay.switch.link_closed(1, relay.now)
    relay.advance(11 * SECOND)
    assert relay.counters.attachments_left == 2


def test_9_6_a_pull_that_is_held_keeps_an_endpoint_that_leaves() -> None:
    relay = Relay()
    client = Peer(relay).attached()
    client.push(LEAVING)
    pull = client.pull(hold_ms=30_000)
    relay.advance(29 * SECOND)
    assert relay.switch.stats().attachments == 1
    relay.advance(2 * SECOND)
    assert client.packets(pull) == []
    relay.advance(11 * SECOND)
    assert relay.switch.stats().attachments == 0


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
    assert reason(client.push(connect(3))) == RejectReason.NO_EXIT


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


def test_an_endpoint_that_is_no_exit_and_leaves_offers_no_service_any_more() -> None:
    """It says so when it has ended, and its word that the service is down may come later."""
    relay = Relay()
    server, client = Peer(relay, "bob", 2).attached(), Peer(relay).attached()
    server.listen()
    assert kinds(server.push(LEAVING)) == ["OPTION"]
    assert reason(client.push(connect(1, target=REPORTS))) == RejectReason.NO_SUCH_SERVICE
    assert kinds(server.push(listen_state(version=2, up=False))) == ["LISTEN_STATE"]


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
    client.push(connect(1, attempt=1))
    assert got(inline, paris, named) == [[], [], [1]]  # the first copy may have been lost
    named.push(accepted(1, 22))
    assert kinds(client.push()) == ["ACCEPTED"]


def test_a_connection_that_the_rules_have_come_to_deny_is_not_given_to_another_exit() -> None:
    rules: list[Decision] = [Hand(HandTo.EXIT)]
    relay = Relay(authorise=lambda user, target: rules[0])
    inline, other, client = inline_of(relay), separate(relay), Peer(relay).attached()
    client.push(connect(1))
    rules[0] = Deny()
    other.push()
    other.push(LEAVING)
    client.push(connect(1, attempt=1))
    assert got(inline, other) == [[], [1]]  # the review of the rules ends it


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
    for _ in range(18):
        relay.advance(4 * SECOND)
        other.push()  # it is still there
    relay.advance(3 * SECOND)
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


def test_an_endpoint_that_takes_the_place_of_an_exit_gets_what_that_has_not_accepted() -> None:
    relay, _, inline, old, client = scene()
    client.push(connect(1))
    assert got(old) == [[1]]
    new = Peer(relay, "exits", 3, "exit", is_exit=True)
    new.attach()
    assert got(inline, new) == [[], [1]]
    assert client.push() == []
