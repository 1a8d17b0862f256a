"""Rules and tokens that change while the relay runs: what they no longer allow ends, all else goes on.

Clause 9.7 of docs/PROTOCOL.md.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.servlet.support import (
    MS,
    REPORTS,
    SECOND,
    Peer,
    Relay,
    accepted,
    bind,
    connect,
    data,
    kinds,
    listen_state,
    read_rejected,
    resume,
)
from tests.servlet.switch.rig import ALL, Rules, Scene, denied, reviewed
from tunnel.wire import (
    ListenStatus,
    Packet,
    PacketType,
    RejectReason,
    StatusCode,
    Target,
    TargetKind,
    decode_listen_state,
    inline_exit_id,
)
from tunnel_servlet.access.grants import Grant, GrantTable
from tunnel_servlet.access.rules import parse_rule

WEB = Target(TargetKind.TCP, "web", 80)


def test_two_users_a_route_whose_rule_was_removed_ends_on_both_sides_and_the_other_goes_on() -> None:
    scene = Scene()
    bind(scene.ann, scene.exit, 11, 21)
    bind(scene.bob, scene.exit, 12, 22)
    (ended,) = scene.change(ann=Grant(connect=(parse_rule("web:80"),)))
    assert (ended.kind, ended.user, ended.name) == ("connection", "ann", "db.internal:5432")
    assert ended.text.startswith("no rule allows db.internal:5432; under [users.ann]")
    assert denied(scene.ann.push()) == {(21, 11): ended.text}
    told = denied(scene.exit.push())
    assert list(told) == [(11, 21)]
    assert "web:80" not in told[11, 21]  # the acceptor does not learn the rules of the user
    assert scene.still_carries(scene.bob, scene.exit, 12, 22)
    stats = scene.relay.switch.stats()
    assert (stats.routes, stats.counters.routes_denied) == (1, 1)
    assert scene.relay.switch.stats().bytes_reserved == 2 * scene.relay.config.reserved_bytes


def test_two_users_only_the_denied_routes_of_an_endpoint_end() -> None:
    scene = Scene()
    bind(scene.ann, scene.exit, 11, 21)
    scene.ann.push(connect(13, target=WEB))
    scene.exit.push()
    scene.exit.push(accepted(13, 23))
    scene.ann.push()
    scene.change(ann=Grant(connect=(parse_rule("web:80"),)))
    assert list(denied(scene.ann.push())) == [(21, 11)]
    assert scene.still_carries(scene.ann, scene.exit, 13, 23)


def test_two_users_data_that_waits_for_an_allowed_route_is_not_lost() -> None:
    """The packets of both users wait in one mailbox, that of the exit, when the rules deny ann's route."""
    scene = Scene()
    bind(scene.ann, scene.exit, 11, 21)
    bind(scene.bob, scene.exit, 12, 22)
    for number in range(101, 111):
        scene.ann.push(data(11, 21, number))
        scene.bob.push(data(12, 22, number))
    scene.change(ann=Grant())
    arrived = scene.exit.push()
    assert [packet.sequence for packet in arrived if packet.type == PacketType.DATA] == list(range(101, 111))
    assert {packet.source for packet in arrived if packet.type == PacketType.DATA} == {12}


def test_two_users_new_rules_that_deny_nothing_change_no_state() -> None:
    scene = Scene()
    bind(scene.ann, scene.exit, 11, 21)
    scene.serve(scene.bob, 12, 32)
    pull = scene.ann.pull()
    before = scene.relay.switch.stats()
    assert scene.change(eve=Grant()) == []
    assert pull not in scene.relay.responses
    assert scene.relay.switch.stats() == before
    assert scene.exit.push() == scene.rita.push() == []


@pytest.mark.parametrize("is_taken", [True, False])
def test_two_users_a_connect_that_is_unanswered_when_it_is_denied_leaves_no_route(is_taken: bool) -> None:
    """This holds whether or not the exit has taken the CONNECT and already dials."""
    scene = Scene()
    scene.ann.push(connect(11))
    if is_taken:
        assert kinds(scene.exit.push()) == ["CONNECT"]
    scene.change(ann=Grant())
    (refused,) = scene.ann.push()
    assert read_rejected(refused).reason == RejectReason.DENIED
    assert "no rule allows db.internal:5432" in read_rejected(refused).text
    if is_taken:
        told = scene.exit.push(accepted(11, 21))  # the exit's dial has succeeded meanwhile: it must hang up at once
        assert list(denied(told)) == [(11, 21)]
    else:
        assert scene.exit.push() == []
    assert scene.ann.push() == []
    assert scene.relay.switch.stats().routes == 0


def test_a_denied_connect_is_remembered_for_as_long_as_it_may_be_answered() -> None:
    scene = Scene()
    scene.ann.push(connect(11))
    scene.exit.push()
    scene.change(ann=Grant())
    scene.relay.advance(80 * SECOND)
    assert kinds(scene.exit.push(accepted(11, 21))) == ["DROPPED"]
    scene.apply()
    scene.ann.push(connect(12, target=WEB))
    assert denied(scene.exit.push()) == {}


def test_two_users_a_parked_resume_is_refused_when_it_is_denied() -> None:
    scene = Scene()
    other = Peer(scene.relay, "exits", 9, is_exit=True)
    scene.ann.push(resume(11, 21, other))
    scene.bob.push(resume(12, 22, other))
    assert scene.relay.switch.stats().routes_parked == 2
    scene.change(ann=Grant())
    (refused,) = scene.ann.push()
    assert read_rejected(refused).reason == RejectReason.DENIED
    assert scene.bob.push() == []
    other.attached()
    assert [packet.source for packet in other.push()] == [12]


def test_two_users_a_resume_that_was_handed_on_ends_at_its_acceptor_too() -> None:
    """Otherwise the acceptor would wait for the resume until its user timeout."""
    scene = Scene()
    scene.ann.push(resume(11, 21, scene.exit))
    scene.change(ann=Grant())
    assert read_rejected(scene.ann.push()[0]).reason == RejectReason.DENIED
    assert list(denied(scene.exit.push())) == [(11, 21)]


def test_two_users_the_acceptor_of_a_denied_resume_gets_abort() -> None:
    """The rules changed while the relay was restarted. Without ABORT the acceptor would wait until its user timeout."""
    scene = Scene()
    scene.rules.table = GrantTable({**ALL, "ann": Grant()})
    assert read_rejected(scene.ann.push(resume(11, 21, scene.exit))[0]).reason == RejectReason.DENIED
    scene.bob.push(resume(12, 22, scene.exit))
    told = scene.exit.push()
    assert list(denied(told)) == [(11, 21)]
    assert [packet.source for packet in told if packet.type == PacketType.CONNECT] == [12]


def test_6_5_a_resume_that_is_denied_waits_for_its_acceptor_after_a_restart_but_not_for_ever() -> None:
    rules = Rules()
    rules.table = GrantTable({"ann": Grant(), "exits": Grant(exit=True)})
    relay = Relay(authorise=rules.authorise, may_listen=rules.may_listen, settle_us=5 * SECOND)
    ann = Peer(relay, "ann", 1).attached()
    exit_, absent = (Peer(relay, "exits", seed, is_exit=True) for seed in (4, 5))
    assert ann.push(resume(11, 21, exit_), resume(12, 22, absent)) == []
    exit_.attached()
    (refused,) = ann.push(resume(11, 21, exit_), resume(12, 22, absent))
    assert (refused.source, read_rejected(refused).reason) == (11, RejectReason.DENIED)
    assert list(denied(exit_.push())) == [(11, 21)]
    inline = Peer(relay, "exits", 9, own_identity=inline_exit_id(relay.switch.epoch ^ 1))
    assert read_rejected(ann.push(resume(13, 23, inline))[0]).reason == RejectReason.DENIED  # its relay has ended
    relay.advance(5 * SECOND)
    assert read_rejected(ann.push(resume(12, 22, absent))[0]).reason == RejectReason.DENIED


def test_two_users_denied_resumes_leave_room_in_the_mailbox_of_an_exit() -> None:
    rules = Rules()
    rules.table = GrantTable({"eve": Grant(), "exits": Grant(exit=True), "bob": ALL["bob"]})
    relay = Relay(authorise=rules.authorise, may_listen=rules.may_listen, general_packets_max=16)
    eve, bob = Peer(relay, "eve", 1).attached(), Peer(relay, "bob", 2).attached()
    exit_ = Peer(relay, "exits", 4, is_exit=True).attached()
    exit_.push()
    for number in range(1, 31):
        eve.push(resume(number, 100 + number, exit_))
    bob.push(connect(12))
    told = exit_.push()
    assert len(denied(told)) == 4
    assert [packet.source for packet in told if packet.type == PacketType.CONNECT] == [12]


def test_two_users_a_connect_that_waits_for_a_listener_with_room_is_refused_when_it_is_denied() -> None:
    scene = Scene()
    scene.rita.listen(backlog=1, version=2)
    for client, initiator in ((scene.ann, 11), (scene.ann, 13), (scene.bob, 12)):
        client.push(connect(initiator, target=REPORTS))
    assert scene.relay.switch.stats().routes_waiting == 2
    scene.change(ann=Grant())
    assert [read_rejected(packet).reason for packet in scene.ann.push()] == [RejectReason.DENIED] * 2
    assert 12 in [packet.source for packet in scene.rita.push()]
    assert scene.relay.switch.stats().routes_waiting == 0


# --- users


def test_two_users_everything_of_a_revoked_user_ends_at_once() -> None:
    scene = Scene()
    bind(scene.ann, scene.exit, 11, 21)
    bind(scene.bob, scene.exit, 12, 22)
    scene.ann.push(connect(14))
    link = 1
    assert scene.relay.switch.link_opened(
        link, "ann", scene.ann.identity, scene.ann.epoch, scene.ann.generation, scene.relay.now
    )
    second = Peer(scene.relay, "ann", 7).attached()
    pull = second.pull()
    ended = scene.revoke("ann")
    assert [(one.kind, one.user) for one in ended] == [("connection", "ann")] * 2 + [("endpoint", "ann")] * 2
    assert scene.relay.links_ended == [link]
    assert second.status(pull).code == StatusCode.UNKNOWN
    told = scene.exit.push()
    assert list(denied(told)) == [(11, 21)]
    assert "CONNECT" not in kinds(told)
    assert scene.still_carries(scene.bob, scene.exit, 12, 22)
    stats = scene.relay.switch.stats()
    assert (stats.users, stats.routes, stats.links, stats.parked_pulls) == (3, 1, 0, 0)
    assert stats.counters.attachments_denied == 2


def test_two_users_the_peers_of_a_revoked_service_get_abort() -> None:
    scene = Scene()
    scene.serve(scene.ann, 11, 31)
    bind(scene.bob, scene.exit, 12, 22)
    scene.revoke("rita")
    assert denied(scene.ann.push()) == {(31, 11): "the endpoint that accepted it may no longer do so"}
    assert read_rejected(scene.bob.push(connect(13, target=REPORTS))[0]).reason == RejectReason.NO_SUCH_SERVICE
    assert scene.still_carries(scene.bob, scene.exit, 12, 22)


def test_two_users_an_exit_whose_user_may_no_longer_be_one_ends_and_the_other_goes_on() -> None:
    scene = Scene()
    second = Peer(scene.relay, "more", 8, is_exit=True)
    scene.rules.users.add("more")
    scene.change(more=Grant(exit=True))
    second.attached().push()
    bind(scene.ann, scene.exit, 11, 21)
    bind(scene.bob, second, 12, 22)
    ended = scene.change(exits=Grant(), more=Grant(exit=True))
    assert [(one.kind, one.user, one.text) for one in ended] == [
        ("connection", "ann", "the endpoint that accepted it may no longer do so"),
        ("endpoint", "exits", "the user may no longer be an exit"),
    ]
    assert list(denied(scene.ann.push())) == [(21, 11)]
    assert scene.still_carries(scene.bob, second, 12, 22)
    assert scene.exit.status(scene.exit.send()).code == StatusCode.UNKNOWN
    scene.ann.push(connect(15))
    assert kinds(second.push()) == ["CONNECT"]


def test_a_plain_endpoint_of_a_user_who_may_no_longer_be_an_exit_stays() -> None:
    scene = Scene()
    plain = Peer(scene.relay, "exits", 8).attached()
    scene.change(exits=Grant())
    assert plain.push() == []


# --- listeners


def answers(packets: list[Packet]) -> list[tuple[str, int, str]]:
    found = []
    for packet in packets:
        if packet.type == PacketType.LISTEN_STATE:
            state = decode_listen_state(packet.payload)
            assert state is not None
            found.append((state.name, int(state.state), state.text))
    return found


def test_two_users_a_name_that_is_no_longer_allowed_is_refused_and_its_connections_end() -> None:
    scene = Scene()
    scene.rita.listen("news", version=2)
    scene.serve(scene.ann, 11, 31)
    ended = scene.change(rita=Grant(listen=("news",)))
    assert [(one.kind, one.user, one.name) for one in ended] == [
        ("connection", "ann", "reports"),
        ("listener", "rita", "reports"),
    ]
    told = scene.rita.push()
    assert answers(told) == [("reports", ListenStatus.REFUSED, "")]
    assert list(denied(told)) == [(11, 31)]
    assert list(denied(scene.ann.push())) == [(31, 11)]
    assert scene.relay.switch.stats().listeners == 1  # the service "news" goes on


def shared(**grants: Any) -> tuple[Relay, Rules]:
    rules = Rules()
    rules.table = GrantTable(grants)
    return Relay(authorise=rules.authorise, may_listen=rules.may_listen, may_share=rules.may_share), rules


ANY = Grant(listen=("*",), services=("*",))
TAKEN = "another user has this name"


def announce(peer: Peer, name: str = "reports", version: int = 1, *, up: bool = True) -> tuple[int, str]:
    ((_, state, text),) = answers(peer.push(listen_state(name, 8, version, up=up)))
    return state, text


def test_two_users_do_not_share_a_name_that_the_rules_do_not_list_for_both() -> None:
    relay, _ = shared(rita=ANY, eve=ANY, ann=ANY)
    rita, more, eve, ann = (
        Peer(relay, user, seed).attached() for seed, user in enumerate(("rita", "rita", "eve", "ann"), 1)
    )
    assert announce(rita) == announce(more) == (ListenStatus.UP, "")  # the endpoints of one user share a name
    state, text = announce(eve)
    assert (state, text.startswith(TAKEN)) == (ListenStatus.REFUSED, True)
    assert 'listen = ["reports"]' in text
    assert "rita" not in text
    for initiator in range(1, 5):
        ann.push(connect(initiator, target=REPORTS))
    assert eve.push() == []
    assert announce(eve, "news", 2) == (ListenStatus.UP, "")


def test_two_users_share_a_name_that_the_rules_list_for_both() -> None:
    named = Grant(listen=("reports",))
    relay, rules = shared(rita=named, nora=named, eve=ANY)
    rita, nora, eve = (Peer(relay, user, seed).attached() for seed, user in enumerate(("rita", "nora", "eve"), 1))
    assert announce(rita) == announce(nora) == (ListenStatus.UP, "")
    assert announce(eve) == (ListenStatus.REFUSED, "")  # the rule * does not allow a name that belongs to others
    rules.users |= {"nora", "eve"}
    rules.table = GrantTable({"rita": ANY, "nora": ANY})
    (ended,) = reviewed(relay, rules)
    assert (ended.kind, ended.user, ended.name) == ("listener", "nora", "reports")
    assert [state for _, state, _ in answers(nora.push())] == [ListenStatus.REFUSED]
    assert answers(rita.push()) == []


def test_two_users_after_a_restart_a_listed_name_goes_to_its_owner_even_if_another_user_is_first() -> None:
    relay, _ = shared(rita=Grant(listen=("reports",)), eve=ANY)
    eve, rita = Peer(relay, "eve", 1).attached(), Peer(relay, "rita", 2).attached()
    assert announce(eve) == (ListenStatus.REFUSED, "")
    assert announce(rita) == (ListenStatus.UP, "")


def test_two_users_a_name_stays_with_its_owner_while_the_service_starts_again() -> None:
    relay, _ = shared(rita=ANY, eve=ANY)
    rita, eve = Peer(relay, "rita", 1).attached(), Peer(relay, "eve", 2).attached()
    announce(rita)
    assert announce(rita, version=2, up=False)[0] == ListenStatus.DOWN
    assert announce(eve)[0] == ListenStatus.REFUSED
    again = Peer(relay, "rita", 3).attached()
    assert announce(again)[0] == ListenStatus.UP
    announce(again, version=2, up=False)
    relay.advance(relay.config.attachment_timeout_us // 2)
    eve.push()
    relay.advance(relay.config.attachment_timeout_us // 2 - MS)
    assert announce(eve, version=2)[0] == ListenStatus.REFUSED
    relay.advance(2 * MS)
    assert announce(eve, version=3)[0] == ListenStatus.UP


def test_two_users_no_name_is_kept_for_a_revoked_user() -> None:
    relay, rules = shared(rita=ANY, eve=ANY)
    rita, eve = Peer(relay, "rita", 1).attached(), Peer(relay, "eve", 2).attached()
    announce(rita)
    rules.users = {"eve"}
    reviewed(relay, rules)
    assert announce(eve)[0] == ListenStatus.UP


def test_two_users_a_stream_is_resumed_at_an_endpoint_whose_name_went_to_another() -> None:
    """After a restart of the relay eve took the name first: new connections go to her, open ones to their endpoint."""
    relay, _ = shared(rita=ANY, eve=ANY, ann=ANY)
    ann, rita, eve = (Peer(relay, user, seed).attached() for seed, user in enumerate(("ann", "rita", "eve"), 1))
    announce(eve)
    assert announce(rita)[0] == ListenStatus.REFUSED
    ann.push(resume(11, 31, rita, target=REPORTS))
    assert kinds(rita.push()) == ["CONNECT"]


def test_an_endpoint_with_too_many_names_is_told_so() -> None:
    relay = Relay(names_per_attachment_max=1)
    peer = Peer(relay).attached()
    assert announce(peer, "one") == (ListenStatus.UP, "")
    state, text = announce(peer, "two", 2)
    assert (state, text.partition(":")[0]) == (ListenStatus.REFUSED, "this endpoint listens under 1 names already")


def test_the_target_of_an_ended_connection_is_shown_as_people_write_it() -> None:
    scene = Scene()
    bind(scene.ann, scene.exit, 11, 21)
    scene.serve(scene.ann, 12, 32)
    assert [one.name for one in scene.change(ann=Grant())] == ["db.internal:5432", "reports"]
