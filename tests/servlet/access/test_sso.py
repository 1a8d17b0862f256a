"""Users of an identity provider, by what their tokens say."""

import re
from typing import Any

import pytest

from tunnel.ground.secure_urls import is_secure_url
from tunnel_servlet.access import sso
from tunnel_servlet.access.sso import Member, Members, SsoError, SsoTerms, read_claims

NOW_S = 1000
TERMS = SsoTerms(issuer="https://login.example", audience="tunnel")
CLAIMS = {"iss": "https://login.example", "aud": "tunnel", "sub": "ann", "groups": ["staff", "x"], "exp": NOW_S + 60}


def read(terms: SsoTerms = TERMS, **changes: Any) -> Member:
    """Read the claims of a token, which has no claim that is None."""
    return read_claims({name: value for name, value in (CLAIMS | changes).items() if value is not None}, terms, NOW_S)


# --- what a token says


def test_a_token_names_a_user_apart_from_those_of_the_relay() -> None:
    assert read(iat=NOW_S - 9) == Member("sso:ann", ("staff", "x"), NOW_S + 60, NOW_S - 9)
    assert read(groups=None) == Member("sso:ann", (), NOW_S + 60, 0)
    named = SsoTerms(issuer=TERMS.issuer, audience="tunnel", user_claim="name", groups_claim="roles")
    assert read(named, name="Ann.B+c/d=e|f_g@h-1", roles=["a"]).user == "sso:Ann.B+c/d=e|f_g@h-1"
    assert read(named, name="a" * 100, roles=["a"]).groups == ("a",)


@pytest.mark.parametrize(("claim", "groups"), [("staff", ("staff",)), ("a,b c", ("a,b c",)), ("", ())])
def test_a_text_in_place_of_the_list_is_one_group(claim: str, groups: tuple[str, ...]) -> None:
    """It is not split: no character is one that a name cannot contain at any provider."""
    assert read(groups=claim).groups == groups


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "issuer": (
        {"iss": "https://evil.example"},
        "is of the issuer 'https://evil.example', and the relay",
    ),
    "no issuer": ({"iss": None}, "the token is of the issuer None"),
    "audience": ({"aud": "other"}, "the token is for the audience 'other', and not for 'tunnel'"),
    "no audience": ({"aud": None}, "for the audience None"),
    "part of the audience": ({"aud": "tunnel2"}, "for the audience 'tunnel2'"),
    "audiences": ({"aud": ["tun", "nel"]}, "for the audience ['tun', 'nel']"),
    "expired": ({"exp": NOW_S - 30}, "the token expired 30 s ago by the clock of the relay: get a new one"),
    "clock behind": (
        {"iat": NOW_S + 60},
        "not valid yet: its time 'iat' is 60 s ahead of the clock of the relay",
    ),
    "not yet": ({"nbf": NOW_S + 31}, "'nbf' is 31 s ahead of the clock of the relay: wait, or set the clocks"),
    "no end": ({"exp": None}, "the time 'exp' of the token is missing, or is not a time"),
    "end": ({"exp": "never"}, "the time 'exp' of the token is missing, or is not a time"),
    "true": ({"exp": True}, "is not a time"),
    "far end": ({"exp": 1 << 37}, "is not a time"),
    "negative start": ({"nbf": -1}, "the time 'nbf' of the token is missing, or is not a time"),
    "no user": (
        {"sub": None},
        "the claim 'sub' of the token is no name of up to 100 letters",
    ),
    "user": ({"sub": "a b\n"}, "the claim 'sub' of the token is no name"),
    "long user": ({"sub": "a" * 101}, "the claim 'sub' of the token is no name"),
    "number": ({"sub": 7}, "the claim 'sub' of the token is no name"),
    "groups": ({"groups": 7}, "the claim 'groups' of the token is neither a name nor a list of at most 1000 names"),
    "numbers": ({"groups": ["a", 7]}, "the claim 'groups' of the token is neither a name nor a list"),
    "many groups": ({"groups": ["g"] * 1001}, "a list of at most 1000 names"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_token_that_must_not_be_believed_is_refused_with_its_reason(name: str) -> None:
    changes, text = REFUSED[name]
    with pytest.raises(SsoError) as refused:
        read(**changes)
    assert text in str(refused.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": NOW_S - 29},
        {"exp": NOW_S + 0.5},
        {"iat": NOW_S + 30},
        {"nbf": NOW_S + 30},
        {"aud": ["other", "tunnel"]},
        {"groups": ["g"] * 1000},
        {"exp": (1 << 37) - 1},
    ],
)
def test_clocks_may_differ_by_half_a_minute_and_a_token_may_be_for_others_too(changes: dict[str, Any]) -> None:
    assert read(**changes).user == "sso:ann"


@pytest.mark.parametrize("verified", [None, False, "true", 1])
def test_an_email_address_counts_only_if_the_provider_has_verified_it(verified: object) -> None:
    terms = SsoTerms(issuer=TERMS.issuer, audience="tunnel", user_claim="email")
    with pytest.raises(SsoError, match=r"^the identity provider has not verified the email address in the token$"):
        read(terms, email="ann@example.com", email_verified=verified)
    assert read(terms, email="ann@example.com", email_verified=True).user == "sso:ann@example.com"


# --- the terms


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"issuer": ""}, "issuer: '' is not a URL: write it as in https://login.example"),
        ({"issuer": "http://login.example"}, "issuer: 'http://login.example' is not a URL"),
        ({"keys": "ftp://login.example"}, "keys: 'ftp://login.example' is not a URL"),
        ({"audience": ""}, "audience: it is empty: write the client id of the relay at the provider"),
        ({"client_id": "a b"}, "client_id: 'a b' has other characters than letters, digits and ._:/@+~-"),
        ({"client_id": "a", "audience": '"'}, """audience: '"' has other characters than letters, digits"""),
        ({"client_id": "a", "scopes": ("openid", "")}, "scopes: '' has other characters than letters, digits"),
        ({"algorithms": ()}, "algorithms: none cannot be used: choose of RS256, RS384, RS512, PS256"),
        ({"algorithms": ("RS256", "HS256", "none")}, "algorithms: HS256, none cannot be used: choose of RS256"),
    ],
)
def test_terms_that_would_believe_others_are_refused(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(text)}"):
        SsoTerms(**{"issuer": TERMS.issuer, "audience": "tunnel"} | wrong)


def test_a_url_leads_to_a_server_that_tls_authenticates_or_to_this_machine() -> None:
    safe = ("https://login.example/a/b", "http://127.0.0.1:80/a", "http://localhost", "http://[::1]:1/")
    assert [is_secure_url(url) for url in safe] == [True] * 4
    unsafe = (
        "http://login.example",
        "https://",
        "https://a@b.example",
        "https://a.example/?q",
        "http://localhost.evil/",
    )
    assert [is_secure_url(url) for url in unsafe] == [False] * 5


# --- who is present


def test_those_whose_tokens_have_expired_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sso, "_MEMBERS_MAX", 2)
    members = Members()
    members.join(member("staff"), NOW_S)
    members.join(Member("sso:bob", (), NOW_S + 90, 0), NOW_S)
    with pytest.raises(SsoError, match="the relay has 2 users of the identity provider already"):
        members.join(Member("sso:eve", (), NOW_S + 90, 0), NOW_S)
    assert len(members) == 2
    assert not members.join(Member("sso:eve", ("x",), NOW_S + 900, 0), NOW_S + 90)  # ann has gone meanwhile
    assert members.groups_of("sso:ann") == ()
    assert members.groups_of("sso:eve") == ("x",)
    assert not members.is_present("sso:ann", 0)
    assert members.drop_expired(NOW_S + 120) == ["sso:bob"]
    assert len(members) == 1


def member(*groups: str, issued_s: int = 0, expires_s: int = NOW_S + 60) -> Member:
    return Member("sso:ann", groups, expires_s, issued_s)


@pytest.mark.parametrize("issued_s", [0, NOW_S])  # without a time of issue, or with the same one
@pytest.mark.parametrize("first", ["staff", "guests"])
def test_of_tokens_of_one_age_the_one_that_expires_last_names_the_groups_in_any_order(
    issued_s: int, first: str
) -> None:
    tokens = {
        "staff": member("staff", issued_s=issued_s),
        "guests": member("guests", issued_s=issued_s, expires_s=NOW_S + 90),
    }
    members = Members()
    for name in (first, *tokens):
        members.join(tokens[name], NOW_S)
    assert members.groups_of("sso:ann") == ("guests",)
    assert not any(members.join(token, NOW_S) for token in tokens.values())  # two tokens in turn change nothing
    assert [members.is_present("sso:ann", NOW_S + at) for at in (119, 120)] == [True, False]  # with the leeway


def test_of_tokens_with_the_same_times_only_the_groups_count_that_all_of_them_name() -> None:
    members = Members()
    members.join(member("staff", "guests"), NOW_S)
    assert members.join(member("guests", "guests", "x"), NOW_S)
    assert members.groups_of("sso:ann") == ("guests",)
    assert not members.join(member("staff", "guests"), NOW_S)
    assert members.join(member("staff", expires_s=NOW_S + 61), NOW_S)
    assert members.groups_of("sso:ann") == ("staff",)


def test_the_token_that_was_issued_last_names_the_groups_in_any_order_of_arrival() -> None:
    for tokens in (("staff", 1), ("guests", 2)), (("guests", 2), ("staff", 1)):
        members = Members()
        for group, issued_s in tokens:
            members.join(member(group, issued_s=issued_s), NOW_S)
        assert members.groups_of("sso:ann") == ("guests",)


def test_an_older_token_changes_nothing_and_does_not_pass_for_a_new_one_later() -> None:
    members = Members()
    for group, issued_s in (("guests", 3), ("staff", 1), ("staff", 2)):
        assert not members.join(member(group, issued_s=issued_s), NOW_S)
    assert members.groups_of("sso:ann") == ("guests",)


def test_a_token_that_says_the_same_changes_nothing_but_the_end() -> None:
    members = Members()
    for expires_s in (NOW_S + 60, NOW_S + 60, NOW_S + 30, NOW_S + 600, NOW_S + 60):
        assert not members.join(member("staff", expires_s=expires_s), NOW_S)
    assert members.is_present("sso:ann", NOW_S + 629)
    assert not members.is_present("sso:ann", NOW_S + 630)
