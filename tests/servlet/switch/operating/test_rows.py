"""The rows that the operator sees: who, what, since when and how much."""

from __future__ import annotations

import pytest

from tests.servlet.support import SECOND, Peer, Relay, bind, bound, connect, data, listen_state
from tests.servlet.switch.rig import Scene, inline_of
from tunnel.wire import PublicPlace, Target, TargetKind
from tunnel_servlet.switch.decisions import Publisher
from tunnel_servlet.switch.operating.rows import (
    attachment_row,
    connection_row,
    number_in,
    service_row,
    shown_target,
)


def suffix(relay: Relay) -> str:
    return f"{relay.switch.epoch & 0xFFFF:04x}"


def test_a_connection_tells_who_what_since_when_and_how_much() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    client.push(data(11, 22, 101, b"12345"))
    exit_.push(data(22, 11, 501, b"123"))
    exit_.push()
    relay.now += 7 * SECOND
    operator, end = relay.switch.operator, suffix(relay)
    (route,) = operator.connections()
    row = connection_row(route, operator.epoch, relay.now)
    assert (row.id, row.user, row.owner, row.endpoint, row.attachment) == (f"c1-{end}", "ann", "", "", f"a1-{end}")
    assert (row.target, row.state, row.age_s) == ("db.internal:5432", "bound", 7)
    assert (row.acceptor_user, row.acceptor_endpoint, row.acceptor_attachment) == ("exits", "", f"a2-{end}")
    assert (row.bytes_up, row.bytes_down, row.waiting_up, row.waiting_down) == (5, 0, 0, 3)
    client.push()
    row = connection_row(route, operator.epoch, relay.now)
    assert (row.bytes_up, row.bytes_down, row.waiting_down) == (5, 3, 0)


def test_a_repeat_counts_once() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    for attempt in range(3):
        client.push(data(11, 22, 101, b"12345", attempt))
        exit_.push()
    (route,) = relay.switch.operator.connections()
    assert connection_row(route, 0, relay.now).bytes_up == 5


def test_a_connection_without_an_acceptor_shows_none() -> None:
    scene = Scene()
    scene.rita.listen(backlog=1, version=2)
    target = Target(TargetKind.SERVICE, "reports")
    scene.ann.push(connect(11, target=target), connect(12, target=target), data(12, 0, 101, b"early"))
    rows = [connection_row(one, 0, scene.relay.now) for one in scene.relay.switch.operator.connections()]
    assert [(row.state, row.acceptor_user, row.acceptor_attachment != "") for row in rows] == [
        ("handed", "rita", True),
        ("waiting", "", False),
    ]
    assert (rows[1].bytes_up, rows[1].waiting_up) == (0, 0)


def test_attachments_tell_their_roles_and_what_waits() -> None:
    scene = Scene()
    inline_of(scene.relay)
    bind(scene.ann, scene.exit, 11, 21)
    scene.relay.now += 9 * SECOND
    scene.ann.push(data(11, 21, 101))
    operator = scene.relay.switch.operator
    rows = {row.user: row for row in (attachment_row(one, 0, scene.relay.now) for one in operator.attachments())}
    assert {user: row.role for user, row in rows.items()} == {
        "ann": "client",
        "bob": "client",
        "rita": "service",
        "exits": "exit",
        "relay:exit": "exit",
    }
    assert (rows["ann"].silent_s, rows["bob"].silent_s, rows["bob"].age_s) == (0, 9, 9)
    assert (rows["ann"].connections, rows["exits"].connections, rows["bob"].connections) == (1, 1, 0)
    assert (rows["rita"].services, rows["relay:exit"].carrier, rows["ann"].carrier) == (1, "memory", "exchange")
    assert rows["exits"].waiting_bytes > 5 > rows["ann"].waiting_bytes == 0
    assert rows["exits"].waiting_bytes_max == scene.relay.config.exit_mailbox_bytes_max


def test_an_endpoint_on_a_link_says_so() -> None:
    relay = Relay()
    peer = Peer(relay).attached()
    assert relay.switch.link_opened(7, "ann", peer.identity, peer.epoch, peer.generation, relay.now)
    (row,) = (attachment_row(one, 0, relay.now) for one in relay.switch.operator.attachments())
    assert (row.carrier, row.links) == ("link", 1)


def test_users_tell_what_they_occupy_of_each_budget() -> None:
    scene = Scene()
    inline_of(scene.relay)
    bind(scene.ann, scene.exit, 11, 21)
    rows = {row.user: row for row in scene.relay.switch.operator.users()}
    assert set(rows) == {"ann", "bob", "rita", "exits"}  # the inline exit belongs to no user
    config = scene.relay.config
    ann = rows["ann"]
    assert (ann.attachments, ann.attachments_max) == (1, config.attachments_per_user_max)
    assert (ann.connections, ann.connections_max) == (1, config.routes_per_user_max)
    assert (ann.held_bytes, ann.held_bytes_max) == (0, config.user_bytes_max)
    assert ann.traffic.packets_received == 1


class Anywhere(Publisher):
    def publish(self, user: str, name: str, place: PublicPlace) -> str:
        return ""


def test_services_tell_who_offers_them_and_where() -> None:
    relay = Relay(publisher=Anywhere())
    peer = Peer(relay, "rita", 3, "desk").attached()
    peer.push(listen_state("reports", 8, public=PublicPlace(port=8443)), listen_state("news", 2))
    peer.push(listen_state("news", 2, 2, up=False))
    (row,) = (service_row(one, relay.switch.epoch) for one in relay.switch.operator.services())
    assert (row.name, row.user, row.endpoint, row.backlog, row.pending) == ("reports", "rita", "desk", 8, 0)
    assert "8443" in row.public
    assert row.attachment == f"a1-{suffix(relay)}"


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (Target(TargetKind.TCP, "db", 5432), "db:5432"),
        (Target(TargetKind.TCP, "::1", 80), "[::1]:80"),
        (Target(TargetKind.TCP, "unix:/run/x", 1), "unix:/run/x"),
        (Target(TargetKind.SERVICE, "reports"), "reports"),
    ],
)
def test_targets_are_shown_as_people_write_them(target: Target, text: str) -> None:
    assert shown_target(target) == text


def test_an_id_from_before_a_restart_names_nothing() -> None:
    assert number_in("c17-00ff", "c", 0x123400FF) == 17
    assert number_in("c17-00fe", "c", 0x123400FF) == 0
    assert number_in("a3-00ff", "a", 0x00FF) == 3


@pytest.mark.parametrize(
    "text", ["", "17", "c17", "a17-00ff", "c0-00ff", "c-1-00ff", "c17-00ff ", "c17-0ff", "c\uff11-00ff"]
)
def test_what_is_no_id_of_a_connection_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not the id of a connection: one looks like c17-9f3a"):
        number_in(text, "c", 0xFF)
