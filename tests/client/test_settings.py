"""Options override the environment, which overrides the login; a stored token is sent only to its own relay."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tunnel import TraceWriter
from tunnel.attaching import AttachOptions
from tunnel.ground.relay_options import OwnKeywords
from tunnel.tracing import LEVELS as ALL_LEVELS
from tunnel_client.cli.options import LEVELS, add_relay_options, positive_seconds, relay_settings
from tunnel_client.errors import UsageError
from tunnel_client.login_file import write_login
from tunnel_client.settings import RelaySettings, find_settings
from tunnel_client.stored_login import Login

STORED = Login("https://stored.example", token="stored-token", proxy="http://proxy:1", ca="/stored.pem")


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
    made: list[tuple[str, AttachOptions]] = []
    monkeypatch.setattr("tunnel_client.settings.attach_with", lambda url, options: made.append((url, options)))
    trace = cast(TraceWriter, object())
    settings = RelaySettings("http://relay", token="t", carrier="poll", trace=trace, known_peers=Path("/p"))
    settings.attach()
    settings.attach(links=2, token="u")
    assert made == [("http://relay", settings), ("http://relay", replace(settings, links=2, token="u"))]


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
    right: dict[str, Any] = {"url": "https://x", "token": "t", "proxy": None}
    with pytest.raises(UsageError):
        RelaySettings(**{**right, **wrong}).attach()


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
    write_login(Login(url, token="t", proxy="none", insecure_http=True))
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
    write_login(Login(url, token="t", headers={"X-Key": "stored"}, hostname="stored", sni="stored"))
    stored = found()
    assert (stored.headers, stored.hostname, stored.sni) == ({"X-Key": "stored"}, "stored", "stored")
    assert found("--header", "X-Team: db").headers == {"X-Team": "db"}
    other = found("--relay", "https://other.example")
    assert (other.headers, other.hostname, other.sni) == (None, None, None)
    with pytest.raises(UsageError, match="uses no TLS"):
        found("--relay", "http://127.0.0.1", "--sni", "x").attach()
    with pytest.raises(UsageError, match="no colon"):
        found("--header", "s3cret")


def test_two_users_a_token_file_that_others_can_read_is_refused(home: Path) -> None:
    (home / "token").write_text("t")
    (home / "token").chmod(0o644)
    with pytest.raises(UsageError, match=r"--token-file .* is open to other users .*chmod 600"):
        found("--relay", "https://x", "--token-file", str(home / "token"))


@pytest.mark.parametrize("together", [True, False])
def test_several_relays_have_a_token_each(home: Path, monkeypatch: pytest.MonkeyPatch, *, together: bool) -> None:
    urls = ["https://one.example", "https://two.example"]
    for name in ("1", "2"):
        (home / name).write_text(f"token-{name}")
        (home / name).chmod(0o600)
    named = ["--relay", ",".join(urls)] if together else ["--relay", urls[0], "--relay", urls[1]]
    by_files = found(*named, "--token-file", str(home / "1"), "--token-file", str(home / "2"))
    monkeypatch.setenv("TUNNEL_RELAY", " ".join(urls))
    monkeypatch.setenv("TUNNEL_TOKEN", "token-1 token-2")
    for one in (by_files, found()):
        assert (one.url, one.token, one.further_relays) == (urls[0], "token-1", ((urls[1], {"token": "token-2"}),))


@pytest.mark.usefixtures("home")
def test_tokens_of_the_environment_go_to_the_relays_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, three = (f"https://{name}.example" for name in ("one", "two", "three"))
    monkeypatch.setenv("TUNNEL_RELAY", f"{one} {two}")
    monkeypatch.setenv("TUNNEL_TOKEN", "token-1 token-2")
    turned = found("--relay", f"{two}/", "--relay", one)
    assert (turned.token, turned.further_relays) == ("token-2", ((one, {"token": "token-1"}),))
    assert (found("--relay", two).token, found("--relay", one).token) == ("token-2", "token-1")
    assert found("--relay", "HTTPS://TWO.example:443/").token == "token-2"
    for others in (["--relay", three], ["--relay", one, "--relay", three], ["--relay", "http://one.example"]):
        with pytest.raises(
            UsageError, match=r"https?://\w+\.example has no token in the environment.*--token-file"
        ) as caught:
            found(*others)
        assert "token-1" not in str(caught.value)
    assert find_settings(relay=three, token=None).token is None
    assert find_settings(relay=three, token="mine").token == "mine"
    write_login(Login(three, token="stored"))
    with pytest.raises(UsageError, match="--token-file"):
        found("--relay", three)
    monkeypatch.setenv("TUNNEL_RELAY", f"{one} {two} {three}")
    for named in ([], ["--relay", two, "--relay", one]):
        with pytest.raises(UsageError, match="3 relays are named, but 2 tokens"):
            found(*named)
    monkeypatch.delenv("TUNNEL_RELAY")
    ordered = found("--relay", two, "--relay", one)  # nothing says whose they are but the order
    assert (ordered.token, ordered.further_relays) == ("token-1", ((one, {"token": "token-2"}),))


def test_settings_for_each_relay_alone_hold_no_secret_of_another() -> None:
    further: list[tuple[str, str | OwnKeywords]] = [("https://two.example", "token-2")]
    further.append(("https://three.example", {"token": "3", "cert": "/c", "ca": "/a"}))
    settings = RelaySettings("https://one.example", token="token-1", headers={"A": "b"}, further_relays=further)
    one, two, three = settings.each()
    assert (one.url, one.token, one.headers, one.further_relays) == (settings.url, "token-1", {"A": "b"}, ())
    assert (three.token, three.cert, three.ca, three.headers) == ("3", "/c", "/a", None)
    assert (two.url, two.token, two.headers, two.further_relays) == (*further[0], None, ())


@pytest.mark.usefixtures("home")
def test_two_users_a_token_for_one_relay_is_not_shown_to_another_of_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    write_login(STORED)
    with pytest.raises(UsageError, match=r"no token for https://other.example: store it with `tunnel login --add"):
        found("--relay", STORED.relay, "--relay", "https://other.example")
    monkeypatch.setenv("TUNNEL_TOKEN", "one-token")
    with pytest.raises(UsageError, match="2 relays are named, but 1 token"):
        found("--relay", "https://x.example", "--relay", "https://other.example")
    assert find_settings(relay="http://x http://y", token=None).further_relays == (("http://y", {}),)


ONE = Login("https://one.example", token="1", headers={"X-Gate": "1"}, hostname="gate", proxy="http://proxy:1", ca="/1")
TWO = Login("https://two.example", token="2", sni="two")


@pytest.mark.usefixtures("home")
def test_stored_relays_are_used_in_their_order_each_with_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    write_login(ONE, TWO)
    by_login = found()
    by_name = found("--relay", "https://one.example/", "--relay", "https://two.example")
    for settings in (by_login, by_name):
        one, two = settings.each()
        assert (one.token, one.headers, one.hostname, one.sni) == ("1", {"X-Gate": "1"}, "gate", None)
        assert (one.proxy, one.ca) == ("http://proxy:1", "/1")
        assert (two.token, two.headers, two.hostname, two.sni) == ("2", None, None, "two")
        assert (two.proxy, two.ca) == ("env", None)
    assert (by_login.url, by_login.source, by_name.source) == ("https://one.example", "tunnel login", "--relay")
    assert found("--relay", TWO.relay).further_relays == ()
    assert found("--relay", TWO.relay).token == "2"
    turned = found("--relay", TWO.relay, "--relay", ONE.relay).each()
    assert [(one.token, one.proxy, one.sni) for one in turned] == [("2", "env", "two"), ("1", "http://proxy:1", None)]


@pytest.mark.usefixtures("home")
def test_given_options_go_over_what_is_stored_for_each_relay(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_login(ONE, TWO)
    one, two = found("--proxy", "none", "--ca", "/c", "--header", "X-A: b", "--hostname", "h").each()
    assert (one.proxy, one.ca, one.headers, one.hostname) == (None, "/c", {"X-A": "b"}, "h")
    assert (two.proxy, two.ca, two.headers, two.hostname, two.sni) == (None, "/c", None, None, "two")
    monkeypatch.setenv("TUNNEL_TOKEN", "a b")
    assert [one.token for one in found().each()] == ["a", "b"]
    monkeypatch.setenv("TUNNEL_TOKEN", "a")
    with pytest.raises(UsageError, match="2 relays are named, but 1 token"):
        found()
    assert find_settings(token=None).each()[1].token is None


@pytest.mark.usefixtures("home")
def test_two_users_no_text_shows_the_secrets_of_further_relays() -> None:
    write_login(ONE, replace(TWO, token="hidden"))
    assert "hidden" not in repr(found())


@pytest.mark.usefixtures("home")
def test_a_token_for_one_relay_may_hold_a_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNNEL_TOKEN", "one token")
    assert found("--relay", "https://x.example").token == "one token"
