"""What the relay's audit hears of connections, and that a relay that cannot write it down opens none."""

from __future__ import annotations

import pytest

from tests.servlet.support import (
    DATABASE,
    FORBIDDEN,
    SECOND,
    Peer,
    Relay,
    bind,
    client_and_exit,
    connect,
    control,
    kinds,
    reason,
    resume,
)
from tests.servlet.switch.rig import LEAVING
from tunnel.wire import Packet, PacketType, RejectReason, Target, encode_leave, question_about
from tunnel_servlet.switch.decisions import Deny, Hand, HandTo
from tunnel_servlet.switch.inline_id import public_endpoint_id
from tunnel_servlet.switch.witness import Acceptor, Ending, Opening, Witness


class Told(Witness):
    """Notes what it hears."""

    def __init__(self) -> None:
        self.closed = ""
        self.opened: list[Opening] = []
        self.refused: list[tuple[Opening, int]] = []
        self.ended: list[Ending] = []

    def why_closed(self, user: str) -> str:
        return self.closed if user == "ann" else ""

    def on_opened(self, opening: Opening, acceptor: Acceptor) -> None:
        self.opened.append(opening)

    def on_refused(
        self, opening: Opening, acceptor: Acceptor | None, reason: int, text: str, *, is_answer: bool = False
    ) -> None:
        self.refused.append((opening, reason))

    def on_ended(
        self,
        opening: Opening,
        acceptor: Acceptor,
        why: Ending,
        text: str,
        *,
        sent_bytes: int,
        received_bytes: int,
        lasted_us: int,
    ) -> None:
        self.ended.append(why)


def decide(user: str, target: Target) -> Hand | Deny:
    return Deny() if target == FORBIDDEN else Hand(HandTo.EXIT, rule="databases")


def scene() -> tuple[Relay, Told, Peer, Peer]:
    told = Told()
    relay = Relay(authorise=decide, witness=told)
    return relay, told, *client_and_exit(relay)


def test_a_relay_that_cannot_write_its_audit_opens_no_connection_and_lets_open_ones_wait() -> None:
    """A refusal would end a stream that can be resumed later."""
    relay, told, client, exit_ = scene()
    told.closed = "the disk is full"
    assert reason(client.push(connect(11))) == RejectReason.BUSY
    assert client.push(resume(12, 22, exit_)) == []
    assert relay.switch.stats().routes == 0
    bob = Peer(relay, "bob", 7).attached()
    bind(bob, exit_, 13, 23)
    told.closed = ""
    client.push(resume(12, 22, exit_))
    assert kinds(exit_.push()) == ["CONNECT"]


def test_an_opened_connection_is_told_with_the_rule_that_allows_it() -> None:
    _, told, client, exit_ = scene()
    bind(client, exit_, 11, 22)
    (opening,) = told.opened
    assert (opening.endpoint.user, opening.connection_id, opening.target) == ("ann", 11, DATABASE)
    assert (opening.rule, opening.owner, opening.is_resumed, opening.is_question) == ("databases", "", False, False)


def test_a_refused_connection_is_told_with_what_was_asked_for() -> None:
    relay, told, client, exit_ = scene()
    client.push(connect(11, target=FORBIDDEN), resume(12, 22, exit_, target=FORBIDDEN))
    client.push(connect(13, target=question_about(FORBIDDEN)), connect(14, target=question_about(DATABASE)))
    client.push(Packet(PacketType.CONNECT, 15, 0, 0, bytes(16)))
    stranger = Peer(relay, user="bob", seed=3, own_identity=public_endpoint_id("bob", 1)).attached()
    stranger.push(connect(16, target=FORBIDDEN))
    assert [
        (one.connection_id, one.target, one.owner, one.is_resumed, one.is_question, why) for one, why in told.refused
    ] == [
        (11, FORBIDDEN, "", False, False, RejectReason.DENIED),
        (12, FORBIDDEN, "", True, False, RejectReason.DENIED),
        (13, FORBIDDEN, "", False, True, RejectReason.DENIED),
        (15, None, "", False, False, RejectReason.MALFORMED),
        (16, FORBIDDEN, "bob", False, False, RejectReason.DENIED),
    ]


@pytest.mark.parametrize(
    ("end", "why"),
    [
        ([control(PacketType.SHUTDOWN, 11, 22)], Ending.CLOSED),
        ([control(PacketType.ABORT, 11, 22, bytes(4))], Ending.ABORTED),
        ([Packet(PacketType.LEAVE, 11, 22, 0, encode_leave(1))], Ending.MOVED),
        ([], Ending.LOST),
    ],
    ids=["closed", "aborted", "moved", "lost"],
)
def test_it_is_told_why_a_connection_has_ended(end: list[Packet], why: Ending) -> None:
    relay, told, client, exit_ = scene()
    bind(client, exit_, 11, 22)
    client.push(*end)
    if why is Ending.CLOSED:
        assert told.ended == []  # the other side may still send
        exit_.push(control(PacketType.SHUTDOWN, 22, 11))
    elif why is Ending.LOST:
        relay.advance(301 * SECOND)
    assert told.ended == [why]


def test_of_an_endpoint_that_ends_only_what_was_not_opened_is_told_as_refused() -> None:
    relay, told, client, exit_ = scene()
    bind(client, exit_, 11, 22)
    client.push(connect(12))
    client.push(LEAVING)
    relay.advance(20 * SECOND)
    assert relay.counters.attachments_left == 1
    assert [(one.connection_id, why) for one, why in told.refused] == [(12, RejectReason.GONE)]
    assert told.ended == [Ending.LOST]
