"""Rules that change at any moment: in whatever state routes are, the switch stays sound and keeps what is allowed."""

from random import Random

import pytest

from tests.servlet.support import DATABASE, REPORTS, Peer, accepted, bind, connect, control, data, resume
from tests.servlet.switch.rig import ALL, Scene, denied
from tunnel.wire import PacketType
from tunnel_servlet.access.grants import Grant, GrantTable


def test_a_route_that_one_side_has_ended_is_released() -> None:
    scene = Scene()
    bind(scene.ann, scene.exit, 11, 21)
    scene.ann.push(control(PacketType.SHUTDOWN, 11, 21))
    scene.change(ann=Grant())
    assert list(denied(scene.exit.push())) == [(11, 21)]
    assert scene.relay.switch.stats().routes == 0


def test_a_route_from_an_endpoint_to_itself_ends_on_both_sides() -> None:
    scene = Scene()
    own = Grant(services=("reports",), listen=("reports",))
    scene.change(rita=own)
    assert "CONNECT" in [PacketType(packet.type).name for packet in scene.rita.push(connect(41, target=REPORTS))]
    scene.rita.push(accepted(41, 42))
    scene.change(rita=Grant(listen=("reports",)))
    assert sorted(denied(scene.rita.push())) == [(41, 42), (42, 41)]
    assert scene.relay.switch.stats().routes == 0


def act(scene: Scene, random: Random, number: int) -> None:
    """Let a random endpoint do something, or time pass."""
    initiator, client = 1000 + number, random.choice((scene.ann, scene.bob))
    acceptor = random.choice((scene.exit, scene.rita))
    match random.randrange(7):
        case 0 | 1:
            client.push(connect(initiator, target=DATABASE if acceptor is scene.exit else REPORTS))
            if random.random() < 0.7:
                acceptor.push()
                acceptor.push(accepted(initiator, 5000 + number))
        case 2:
            client.push(resume(initiator, 5000 + number, Peer(scene.relay, "exits", 90 + number % 2, is_exit=True)))
        case 3:
            client.push(data(initiator - 1, 4999 + number, 101), data(initiator - 2, 4998 + number, 101))
        case 4:
            client.push(control(PacketType.SHUTDOWN, initiator - 1, 4999 + number))
        case 5:
            acceptor.push(control(PacketType.ABORT, 4999 + number, initiator - 1))
        case _:
            scene.relay.advance(random.randrange(1, 2_000_000))


@pytest.mark.parametrize("seed", range(12))
def test_two_users_whatever_state_routes_are_in_only_those_that_are_denied_end(seed: int) -> None:
    """The switch checks its invariants after each step."""
    random = Random(seed)
    scene = Scene()
    for number in range(120):
        act(scene, random, number)
        if number % 10 == 9:
            before = scene.relay.switch.stats()
            ended = scene.change(ann=Grant()) if random.random() < 0.5 else scene.change(bob=Grant())
            assert len({one.user for one in ended}) <= 1
            after = scene.relay.switch.stats()
            assert before.routes - after.routes == len(ended)
            scene.rules.table = GrantTable(ALL)
    scene.revoke("ann")
    scene.revoke("bob")
    scene.change()
    assert scene.relay.switch.stats().routes == 0
