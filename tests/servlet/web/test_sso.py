"""Users of an identity provider. The provider of these tests signs with the library that the relay checks with."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from tests.servlet.rig import KEYS, TOKENS, Client, exchange_body, relay, settings, until
from tests.servlet.web.rig import Echo, hang_up, still_echoes
from tests.support.identity_provider import CURVE, NOW_S, OTHER, RSA, SECRET, Provider, provided
from tests.support.loops import in_loop
from tests.support.targets import target
from tunnel import NotAuthenticatedError, ResetError, attach
from tunnel.wire import Attached, StatusCode
from tunnel_servlet.access.grants import Grant, GrantTable
from tunnel_servlet.access.rules import parse_rule
from tunnel_servlet.access.sso import SsoTerms
from tunnel_servlet.access.tokens import TokenTable
from tunnel_servlet.audit.event import AuditEvent, Kind
from tunnel_servlet.config import ConfigError
from tunnel_servlet.web.running import RunningRelay
from tunnel_servlet.web.tokens import provider as provider_module

STAFF = Grant(connect=(parse_rule("127.0.0.0/8:*"),))


def grants(**groups: Grant) -> GrantTable:
    return GrantTable({"bob": STAFF}, groups=groups or {"staff": STAFF})


@asynccontextmanager
async def trusting(provider: Provider, **terms: Any) -> AsyncIterator[RunningRelay]:
    """Run a relay that believes the provider, at a fixed time."""
    sso = SsoTerms(**{"issuer": provider.url, "audience": "tunnel", **terms})
    async with relay(settings(exit="inline", grants=grants(), sso=sso, switch={"settle_us": 0})) as running:
        running.relay.clock = lambda: NOW_S
        yield running


async def asked_with(running: RunningRelay, token: str, seed: int = 1) -> Any:
    """Attach with this token and return the answer."""
    async with Client(running, token) as client:
        return await client.attach(seed)


@pytest.mark.parametrize("carrier", ["poll", "link"])
@in_loop
async def test_two_users_of_the_provider_reach_what_the_rules_of_their_groups_allow(carrier: str) -> None:
    echo = Echo()
    async with target(echo) as port, provided() as provider, trusting(provider) as running:
        url = f"http://{running.addresses[0]}"
        more: dict[str, Any] = {"proxy": None, "linger": 0.1, "carrier": carrier}
        eve = provider.token(CURVE, "ES256", sub="eve", aud=["other", "tunnel"])
        async with attach(url, token=provider.token(), **more) as mine, attach(url, token=eve, **more) as theirs:
            streams = [await one.open_connection("127.0.0.1", port) for one in (mine, theirs)]
            for each in streams:
                await still_echoes(each)
            # They are users like others, and no endpoints of the relay, whose names have a colon, too.
            assert {"sso:ann", "sso:eve"} <= {one.user for one in running.relay.host.switch.operator.users()}
            await hang_up(*streams)
        assert provider.asked == 1


def forged(provider: Provider, header: dict[str, str]) -> str:
    """Return a token with this header and no signature."""
    parts = header, {"iss": provider.url, "aud": "tunnel", "sub": "ann", "groups": ["staff"], "exp": NOW_S + 600}
    return ".".join([*(base64.urlsafe_b64encode(json.dumps(one).encode()).decode().rstrip("=") for one in parts), ""])


def with_public_key_as_secret(provider: Provider) -> str:
    """Return a token whose secret is the public key, which anybody can read."""
    signed = forged(provider, {"alg": "HS256", "kid": "first"}).rstrip(".")
    digest = hmac.digest(RSA.as_pem(private=False), signed.encode(), "sha256")
    return f"{signed}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


REFUSED: dict[str, tuple[Callable[[Provider], str], str]] = {
    "audience": (lambda of: of.token(aud="other"), "for the audience 'other', and not for 'tunnel'"),
    "none": (lambda of: forged(of, {"alg": "none", "kid": "first"}), "signed by 'none', and the relay takes RS256"),
    "None": (lambda of: forged(of, {"alg": "None", "kid": "first"}), "signed by 'None'"),
    "no algorithm": (lambda of: forged(of, {"kid": "first"}), "not a JWT that"),
    "HS256": (with_public_key_as_secret, "signed by 'HS256'"),
    "not taken": (lambda of: of.token(RSA, "PS256"), "signed by 'PS256'"),
    "no signature": (lambda of: forged(of, {"alg": "RS256", "kid": "first"}), "the signature of the token is not of"),
    "other key": (lambda of: of.token(OTHER, header={"kid": "first"}), "is not of the key 'first' by RS256"),
    "kind of key": (lambda of: of.token(OTHER, header={"kid": "curve"}), "is not of the key 'curve' by RS256"),
    "unknown key": (lambda of: of.token(OTHER), "with the key 'second', which http://127.0.0.1"),
    "key in the token": (
        lambda of: of.token(OTHER, header={"jwk": OTHER.as_dict(private=False)}),
        "not a JWT that",
    ),
    "expired": (lambda of: of.token(exp=NOW_S - 31), "expired 31 s ago by the clock of the relay: get a new one"),
    "no group": (lambda of: of.token(groups=["guests"]), "the rules name none of the groups of the user: guests; ask"),
    "three parts": (lambda of: "a.b.c", "not a JWT that"),
    "deep": (lambda of: base64.urlsafe_b64encode(b"[" * 3000).decode().rstrip("=") + ".e30.AA", "not a JWT"),
}


@pytest.mark.parametrize("name", REFUSED)
@in_loop
async def test_a_token_that_must_not_be_believed_is_refused_with_its_reason(name: str) -> None:
    make, text = REFUSED[name]
    async with provided() as provider, trusting(provider) as running:
        assert isinstance(await asked_with(running, provider.token()), Attached)  # the provider is believed
        async with Client(running, make(provider)) as client:
            reply = await client.attach(2)
        assert (reply.code, text in reply.text) == (StatusCode.NOT_AUTHORISED, True), reply.text
        assert running.relay.failures.wrong == 1


@in_loop
async def test_two_users_a_name_of_the_provider_is_never_that_of_a_user_of_the_relay() -> None:
    """The provider may let its users choose their names."""
    async with provided() as provider, trusting(provider) as running:
        assert isinstance(await asked_with(running, provider.token(sub="bob"), 1), Attached)
        assert isinstance(await asked_with(running, TOKENS["bob"], 2), Attached)
        assert (await asked_with(running, TOKENS["bob"], 1)).code == StatusCode.UNKNOWN
        assert {"sso:bob", "bob"} <= {one.user for one in running.relay.host.switch.operator.users()}
        assert not running.relay.grants.may_listen("sso:bob", "reports")


@in_loop
async def test_what_is_open_ends_when_the_token_expires_and_a_newer_token_keeps_it() -> None:
    async with provided() as provider, trusting(provider) as running:
        now_s = float(NOW_S)
        running.relay.clock = lambda: now_s
        async with Client(running, provider.token()) as ann, Client(running, TOKENS["bob"]) as bob:
            await ann.attach(1)
            await bob.attach(2)
            held = await ann.parked(exchange_body(ann.epoch, 1, pull=True))
            stays = await bob.parked(exchange_body(bob.epoch, 1, pull=True, seed=2))
            newer = provider.token(iat=NOW_S + 500, exp=NOW_S + 1200)
            now_s += 500
            async with Client(running, newer) as again:
                await again.attach(3)
            now_s = NOW_S + 631
            running.relay._look_for_expired()
            reply = await held
            assert reply.status == 401
            assert "the token expired on 2027-01-15 08:10 UTC: get a new one" in reply.message.text
            assert "sso:ann" in {one.user for one in running.relay.host.switch.operator.users()}  # by the newer token
            now_s = NOW_S + 1231
            running.relay._look_for_expired()
            await until(lambda: "sso:ann" not in {one.user for one in running.relay.host.switch.operator.users()})
            assert not stays.done()
            stays.cancel()


@in_loop
async def test_a_user_who_leaves_a_group_loses_what_only_the_group_allowed() -> None:
    echo = Echo()
    async with target(echo) as port, provided() as provider, trusting(provider) as running:
        running.relay.reload(replace(running.config, grants=grants(staff=STAFF, guests=Grant(services=("news",)))))
        url = f"http://{running.addresses[0]}"
        async with attach(url, token=provider.token(), proxy=None, linger=0.1) as ann:
            streams = await ann.open_connection("127.0.0.1", port)
            await still_echoes(streams)
            assert isinstance(await asked_with(running, provider.token(groups=["guests"], iat=NOW_S + 1), 2), Attached)
            with pytest.raises(ResetError, match=r"under \[groups.guests\] in the relay's configuration"):
                await streams[0].read()
            # The older token does not bring the group back.
            assert isinstance(await asked_with(running, provider.token(), 3), Attached)
            assert not running.relay.grants.rules_of("sso:ann").check_target("127.0.0.1", port).allowed
            await hang_up(streams)


@in_loop
async def test_what_a_group_has_opened_ends_when_the_rules_no_longer_name_it() -> None:
    async with (
        provided() as provider,
        trusting(provider) as running,
        attach(f"http://{running.addresses[0]}", token=provider.token(), proxy=None, linger=0.1) as ann,
    ):
        running.relay.reload(replace(running.config, grants=grants(guests=STAFF)))
        await until(lambda: ann.refusal is not None)
        assert isinstance(ann.refusal, NotAuthenticatedError)
        assert "the rules name none of the groups of the user" in str(ann.refusal)


# --- the keys of the provider, and a provider that is hostile


@in_loop
async def test_a_new_key_is_read_when_a_token_names_it_and_a_withdrawn_one_is_forgotten() -> None:
    async with provided() as provider, trusting(provider) as running:
        passed_s = 0.0
        assert running.relay.provider is not None
        running.relay.provider._passed_s = lambda: passed_s
        old = provider.token()
        assert isinstance(await asked_with(running, old), Attached)
        provider.keys = [OTHER]
        assert "which http://127" in (await asked_with(running, provider.token(OTHER), 2)).text  # not asked so soon
        passed_s = 31.0
        assert isinstance(await asked_with(running, provider.token(OTHER), 2), Attached)
        assert "with the key 'first'" in (await asked_with(running, old, 3)).text
        assert provider.asked == 2


class Passing:
    """The monotonic clock of the relay's provider, as the test sets it."""

    def __init__(self, running: RunningRelay) -> None:
        assert running.relay.provider is not None
        self.provider = running.relay.provider
        self.provider._passed_s = lambda: self.now_s
        self.now_s = 0.0

    async def until_read(self) -> None:
        """Wait until no attempt to read the keys is under way."""
        await until(lambda: self.provider._reading is None)


@in_loop
async def test_keys_are_read_again_after_an_hour_so_a_withdrawn_one_ends() -> None:
    async with provided() as provider, trusting(provider) as running:
        passing, token = Passing(running), provider.token()
        assert isinstance(await asked_with(running, token), Attached)
        provider.keys, passing.now_s = [OTHER], 3601.0
        await asked_with(running, token, 2)  # who asks first need not wait
        await passing.until_read()
        assert "with the key 'first'" in (await asked_with(running, token, 3)).text


@in_loop
async def test_a_key_that_was_withdrawn_while_nobody_asked_opens_nothing() -> None:
    async with provided() as provider, trusting(provider) as running:
        passing, token = Passing(running), provider.token()
        assert isinstance(await asked_with(running, token), Attached)
        provider.keys, provider.gate, passing.now_s = [OTHER], asyncio.Event(), 7201.0
        asking = [asyncio.ensure_future(asked_with(running, token, seed)) for seed in (2, 3)]
        await until(lambda: provider.asked == 2)
        provider.gate.set()
        assert ["with the key 'first'" in answer.text for answer in await asyncio.gather(*asking)] == [True, True]


@in_loop
async def test_the_known_keys_stay_while_the_provider_does_not_answer_and_are_read_as_soon_as_it_does() -> None:
    async with provided() as provider, trusting(provider) as running:
        passing, token = Passing(running), provider.token()
        assert isinstance(await asked_with(running, token), Attached)
        provider.answer, passing.now_s = (lambda: web.Response(status=500)), 3601.0
        with capture_logs() as logs:
            for seed, now_s, asked in ((2, 3601.0, 2), (3, 3630.0, 2), (4, 3632.0, 3)):
                passing.now_s = now_s
                assert isinstance(await asked_with(running, token, seed), Attached)
                await passing.until_read()
                assert provider.asked == asked
        assert [line["text"] for line in logs if line["event"] == "keys_not_read"] == [
            f"{provider.url}/keys answered 500, and not 200: the known ones stay"
        ] * 2
        provider.keys, provider.answer, passing.now_s = [OTHER], None, 3663.0
        await asked_with(running, token, 5)
        await passing.until_read()
        assert "with the key 'first'" in (await asked_with(running, token, 6)).text


@in_loop
async def test_a_provider_that_hangs_delays_nobody_whose_key_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_module, "_ANSWER_S", 600)  # so that a request that waits for it fails the test
    async with provided() as provider, trusting(provider) as running:
        passing, token = Passing(running), provider.token()
        assert isinstance(await asked_with(running, token), Attached)
        provider.gate, passing.now_s = asyncio.Event(), 3601.0
        for seed in (2, 3):
            async with asyncio.timeout(60):
                assert isinstance(await asked_with(running, token, seed), Attached)
        await until(lambda: provider.asked == 2)
        assert isinstance(await asked_with(running, provider.token(sub="eve"), 4), Attached)  # a new token


@in_loop
async def test_a_new_key_cannot_be_judged_while_the_provider_does_not_answer() -> None:
    """Its token may be right, so its user is not told that it is wrong, and the address is charged for nothing."""
    async with provided() as provider, trusting(provider) as running:
        passing = Passing(running)
        assert isinstance(await asked_with(running, provider.token()), Attached)
        provider.answer, passing.now_s = (lambda: web.Response(status=500)), 31.0
        reply = await asked_with(running, provider.token(OTHER), 2)
        assert (reply.code, "keys answered 500" in reply.text) == (StatusCode.BUSY, True)
        assert running.relay.failures.wrong == 0
        assert isinstance(await asked_with(running, provider.token(), 3), Attached)
        provider.answer, provider.keys, passing.now_s = None, [OTHER], 62.0
        assert isinstance(await asked_with(running, provider.token(OTHER), 4), Attached)


def huge() -> web.StreamResponse:
    return web.Response(body=b'{"keys": [' + b" " * (1 << 20) + b"]}", content_type="application/json")


def many_keys() -> web.StreamResponse:
    return web.json_response({"keys": [RSA.as_dict(private=False)] * 65})


def slow_keys() -> web.StreamResponse:
    """Keys that would take seconds to check a signature, and one that is a secret."""
    public = RSA.as_dict(private=False)
    large = {**public, "n": "_" * 11_000}
    exponent = {**public, "e": public["n"]}
    curve = CURVE.as_dict(private=False)
    padded = {**curve, "x": f"{120_000 * 'A'}{curve['x']}"}  # the same point, after zeros that take 0.1 s to read
    keys = [large, exponent, padded, SECRET.as_dict(private=True), {**public, "use": "enc"}, 7]
    return web.json_response({"keys": keys})


HOSTILE: dict[str, tuple[Callable[[], web.StreamResponse], str]] = {
    "huge": (huge, "is longer than 256 KiB"),
    "redirects": (lambda: web.Response(status=302, headers={"Location": "/keys"}), "answered 302, and not 200"),
    "error": (lambda: web.Response(status=503), "answered 503"),
    "not JSON": (lambda: web.Response(text="<html>"), "is not JSON"),
    "deep": (lambda: web.Response(text="[" * 100_000), "is not JSON"),
    "list": (lambda: web.json_response([]), "not a list of at most 64 keys"),
    "many keys": (many_keys, "not a list of at most 64 keys"),
    "slow keys": (slow_keys, "no key there can be used"),
    "compressed": (
        lambda: web.Response(body=b"\x1f\x8b" + bytes(99), headers={"Content-Encoding": "gzip"}),
        "is not JSON",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
@in_loop
async def test_two_users_a_hostile_answer_of_the_provider_costs_others_nothing(name: str) -> None:
    answer, text = HOSTILE[name]
    async with provided() as provider, trusting(provider) as running:
        provider.answer = answer
        for seed in range(1, 4):
            reply = await asked_with(running, provider.token(), seed)
            assert reply.code == StatusCode.BUSY
            assert f"the keys of {provider.url} cannot be read: " in reply.text
            assert text in reply.text
        assert provider.asked == 1  # one attempt in half a minute, whatever comes
        assert isinstance(await asked_with(running, TOKENS["bob"], 9), Attached)
        assert running.relay.failures.wrong == 0  # the user has done nothing wrong


@pytest.mark.parametrize(
    "strange",
    [
        {"kty": "EC", "crv": "P-7", "x": "AA", "y": "AA"},
        {"kty": "OKP", "crv": "Ed7", "x": "AA"},
        {"kty": "EC", "crv": ["P-256"], "x": "AA", "y": "AA"},
        {"kty": "EC", "crv": "P-256"},
        {"kty": "OKP", "crv": "Ed25519", "x": 7},
    ],
)
@in_loop
async def test_two_users_a_key_that_the_library_cannot_read_leaves_the_others_in_use(strange: dict[str, Any]) -> None:
    async with provided() as provider, trusting(provider) as running:
        keys = [{**strange, "kid": "strange"}, RSA.as_dict(private=False)]
        provider.answer = lambda: web.json_response({"keys": keys})
        assert isinstance(await asked_with(running, provider.token(), 1), Attached)
        reply = await asked_with(running, provider.token(header={"kid": "strange"}), 2)
        assert reply.code == StatusCode.NOT_AUTHORISED


@pytest.mark.parametrize(
    ("begin", "repeated"),
    [
        (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1", b";a=b"),
    ],
    ids=["interim responses", "chunk headers"],
)
@in_loop
async def test_two_users_an_answer_without_end_delays_only_users_of_the_provider(begin: bytes, repeated: bytes) -> None:
    """Interim responses made all others wait for up to 8 s, in 10 s of each 30 s."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(begin)
        with suppress(ConnectionError):
            while True:
                writer.write(repeated * 1000)
                await writer.drain()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    provider = Provider()
    provider.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, trusting(provider) as running:
        reply = await asked_with(running, provider.token())
        assert (reply.code, "the answer is endless" in reply.text) == (StatusCode.BUSY, True), reply.text


@in_loop
async def test_two_users_a_provider_that_does_not_answer_delays_only_the_tokens_of_its_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with provided() as provider, trusting(provider) as running:
        provider.gate = asyncio.Event()
        waiting = [asyncio.ensure_future(asked_with(running, provider.token(), seed)) for seed in (1, 2, 3)]
        await until(lambda: provider.asked)
        assert isinstance(await asked_with(running, TOKENS["bob"], 9), Attached)
        assert not any(each.done() for each in waiting)
        provider.gate.set()
        assert all(isinstance(answer, Attached) for answer in await asyncio.gather(*waiting))
        assert provider.asked == 1
    monkeypatch.setattr(provider_module, "_ANSWER_S", 0.05)
    async with provided() as provider, trusting(provider) as running:
        provider.gate = asyncio.Event()
        reply = await asked_with(running, provider.token())
        assert (reply.code, "no whole answer came within 0.05 s" in reply.text) == (StatusCode.BUSY, True)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"issuer": "https://evil.example"}, "is not the configuration of the issuer"),
        ({"jwks_uri": "http://169.254.169.254/keys"}, "names no https:// URL of keys"),
        ({"jwks_uri": "file:///etc/passwd"}, "names no https:// URL of keys"),
        ({"jwks_uri": 7}, "names no https:// URL of keys"),
        ({"jwks_uri": f"https://login.example/{2000 * 'k'}"}, "names no https:// URL of keys"),
        ({"jwks_uri": f"https://{64 * 'k'}.example/keys"}, "label empty or too long"),
        ({"jwks_uri": "https://login..example/keys"}, "label empty or too long"),
    ],
)
@in_loop
async def test_the_configuration_of_the_provider_leads_nowhere_else(changes: dict[str, Any], text: str) -> None:
    async with provided() as provider, trusting(provider) as running:
        provider.configuration = changes
        assert text in (await asked_with(running, provider.token())).text
        assert provider.asked == 0


@in_loop
async def test_the_audit_tells_when_the_last_token_of_a_user_has_expired() -> None:
    async with provided() as provider, trusting(provider) as running:
        assert isinstance(await asked_with(running, provider.token()), Attached)
        assert isinstance(await asked_with(running, provider.token(exp=NOW_S + 900)), Attached)
        notes: list[AuditEvent] = []
        running.relay.audit.note = lambda event, payer=None: notes.append(event)  # type: ignore[method-assign]
        for later_s, users in ((700, []), (1000, ["sso:ann"]), (2000, ["sso:ann"])):
            running.relay.clock = partial(float, NOW_S + later_s)
            running.relay._look_for_expired()
            assert [one.user for one in notes if one.event is Kind.TOKEN_EXPIRED] == users


@in_loop
async def test_wrong_tokens_of_one_address_are_limited_as_others_are() -> None:
    async with provided() as provider, trusting(provider) as running:
        notes: list[AuditEvent] = []
        running.relay.audit.note = lambda event, payer=None: notes.append(event)  # type: ignore[method-assign]
        running.relay.limiter.per_minute = 2
        codes = [(await asked_with(running, provider.token(aud="x"))).code for _ in range(3)]
        assert codes == [StatusCode.NOT_AUTHORISED, StatusCode.NOT_AUTHORISED, StatusCode.BUSY]
        assert [one.reason for one in notes] == ["sso", "sso", "limited"]
        assert all(one.text for one in notes)
        assert isinstance(await asked_with(running, provider.token()), Attached)


@in_loop
async def test_no_token_of_the_provider_is_logged_and_a_relay_without_sso_takes_none() -> None:
    async with provided() as provider, trusting(provider) as running:
        token = provider.token()
        with capture_logs() as logs:
            await asked_with(running, token)
            await asked_with(running, provider.token(aud="x"), 2)
        assert token.rpartition(".")[2] not in repr(logs)
        async with relay(settings(tokens=TokenTable(KEYS))) as plain:
            assert (await asked_with(plain, token)).text == "no such token"


@in_loop
async def test_without_the_library_a_relay_with_sso_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "joserfc", None)
    with pytest.raises(ConfigError, match=r"\[sso\] needs joserfc: run `.* -m pip install joserfc`"):
        relay(settings(grants=grants(), sso=SsoTerms("https://login.example", "tunnel")))
