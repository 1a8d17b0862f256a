"""Tokens: how they are made, stored and compared, and the limit on wrong ones."""

import hashlib
import math
import re
from random import Random
from typing import Any

import pytest

from tunnel_servlet.access.tokens import (
    FailureLimiter,
    Identity,
    Key,
    TokenTable,
    check_user_name,
    make_token,
    read_bearer,
)

TOKEN, KEY = make_token(Random(1), "2026-01-02")
OTHER, OTHER_KEY = make_token(Random(2))


def test_a_token_contains_its_key_id_and_256_random_bits() -> None:
    prefix, key_id, secret = TOKEN.split("_", 2)
    assert (prefix, key_id, len(secret)) == ("tnl", KEY.id, 43)
    assert KEY.sha256 == hashlib.sha256(TOKEN.encode()).hexdigest()
    assert KEY.created == "2026-01-02"
    assert secret not in repr(KEY)
    assert make_token(Random(3))[0] != TOKEN


def test_a_valid_token_identifies_its_user() -> None:
    table = TokenTable({"ann": [KEY], "bob": [OTHER_KEY]})
    assert table.identify(TOKEN) == Identity("ann", KEY.id)
    assert table.identify(OTHER) == Identity("bob", OTHER_KEY.id)
    assert len(table) == 2


@pytest.mark.parametrize("token", ["", TOKEN[:-1], TOKEN + "A", TOKEN.upper(), OTHER, "tnl_" + KEY.id + "_" + "A" * 43])
def test_no_other_token_identifies_a_user(token: str) -> None:
    assert TokenTable({"ann": [KEY]}).identify(token) is None


def test_a_user_may_have_two_tokens_for_rotation() -> None:
    table = TokenTable({"ann": [KEY, OTHER_KEY]})
    assert {table.identify(token) is not None for token in (TOKEN, OTHER)} == {True}
    third = make_token(Random(3))[1]
    with pytest.raises(ValueError, match="at most 2 are allowed: revoke one"):
        TokenTable({"ann": [KEY, OTHER_KEY, third]})


def test_a_key_id_belongs_to_one_user() -> None:
    with pytest.raises(ValueError, match="two tokens have the key id"):
        TokenTable({"ann": [KEY], "bob": [KEY]})


def test_a_revoked_token_is_not_accepted() -> None:
    identity = Identity("ann", KEY.id)
    assert TokenTable({"ann": [KEY]}).why_ended(identity, 0) == ""
    assert TokenTable({"ann": [OTHER_KEY]}).why_ended(identity, 0) == "the token was revoked"
    assert TokenTable({"bob": [KEY]}).why_ended(identity, 0) == "the token was revoked"


EXPIRES_S = 1_800_000_000
SHORT, SHORT_KEY = make_token(Random(4), expires="2027-01-15T08:00:00Z")


def test_a_token_expires_at_its_second_and_says_when() -> None:
    table, identity = TokenTable({"ann": [SHORT_KEY], "bob": [KEY]}), Identity("ann", SHORT_KEY.id)
    assert table.identify(SHORT) == identity
    assert table.why_ended(identity, EXPIRES_S - 0.001) == ""
    text = "the token expired on 2027-01-15 08:00 UTC; ask the operator for a new one"
    assert table.why_ended(identity, EXPIRES_S) == text
    assert table.why_ended(Identity("bob", KEY.id), 1e12) == ""


def test_a_user_stays_while_one_of_the_tokens_is_valid() -> None:
    later = make_token(Random(5), expires="2027-01-15T09:00:00Z")[1]
    table = TokenTable({"ann": [SHORT_KEY, later], "bob": [KEY, SHORT_KEY_OF_BOB], "eve": []})
    assert [table.has_user("ann", EXPIRES_S + at) for at in (-1, 0, 3599, 3600)] == [True, True, True, False]
    assert table.has_user("bob", 1e12)
    assert not table.has_user("eve", 0)
    assert not table.has_user("zoe", 0)


SHORT_KEY_OF_BOB = make_token(Random(6), expires="2027-01-15T08:00:00Z")[1]


def test_the_next_expiry_is_known() -> None:
    later = make_token(Random(5), expires="2027-01-15T09:00:00Z")[1]
    table = TokenTable({"ann": [SHORT_KEY, later], "bob": [KEY]})
    times = [table.next_expiry_s(EXPIRES_S + at) - EXPIRES_S for at in (-1, 0, 3600)]
    assert times == [0, 3600, 3600]  # after the last one: it may be valid again if the clock is set back
    assert table.expired_ids(EXPIRES_S - 1) == []
    assert table.expired_ids(EXPIRES_S) == [SHORT_KEY.id]
    assert TokenTable({"bob": [KEY]}).next_expiry_s(0) == math.inf


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"expires": "2027-01-15"}, "expires: '2027-01-15' is not a time: write it as in 2027-01-31T18:00:00Z"),
        ({"expires": "2027-02-30T08:00:00Z"}, "the calendar has no such day"),
        ({"expires": "2027-01-15T08:00:00Z\n"}, "is not a time"),
        ({"single_use": True}, "needs a time `expires`"),
        ({"endpoints_max": -1}, "endpoints_max is at least 0"),
        ({"description": "a\x1b[31m"}, "printable letters"),
        ({"description": "a" * 201}, "up to 200"),
    ],
)
def test_limits_that_make_no_sense_are_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        Key(KEY.id, KEY.sha256, **changes)


@pytest.mark.parametrize(("key_id", "sha256"), [("xyz", "0" * 64), ("0" * 8, "0" * 63), ("0" * 8, "G" * 64)])
def test_malformed_keys_are_refused(key_id: str, sha256: str) -> None:
    with pytest.raises(ValueError, match="hex digits"):
        Key(key_id, sha256)


@pytest.mark.parametrize("name", ["ann", "a.b-c_d@e", "0", "A" * 64])
def test_valid_user_names_are_accepted(name: str) -> None:
    assert check_user_name(name) == name


@pytest.mark.parametrize("name", ["", "a" * 65, "-a", "a b", "a:b", "relay:exit", "\u00fc", "a\n"])
def test_invalid_user_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not a user name"):
        check_user_name(name)


@pytest.mark.parametrize(
    ("header", "token"),
    [(None, ""), ("", ""), ("Bearer x", "x"), ("bearer  x ", "x"), ("Basic x", ""), ("Bearer", ""), ("x", "")],
)
def test_the_token_is_read_from_the_header(header: str | None, token: str) -> None:
    assert read_bearer(header) == token


MINUTE = 60_000_000


def test_failures_are_counted_by_address_and_minute() -> None:
    limiter = FailureLimiter(2)
    assert [limiter.count_failure("a", 0), limiter.count_failure("a", 1), limiter.count_failure("a", MINUTE // 2)] == [
        0,
        0,
        30,
    ]
    assert limiter.count_failure("b", MINUTE // 2) == 0
    assert limiter.count_failure("a", MINUTE - 1) == 1
    assert limiter.count_failure("a", MINUTE) == 0


def test_failures_are_remembered_for_a_bounded_number_of_addresses() -> None:
    limiter = FailureLimiter(1)
    limiter.count_failure("first", 0)
    for number in range(10_000):
        limiter.count_failure(str(number), 0)
    assert limiter.count_failure("first", 0) == 0
    assert limiter.count_failure("9999", 0) > 0


def test_who_goes_on_guessing_is_not_forgotten_for_others_who_guess_once() -> None:
    limiter = FailureLimiter(1)
    limiter.count_failure("guessing", 0)
    for number in range(15_000):
        limiter.count_failure(str(number), 0)
        if number % 5_000 == 0:
            assert limiter.count_failure("guessing", 0) > 0
    assert limiter.count_failure("guessing", 0) > 0
