"""Tokens: how they are made, stored and compared, and the limit on wrong ones."""

import hashlib
from random import Random

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
    assert TokenTable({"ann": [KEY]}).is_live(identity)
    assert not TokenTable({"ann": [OTHER_KEY]}).is_live(identity)
    assert not TokenTable({"bob": [KEY]}).is_live(identity)


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
    assert [limiter.failed("a", 0), limiter.failed("a", 1), limiter.failed("a", MINUTE // 2)] == [0, 0, 30]
    assert limiter.failed("b", MINUTE // 2) == 0
    assert limiter.failed("a", MINUTE - 1) == 1
    assert limiter.failed("a", MINUTE) == 0


def test_failures_are_remembered_for_a_bounded_number_of_addresses() -> None:
    limiter = FailureLimiter(1)
    limiter.failed("first", 0)
    for number in range(10_000):
        limiter.failed(str(number), 0)
    assert limiter.failed("first", 0) == 0
    assert limiter.failed("9999", 0) > 0


def test_who_goes_on_guessing_is_not_forgotten_for_others_who_guess_once() -> None:
    limiter = FailureLimiter(1)
    limiter.failed("guessing", 0)
    for number in range(15_000):
        limiter.failed(str(number), 0)
        if number % 5_000 == 0:
            assert limiter.failed("guessing", 0) > 0
    assert limiter.failed("guessing", 0) > 0
