"""The sign-in for devices, against a provider that follows a script."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from loadtests.harness.ports import hold_port
from tests.support.identity_provider import OTHER, DeviceProvider, provided
from tests.support.loops import in_loop
from tunnel import NotAuthenticatedError, UnreachableError
from tunnel.carriers.dialing import asking
from tunnel.carriers.dialing.challenges import Challenge
from tunnel.ground.relay_options import RelayOptions
from tunnel.ground.secure_urls import is_secure_link, is_secure_url
from tunnel.sign_in import provider as provider_module
from tunnel.sign_in.device_flow import await_sign_in, begin_sign_in
from tunnel.sign_in.provider import SignedIn, SignInTerms, find_endpoints, refresh, terms_of_relay

PATH = RelayOptions(proxy=None)


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


async def signed_in(provider: DeviceProvider, clock: Clock, said: list[str] | None = None, **terms: Any) -> SignedIn:
    """Sign in, without waiting for real."""
    made = SignInTerms(provider.url, "tunnel", **terms)
    endpoints = await find_endpoints(made, PATH)
    device = await begin_sign_in(made, endpoints, PATH)
    say: Callable[[str], None] = (said if said is not None else []).append
    return await await_sign_in(made, endpoints, device, PATH, say=say, sleep=clock.sleep, now_s=lambda: clock.now_s)


@in_loop
async def test_a_person_signs_in_on_another_device() -> None:
    provider, clock = DeviceProvider(), Clock()
    provider.device, provider.polls = {"interval": 7}, [(400, "authorization_pending")] * 2
    async with provided(provider):
        found = await signed_in(provider, clock, scope="openid groups")
    assert clock.slept == [7, 7, 7]
    assert (found.refresh_token, found.expires_s - found.renew_s) == ("refresh-1", 120)
    grant = "urn:ietf:params:oauth:grant-type:device_code"
    poll = {"grant_type": grant, "device_code": "device-secret", "client_id": "tunnel"}
    assert provider.forms == [("/device", {"client_id": "tunnel", "scope": "openid groups"}), *[("/token", poll)] * 3]
    assert found.token not in repr(found)


@in_loop
async def test_a_provider_cannot_have_itself_asked_without_a_pause() -> None:
    provider, clock = DeviceProvider(), Clock()
    provider.device, provider.polls = {"interval": 0.001}, [(400, "authorization_pending")] * 2
    async with provided(provider):
        await signed_in(provider, clock)
    assert clock.slept == [1, 1, 1]


@pytest.mark.parametrize("issuer", ["https://a.example:99999", "https://[::", "https://xn--a"])
@in_loop
async def test_an_issuer_whose_url_cannot_be_used_is_named(issuer: str) -> None:
    with pytest.raises(UnreachableError, match="cannot be asked"):
        await find_endpoints(SignInTerms(issuer, "tunnel"), PATH)


@in_loop
async def test_a_relay_elsewhere_names_no_provider_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask_relay(url: str, path: RelayOptions) -> list[Challenge]:
        return [Challenge("bearer", {"issuer": "http://127.0.0.1:8080", "client_id": "x"})]

    monkeypatch.setattr(provider_module, "ask_relay", ask_relay)
    with pytest.raises(ValueError, match=r"names the issuer http://127\.0\.0\.1:8080, which is on this machine"):
        await terms_of_relay("https://relay.example", PATH)
    assert await terms_of_relay("http://127.0.0.1:8000", PATH) is not None


@in_loop
async def test_authorities_that_are_gone_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="cannot be asked: ca="):
        await refresh(
            SignInTerms("https://a.example", "tunnel"),
            "https://a.example/token",
            "secret",
            RelayOptions(proxy=None, ca=str(tmp_path / "gone.pem")),
        )


@in_loop
async def test_slow_down_makes_every_later_question_slower() -> None:
    provider, clock = DeviceProvider(), Clock()
    pending, slower = (400, "authorization_pending"), (400, "slow_down")
    provider.device, provider.polls = {"interval": None}, [pending, slower, pending, slower, pending]
    async with provided(provider):
        await signed_in(provider, clock)
    assert clock.slept == [5, 5, 10, 10, 15, 15]


@pytest.mark.parametrize(
    ("polls", "text"),
    [
        ([(400, "access_denied")], "the sign-in was refused at"),
        ([(400, "expired_token")], "no sign-in came while the code WDJB-MJHT was valid (600 s): run the command again"),
        ([(400, "authorization_pending")] * 200, "no sign-in came while the code WDJB-MJHT was valid"),
        ([(401, "invalid_client")], "ended the sign-in (invalid_client)"),
        ([(400, "x\x1b[2Jy")], "ended the sign-in (x\\x1b[2Jy)"),
    ],
)
@in_loop
async def test_a_sign_in_that_does_not_happen_ends_with_its_reason(polls: list[Any], text: str) -> None:
    provider, clock = DeviceProvider(), Clock()
    provider.device, provider.polls = {"interval": 5}, polls
    async with provided(provider):
        with pytest.raises(NotAuthenticatedError) as caught:
            await signed_in(provider, clock)
    assert text in str(caught.value)
    assert clock.now_s <= 600


@in_loop
async def test_an_outage_of_the_provider_while_a_person_signs_in_is_survived() -> None:
    provider, clock, said = DeviceProvider(), Clock(), list[str]()
    provider.device = {"interval": 5}
    down: Any = [lambda: web.Response(status=503), lambda: web.Response(status=502, text="<html>")]
    provider.polls = [*down, (400, "authorization_pending")]
    async with provided(provider):
        assert (await signed_in(provider, clock, said)).refresh_token == "refresh-1"
    assert clock.slept == [5, 10, 20, 5]
    assert [text.partition(" answered ")[2] for text in said] == [
        "503 without JSON that an identity provider would send: asking again while the code is valid",
        "502 without JSON that an identity provider would send: asking again while the code is valid",
    ]


@pytest.mark.parametrize(
    ("configuration", "text"),
    [
        ({"issuer": "https://evil.example"}, "is not the configuration of the issuer"),
        ({"device_authorization_endpoint": "http://evil.example/device"}, "which is no https:// URL"),
        ({"token_endpoint": "https://user@evil.example/token"}, "which is no https:// URL"),
        ({"token_endpoint": 7}, "names 7, which is no https:// URL"),
        ({"token_endpoint": None}, "names None"),
    ],
)
@in_loop
async def test_a_configuration_leads_to_no_place_without_tls(configuration: dict[str, Any], text: str) -> None:
    provider = DeviceProvider()
    provider.configuration = configuration
    async with provided(provider):
        with pytest.raises(UnreachableError, match=text):
            await signed_in(provider, Clock())
    assert provider.forms == []


@in_loop
async def test_a_provider_without_a_sign_in_for_devices_is_named() -> None:
    async with provided() as provider:
        with pytest.raises(UnreachableError, match=r"offers no sign-in for devices .* give it with --token-file"):
            await find_endpoints(SignInTerms(provider.url, "tunnel"), PATH)


@pytest.mark.parametrize(
    ("device", "text"),
    [
        ({"verification_uri": "javascript:alert(1)"}, "wants people to sign in at javascript:alert"),
        ({"verification_uri_complete": "file:///etc/passwd"}, "at file:///etc/passwd"),
        ({"verification_uri_complete": "https://x.example/?a=1\n--flag"}, "which is no https:// URL"),
        ({"verification_uri": None}, "without a code and a URL"),
        ({"device_code": 5}, "without a code and a URL"),
    ],
)
@in_loop
async def test_a_page_that_a_browser_must_not_open_is_not_shown(device: dict[str, Any], text: str) -> None:
    provider = DeviceProvider()
    provider.device = device
    async with provided(provider):
        with pytest.raises(UnreachableError, match=text):
            await signed_in(provider, Clock())


def test_only_tls_or_this_machine_is_secure() -> None:
    assert all(map(is_secure_url, ("https://a.example", "https://a.example:8443/x", "http://[::1]:5556/dex")))
    insecure = ("http://a.example", "https://a.example?x", "https://u@a.example", "http://localhost.evil.example", "")
    assert not any(map(is_secure_url, insecure))
    assert is_secure_link("https://a.example/device?user_code=A%20B")
    odd = ("https://a.example\\.b.example/", "https://\u0430.example/", "https://a.example/\x1b[2J", "https://\u202ea/")
    assert not any(map(is_secure_url, odd))  # browsers, libraries and eyes do not agree about these
    assert not any(map(is_secure_link, (*odd, "https://a.example/?\u0430", "https://a.example/?a\\b")))
    assert not any(map(is_secure_link, ("http://a.example/?x", "https://a.example/?a b", "https://a.example/\x1b")))


@in_loop
async def test_the_token_is_the_one_whose_audience_the_relay_believes() -> None:
    provider = DeviceProvider()
    async with provided(provider):
        provider.issued = {"access_token": provider.token(aud=["other", "relay"], exp=2_000_000_000)}
        assert (await signed_in(provider, Clock(), audience="relay")).token == provider.issued["access_token"]
        provider.issued = {"id_token": provider.token(OTHER, iss="https://evil.example"), "access_token": "a.b.c"}
        with pytest.raises(NotAuthenticatedError, match="issued no token for 'tunnel', which the relay believes"):
            await signed_in(provider, Clock())


@in_loop
async def test_the_end_of_a_token_is_counted_by_the_clock_of_this_machine() -> None:
    """The provider's clock is a day ahead. Nothing is renewed too late or all the time because of that."""
    provider = DeviceProvider()
    async with provided(provider):
        right = await signed_in(provider, Clock())
        provider.claims = {"iat": 2_000_000_000, "exp": 2_000_000_600}
        ahead = await signed_in(provider, Clock())
    assert 0 <= ahead.expires_s - right.expires_s <= 60


@in_loop
async def test_a_refresh_token_stays_if_no_other_comes_and_is_sent_to_no_other_place() -> None:
    provider = DeviceProvider()
    async with provided(provider):
        first = await signed_in(provider, Clock())
        terms, place = SignInTerms(provider.url, "tunnel"), f"{provider.url}/token"
        provider.issued = {"refresh_token": None}
        assert (await refresh(terms, place, first.refresh_token, PATH)).refresh_token == first.refresh_token
        form = {"grant_type": "refresh_token", "refresh_token": "refresh-1", "client_id": "tunnel"}
        assert provider.forms[-1] == ("/token", form)
        provider.issued = {"id_token": None}  # OpenID Connect Core 1.0, 12.2: it may be missing
        with pytest.raises(
            NotAuthenticatedError, match="renews this sign-in without a token for 'tunnel', so it lasts"
        ):
            await refresh(terms, place, provider.refresh_token, PATH)
        provider.refreshes = [
            lambda: web.Response(status=307, headers={"Location": f"{provider.url}/device"}),
            (400, "invalid_grant"),
            (503, "temporarily_unavailable"),
        ]
        count = len(provider.forms)
        with pytest.raises(UnreachableError, match="answered 307"):
            await refresh(terms, place, "refresh-2", PATH)
        with pytest.raises(NotAuthenticatedError, match=r"renews this sign-in no more \(invalid_grant\)"):
            await refresh(terms, place, "refresh-2", PATH)
        with pytest.raises(UnreachableError, match=r"answered 503 \(temporarily_unavailable\)"):
            await refresh(terms, place, "refresh-2", PATH)
        assert [path for path, _ in provider.forms[count:]] == ["/token"] * 3


@in_loop
async def test_what_a_gateway_asks_for_goes_to_no_provider() -> None:
    provider = DeviceProvider()
    path = RelayOptions(proxy=None, token="tnl_secret", headers={"X-Gate": "secret"}, hostname="gate.example")
    async with provided(provider):
        terms = SignInTerms(provider.url, "tunnel")
        await begin_sign_in(terms, await find_endpoints(terms, path), path)
    (sent,) = provider.headers
    assert "secret" not in repr(sent)
    assert sent["Host"] == provider.url.removeprefix("http://")
    assert not {"X-Endpoint-Role", "Authorization"} & sent.keys()


@pytest.mark.parametrize("make", [lambda: web.Response(text="[" * 60_000), lambda: web.Response(body=bytes(70_000))])
@in_loop
async def test_an_answer_that_is_no_json_or_too_long_is_refused(make: Callable[[], web.Response]) -> None:
    provider = DeviceProvider()
    async with provided(provider):
        provider.refreshes = [make]
        with pytest.raises(UnreachableError, match=r"without JSON|longer than 64 KiB"):
            await refresh(SignInTerms(provider.url, "tunnel"), f"{provider.url}/token", "refresh", PATH)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 500])
@in_loop
async def test_a_refusal_without_a_word_is_one_and_an_outage_without_a_word_is_one(status: int) -> None:
    """Glewlwyd answers 400 with no body when a refresh token is not valid any more."""
    provider, clock = DeviceProvider(), Clock()
    is_refusal = status in (400, 401, 403)
    async with provided(provider):
        terms = SignInTerms(provider.url, "tunnel")
        provider.refreshes = [lambda: web.Response(status=status)]
        with pytest.raises(NotAuthenticatedError if is_refusal else UnreachableError) as caught:
            await refresh(terms, f"{provider.url}/token", "refresh", PATH)
        assert ("renews this sign-in no more (no reason)" in str(caught.value)) is is_refusal
        provider.refreshes = [(403, "invalid_grant")]  # as at Auth0
        with pytest.raises(NotAuthenticatedError, match=r"renews this sign-in no more \(invalid_grant\)"):
            await refresh(terms, f"{provider.url}/token", "refresh", PATH)
        provider.polls = [lambda: web.Response(status=status)]
        if not is_refusal:
            await signed_in(provider, clock)
            return
        with pytest.raises(NotAuthenticatedError, match=r"ended the sign-in \(no reason\)"):
            await signed_in(provider, clock)


@in_loop
async def test_a_provider_that_is_away_or_silent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with hold_port() as port, pytest.raises(UnreachableError) as caught:
        await find_endpoints(SignInTerms(f"http://127.0.0.1:{port}", "tunnel"), PATH)
    assert str(caught.value).startswith(f"http://127.0.0.1:{port} does not answer: the connection was refused")
    monkeypatch.setattr(asking, "ANSWER_S", 0.05)
    provider = DeviceProvider()
    provider.gate = asyncio.Event()
    async with provided(provider):
        with pytest.raises(UnreachableError, match=rf"{provider.url} has not answered within 0.05 s"):
            await refresh(SignInTerms(provider.url, "tunnel"), f"{provider.url}/token", "refresh", PATH)
