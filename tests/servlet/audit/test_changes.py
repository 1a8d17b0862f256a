"""Events for changed tokens and rules: one for each token, one for each user, and none for what stays."""

from __future__ import annotations

from ipaddress import ip_network
from random import Random
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tunnel_servlet.access.grants import Grant, GrantTable, parse_public_address
from tunnel_servlet.access.rules import parse_rule
from tunnel_servlet.access.tokens import Key, TokenTable, make_token
from tunnel_servlet.audit.changes import changes
from tunnel_servlet.audit.event import AuditEvent, Kind

NO_TOKENS, NO_RULES = TokenTable({}), GrantTable()
SOON, LATER = "2027-01-15T08:00:00Z", "2027-01-16T08:00:00Z"
(_, ONE), (_, TWO) = (make_token(Random(number)) for number in (1, 2))


def tokens(before: TokenTable, after: TokenTable) -> list[tuple[str, str, str]]:
    found = changes((before, NO_RULES), (after, NO_RULES))
    return [(event.event.value, event.user, event.token) for event in found]


def rules(before: GrantTable, after: GrantTable) -> list[AuditEvent]:
    return list(changes((NO_TOKENS, before), (NO_TOKENS, after)))


def test_a_rotation_adds_a_token_and_a_revocation_takes_one() -> None:
    one, both = TokenTable({"ann": (ONE,)}), TokenTable({"ann": (ONE, TWO)})
    assert tokens(one, both) == [("token_added", "ann", TWO.id)]
    assert tokens(both, one) == [("token_revoked", "ann", TWO.id)]
    assert tokens(both, both) == []


def test_a_token_that_is_given_to_another_user_is_revoked_and_added() -> None:
    found = tokens(TokenTable({"ann": (ONE,)}), TokenTable({"bob": (ONE,)}))
    assert found == [("token_revoked", "ann", ONE.id), ("token_added", "bob", ONE.id)]


def test_another_secret_under_the_same_key_id_is_another_token() -> None:
    other = replace(ONE, sha256="1" * 64, endpoints_max=3)
    found = list(changes((TokenTable({"ann": (ONE,)}), NO_RULES), (TokenTable({"ann": (other,)}), NO_RULES)))
    assert [(event.event.value, event.token) for event in found] == [("token_revoked", ONE.id), ("token_added", ONE.id)]
    assert "1" * 64 not in str(found)


@pytest.mark.parametrize(
    ("terms", "removed", "added"),
    [
        ({"expires": SOON}, [], [f"expires {SOON}"]),
        ({"expires": SOON, "single_use": True}, [], [f"expires {SOON}", "single_use true"]),
        ({"endpoints_max": 3}, [], ["endpoints_max 3"]),
    ],
)
def test_other_terms_of_a_token_are_a_change_and_other_words_about_it_are_none(
    terms: dict[str, Any], removed: list[str], added: list[str]
) -> None:
    words = replace(ONE, description="laptop", created="2026-01-01")
    before, after = TokenTable({"ann": (ONE, TWO)}), TokenTable({"ann": (replace(words, **terms), TWO)})
    (event,) = changes((before, NO_RULES), (after, NO_RULES))
    assert (event.event, event.user, event.token) == (Kind.TOKEN_CHANGED, "ann", ONE.id)
    assert (event.removed, event.added) == (removed, added)
    (back,) = changes((after, NO_RULES), (before, NO_RULES))
    assert (back.removed, back.added) == (added, removed)
    assert tokens(TokenTable({"ann": (ONE,)}), TokenTable({"ann": (words,)})) == []


def test_users_whose_rules_stay_have_no_event() -> None:
    grant = Grant(connect=(parse_rule("db:5432"),))
    more = Grant(connect=(parse_rule("db:5432"), parse_rule("web:80")))
    (event,) = rules(GrantTable({"ann": grant, "bob": grant}), GrantTable({"ann": grant, "bob": more}))
    assert (event.event, event.user, event.added, event.removed) == (Kind.RULES_CHANGED, "bob", ["connect web:80"], [])


@pytest.mark.parametrize(
    ("grant", "line"),
    [
        (Grant(connect=(parse_rule("10.0.0.0/8:*"),)), "connect 10.0.0.0/8:*"),
        (Grant(services=("reports",)), "services reports"),
        (Grant(listen=("*",)), "listen *"),
        (Grant(public=(parse_public_address("0.0.0.0:80"),)), "public 0.0.0.0:80"),
        (Grant(public_hosts=("a.example",)), "public_hosts a.example"),
        (Grant(rate=1000), "rate 1000 B/s"),
        (Grant(rates=(("db:1", 5),)), "rates db:1 = 5 B/s"),
        (Grant(exit=True), "exit true"),
        (Grant(certificates=("DNS:ann.example",)), "certificates DNS:ann.example"),
    ],
)
def test_each_permission_is_shown(grant: Grant, line: str) -> None:
    (added,) = rules(GrantTable(), GrantTable({"ann": grant}))
    assert (added.user, added.added, added.removed, added.text) == ("ann", [line], [], "")
    (removed,) = rules(GrantTable(everyone=grant), GrantTable())
    assert (removed.user, removed.added, removed.removed) == ("", [], [line])
    assert removed.text == "these rules hold for everyone"
    (group,) = rules(GrantTable(groups={"staff": grant}), GrantTable(groups={"staff": Grant()}))
    assert (group.user, group.group, group.added, group.removed) == ("", "staff", [], [line])
    assert group.text == "these rules hold for the group"


def test_a_user_or_a_group_that_the_rules_no_longer_name_has_lost_everything() -> None:
    grant = Grant(connect=(parse_rule("db:5432"),), exit=True)
    found = rules(GrantTable({"ann": grant}, groups={"staff": grant}), GrantTable())
    assert [(one.user, one.group, one.added, one.removed) for one in found] == [
        ("ann", "", [], ["connect db:5432", "exit true"]),
        ("", "staff", [], ["connect db:5432", "exit true"]),
    ]


def test_each_field_of_a_grant_is_compared() -> None:
    """A new permission must not be forgotten: whoever gets it, the audit says so."""
    given: dict[type, Any] = {int: 1, bool: True}
    for field in msgspec.structs.fields(Grant):
        some = given.get(type(field.default), (("db:1", 5),) if field.name == "rates" else ("127.0.0.1:1",))
        value: Any = (parse_rule("db:1"),) if field.name == "connect" else some
        grant = replace(Grant(), **{field.name: value})
        assert len(rules(GrantTable(), GrantTable({"ann": grant}))) == 1, field.name


def test_each_limit_of_a_token_is_compared() -> None:
    about = {"id", "created", "description"}
    for name, value in {"sha256": "1" * 64, "expires": SOON, "single_use": True, "endpoints_max": 1}.items():
        about.add(name)
        before = replace(ONE, expires=LATER) if name == "single_use" else ONE
        assert tokens(TokenTable({"ann": (before,)}), TokenTable({"ann": (replace(before, **{name: value}),)})), name
    assert about == {field.name for field in msgspec.structs.fields(Key)}


def test_a_group_and_a_user_of_the_same_name_are_told_apart() -> None:
    grant = Grant(connect=(parse_rule("db:5432"),))
    (event,) = rules(GrantTable({"staff": grant}), GrantTable({"staff": grant}, groups={"staff": grant}))
    assert (event.user, event.group, event.added) == ("", "staff", ["connect db:5432"])


def test_the_networks_to_which_names_may_resolve_are_rules_for_everyone() -> None:
    after = GrantTable(resolvable=[ip_network("10.0.0.0/8")])
    (event,) = rules(GrantTable(), after)
    assert (event.user, event.added, event.removed) == ("", ["names_may_resolve_to 10.0.0.0/8"], [])
    (event,) = rules(after, GrantTable(everyone=Grant(exit=True)))
    assert (event.added, event.removed) == (["exit true"], ["names_may_resolve_to 10.0.0.0/8"])


def test_a_table_with_many_rules_makes_no_endless_event() -> None:
    many = Grant(services=tuple(f"service{number}" for number in range(1000)))
    (event,) = rules(GrantTable(), GrantTable({"ann": many}))
    assert len(event.added) == 51
    assert event.added[-1] == "and 950 more"
    for count, last in ((50, "services service49"), (51, "and 1 more")):
        some = Grant(services=many.services[:count])
        (event,) = rules(GrantTable({"ann": some}), GrantTable())
        assert (len(event.removed), event.removed[-1]) == (count, last)
