"""Which exit gets a connection: those in processes of their own come before the one in the relay's process (6.9)."""

from typing import Any

import pytest

from tests.servlet.support import (
    DATABASE,
    MS,
    SECOND,
    Peer,
    Relay,
    accepted,
    bind,
    connect,
    control,
    data,
    kinds,
    reason,
    resume,
)
from tests.servlet.switch.rig import Expected, got, inline_of, separate
from tunnel.wire import PacketType, RejectReason, Target
from tunnel_servlet.switch.decisions import Decision, Hand, HandTo


def test_separate_exits_get_every_connection_and_share_them_in_turn() -> None:
    relay = Relay()
    inline, client = inline_of(relay), Peer(relay).attached()
    exits = [separate(relay, 2, "berlin"), separate(relay, 3, "paris")]
    for source in range(1, 7):
        client.push(connect(source))
    assert got(inline, *exits) == [[], [1, 3, 5], [2, 4, 6]]


def test_the_inline_exit_dials_while_no_other_exit_is_attached() -> None:
    relay = Relay(attachment_timeout_us=10 * SECOND)
    inline, client = inline_of(relay), Peer(relay).attached()
    client.push(connect(1))
    assert got(inline) == [[1]]
    other = separate(relay)
    client.push(connect(2))
    assert got(inline, other) == [[], [2]]
    for _ in range(3):  # the other exit has nothing to say now, but the relay has not forgotten it
        relay.advance(3 * SECOND)
        inline.push(), client.push()
    client.push(connect(3))
    assert got(inline) == [[]]
    relay.advance(2 * SECOND)
    client.push(connect(4))
    assert got(inline) == [[2, 3, 4]]


@pytest.mark.parametrize("name", ["inline", "exit"])
def test_a_rule_that_names_an_exit_is_followed(name: str) -> None:
    def authorise(user: str, target: Target) -> Decision:
        return Hand(HandTo.EXIT, name)

    relay = Relay(authorise=authorise)
    inline, other, client = inline_of(relay), separate(relay), Peer(relay).attached()
    client.push(connect(1))
    assert got(inline, other) == ([[1], []] if name == "inline" else [[], [1]])


def test_a_named_exit_that_is_not_attached_is_not_replaced_by_another() -> None:
    relay = Relay(authorise=lambda user, target: Hand(HandTo.EXIT, "berlin"))
    inline, other, client = inline_of(relay), separate(relay), Peer(relay).attached()
    assert reason(client.push(connect(1))) == RejectReason.NO_EXIT
    assert got(inline, other) == [[], []]


def test_a_separate_exit_without_room_refuses_and_the_inline_one_does_not_step_in() -> None:
    relay = Relay(exit_mailbox_bytes_max=64 << 10, mailbox_bytes_max=1 << 20)
    inline, other, client = inline_of(relay), separate(relay), Peer(relay).attached()
    refused = [packet for source in range(1, 9) for packet in client.push(connect(source))]
    assert {reason([packet]) for packet in refused} == {RejectReason.BUSY}
    ours, theirs = got(inline, other)
    assert ours == []
    assert len(theirs) + len(refused) == 8


def test_streams_of_the_inline_exit_go_on_when_another_exit_takes_over() -> None:
    relay = Relay()
    inline, client = inline_of(relay), Peer(relay).attached()
    bind(client, inline, 11, 22)
    other = separate(relay)
    client.push(data(11, 22, 101))
    assert kinds(inline.push()) == ["DATA"]
    client.push(resume(11, 22, inline))
    assert kinds(inline.push()) == ["CONNECT"]
    assert other.push() == []
    inline.push(accepted(11, 22, resumed=True), control(PacketType.PING, 22, 11))
    assert kinds(client.push()) == ["ACCEPTED", "PING"]


def restarted(**changes: Any) -> tuple[Relay, Peer, Peer]:
    """Return a relay that has just started, its inline exit, and a client."""
    relay = Relay(settle_us=5 * SECOND, separate_exits=Expected(**changes))
    inline = inline_of(relay)
    relay.advance(60 * SECOND)  # no endpoint of another process has attached yet
    inline.push()
    return relay, inline, Peer(relay).attached()


def test_after_a_restart_connections_wait_for_the_separate_exit_to_come_back() -> None:
    relay, inline, client = restarted()
    assert client.push(connect(1)) == []
    assert got(inline) == [[]]
    relay.advance(2 * SECOND)
    other = separate(relay)
    client.push(connect(1, attempt=1))
    assert got(inline, other) == [[], [1]]


def test_a_relay_whose_rules_allow_no_separate_exit_does_not_wait_for_one() -> None:
    _, inline, client = restarted(may_come=False)
    client.push(connect(1))
    assert got(inline) == [[1]]


def test_if_no_separate_exit_comes_back_in_time_the_inline_one_dials() -> None:
    relay, inline, client = restarted()
    client.push(connect(1))
    relay.advance(5 * SECOND - MS)
    client.push(connect(1, attempt=1))
    assert got(inline) == [[]]
    relay.advance(MS)
    client.push(connect(1, attempt=2))
    assert got(inline) == [[1]]


def test_a_rule_that_names_the_inline_exit_waits_for_no_other() -> None:
    relay = Relay(
        settle_us=5 * SECOND, separate_exits=Expected(), authorise=lambda user, target: Hand(HandTo.EXIT, "inline")
    )
    inline, client = inline_of(relay), Peer(relay).attached()
    client.push(connect(1, target=DATABASE))
    assert got(inline) == [[1]]


def test_the_relay_learns_when_separate_exits_take_over_and_when_the_last_one_has_left() -> None:
    heard = Expected()
    relay = Relay(separate_exits=heard, attachment_timeout_us=10 * SECOND)
    inline = inline_of(relay)
    separate(relay, 2, "berlin")
    separate(relay, 3, "paris")
    separate(relay, 4, "berlin")  # the exit was started again, and replaces its predecessor
    assert heard.news == ["exits/berlin took over"]
    separate(relay, 5, "paris")
    assert heard.news == ["exits/berlin took over"]
    for _ in range(4):
        relay.advance(3 * SECOND)
        inline.push()
    assert heard.news == ["exits/berlin took over", "left"]


def test_a_single_exit_that_is_started_again_does_not_count_as_one_that_left() -> None:
    heard = Expected()
    relay = Relay(separate_exits=heard)
    inline_of(relay)
    separate(relay, 2)
    separate(relay, 3)
    assert heard.news == ["exits/exit took over"]


def test_without_an_inline_exit_there_is_nothing_to_take_over() -> None:
    heard = Expected()
    relay = Relay(separate_exits=heard, attachment_timeout_us=10 * SECOND)
    separate(relay)
    relay.advance(20 * SECOND)
    assert heard.news == []
