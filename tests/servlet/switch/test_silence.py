"""Endpoints from which nothing comes after they were given a connection: others get the next ones (PROTOCOL 6.10)."""

import pytest

from tests.servlet.support import (
    DATABASE,
    MS,
    REPORTS,
    SECOND,
    Peer,
    Relay,
    accepted,
    connect,
    control,
    data,
    frames_of,
    kinds,
    listen_state,
    of_kind,
    option,
)
from tests.servlet.switch.rig import LEAVING, SILENT, Expected, aborted, encrypted, got, inline_of, scene, separate
from tunnel.wire import AbortReason, PacketType, Target
from tunnel_servlet.switch.decisions import Decision, Hand, HandTo


def encrypt_first(client: Peer, exit_: Peer) -> None:
    """Let the exit encrypt a connection of the client."""
    client.push(connect(1, encryption=b"hello"))
    exit_.push()
    exit_.push(encrypted(1, 22))


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


def test_a_connection_that_a_silent_exit_would_encrypt_waits_for_it_and_not_for_the_inline_one() -> None:
    """The inline exit never encrypts, and many clients would go on in clear."""
    relay, heard, inline, other, client = scene()
    encrypt_first(client, other)
    client.push(connect(2, encryption=b"hello"))
    relay.advance(SILENT)
    client.push(connect(2, encryption=b"hello", attempt=1), connect(3, encryption=b"hello"), connect(4))
    assert got(inline, other) == [[4], [2, 3]]
    assert heard.news[1:] == ["exits/exit is silent"]


def test_an_exit_that_has_encrypted_once_would_encrypt_whatever_it_does_in_between() -> None:
    """Some clients offer none, and their connections are in clear."""
    relay, _, inline, other, client = scene()
    client.push(connect(1, encryption=b"hello"), connect(2))
    other.push()
    other.push(encrypted(1, 22), accepted(2, 23))
    client.push(connect(3, encryption=b"hello"))
    relay.advance(SILENT)
    client.push(connect(3, encryption=b"hello", attempt=1))
    assert got(inline) == [[]]


def test_a_connection_that_a_silent_exit_would_encrypt_goes_to_another_exit() -> None:
    relay, _, inline, other, client = scene()
    encrypt_first(client, other)
    client.push(connect(2, encryption=b"hello"))
    relay.advance(SILENT)
    paris = separate(relay, 3, "paris")
    client.push(connect(2, encryption=b"hello", attempt=1), connect(3, encryption=b"hello"))
    assert got(inline, paris) == [[], [2, 3]]


def test_a_connection_that_an_exit_would_have_encrypted_goes_to_the_inline_one_when_the_exit_leaves() -> None:
    _, _, inline, other, client = scene()
    encrypt_first(client, other)
    client.push(connect(2, encryption=b"hello"))
    other.push(LEAVING)
    assert got(inline) == [[2]]


def test_a_connection_goes_to_the_inline_exit_when_one_is_silent_that_has_never_encrypted() -> None:
    relay, _, inline, other, client = scene()
    client.push(connect(1, encryption=b"hello"))
    other.push()
    other.push(accepted(1, 22))
    client.push(connect(2, encryption=b"hello"))
    relay.advance(SILENT)
    client.push(connect(2, encryption=b"hello", attempt=1), connect(3, encryption=b"hello"))
    assert got(inline) == [[2, 3]]


def test_the_repeats_that_another_exit_gets_in_place_of_what_waits_for_a_silent_one_are_counted() -> None:
    relay, _, inline, _, client = scene()
    client.push(connect(1), connect(2))
    relay.advance(SILENT)
    client.push(connect(1, attempt=1), connect(2, attempt=1))
    assert got(inline) == [[1, 2]]
    assert relay.counters.packets_replaced == 2


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
