"""`tunnel-relay user add`, `rotate`, `expire` and `list` with what limits a token."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from tunnel_servlet.access.tokens import Identity
from tunnel_servlet.command.files import load_config, read_tokens
from tunnel_servlet.command.main import main
from tunnel_servlet.command.token_terms import parse_when
from tunnel_servlet.web.tokens.files import TokenUseFiles, write_instant

NOW_S = 1_800_000_000.0
REVOKE = "tunnel-relay user revoke ann --key"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Give each test a directory with a relay.toml whose user is ann, and a clock."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "time", lambda: NOW_S)
    assert main(["init", "relay.toml", "--user", "ann"]) == 0
    capsys.readouterr()
    yield
    structlog.reset_defaults()


def listed(capsys: pytest.CaptureFixture[str], user: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["user", "list", "--json"]) == 0
    return next(row for row in json.loads(capsys.readouterr().out) if row["user"] == user)


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("never", ""),
        ("now", "2027-01-15T08:00:00Z"),
        ("90m", "2027-01-15T09:30:00Z"),
        ("12h", "2027-01-15T20:00:00Z"),
        ("30d", "2027-02-14T08:00:00Z"),
        ("2027-01-31", "2027-01-31T23:59:59Z"),
    ],
)
def test_times_as_people_write_them(text: str, stored: str) -> None:
    assert parse_when(text) == stored


@pytest.mark.parametrize(
    "text", ["", "30", "30x", "-1d", "1.5h", "2027-02-30", "2027-1-1", "tomorrow", "9999999d", "999999d9"]
)
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a time: write a time such as"):
        parse_when(text)


def test_a_token_with_limits_is_added_listed_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    name = 'the "old" laptop, \\ ä'
    assert main(["user", "add", "bob", "--expires", "12h", "--description", name, "--endpoints-max", "3"]) == 0
    captured = capsys.readouterr()
    terms = "valid until 2027-01-15 20:00 UTC, for at most 3 endpoint(s) at a time"
    assert f"is not shown again; it is {terms}:\n" in captured.err
    row = listed(capsys, "bob")
    assert (row["expires"], row["description"], row["endpoints_max"]) == ("2027-01-15T20:00:00Z", name, 3)
    assert (row["single_use"], row["used"], row["last_use"]) == (False, False, "")
    files = TokenUseFiles(Path("relay.tokens.use"))
    files.store_last_uses({row["key"]: write_instant(NOW_S - 120)})
    assert main(["user", "list"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("bob"))
    assert line.split("\t")[3:] == [f"{terms}, last use 2027-01-15 07:58 UTC", name]
    config = load_config("relay.toml")
    assert config.token_use == "relay.tokens.use"
    token = captured.out.strip()
    assert config.tokens.identify(token) == Identity("bob", row["key"])


def test_a_list_of_tokens_without_limits_is_as_short_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["user", "list"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert len(line.split("\t")) == 3


def test_a_token_for_a_single_use_expires_within_a_day_unless_told_otherwise(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["user", "add", "bob", "--single-use"]) == 0
    row = listed(capsys, "bob")
    assert (row["expires"], row["single_use"], row["used"]) == ("2027-01-16T08:00:00Z", True, False)
    TokenUseFiles(Path("relay.tokens.use")).use(row["key"], b"endpoint", row["expires"])
    assert listed(capsys, "bob")["used"]
    assert main(["user", "list"]) == 0
    assert "for one endpoint, used" in capsys.readouterr().out
    assert main(["user", "add", "eve", "--single-use", "--expires", "never"]) == 2
    assert "must expire: leave out --expires never" in capsys.readouterr().err
    assert main(["user", "expire", "bob", "never"]) == 2
    assert "must expire: write a time in place of never" in capsys.readouterr().err


def test_a_rotation_may_limit_the_new_token_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["user", "rotate", "ann", "--expires", "1d"]) == 0
    old, new = read_tokens(Path("relay.tokens.toml")).users["ann"]
    assert (old.expires, new.expires) == ("", "2027-01-16T08:00:00Z")


def test_expire_sets_the_time_of_all_tokens_or_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["user", "rotate", "ann"]) == 0
    old, new = read_tokens(Path("relay.tokens.toml")).users["ann"]
    assert main(["user", "expire", "ann", "7d", "--key", old.id]) == 0
    assert f"the token of ann with the key id {old.id} is valid until 2027-01-22 08:00 UTC" in capsys.readouterr().err
    keys = read_tokens(Path("relay.tokens.toml")).users["ann"]
    assert [key.expires for key in keys] == ["2027-01-22T08:00:00Z", ""]
    assert main(["user", "expire", "ann", "now"]) == 0
    assert "is not valid since 2027-01-15 08:00 UTC" in capsys.readouterr().err
    assert not load_config("relay.toml").tokens.has_user("ann", NOW_S)
    assert main(["user", "expire", "ann", "never", "--key", new.id]) == 0
    assert f"with the key id {new.id} is valid until it is revoked" in capsys.readouterr().err
    assert load_config("relay.toml").tokens.has_user("ann", NOW_S)
    assert [key.sha256 for key in read_tokens(Path("relay.tokens.toml")).users["ann"]] == [old.sha256, new.sha256]


def _ids() -> list[str]:
    return [key.id for key in read_tokens(Path("relay.tokens.toml")).users["ann"]]


@pytest.mark.parametrize("expired", [0, 1])
def test_a_rotation_drops_the_expired_token_and_keeps_the_valid_one(
    expired: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["user", "rotate", "ann"]) == 0
    ids = _ids()
    assert main(["user", "expire", "ann", "now", "--key", ids[expired]]) == 0
    capsys.readouterr()
    assert main(["user", "rotate", "ann"]) == 0
    valid = ids[1 - expired]
    assert _ids()[0] == valid
    said = capsys.readouterr().err
    assert f"the token with the key id {ids[expired]} is removed: it expired" in said
    assert f"the previous token is still valid; once the new one is in use, run: {REVOKE} {valid} " in said


def test_a_rotation_drops_the_oldest_token_when_all_have_expired(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["user", "rotate", "ann"]) == 0
    first, second = _ids()
    assert main(["user", "expire", "ann", "now"]) == 0
    capsys.readouterr()
    assert main(["user", "rotate", "ann", "--expires", "now"]) == 0
    assert _ids()[0] == second
    assert len(_ids()) == 2
    said = capsys.readouterr().err
    assert f"the token with the key id {first} is removed: it expired" in said
    assert "still valid" not in said


def test_a_rotation_does_not_call_the_only_previous_token_valid_when_it_has_expired(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["user", "expire", "ann", "now"]) == 0
    (first,) = _ids()
    capsys.readouterr()
    assert main(["user", "rotate", "ann"]) == 0
    assert _ids()[0] == first  # `expire` can make it valid again
    assert "still valid" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["expire", "an", "7d"], "did you mean ann?"),
        (["expire", "ann", "7d", "--key", "00000000"], "ann has no token with the key id 00000000"),
        (["add", "bob", "--description", "a\nb"], "--description: a description has up to 200 printable letters"),
    ],
)
def test_what_cannot_be_is_said_and_changes_nothing(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = Path("relay.tokens.toml").read_text()
    assert main(["user", *arguments]) == 2
    assert text in capsys.readouterr().err
    assert Path("relay.tokens.toml").read_text() == before


@pytest.mark.parametrize("number", ["0", "-1", "x", "1000001"])
def test_a_limit_of_endpoints_is_a_number(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["user", "add", "bob", "--endpoints-max", number])
    assert "is not a whole number from 1 to 1000000" in capsys.readouterr().err


def test_a_check_notes_users_whose_tokens_have_all_expired(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["user", "expire", "ann", "now"]) == 0
    capsys.readouterr()
    assert main(["check"]) == 0
    captured = capsys.readouterr()
    assert "ann has no token that is valid now: run `tunnel-relay user rotate ann -c relay.toml`" in captured.err
