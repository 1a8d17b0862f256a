"""What the operator ends: both ends learn why, everything else goes on (PROTOCOL 9.10).

The switch checks its invariants after each step."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from tests.servlet.support import (
    DATABASE,
    REPORTS,
    Peer,
    accepted,
    bind,
    connect,
    control,
    data,
    kinds,
    read_rejected,
    resume,
)
from tests.servlet.switch.rig import Scene, inline_of
from tunnel.wire import (
    Abort,
    AbortReason,
    Attached,
    Packet,
    PacketType,
    RejectReason,
    StatusCode,
    decode_abort,
    encode_abort,
)
from tunnel_servlet.switch.model import Route
from tunnel_servlet.switch.operating.operator import ATTACHMENT_KICKED, KICKED
from tunnel_servlet.switch.review import Ended

ENDPOINT_KICKED = "the operator of the relay ended the attachment of an endpoint of this connection"


def resets(packets: list[Packet]) -> dict[tuple[int, int], str]:
    """Return the ids and texts of the ABORTs among the packets; each must be a plain reset."""
    found = {}
    for packet in packets:
        if packet.type == PacketType.ABORT:
            abort = decode_abort(packet.payload)
            assert abort is not None
            assert abort.reason == AbortReason.APPLICATION
            found[packet.source, packet.destination] = abort.text
    return found


def of(scene: Scene, initiator: int) -> Route:
    return next(one for one in scene.relay.switch.operator.connections() if one.initiator.own_id == initiator)


def kick(scene: Scene, initiator: int) -> Ended:
    ended = scene.relay.switch.operator.kick_connection(of(scene, initiator), scene.relay.now)
    scene.relay.switch.handle_timeout(scene.relay.now)
    scene.relay.settle()
    return ended


def kick_attachments(scene: Scene, user: str) -> Iterator[Ended]:
    operator = scene.relay.switch.operator
    for ended in operator.kick_attachments(operator.attachments_of(user), lambda: scene.relay.now):
        scene.relay.switch.handle_timeout(scene.relay.now)
        scene.relay.settle()
        yield from ended


def test_two_users_both_ends_of_a_kicked_connection_learn_why_and_the_other_user_goes_on() -> None:
    scene = Scene()
    bind(scene.ann, scene.exit, 11, 21)
    bind(scene.ann, scene.exit, 13, 23)
    bind(scene.bob, scene.exit, 12, 22)
    assert kick(scene, 11) == Ended("connection", "ann", "db.internal:5432", KICKED)
    assert resets(scene.ann.push()) == {(21, 11): KICKED}
    assert resets(scene.exit.push()) == {(11, 21): KICKED}
    assert scene.still_carries(scene.bob, scene.exit, 12, 22)
    assert scene.still_carries(scene.ann, scene.exit, 13, 23)
    stats = scene.relay.switch.stats()
    assert (stats.routes, stats.counters.routes_kicked, stats.counters.routes_denied) == (2, 1, 0)
    assert scene.ann.push() == scene.exit.push() == []


def test_a_kicked_connection_is_over_once_both_ends_know() -> None:
    scene = Scene()
    operator = scene.relay.switch.operator
    bind(scene.ann, scene.exit, 11, 21)
    assert not operator.are_over()
    kick(scene, 11)
    assert not operator.are_over()
    assert kinds(scene.exit.push()) == ["ABORT"]
    assert not operator.are_over()
    assert kinds(scene.ann.push()) == ["ABORT"]
    assert operator.are_over()


def test_an_end_that_is_gone_learns_of_no_kick() -> None:
    scene = Scene()
    operator = scene.relay.switch.operator
    bind(scene.ann, scene.exit, 11, 21)
    bind(scene.bob, scene.exit, 12, 22)
    for number in (11, 12):
        kick(scene, number)
    assert not operator.are_over()
    scene.exit.push()
    scene.bob.push()
    assert not operator.are_over()
    list(kick_attachments(scene, "ann"))
    assert operator.are_over()


def test_a_connection_that_a_side_has_aborted_is_over_once_the_other_side_knows() -> None:
    scene = Scene()
    operator = scene.relay.switch.operator
    bind(scene.ann, scene.exit, 11, 21)
    bind(scene.bob, scene.exit, 12, 22)
    abort = encode_abort(Abort(AbortReason.APPLICATION, "reset"))
    scene.exit.push(control(PacketType.ABORT, 21, 11, abort))
    assert [one.user for one in operator.connections()] == ["bob"]
    stats = scene.relay.switch.stats()
    assert (stats.routes, stats.routes_open, stats.routes_bound, stats.routes_aborted) == (2, 1, 1, 1)
    scene.bob.push(control(PacketType.ABORT, 12, 22, abort))
    assert operator.connections() == []
    assert not operator.are_over()
    assert kinds(scene.ann.push()) == ["ABORT"]
    assert not operator.are_over()
    assert kinds(scene.exit.push()) == ["ABORT"]
    assert operator.are_over()
    scene.ann.push(control(PacketType.ABORT, 11, 21, abort))  # both sides may abort at once
    assert scene.relay.switch.stats().routes_aborted == 1


def test_a_held_pull_brings_the_reset_at_once() -> None:
    scene = Scene()
    bind(scene.ann, scene.exit, 11, 21)
    pull = scene.ann.pull()
    kick(scene, 11)
    assert resets(scene.ann.packets(pull)) == {(21, 11): KICKED}


@pytest.mark.parametrize("is_taken", [True, False])
def test_a_connection_that_is_kicked_before_it_is_open_is_refused_and_the_acceptor_hangs_up(is_taken: bool) -> None:
    scene = Scene()
    scene.ann.push(connect(11))
    if is_taken:
        assert kinds(scene.exit.push()) == ["CONNECT"]
    kick(scene, 11)
    (refused,) = scene.ann.push()
    assert (read_rejected(refused).reason, read_rejected(refused).text) == (RejectReason.REFUSED, KICKED)
    if is_taken:
        assert resets(scene.exit.push(accepted(11, 21))) == {(11, 21): KICKED}
    else:
        assert scene.exit.push() == []
    assert scene.relay.switch.stats().routes == 0


def test_a_connection_that_waits_for_a_listener_is_refused() -> None:
    scene = Scene()
    scene.rita.listen(backlog=1, version=2)
    scene.ann.push(connect(11, target=REPORTS), connect(12, target=REPORTS))
    kick(scene, 12)
    (refused,) = scene.ann.push()
    assert (refused.source, read_rejected(refused).text) == (12, KICKED)
    assert kinds(scene.rita.push()) == ["CONNECT"]


def test_a_parked_resume_is_refused_and_does_not_come_back() -> None:
    scene = Scene()
    other = Peer(scene.relay, "exits", 9, is_exit=True)
    scene.ann.push(resume(11, 21, other))
    kick(scene, 11)
    (refused,) = scene.ann.push()
    assert read_rejected(refused).text == KICKED
    other.attached()
    assert other.push() == []


def test_two_users_a_kicked_attachment_takes_its_connections_along_and_may_come_back() -> None:
    scene = Scene()
    bind(scene.ann, scene.exit, 11, 21)
    scene.serve(scene.bob, 12, 32)
    bind(scene.bob, scene.exit, 13, 23)
    ended = list(kick_attachments(scene, "ann"))
    assert ended == [
        Ended("connection", "ann", "db.internal:5432", ENDPOINT_KICKED),
        Ended("endpoint", "ann", "", ATTACHMENT_KICKED),
    ]
    assert resets(scene.exit.push()) == {(11, 21): ENDPOINT_KICKED}
    assert scene.relay.switch.operator.attachments_of("ann") == []
    assert scene.still_carries(scene.bob, scene.exit, 13, 23)
    assert scene.still_carries(scene.bob, scene.rita, 12, 32)
    assert scene.ann.status(scene.ann.send()).code == StatusCode.UNKNOWN
    assert isinstance(scene.ann.attach(), Attached)
    assert scene.relay.switch.stats().counters.attachments_kicked == 1


def test_two_users_a_kicked_service_ends_the_connections_of_others_to_it_and_no_more() -> None:
    scene = Scene()
    scene.serve(scene.ann, 11, 31)
    scene.serve(scene.bob, 12, 32)
    bind(scene.bob, scene.exit, 13, 23)
    kinds_ended = [one.kind for one in kick_attachments(scene, "rita")]
    assert kinds_ended == ["connection", "connection", "endpoint"]
    assert resets(scene.ann.push()) == {(31, 11): ENDPOINT_KICKED}
    assert resets(scene.bob.push()) == {(32, 12): ENDPOINT_KICKED}
    assert scene.still_carries(scene.bob, scene.exit, 13, 23)


def test_a_connect_that_a_kicked_exit_has_not_answered_goes_to_another_one() -> None:
    scene = Scene()
    second = Peer(scene.relay, "exits", 9, is_exit=True).attached()
    scene.ann.push(connect(11))
    operator = scene.relay.switch.operator
    (first,) = [one for one in operator.attachments_of("exits") if one.handed]
    for _ in operator.kick_attachments([first], lambda: scene.relay.now):
        scene.relay.switch.handle_timeout(scene.relay.now)
        scene.relay.settle()
    left = second if first.identity == scene.exit.identity else scene.exit
    assert kinds(left.push()) == ["CONNECT"]
    assert scene.ann.push() == []


def test_many_connections_end_in_small_steps() -> None:
    scene = Scene()
    for number in range(40):
        bind(scene.ann, scene.exit, 100 + number, 1000 + number)
    operator = scene.relay.switch.operator
    steps = operator.kick_attachments(operator.attachments_of("ann"), lambda: scene.relay.now)
    assert [len(step) for step in steps] == [16, 16, 8, 1]


def test_the_endpoints_of_the_relay_itself_belong_to_no_user() -> None:
    scene = Scene()
    inline_of(scene.relay)
    assert scene.relay.switch.operator.attachments_of("relay:exit") == []


def test_ids_find_what_they_name_until_it_ends() -> None:
    scene = Scene()
    bind(scene.ann, scene.exit, 11, 21)
    operator, end = scene.relay.switch.operator, f"{scene.relay.switch.epoch & 0xFFFF:04x}"
    assert operator.connection(f"c1-{end}") is of(scene, 11)
    assert operator.attachment(f"a2-{end}") is operator.attachments_of("bob")[0]
    kick(scene, 11)
    assert operator.connection(f"c1-{end}") is None
    list(kick_attachments(scene, "bob"))
    assert operator.attachment(f"a2-{end}") is None
    scene.ann.push()
    scene.exit.push()
    bind(scene.ann, scene.exit, 11, 21)
    assert operator.connection(f"c1-{end}") is None  # no number comes twice
    assert operator.connection(f"c2-{end}") is of(scene, 11)


@pytest.mark.parametrize("seed", range(8))
def test_two_users_whatever_state_connections_are_in_only_the_kicked_ones_end(seed: int) -> None:
    random = Random(seed)
    scene = Scene()
    for number in range(80):
        client = random.choice((scene.ann, scene.bob))
        acceptor, target = random.choice(((scene.exit, DATABASE), (scene.rita, REPORTS)))
        client.push(connect(1000 + number, target=target))
        if random.random() < 0.6:
            acceptor.push()
            acceptor.push(accepted(1000 + number, 5000 + number), data(5000 + number, 1000 + number, 501))
        if random.random() < 0.2:
            client.push(control(PacketType.SHUTDOWN, 1000 + number, 5000 + number))
        routes = scene.relay.switch.operator.connections()
        if routes and random.random() < 0.3:
            doomed = random.choice(routes)
            kept = [one for one in routes if one is not doomed]
            kick(scene, doomed.initiator.own_id)
            assert scene.relay.switch.operator.connections() == kept
        if random.random() < 0.05:
            scene.relay.advance(random.randrange(1, 2_000_000))
