"""Services that ask for connections of people without the tunnel (PROTOCOL 2.11)."""

from __future__ import annotations

from typing import Any

from tests.servlet.support import (
    REPORTS,
    Peer,
    Relay,
    accepted,
    connect,
    key,
    kinds,
    listen_state,
    read_connect,
    read_rejected,
    resume,
)
from tunnel.wire import (
    ListenState,
    ListenStatus,
    Packet,
    PacketType,
    PublicPlace,
    RejectReason,
    Target,
    decode_listen_state,
)
from tunnel_servlet.switch.decisions import Decision, Deny, Hand, HandTo, Publisher
from tunnel_servlet.switch.inline_id import PUBLIC_USER, is_public_endpoint, owner_in, public_endpoint_id, strangers_of

UP, DOWN, REFUSED = ListenStatus.UP, ListenStatus.DOWN, ListenStatus.REFUSED
PORT, HOST = PublicPlace(8443), PublicPlace(host="app.example", http=True)


class Noted(Publisher):
    """Publishes the places that are not denied, and notes them."""

    def __init__(self) -> None:
        self.open: dict[str, tuple[str, PublicPlace]] = {}
        self.denied: set[str] = set()  # users

    def publish(self, user: str, name: str, place: PublicPlace) -> str:
        why = self.why_denied(user, place)
        if not why:
            self.open[name] = user, place
        return why

    def withdraw(self, name: str) -> None:
        self.open.pop(name, None)

    def why_denied(self, user: str, place: PublicPlace) -> str:
        return f"no rule allows {place}" if user in self.denied else ""


def scene() -> tuple[Relay, Noted, Peer, Peer]:
    """Return a relay, its publisher, and two endpoints of bob."""
    noted = Noted()
    relay = Relay(publisher=noted, names_per_attachment_max=2, settle_us=0)
    return relay, noted, Peer(relay, user="bob", seed=2).attached(), Peer(relay, user="bob", seed=3).attached()


def announce(peer: Peer, packet: Packet) -> ListenState:
    (answer,) = peer.push(packet)
    state = decode_listen_state(answer.payload)
    assert state is not None
    return state


def test_the_answer_says_that_the_place_is_open() -> None:
    _, noted, peer, _ = scene()
    state = announce(peer, listen_state(public=PORT))
    assert (state.state, state.options.public) == (UP, PORT)
    assert noted.open == {"reports": ("bob", PORT)}
    assert announce(peer, listen_state(public=PORT)).options.public == PORT  # a repeat
    assert announce(peer, listen_state(version=2)).options.public is None
    assert noted.open == {}


def test_a_place_closes_with_the_last_listener_that_asks_for_it() -> None:
    relay, noted, peer, other = scene()
    announce(peer, listen_state(public=PORT))
    announce(other, listen_state(public=PORT))
    assert announce(peer, listen_state(version=2, up=False)).state == DOWN
    assert noted.open == {"reports": ("bob", PORT)}
    announce(other, listen_state(version=2))  # still offered, but not to strangers
    assert noted.open == {}
    announce(other, listen_state(version=3, public=HOST))
    relay.advance(relay.config.attachment_timeout_us + 1)
    assert noted.open == {}


def test_one_service_has_one_place() -> None:
    _, noted, peer, other = scene()
    announce(peer, listen_state(public=PORT))
    state = announce(other, listen_state(public=HOST))
    assert (state.state, state.text[:47]) == (REFUSED, "reports is public at port 8443 already, through")
    assert announce(peer, listen_state(version=2, public=HOST)).state == UP
    assert noted.open == {"reports": ("bob", HOST)}


def test_the_relay_refuses_a_name_with_a_denied_place_and_leaves_both_free() -> None:
    relay, noted, peer, _ = scene()
    noted.denied.add("bob")
    state = announce(peer, listen_state(public=PORT))
    assert (state.state, state.text) == (REFUSED, "no rule allows port 8443")
    assert announce(Peer(relay, user="ann", seed=9).attached(), listen_state(public=PORT)).state == UP


def test_too_many_names_leave_no_place_open() -> None:
    _, noted, peer, _ = scene()
    for name in ("one", "two"):
        announce(peer, listen_state(name))
    assert announce(peer, listen_state("three", public=PORT)).state == REFUSED
    assert noted.open == {}


def test_a_relay_without_public_ports_says_so() -> None:
    peer = Peer(Relay()).attached()
    state = announce(peer, listen_state(public=PORT))
    assert (state.state, state.text[:31]) == (REFUSED, "this relay opens no services to")


def test_a_stranger_is_named_as_such_and_pays_no_rate() -> None:
    rated: list[str] = []

    def rates_of(user: str, target: object) -> dict[str, int]:
        rated.append(user)
        return {}

    relay = Relay(publisher=Noted(), rates_of=rates_of)
    identity = public_endpoint_id("bob", 1)
    assert is_public_endpoint(identity)
    assert identity != public_endpoint_id("bob", 2)
    server = Peer(relay, user="bob", seed=2).attached()
    announce(server, listen_state(public=PORT))
    stranger = Peer(relay, user="bob", seed=3, own_identity=identity).attached()
    stranger.push(connect(1, target=REPORTS))
    (handed,) = server.push()
    assert read_connect(handed).options.user == PUBLIC_USER
    rated.clear()
    server.push(accepted(1, 9, route_key=key(1)))
    assert kinds(stranger.push()) == ["ACCEPTED"]
    assert rated == ["bob"]  # the rates were asked for once: those of bob, who serves


def shared(**settings: Any) -> tuple[Relay, Peer, Peer, Peer, Peer]:
    """Let ann and bob share a name that is public only at ann's endpoint. Return a relay, the endpoints of ann and bob,
    the endpoint of ann's strangers, and one of carol."""
    relay = Relay(publisher=Noted(), settle_us=0, **settings)
    ann, bob = (Peer(relay, user, seed).attached() for user, seed in (("ann", 2), ("bob", 3)))
    announce(ann, listen_state(public=PORT, backlog=1))
    announce(bob, listen_state(backlog=1))
    strangers = Peer(relay, user="ann", seed=4, own_identity=public_endpoint_id("ann", 1)).attached()
    return relay, ann, bob, strangers, Peer(relay, "carol", 5).attached()


def come(peer: Peer, *sources: int) -> list[str]:
    return kinds(peer.push(*(connect(source, target=REPORTS, route_key=key(source)) for source in sources)))


def handed(peer: Peer) -> list[int]:
    return [packet.source for packet in peer.push() if packet.type == PacketType.CONNECT]


def accept(peer: Peer, source: int) -> list[int]:
    packets = peer.push(accepted(source, 1000 + source, route_key=key(source)))
    return [packet.source for packet in packets if packet.type == PacketType.CONNECT]


def test_strangers_reach_only_the_endpoint_whose_owner_has_made_the_service_public() -> None:
    _, ann, bob, strangers, _ = shared()
    assert come(strangers, 1, 2, 3) == []
    assert (handed(ann), handed(bob)) == ([1], [])
    assert accept(ann, 1) == [2]  # the rest waits for room
    assert accept(ann, 2) == [3]
    assert handed(bob) == []


def test_strangers_reach_no_other_endpoint_of_the_owner() -> None:
    relay, ann, _, strangers, _ = shared()
    private = Peer(relay, "ann", 6).attached()
    announce(private, listen_state(backlog=9))
    come(strangers, 1, 2)
    assert (handed(ann), handed(private)) == ([1], [])


def test_strangers_who_wait_do_not_keep_users_waiting_nor_the_other_way_round() -> None:
    _, ann, bob, strangers, carol = shared()
    come(strangers, 1, 2)
    come(carol, 11, 12)
    assert (handed(ann), handed(bob)) == ([1], [11])
    assert accept(bob, 11) == [12]
    come(carol, 13)
    assert accept(ann, 1) == [2]  # the stranger came before carol's 13
    assert accept(ann, 2) == [13]


def test_strangers_who_wait_are_refused_when_the_service_is_public_no_more() -> None:
    _, ann, bob, strangers, _ = shared()
    come(strangers, 1, 2)
    ann.push(listen_state(version=2, backlog=1))
    assert kinds(strangers.push()) == ["REJECTED"]
    assert handed(bob) == []


def test_strangers_do_not_resume_at_an_endpoint_of_another_user() -> None:
    _, _, bob, strangers, carol = shared()
    asked = resume(21, 99, bob, target=REPORTS, route_key=key(21))
    assert read_rejected(strangers.push(asked)[0]).reason == RejectReason.GONE
    carol.push(asked)
    assert handed(bob) == [21]


def test_the_rules_are_asked_about_strangers_and_not_about_the_owner_of_the_service() -> None:
    asked: list[tuple[str, Target]] = []

    def authorise(user: str, target: Target) -> Decision:
        asked.append((user, target))
        return Deny() if owner_in(user) else Hand(HandTo.SERVICE)

    _, ann, _, strangers, _ = shared(authorise=authorise)
    assert come(strangers, 1) == ["REJECTED"]
    assert asked == [(strangers_of("ann"), REPORTS)]
    assert (owner_in(strangers_of("ann")), owner_in("ann"), owner_in(PUBLIC_USER)) == ("ann", "", "")
    assert handed(ann) == []
