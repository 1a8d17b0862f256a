"""Options come before the environment, the environment before the login; a stored token goes to its own relay alone."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from tunnel.attaching import CARRIERS as ALL_CARRIERS
from tunnel.tracing import LEVELS as ALL_LEVELS
from tunnel_client.cli.options import LEVELS, add_relay_options, positive_seconds, relay_settings
from tunnel_client.errors import UsageError
from tunnel_client.login_file import Login, write_login
from tunnel_client.settings import CARRIERS, RelaySettings

STORED = Login("https://stored.example", "stored-token", proxy="http://proxy:1", ca="/stored.pem")


def found(*arguments: str) -> RelaySettings:
    parser = argparse.ArgumentParser()
    add_relay_options(parser)
    return relay_settings(parser.parse_args(arguments))


def test_what_can_be_chosen_is_what_the_library_knows() -> None:
    assert CARRIERS == ALL_CARRIERS
    assert LEVELS == ALL_LEVELS


@pytest.mark.usefixtures("home")
def test_nothing_said_is_an_error_that_names_all_ways() -> None:
    with pytest.raises(UsageError, match=r"--relay URL, set TUNNEL_RELAY, or .* `tunnel login URL`"):
        found()


def test_options_then_environment_then_login(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_login(STORED)
    stored = found()
    assert (stored.url, stored.token, stored.source) == ("https://stored.example", "stored-token", "tunnel login")
    assert (stored.proxy, stored.ca, stored.carrier) == ("http://proxy:1", "/stored.pem", "auto")
    monkeypatch.setenv("TUNNEL_RELAY", "https://named.example")
    monkeypatch.setenv("TUNNEL_TOKEN", "named-token")
    monkeypatch.setenv("TUNNEL_CARRIER", "poll")
    named = found()
    assert (named.url, named.token, named.source) == ("https://named.example", "named-token", "TUNNEL_RELAY")
    assert (named.proxy, named.ca, named.carrier) == ("env", None, "poll")
    file = home / "token"
    file.write_text("file-token\n")
    given = found(
        *("--relay", "https://x", "--token-file", str(file), "--proxy", "none", "--ca", "c", "--carrier", "link"),
        *("--cert", "mine.pem"),
    )
    assert (given.url, given.token, given.source) == ("https://x", "file-token", "--relay")
    assert (given.proxy, given.ca, given.cert, given.carrier) == (None, "c", "mine.pem", "link")


@pytest.mark.usefixtures("home")
def test_a_stored_token_goes_to_no_other_relay(monkeypatch: pytest.MonkeyPatch) -> None:
    write_login(STORED)
    assert found("--relay", "https://other.example").token is None
    assert found("--relay", "https://stored.example/").token == "stored-token"
    monkeypatch.setenv("TUNNEL_RELAY", "http://stored.example")  # not over TLS
    assert found().token is None


def test_a_login_that_is_not_needed_is_not_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_login(STORED).chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        found()
    monkeypatch.setenv("TUNNEL_TOKEN", "named-token")
    assert found("--relay", "https://other.example").token == "named-token"


def test_files_without_a_token_are_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNNEL_RELAY", "https://named.example")
    with pytest.raises(UsageError, match="No such file"):
        found("--token-file", str(home / "missing"))
    for content, text in ((b" \n", "is empty"), (b"\xff", "ascii")):
        (home / "token").write_bytes(content)
        with pytest.raises(UsageError, match=text):
            found("--token-file", str(home / "token"))


@pytest.mark.usefixtures("home")
def test_a_carrier_that_is_none_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNNEL_CARRIER", "pigeon")
    with pytest.raises(UsageError, match="TUNNEL_CARRIER is 'pigeon'"):
        found("--relay", "https://x")


@pytest.mark.parametrize("text", ["0", "-1", "x", "inf", "nan"])
def test_seconds_are_above_nothing(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        positive_seconds(text)
    assert positive_seconds("0.5") == 0.5


@pytest.mark.parametrize("wrong", [{"url": "relay.example"}, {"proxy": "socks5://x"}, {"token": "a b"}])
def test_settings_that_cannot_be_used_are_told(wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {"url": "http://x", "token": "t", "proxy": None, "ca": None, "carrier": "auto"}
    with pytest.raises(UsageError):
        RelaySettings(**{**right, **wrong}, user_timeout=1).attach()


@pytest.mark.usefixtures("home")
def test_a_certificate_that_cannot_be_read_is_a_matter_of_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing\.pem"):
        found("--relay", "https://x.example", "--cert", str(tmp_path / "missing.pem")).attach()
