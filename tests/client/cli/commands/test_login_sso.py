"""`tunnel login --sso`, and commands whose token comes from a sign-in, with a relay and a provider on loopback."""

from __future__ import annotations

import json
import os
import stat
import webbrowser
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from tests.client.rig import TOKEN, Rig, echo
from tests.servlet.rig import KEYS, settings
from tests.support.identity_provider import DeviceProvider, provided
from tunnel.sign_in import device_flow
from tunnel_client.cli.main import main
from tunnel_client.login_file import lock_path, login_path, read_login, write_login
from tunnel_client.stored_login import Login
from tunnel_servlet.access.grants import Grant, GrantTable
from tunnel_servlet.access.rules import parse_rule
from tunnel_servlet.access.sso import SsoTerms
from tunnel_servlet.access.tokens import TokenTable

pytestmark = pytest.mark.usefixtures("home")
STAFF = Grant(connect=(parse_rule("127.0.0.0/8:*"),))


class SsoRig(Rig):
    """A relay that names its provider."""

    def __init__(self, provider: DeviceProvider, url: str, **terms: Any) -> None:
        self.provider = provider
        sso = SsoTerms(**{"issuer": url, "audience": "tunnel", "client_id": "tunnel", **terms})
        super().__init__(
            settings(
                exit="inline",
                grants=GrantTable({"bob": STAFF}, groups={"staff": STAFF}),
                sso=sso,
                tokens=TokenTable(KEYS),
            )
        )


@pytest.fixture
def provider() -> Iterator[DeviceProvider]:
    from tests.client.rig import Background

    made = DeviceProvider()
    with Background() as background:
        background.enter(provided(made))
        yield made


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the provider be asked as often as it allows."""
    monkeypatch.setattr(device_flow, "_INTERVAL_S_MIN", 0.01)


@pytest.fixture
def sso(provider: DeviceProvider) -> Iterator[SsoRig]:
    with SsoRig(provider, provider.url) as found:
        yield found


def login(sso: SsoRig, *more: str) -> int:
    return main(["login", "--sso", sso.url, "--proxy", "none", *more])


def expire(**changes: Any) -> Login:
    """Make the stored token due, and return what is stored."""
    found = read_login()
    assert found is not None
    assert found.sign_in is not None
    changed = Login(found.relay, replace(found.sign_in, renew_s=0, **changes), **found.options())
    write_login(changed)
    return changed


def test_a_person_signs_in_uses_the_relay_and_logs_out(sso: SsoRig, capsys: pytest.CaptureFixture[str]) -> None:
    provider = sso.provider
    provider.polls = [(400, "authorization_pending")]
    assert login(sso) == 0
    said = capsys.readouterr().err.splitlines()
    assert said == [
        f"tunnel: {sso.url} asks you to sign in at {provider.url}, for the client tunnel",
        "tunnel: open this page on any device, and check that it shows the code WDJB-MJHT (valid for 10 minutes):",
        f"    {provider.url}/activate?user_code=WDJB-MJHT",
        "tunnel: waiting until you have signed in (Ctrl-C ends)",
        f"tunnel: asking {sso.url} ...",
        f"stored in {login_path()}: {sso.url}, which accepts the token",
    ]
    assert stat.S_IMODE(login_path().stat().st_mode) == 0o600
    assert main(["connect", f"127.0.0.1:{sso.serve(echo)}"]) == 0
    capsys.readouterr()
    assert main(["logout"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"removed {login_path()}"
    assert f"{sso.url} still accepts the token of the sign-in until 20" in said[1]
    assert f"Your session at {provider.url} goes on, too: end it there" in said[1]
    assert read_login() is None


def test_nothing_secret_is_shown_or_sent_elsewhere(sso: SsoRig, capsys: pytest.CaptureFixture[str]) -> None:
    assert login(sso, "--header", "X-Gate: k") == 0
    found = read_login()
    assert found is not None
    assert found.sign_in is not None
    assert found.token
    said = capsys.readouterr()
    shown = said.out + said.err + repr(found)
    for secret in (found.token, found.sign_in.refresh_token, "device-secret"):
        assert secret not in shown
    assert found.token not in repr(sso.provider.headers)
    assert "X-Gate" not in repr(sso.provider.headers)


@pytest.mark.parametrize(
    ("polls", "code", "text"),
    [
        ([(400, "access_denied")], 4, "the sign-in was refused at"),
        ([(400, "expired_token")], 4, "no sign-in came while the code WDJB-MJHT was valid"),
        ([(400, "authorization_pending"), (401, "invalid_client")], 4, "ended the sign-in (invalid_client)"),
    ],
)
def test_a_sign_in_that_fails_stores_nothing(
    sso: SsoRig, capsys: pytest.CaptureFixture[str], polls: Any, code: int, text: str
) -> None:
    sso.provider.polls = polls
    assert login(sso) == code
    assert text in capsys.readouterr().err
    assert read_login() is None


def test_a_token_that_the_relay_refuses_is_not_stored(sso: SsoRig, capsys: pytest.CaptureFixture[str]) -> None:
    sso.provider.claims = {"groups": ["guests"]}
    assert login(sso) == 4
    assert "the rules name none of the groups of the user: guests" in capsys.readouterr().err
    assert read_login() is None


def test_a_relay_without_sign_in_needs_the_options(
    rig: Rig, provider: DeviceProvider, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["login", "--sso", rig.url, "--proxy", "none"]) == 2
    assert "names no identity provider: ask its operator for one" in capsys.readouterr().err
    more = ["--issuer", provider.url, "--client-id", "other", "--scope", "openid groups", "--audience", "tunnel"]
    assert main(["login", "--sso", rig.url, "--proxy", "none", *more]) == 4  # this relay believes no provider
    assert provider.forms[0] == ("/device", {"client_id": "other", "scope": "openid groups"})
    for wrong in (["--open"], ["--issuer", "https://x.example"], ["--sso", "--token-file", "x"]):
        assert main(["login", rig.url, *wrong]) == 2
    assert main(["login", "--sso", rig.url, *more[:-2], "--issuer", "http://login.example"]) == 2
    assert "the issuer 'http://login.example' is no URL: write it as in https://" in capsys.readouterr().err


def test_what_a_relay_asks_for_beyond_its_own_is_said(sso: SsoRig, capsys: pytest.CaptureFixture[str]) -> None:
    """A relay could name another one's provider, and get a token for it."""
    assert login(sso) == 0
    assert "token for" not in capsys.readouterr().err
    assert main(["login", "--sso", sso.url.replace("127.0.0.1", "localhost"), "--proxy", "none"]) == 0
    said = capsys.readouterr().err
    assert f"you are signed in at {sso.url} with tokens of this kind" in said
    assert said.index("you are signed in at") < said.index("open this page")


def test_unusual_tokens_are_named(provider: DeviceProvider, capsys: pytest.CaptureFixture[str]) -> None:
    provider.claims = {"aud": "https://graph.example"}
    terms = {"audience": "https://graph.example", "scopes": ("openid", "https://graph.example/.default")}
    with SsoRig(provider, provider.url, **terms) as rig:
        assert login(rig) == 0
        said = capsys.readouterr().err
        assert (
            "it gets a token for https://graph.example, with the scopes openid https://graph.example/.default" in said
        )
        assert said.index("it gets a token") < said.index("open this page")


def test_a_page_elsewhere_is_named_and_not_opened(
    sso: SsoRig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A hostile relay's provider could show the page of another one, with a code that it has got there."""
    opened: list[str] = []

    def open_url(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr(webbrowser, "open", open_url)
    page = "https://login.example/device"
    sso.provider.device = {"verification_uri": page, "verification_uri_complete": f"{page}?user_code=WDJB-MJHT"}
    assert login(sso, "--open") == 0
    assert opened == []
    said = capsys.readouterr().err
    assert "the page is at login.example, and not at 127.0.0.1, which the relay names" in said
    assert login(sso, "--open", "--issuer", sso.provider.url, "--client-id", "tunnel") == 0
    assert opened == [f"{page}?user_code=WDJB-MJHT"]
    assert "the page is at" not in capsys.readouterr().err


def test_no_browser_is_opened_unless_asked(sso: SsoRig, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def open_url(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr(webbrowser, "open", open_url)
    assert login(sso) == 0
    assert opened == []
    assert login(sso, "--open") == 0
    assert opened == [f"{sso.provider.url}/activate?user_code=WDJB-MJHT"]


def test_a_relay_tells_where_to_sign_in_only_if_it_has_a_client(provider: DeviceProvider) -> None:
    with SsoRig(provider, provider.url, client_id="") as plain:
        assert main(["login", "--sso", plain.url, "--proxy", "none"]) == 2
    for audience in ('a"b', "a\nb"):
        with pytest.raises(ValueError, match=r"audience: .* has other characters"):
            SsoTerms("https://login.example", audience, client_id="tunnel")
    for issuer in ('https://login.example/a"b', "https://login.example/a\\b"):
        with pytest.raises(ValueError, match=r"issuer: .* is not a URL"):
            SsoTerms(issuer, "tunnel", client_id="tunnel")
    named = SsoTerms("https://login.example/a%22b", "tunnel", client_id="tunnel").challenge
    assert named.startswith(', issuer="https://login.example/a%22b", client_id="tunnel"')


# --- the token is renewed


def test_an_expired_token_is_renewed_before_a_command_attaches(sso: SsoRig) -> None:
    assert login(sso) == 0
    before = expire()
    assert main(["connect", f"127.0.0.1:{sso.serve(echo)}"]) == 0
    after = read_login()
    assert after is not None
    assert after.sign_in is not None
    assert after.token != before.token
    assert after.sign_in.refresh_token == "refresh-2"
    assert stat.S_IMODE(login_path().stat().st_mode) == 0o600
    assert sorted(os.listdir(login_path().parent)) == sorted([lock_path().name, lock_path(sso.url).name, "login.json"])


def test_a_sign_in_that_the_provider_has_ended_says_how_to_go_on(
    sso: SsoRig, capsys: pytest.CaptureFixture[str]
) -> None:
    assert login(sso) == 0
    expire(expires_s=1)
    sso.provider.refresh_token = "revoked"
    assert main(["connect", "127.0.0.1:1"]) == 4
    assert (
        f"{sso.provider.url} renews this sign-in no more (invalid_grant: used or revoked): sign in again with `tunnel "
        f"login --sso {sso.url}`"
    ) in capsys.readouterr().err


def test_a_provider_that_is_away_matters_only_when_the_token_has_expired(
    sso: SsoRig, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert login(sso) == 0
    expire()
    sso.provider.refreshes = [lambda: web.Response(status=503)] * 3
    port = sso.serve(echo)
    assert main(["connect", f"127.0.0.1:{port}"]) == 0  # the token is still valid
    expire(expires_s=1)
    assert main(["connect", f"127.0.0.1:{port}"]) == 3
    assert "/token answered 503 without JSON" in capsys.readouterr().err
    assert main(["connect", "--wait", "60", f"127.0.0.1:{port}"]) == 0  # it answers again meanwhile
    assert sso.provider.refreshes == []
    assert "the token has expired, and no new one comes: " in caplog.text


def test_the_token_of_a_sign_in_is_for_its_own_relay_alone(sso: SsoRig, rig: Rig) -> None:
    assert login(sso) == 0
    expire()
    count = len(sso.provider.forms)
    assert main(["connect", "--relay", rig.url, "127.0.0.1:1"]) == 4
    os.environ["TUNNEL_TOKEN"] = TOKEN
    try:
        assert main(["connect", "--relay", rig.url, "127.0.0.1:1"]) == 6  # the other relay knows this token
    finally:
        del os.environ["TUNNEL_TOKEN"]
    assert len(sso.provider.forms) == count


def test_a_damaged_sign_in_is_reported_and_can_be_removed(sso: SsoRig, capsys: pytest.CaptureFixture[str]) -> None:
    assert login(sso) == 0
    text = json.loads(login_path().read_text())
    del text["sign_in"]["refresh_token"]
    login_path().write_text(json.dumps(text))
    assert main(["connect", "127.0.0.1:1"]) == 2
    assert "log in again with `tunnel login URL`" in capsys.readouterr().err
    assert main(["logout"]) == 0
