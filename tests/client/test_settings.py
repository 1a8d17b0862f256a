"""Options override the environment, which overrides the login; a stored token is sent only to its own relay."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tunnel import TraceWriter
from tunnel.tracing import LEVELS as ALL_LEVELS
from tunnel_client.cli.options import LEVELS, add_relay_options, positive_seconds, relay_settings
from tunnel_client.errors import UsageError
from tunnel_client.login_file import Login, write_login
from tunnel_client.settings import RelaySettings, find_settings

STORED = Login("https://stored.example", "stored-token", proxy="http://proxy:1", ca="/stored.pem")


def found(*arguments: str) -> RelaySettings:
    parser = argparse.ArgumentParser()
    add_relay_options(parser)
    return relay_settings(parser.parse_args(arguments))


def test_the_choices_of_options_are_those_of_the_library() -> None:
    assert LEVELS == ALL_LEVELS


@pytest.mark.usefixtures("home")
def test_a_missing_relay_is_an_error_that_names_all_ways_to_set_it() -> None:
    with pytest.raises(UsageError) as caught:
        found()
    ways = "give --relay URL, set TUNNEL_RELAY, or store one with `tunnel login URL`"
    assert str(caught.value) == f"no relay: {ways}"


def test_every_setting_reaches_the_attachment(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr("tunnel.attach", lambda url, **options: made.append((url, options)))
    trace, other = (cast(TraceWriter, object()) for _ in range(2))
    settings = RelaySettings("http://relay", "t", "http://proxy:1", "/ca.pem", "poll", 7.5, trace, cert="/cert.pem")
    settings.attach(links=2)
    replace(settings, links=3, pull_interval=0.5).attach(links=4)
    settings.attach(trace=other)
    replace(settings, encryption="require", peer_keys=("k",), known_peers=Path("/p"), key="/key").attach()
    options: dict[str, Any] = {
        "token": "t",
        "proxy": "http://proxy:1",
        "ca": "/ca.pem",
        "cert": "/cert.pem",
        "carrier": "poll",
    }
    options |= {"headers": {}, "hostname": None, "sni": None}
    options |= {"insecure_http": False, "encryption": "auto", "peer_key": (), "known_peers": None, "key": None}
    options |= {"links": 1, "pull_interval": 0.0, "rate": "", "road_memory": None}
    encryption = {"encryption": "require", "peer_key": ("k",), "known_peers": Path("/p"), "key": "/key"}
    assert made == [
        ("http://relay", {**options, "user_timeout": 7.5, "trace": trace, "links": 2}),
        ("http://relay", {**options, "user_timeout": 7.5, "trace": trace, "links": 4, "pull_interval": 0.5}),
        ("http://relay", {**options, "user_timeout": 7.5, "trace": other}),
        ("http://relay", {**options, "user_timeout": 7.5, "trace": trace, **encryption}),
    ]


@pytest.mark.usefixtures("home")
def test_the_user_timeout_is_that_of_its_option_or_300_s() -> None:
    assert found("--relay", "http://relay").user_timeout == 300.0
    assert found("--relay", "http://relay", "--user-timeout", "7.5").user_timeout == 7.5


@pytest.mark.usefixtures("home")
def test_links_and_pulls_are_those_of_their_options() -> None:
    given = found("--relay", "http://relay", "--links", "3", "--pull-interval", "0.25")
    assert (given.links, given.pull_interval) == (3, 0.25)
    default = found("--relay", "http://relay")
    assert (default.links, default.pull_interval) == (1, 0.0)
    with pytest.raises(UsageError, match="from 1 to 4 links, not 9"):
        find_settings(relay="http://relay", links=9)
    with pytest.raises(UsageError, match="the pull interval must be 0, or from"):
        find_settings(relay="http://relay", pull_interval=-1)


def test_options_precede_the_environment_which_precedes_the_login(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    file.chmod(0o600)
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
    monkeypatch.setenv("TUNNEL_RELAY", "http://stored.example")  # the same host without TLS
    assert found().token is None


def test_a_login_that_is_not_needed_is_not_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_login(STORED).chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        found()
    monkeypatch.setenv("TUNNEL_TOKEN", "named-token")
    assert found("--relay", "https://other.example").token == "named-token"


def test_token_files_without_a_token_are_explained(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNNEL_RELAY", "https://named.example")
    with pytest.raises(UsageError, match="there is no such file"):
        found("--token-file", str(home / "missing"))
    for content, text in ((b" \n", "is empty"), (b"\xff", "does not hold a token")):
        (home / "token").write_bytes(content)
        (home / "token").chmod(0o600)
        with pytest.raises(UsageError, match=text):
            found("--token-file", str(home / "token"))


@pytest.mark.usefixtures("home")
def test_an_unknown_carrier_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNNEL_CARRIER", "pigeon")
    with pytest.raises(
        UsageError, match=r"^TUNNEL_CARRIER is 'pigeon': choose one of auto, poll, link, stream, websocket$"
    ):
        found("--relay", "https://x")
    with pytest.raises(UsageError, match=r"^the carrier is 'dove': choose one of auto, poll, link, stream, websocket$"):
        find_settings(relay="https://x", carrier="dove")


@pytest.mark.parametrize(
    ("proxy", "used"), [("", None), ("none", None), ("NONE", None), (None, None), ("http://p:1", "http://p:1")]
)
@pytest.mark.usefixtures("home")
def test_a_program_may_name_a_proxy_or_forbid_one(proxy: str | None, used: str | None) -> None:
    assert find_settings(relay="https://x", proxy=proxy).proxy == used


@pytest.mark.parametrize("text", ["0", "-1", "x", "inf", "nan"])
def test_seconds_must_be_above_zero(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        positive_seconds(text)
    assert positive_seconds("0.5") == 0.5


@pytest.mark.parametrize("wrong", [{"url": "relay.example"}, {"proxy": "socks5://x"}, {"token": "a b"}])
def test_unusable_settings_are_explained(wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {"url": "https://x", "token": "t", "proxy": None, "ca": None, "carrier": "auto"}
    with pytest.raises(UsageError):
        RelaySettings(**{**right, **wrong}, user_timeout=1).attach()


@pytest.mark.usefixtures("home")
def test_an_unreadable_certificate_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing\.pem"):
        found("--relay", "https://x.example", "--cert", str(tmp_path / "missing.pem")).attach()


@pytest.mark.usefixtures("home")
def test_an_insecure_relay_is_allowed_by_option_environment_or_login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNNEL_TOKEN", "t")
    url = "http://relay.example"
    with pytest.raises(UsageError, match="unencrypted"):
        found("--relay", url, "--proxy", "none").check()
    found("--relay", url, "--proxy", "none", "--insecure-http").check()
    assert find_settings(relay=url, insecure_http=True).insecure_http
    monkeypatch.setenv("TUNNEL_INSECURE_HTTP", "0")
    assert not found("--relay", url).insecure_http
    monkeypatch.setenv("TUNNEL_INSECURE_HTTP", "1")
    found("--relay", url, "--proxy", "none").check()
    monkeypatch.delenv("TUNNEL_INSECURE_HTTP")
    monkeypatch.delenv("TUNNEL_TOKEN")
    write_login(Login(url, "t", "none", insecure_http=True))
    found().check()
    assert not found("--relay", "http://other.example").insecure_http


def test_settings_for_a_gateway_come_from_options_then_from_the_login_of_the_same_relay(home: Path) -> None:
    file = home / "headers"
    file.touch(0o600)
    file.write_text("X-Key: s3cret\n")
    url = "https://relay.example"
    given = found("--relay", url, "--header", f"@{file}", "--header", "X-Team: db", "--hostname", "h", "--sni", "s")
    assert (given.headers, given.hostname, given.sni) == ({"X-Key": "s3cret", "X-Team": "db"}, "h", "s")
    assert "s3cret" not in repr(given)
    write_login(Login(url, "t", headers={"X-Key": "stored"}, hostname="stored", sni="stored"))
    stored = found()
    assert (stored.headers, stored.hostname, stored.sni) == ({"X-Key": "stored"}, "stored", "stored")
    assert found("--header", "X-Team: db").headers == {"X-Team": "db"}
    other = found("--relay", "https://other.example")
    assert (other.headers, other.hostname, other.sni) == ({}, "", "")
    with pytest.raises(UsageError, match="uses no TLS"):
        found("--relay", "http://127.0.0.1", "--sni", "x").attach()
    with pytest.raises(UsageError, match="no colon"):
        found("--header", "s3cret")


def test_two_users_a_token_file_that_others_can_read_is_refused(home: Path) -> None:
    (home / "token").write_text("t")
    (home / "token").chmod(0o644)
    with pytest.raises(UsageError, match=r"--token-file .* is open to other users .*chmod 600"):
        found("--relay", "https://x", "--token-file", str(home / "token"))
