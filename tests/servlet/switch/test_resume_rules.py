"""Which endpoints a resume may reach: those that the rules would let accept the connection, and no other.

Clause 6.5 of docs/PROTOCOL.md.
"""

import pytest

from tests.servlet.support import (
    DATABASE,
    REPORTS,
    Peer,
    Relay,
    accepted,
    bind,
    kinds,
    listen_state,
    reason,
    resume,
)
from tunnel.wire import RejectReason, Target, TargetKind
from tunnel_servlet.access.grants import Grant, GrantTable
from tunnel_servlet.access.rules import parse_rule
from tunnel_servlet.switch.decisions import Decision, Hand, HandTo

TABLE = GrantTable(
    {
        "ann": Grant(connect=(parse_rule("db.internal:5432"),), services=("reports",)),
        "eve": Grant(connect=(parse_rule("db.internal:5432"),)),
        "rita": Grant(listen=("reports",)),
        "exits": Grant(exit=True),
    }
)


class Rules:
    """A grant table that can be replaced while the relay runs."""

    def __init__(self, table: GrantTable = TABLE) -> None:
        self.table = table

    def authorise(self, user: str, target: Target) -> Decision:
        return self.table.authorise(user, target)

    def may_listen(self, user: str, name: str) -> bool:
        return self.table.may_listen(user, name)


def ruled(rules: Rules | None = None) -> Relay:
    rules = rules or Rules()
    return Relay(authorise=rules.authorise, may_listen=rules.may_listen)


@pytest.mark.parametrize("target", [DATABASE, REPORTS])
def test_two_users_without_a_grant_cannot_meet_by_a_resume(target: Target) -> None:
    relay = ruled()
    attacker = Peer(relay, "ann", 1).attached()
    other = Peer(relay, "eve", 2).attached()
    assert reason(attacker.push(resume(11, 22, other, target=target))) == RejectReason.GONE
    assert other.push(accepted(11, 22, resumed=True)) != []  # DROPPED: the route does not exist
    assert attacker.push() == []
    assert relay.switch.stats().routes == relay.counters.routes_bound == 0


@pytest.mark.parametrize("target", [DATABASE, REPORTS])
def test_two_users_without_a_grant_cannot_meet_by_a_resume_that_waited(target: Target) -> None:
    relay = ruled()
    attacker = Peer(relay, "ann", 1).attached()
    other = Peer(relay, "eve", 2)
    assert attacker.push(resume(11, 22, other, target=target)) == []
    other.attached()
    assert reason(attacker.push()) == RejectReason.GONE
    assert other.push() == []
    assert relay.switch.stats().routes == 0


def test_two_users_a_listener_under_another_name_is_not_reached() -> None:
    relay = Relay(may_listen=lambda user, name: (user, name) in {("rita", "reports"), ("eve", "news")})
    client = Peer(relay, "ann", 1).attached()
    eve = Peer(relay, "eve", 2).attached()
    eve.listen("news")
    assert reason(client.push(resume(11, 22, eve, target=REPORTS))) == RejectReason.GONE
    assert kinds(client.push(resume(12, 22, eve, target=Target(TargetKind.SERVICE, "news")))) == []
    assert kinds(eve.push()) == ["CONNECT"]


def test_two_users_an_endpoint_of_an_exit_user_without_that_role_is_not_reached() -> None:
    relay = ruled()
    client = Peer(relay, "ann", 1).attached()
    plain = Peer(relay, "exits", 2, is_exit=False).attached()
    assert reason(client.push(resume(11, 22, plain))) == RejectReason.GONE


def test_two_users_an_exit_that_may_not_listen_is_not_reached_for_a_service() -> None:
    relay = ruled()
    client = Peer(relay, "ann", 1).attached()
    exit_ = Peer(relay, "exits", 2, is_exit=True).attached()
    assert reason(client.push(resume(11, 22, exit_, target=REPORTS))) == RejectReason.GONE


def test_two_users_rules_that_changed_while_a_resume_waited_hold_for_it() -> None:
    rules = Rules()
    relay = ruled(rules)
    client = Peer(relay, "ann", 1).attached()
    exit_ = Peer(relay, "exits", 2, is_exit=True)
    rita = Peer(relay, "rita", 3)
    client.push(resume(11, 22, exit_), resume(12, 23, rita, target=REPORTS))
    rules.table = GrantTable({"ann": Grant(services=("reports",)), "exits": Grant(exit=True)})
    exit_.attached()
    assert reason(client.push()) == RejectReason.DENIED
    rita.attached()
    assert reason(client.push()) == RejectReason.GONE
    assert exit_.push() == rita.push() == []
    assert relay.switch.stats().routes == 0


def test_6_5_after_a_relay_restart_a_service_is_reached_before_it_announces_itself() -> None:
    """An unnamed endpoint whose user may listen is enough: a restarted relay knows no announcement yet."""
    for attaches_first in (True, False):
        relay = ruled()
        rita = Peer(relay, "rita", 3)
        if attaches_first:
            rita.attached()
        client = Peer(relay, "ann", 1).attached()
        assert client.push(resume(11, 22, rita, target=REPORTS)) == []
        if not attaches_first:
            rita.attached()
        assert kinds(rita.push()) == ["CONNECT"]
        rita.push(accepted(11, 22, resumed=True))
        assert kinds(client.push()) == ["ACCEPTED"]


def test_6_5_a_stream_of_a_closed_listener_is_resumed() -> None:
    relay = ruled()
    client = Peer(relay, "ann", 1).attached()
    rita = Peer(relay, "rita", 3).attached()
    rita.push(listen_state("reports", 8, 1))
    rita.push(listen_state("reports", 0, 2, up=False))
    assert client.push(resume(11, 22, rita, target=REPORTS)) == []
    assert kinds(rita.push()) == ["CONNECT"]


def test_6_5_of_two_exits_the_one_that_is_named_gets_the_resume() -> None:
    relay = ruled()
    client = Peer(relay, "ann", 1).attached()
    first, second = (Peer(relay, "exits", seed, name, is_exit=True).attached() for seed, name in ((2, "a"), (3, "b")))
    bind(client, first, 11, 21)
    assert client.push(resume(12, 22, second)) == []
    assert (kinds(first.push()), kinds(second.push())) == ([], ["CONNECT"])


def test_6_5_an_exit_that_the_rules_do_not_choose_for_the_target_is_not_reached() -> None:
    relay = Relay(authorise=lambda user, target: Hand(HandTo.EXIT, "b"))
    client = Peer(relay, "ann", 1).attached()
    first = Peer(relay, "exits", 2, "a", is_exit=True).attached()
    second = Peer(relay, "exits", 3, "b", is_exit=True)
    assert reason(client.push(resume(11, 22, first))) == RejectReason.GONE
    assert client.push(resume(12, 22, second)) == []
    second.attach()
    assert kinds(second.push()) == ["CONNECT"]
    assert relay.switch.stats().routes_pending == 1
