"""Announcements of services are repeated until the relay answers them (PROTOCOL 2.8)."""

import pytest

from tests.core.solo import KEY, PEER, SERVICE, Solo
from tunnel.core.constants import NEVER_US, SECOND_US
from tunnel.core.services import Announcements
from tunnel.wire import (
    ListenState,
    ListenStatus,
    Options,
    Packet,
    PacketType,
    PublicPlace,
    Rejected,
    RejectReason,
    decode_listen_state,
    decode_rejected,
    encode_listen_state,
)


def rejection(solo: Solo) -> Rejected:
    """Take the only REJECTED that leaves."""
    (packet,) = solo.out()
    assert (packet.type, packet.source, packet.destination, packet.sequence) == (PacketType.REJECTED, PEER, 0, 0)
    rejected = decode_rejected(packet.payload)
    assert rejected is not None
    assert rejected.route_key == KEY
    return rejected


def announced(solo: Solo) -> list[ListenState]:
    packets = solo.out()
    assert {(packet.source, packet.destination, packet.sequence) for packet in packets} <= {(0, 0, 0)}  # 2.8
    states = [decode_listen_state(packet.payload) for packet in packets]
    return [state for state in states if state is not None]


UP, DOWN, REFUSED = ListenStatus.UP, ListenStatus.DOWN, ListenStatus.REFUSED


class Recorder:
    """Announcements whose packets are recorded."""

    def __init__(self) -> None:
        self.packets: list[Packet] = []
        self.announcements = Announcements(self.packets.append)

    def states(self) -> list[ListenState | None]:
        """Return the states that were sent since the last call."""
        found = [decode_listen_state(packet.payload) for packet in self.packets]
        self.packets.clear()
        return found


def answer(version: int, name: str, status: ListenStatus = UP) -> ListenState:
    return ListenState(version, status, 0, name)


def test_the_answer_of_a_relay_too_old_for_public_places_is_a_refusal() -> None:
    solo = Solo()
    place = PublicPlace(8443)
    solo.endpoint.listen("db", 3, solo.now, place)
    (state,) = announced(solo)
    assert state.options.public == place
    services = solo.endpoint.services
    services.receive_listen_state(
        Packet(PacketType.LISTEN_STATE, 0, 0, 0, encode_listen_state(answer(state.version, "db")))
    )
    found = services.poll_refusal()
    assert found is not None
    assert found[1].startswith("the relay is too old to open ports for people without the tunnel: ask its operator")


def test_a_public_place_is_announced_again_after_a_fresh_attach() -> None:
    solo = Solo()
    place = PublicPlace(host="app.example", http=True)
    solo.endpoint.listen("db", 3, solo.now, place)
    (first,) = announced(solo)
    services = solo.endpoint.services
    granted = ListenState(first.version, UP, 0, "db", options=Options(public=place))
    services.receive_listen_state(Packet(PacketType.LISTEN_STATE, 0, 0, 0, encode_listen_state(granted)))
    assert services.poll_refusal() is None
    assert services.is_answered("db")
    services.announce_all(solo.now)
    (again,) = announced(solo)
    assert again.options.public == place


@pytest.mark.parametrize("status", [UP, DOWN, REFUSED])
def test_any_answer_of_the_same_version_ends_the_repeats(status: ListenStatus) -> None:
    recorder = Recorder()
    assert recorder.announcements.announce("a", UP, 5, 0) == 1
    assert not recorder.announcements.is_answered("a")
    assert recorder.announcements.handle_answer(answer(1, "a", status))
    assert recorder.announcements.is_answered("a")
    assert recorder.announcements.due_us == NEVER_US
    assert not recorder.announcements.handle_answer(answer(1, "a", status))


def test_an_answer_to_an_older_version_or_another_name_is_ignored() -> None:
    recorder = Recorder()
    recorder.announcements.announce("a", UP, 5, 0)
    assert recorder.announcements.announce("a", DOWN, 0, 0) == 2
    assert not recorder.announcements.handle_answer(answer(1, "a"))
    assert not recorder.announcements.handle_answer(answer(2, "b"))
    assert not recorder.announcements.is_answered("a")


def test_each_name_has_its_own_deadline() -> None:
    recorder = Recorder()
    recorder.announcements.announce("a", UP, 5, 0)
    recorder.announcements.announce("b", UP, 6, SECOND_US // 2)
    recorder.states()
    recorder.announcements.handle_timeout(SECOND_US)
    assert recorder.states() == [ListenState(1, UP, 5, "a")]
    assert recorder.announcements.due_us == SECOND_US // 2 + SECOND_US
    recorder.announcements.handle_answer(answer(2, "b"))
    assert recorder.announcements.due_us == 3 * SECOND_US


def test_a_later_announcement_does_not_postpone_an_earlier_deadline() -> None:
    recorder = Recorder()
    recorder.announcements.announce("a", UP, 5, 0)
    recorder.announcements.announce("b", UP, 5, 10)
    assert recorder.announcements.due_us == SECOND_US


def test_forgetting_the_relay_ends_the_repeats() -> None:
    recorder = Recorder()
    recorder.announcements.announce("a", DOWN, 0, 0)
    recorder.announcements.forget()
    assert recorder.announcements.due_us == NEVER_US
    assert recorder.announcements.is_answered("a")


def test_an_announcement_that_cannot_be_encoded_is_not_remembered() -> None:
    recorder = Recorder()
    with pytest.raises(ValueError, match="too long"):
        recorder.announcements.announce("x" * 256, UP, 1, 0)
    assert (recorder.packets, recorder.announcements.due_us) == ([], NEVER_US)
    assert recorder.announcements.announce("a", UP, 1, 0) == 1


@pytest.mark.parametrize(("name", "backlog"), [("", 1), ("x" * 256, 1), ("s", 65536), ("s", -1)])
def test_a_service_that_cannot_be_announced_is_not_opened(name: str, backlog: int) -> None:
    solo = Solo()
    with pytest.raises(ValueError, match=r"fit|too long|name"):
        solo.endpoint.listen(name, backlog, solo.now)
    solo.request(SERVICE)
    assert rejection(solo).reason == RejectReason.NO_SUCH_SERVICE


def test_the_relay_may_refuse_a_name() -> None:  # 2.8
    solo = Solo()
    acceptor = solo.endpoint.services

    def hear(version: int, status: ListenStatus, name: str) -> None:
        payload = encode_listen_state(ListenState(version, status, 0, name))
        solo.receive(Packet(PacketType.LISTEN_STATE, 0, 0, 0, payload))

    assert not acceptor.is_refused("s")
    solo.endpoint.listen("s", 8, solo.now)
    hear(7, ListenStatus.REFUSED, "s")
    assert not acceptor.is_refused("s")
    hear(1, ListenStatus.REFUSED, "s")
    assert acceptor.is_refused("s")
    hear(1, ListenStatus.UP, "s")
    assert not acceptor.is_refused("s")
    solo.endpoint.on_attached(True, 1 << 20, 1 << 20, solo.now)
    hear(1, ListenStatus.REFUSED, "s")
    assert not acceptor.is_refused("s")  # the answer of the earlier relay
    hear(2, ListenStatus.REFUSED, "s")
    assert acceptor.is_refused("s")
    hear(1, ListenStatus.REFUSED, "other")
    solo.receive(Packet(PacketType.LISTEN_STATE, 0, 0, 0, b"junk"))
    assert solo.endpoint.packets_discarded == 2
