"""Services: the listeners of each name (PROTOCOL 2.8, 3.2)."""

from tests.servlet.support import REPORTS, Peer, Relay, connect, kinds, listen_state, read_rejected
from tunnel.wire import ListenStatus, Packet, PacketType, RejectReason, decode_listen_state
from tunnel_servlet.switch.decisions import MayListen
from tunnel_servlet.switch.routes.services import Services

UP, DOWN = ListenStatus.UP, ListenStatus.DOWN


def scene(*, listeners: int = 2, may_listen: MayListen | None = None) -> tuple[Relay, Peer, list[Peer]]:
    relay = Relay(names_per_attachment_max=2, may_listen=may_listen)
    client = Peer(relay).attached()
    return relay, client, [Peer(relay, user="bob", seed=2 + number).attached() for number in range(listeners)]


def handed(client: Peer, listeners: list[Peer], *, source: int) -> list[int]:
    """Connect, and return the indices of the listeners that got the CONNECT."""
    client.push(connect(source, target=REPORTS))
    return [number for number, peer in enumerate(listeners) if kinds(peer.push()) == ["CONNECT"]]


def announce(peer: Peer, *announcements: Packet) -> list[tuple[int, int]]:
    """Announce, and return version and state of the relay's answers, which must repeat the name without a backlog."""
    found: list[tuple[int, int]] = []
    for answer, asked in zip(peer.push(*announcements), announcements, strict=False):
        state, about = decode_listen_state(answer.payload), decode_listen_state(asked.payload)
        assert state is not None
        assert about is not None
        assert (state.name, state.backlog) == (about.name, 0)
        found.append((state.version, state.state))
    return found


def test_2_8_each_announcement_is_answered_with_the_current_state() -> None:
    """The endpoint repeats an announcement until it is answered."""
    _, _, (peer, _) = scene()
    assert announce(peer, listen_state(version=5)) == [(5, UP)]
    assert announce(peer, listen_state(version=5)) == [(5, UP)]
    assert announce(peer, listen_state(version=7, up=False)) == [(7, DOWN)]
    assert announce(peer, listen_state(version=7, up=False)) == [(7, DOWN)]
    assert announce(peer, listen_state(version=7)) == [(7, DOWN)]
    assert announce(peer, listen_state(version=8)) == [(8, UP)]


def test_2_8_a_repeated_version_with_another_state_changes_nothing_and_is_answered_with_the_held_state() -> None:
    _, client, (peer, other) = scene()
    assert announce(peer, listen_state(version=5)) == [(5, UP)]
    assert announce(peer, listen_state(version=5, up=False)) == [(5, UP)]
    assert handed(client, [peer, other], source=1) == [0]


def test_2_8_outdated_announcements_are_not_answered() -> None:
    _, _, (peer, _) = scene()
    assert announce(peer, listen_state(version=5)) == [(5, UP)]
    assert peer.push(listen_state(version=4)) == []
    assert peer.push(listen_state(version=4, up=False)) == []


def test_2_8_each_name_is_answered_separately() -> None:
    _, _, (peer, _) = scene()
    assert announce(peer, listen_state("one", version=1), listen_state("two", version=2)) == [(1, UP), (2, UP)]


def test_3_2_listeners_of_one_name_take_turns() -> None:
    relay, client, listeners = scene()
    for peer in listeners:
        assert peer.listen() == []
    assert [handed(client, listeners, source=number) for number in range(1, 5)] == [[0], [1], [0], [1]]
    assert relay.switch.stats().listeners == 2


def test_2_8_without_a_listener_there_is_no_such_service() -> None:
    _, client, _ = scene()
    (answer,) = client.push(connect(1, target=REPORTS))
    assert read_rejected(answer).reason == RejectReason.NO_SUCH_SERVICE


def test_2_8_a_backlog_bounds_the_openings_a_listener_gets() -> None:
    _, client, listeners = scene()
    listeners[0].listen(backlog=1)
    listeners[1].listen(backlog=0)
    assert [handed(client, listeners, source=number) for number in (1, 2)] == [[0], [1]]
    assert handed(client, listeners, source=3) == []


def test_2_8_a_service_taken_down_is_not_revived_by_an_older_up() -> None:
    relay, client, (peer, _) = scene()
    peer.push(listen_state(version=2))
    peer.push(listen_state(version=1, up=False))
    assert relay.switch.stats().listeners == 1
    peer.push(listen_state(version=3, up=False))
    peer.push(listen_state(version=3, up=False))
    peer.push(listen_state(version=2))
    assert relay.switch.stats().listeners == 0
    assert handed(client, [peer], source=1) == []
    peer.push(listen_state(version=4))
    peer.push(listen_state(version=4, backlog=1))
    peer.push(listen_state(version=5, backlog=1))
    assert handed(client, [peer], source=2) == [0]
    assert handed(client, [peer], source=3) == []


def test_2_8_down_for_a_name_that_was_never_up_changes_nothing() -> None:
    relay, _, (peer, _) = scene()
    assert announce(peer, listen_state(up=False)) == [(1, DOWN)]
    peer.listen()
    peer.push(listen_state(version=9, up=False))
    peer.push(listen_state(version=10, up=False))
    assert relay.switch.stats().listeners == 0


def test_2_8_the_relay_may_refuse_a_name() -> None:
    _, _, (peer, _) = scene(may_listen=lambda user, name: (user, name) == ("bob", "fine"))
    assert peer.listen("fine") == []
    (answer,) = peer.listen("other", version=7)
    assert answer.type == PacketType.LISTEN_STATE
    state = decode_listen_state(answer.payload)
    assert state is not None
    assert (state.version, state.state, state.name) == (7, ListenStatus.REFUSED, "other")


def test_2_8_the_names_of_an_attachment_are_limited() -> None:
    relay, _, (peer, _) = scene()
    assert [peer.listen(name) for name in ("one", "two")] == [[], []]
    assert kinds(peer.listen("three")) == ["LISTEN_STATE"]
    peer.push(listen_state("one", version=2, up=False))
    assert peer.listen("three") == []
    assert relay.switch.stats().listeners == 2


def test_9_6_the_services_of_an_attachment_end_with_it() -> None:
    relay, client, (peer, other) = scene()
    peer.listen()
    peer.listen("gone")
    peer.push(listen_state("gone", version=2, up=False))
    other.listen()
    relay.advance(200_000_000)
    client.push()
    other.push()
    relay.advance(200_000_000)
    assert relay.switch.stats().listeners == 1
    assert handed(client, [other], source=1) == [0]


def test_there_are_no_listeners_at_first() -> None:
    services = Services(Relay().config, lambda user, name: True, lambda name: None)
    assert len(services) == 0
    assert services.candidates("reports") == []


def test_down_of_the_same_version_as_up_is_ignored() -> None:  # 2.8
    relay = Relay()
    client = Peer(relay).attached()
    client.push(listen_state(version=2), listen_state(version=2, up=False))
    assert relay.switch.stats().listeners == 1
