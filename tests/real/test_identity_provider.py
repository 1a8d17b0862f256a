"""A real identity provider, Glewlwyd of Debian: the relay believes its tokens, and people sign in at it."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from loadtests.harness.processes import Process, python_command
from tests.real.clients_rig import PROXY_VARIABLES
from tests.real.glewlwyd import Glewlwyd, glewlwyd
from tests.servlet.rig import KEYS, relay, settings
from tests.servlet.web.rig import Echo, hang_up, still_echoes
from tests.support.loops import in_loop
from tests.support.targets import target
from tunnel import NotAuthenticatedError, attach
from tunnel.errors import DeniedError
from tunnel.sign_in.provider import claims_in
from tunnel_client.login_file import login_path, read_login, write_login
from tunnel_client.stored_login import Login
from tunnel_servlet.access.grants import Grant, GrantTable
from tunnel_servlet.access.rules import parse_rule
from tunnel_servlet.access.sso import SsoTerms
from tunnel_servlet.access.tokens import TokenTable
from tunnel_servlet.web.running import RunningRelay

pytestmark = pytest.mark.real("glewlwyd")
WAIT_S = 30.0
GROUPS = {"staff": Grant(connect=(parse_rule("127.0.0.0/8:*"),)), "guests": Grant(services=("news",))}


@asynccontextmanager
async def trusting(provider: Glewlwyd, **terms: Any) -> AsyncIterator[RunningRelay]:
    """Run a relay that believes the provider, and tells people to sign in there."""
    by_name = {"user_claim": "preferred_username", "scopes": ("openid",)}
    sso = SsoTerms(**{"issuer": provider.issuer, "audience": "tunnel", "client_id": "tunnel", **by_name, **terms})
    grants = GrantTable({"bob": Grant()}, groups=GROUPS)
    async with relay(settings(exit="inline", grants=grants, sso=sso, tokens=TokenTable(KEYS))) as running:
        yield running


def attached(running: RunningRelay, token: str) -> Any:
    return attach(f"http://{running.addresses[0]}", token=token, proxy=None, linger=0.1, attach_timeout=WAIT_S)


async def refusal(running: RunningRelay, token: str) -> str:
    """Return why the relay refuses a token."""
    with pytest.raises(NotAuthenticatedError) as caught:
        async with attached(running, token):
            pass
    return str(caught.value)


@in_loop
async def test_the_groups_in_a_token_lead_to_rules(tmp_path: Path) -> None:
    async with glewlwyd(tmp_path) as provider, trusting(provider) as running, target(Echo()) as port:
        await provider.add_client("tunnel")
        members = {"ann": ("visitors", "staff"), "eve": ("guests",), "joe": ("visitors", "others")}
        for name, groups in members.items():
            await provider.add_user(name, *groups)
        tokens = {name: (await provider.sign_in(name, "tunnel"))["id_token"] for name in members}
        async with attached(running, tokens["ann"]) as ann, attached(running, tokens["eve"]) as eve:
            streams = await ann.open_connection("127.0.0.1", port)
            await still_echoes(streams)
            assert {"sso:ann", "sso:eve"} <= {one.user for one in running.relay.host.switch.operator.users()}
            with pytest.raises(DeniedError, match=r"\[groups.guests\]"):
                await eve.open_connection("127.0.0.1", port)
            await hang_up(streams)
        assert "the rules name none of the groups of the user: visitors, others" in await refusal(
            running, tokens["joe"]
        )


@in_loop
async def test_tokens_for_others_and_of_the_past_are_refused_with_the_reason(tmp_path: Path) -> None:
    async with glewlwyd(tmp_path) as provider, trusting(provider) as running:
        await provider.add_client("tunnel")
        await provider.add_client("wiki")
        await provider.add_user("ann", "staff")
        wiki, mine = [await provider.sign_in("ann", client) for client in ("wiki", "tunnel")]
        assert "the token is for the audience 'wiki', and not for 'tunnel'" in await refusal(running, wiki["id_token"])
        # An access token is for what it may be used for.
        assert "for the audience 'openid', and not for 'tunnel'" in await refusal(running, mine["access_token"])
        head, claims, _ = mine["id_token"].split(".")
        signature = wiki["id_token"].split(".")[2]
        changed = f"{head}.{claims}.{signature}"
        assert "the signature of the token is not of the key 'first' by ES256" in await refusal(running, changed)
        issued_s = (claims_in(mine["id_token"]) or {})["iat"]
        running.relay.clock = partial(float, issued_s + 3600 + 45)
        assert "the token expired 45 s ago by the clock of the relay" in await refusal(running, mine["id_token"])
        running.relay.clock = partial(float, issued_s - 45)
        assert "its time 'iat' is 45 s ahead of the clock" in await refusal(running, mine["id_token"])
        elsewhere = {"issuer": "https://login.example", "keys": f"{provider.issuer}/jwks"}
        async with trusting(provider, **elsewhere) as other:
            assert f"the token is of the issuer '{provider.issuer}'" in await refusal(other, mine["id_token"])


@in_loop
async def test_a_token_of_a_new_key_is_believed_and_the_old_ones_stay(tmp_path: Path) -> None:
    async with glewlwyd(tmp_path) as provider, trusting(provider) as running:
        await provider.add_client("tunnel")
        await provider.add_user("ann", "staff")
        old = (await provider.sign_in("ann", "tunnel"))["id_token"]
        async with attached(running, old):
            pass
        await provider.rotate_keys()
        new = (await provider.sign_in("ann", "tunnel"))["id_token"]
        assert running.relay.provider is not None
        running.relay.provider._passed_s = lambda: time.monotonic() + 31  # keys are read at most twice a minute
        for token in (new, old):
            async with attached(running, token):
                pass
        assert set(running.relay.provider._keys) == {"first", "rotated-1"}


# --- people sign in


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration directory for this test alone, and no settings of this machine."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("TUNNEL_RELAY", "TUNNEL_TOKEN", *PROXY_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def tunnel(*arguments: str, waits_for: str = "") -> Process:
    """Return the command, ready when it has said this."""
    return Process(
        python_command("tunnel_client", *arguments), ready=(lambda line: waits_for in line) if waits_for else None
    )


async def ended(command: Process) -> int:
    """Wait for the end of a command, and return its exit code."""
    try:
        return await asyncio.to_thread(command.wait, WAIT_S)
    except subprocess.TimeoutExpired:
        pytest.fail(f"{' '.join(command.command)} goes on\n{command.output}")


async def login(provider: Glewlwyd, running: RunningRelay, scope: str) -> Process:
    """Sign ann in, and return the command when it has ended."""
    url = f"http://{running.addresses[0]}"
    command = tunnel("login", "--sso", url, "--proxy", "none", waits_for="/device?code=")
    async with command.start():
        await command.ready(WAIT_S)
        await provider.approve("ann", "tunnel", command.ready_line.strip(), scope)
        assert await ended(command) == 0, command.output
    return command


async def connected(port: int) -> Process:
    """Connect to a target that greets, and return the command when it has ended."""
    async with tunnel("connect", f"127.0.0.1:{port}").start() as command:
        assert await ended(command) == 0, command.output
    return command


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"hello\n")
    writer.write_eof()
    await reader.read()


def stored() -> Login:
    found = read_login()
    assert found is not None
    return found


def make_due(*, has_expired: bool = False) -> Login:
    """Make the stored token one that must be renewed, and return what was stored."""
    found = stored()
    assert found.sign_in is not None
    expires_s = 1 if has_expired else found.sign_in.expires_s
    write_login(Login(found.relay, replace(found.sign_in, renew_s=0, expires_s=expires_s), **found.options()))
    return found


@in_loop
async def test_a_person_signs_in_and_commands_use_the_token(tmp_path: Path, home: Path) -> None:
    async with glewlwyd(tmp_path) as provider, trusting(provider) as running, target(greet) as port:
        await provider.add_client("tunnel")
        await provider.add_user("ann", "staff")
        said = (await login(provider, running, "openid")).output
        assert f"asks you to sign in at {provider.issuer}, for the client tunnel" in said
        assert f"stored in {login_path()}: http://{running.addresses[0]}, which accepts the token" in said
        assert "hello\n" in (await connected(port)).output


@in_loop
async def test_a_sign_in_whose_renewal_brings_no_id_token_lasts_as_long_as_the_token(
    tmp_path: Path, home: Path
) -> None:
    """Glewlwyd renews access tokens alone."""
    async with glewlwyd(tmp_path) as provider, trusting(provider) as running, target(greet) as port:
        await provider.add_client("tunnel")
        await provider.add_user("ann", "staff")
        await login(provider, running, "openid")
        before = make_due()
        said = (await connected(port)).output
        assert "hello\n" in said
        end = "so it lasts as long as the present token: sign in again with `tunnel login --sso http://"
        assert f"{provider.issuer} renews this sign-in without a token for 'tunnel', {end}" in said
        assert stored().token == before.token


@in_loop
async def test_access_tokens_for_the_relay_are_renewed(tmp_path: Path, home: Path) -> None:
    async with glewlwyd(tmp_path) as provider, target(greet) as port:
        await provider.add_client("tunnel")
        await provider.add_user("ann", "staff")
        async with trusting(provider, audience="relay", scopes=("relay",), user_claim="sub") as running:
            await login(provider, running, "relay")
            for _ in range(2):  # Glewlwyd takes each refresh token once
                before = make_due()
                assert "hello\n" in (await connected(port)).output
                assert before.sign_in is not None
                after = stored()
                assert after.sign_in is not None
                assert after.token != before.token
                assert after.sign_in.refresh_token != before.sign_in.refresh_token


@in_loop
async def test_while_the_provider_is_away_the_present_token_counts(tmp_path: Path, home: Path) -> None:
    async with glewlwyd(tmp_path) as provider, target(greet) as port:
        await provider.add_client("tunnel")
        await provider.add_user("ann", "staff")
        async with trusting(provider, audience="relay", scopes=("relay",), user_claim="sub") as running:
            await login(provider, running, "relay")
            before = make_due()
            provider.kill()
            said = (await connected(port)).output
            assert f"{provider.url} does not answer: the connection was refused" in said
            assert "hello\n" in said
            assert stored().token == before.token
            await provider.start()
            assert "hello\n" in (await connected(port)).output
            assert stored().token != before.token


@in_loop
async def test_a_sign_in_that_the_person_has_ended_is_renewed_no_more(tmp_path: Path, home: Path) -> None:
    async with glewlwyd(tmp_path) as provider, target(greet) as port:
        await provider.add_client("tunnel")
        await provider.add_user("ann", "staff")
        async with trusting(provider, audience="relay", scopes=("relay",), user_claim="sub") as running:
            await login(provider, running, "relay")
            assert await provider.end_sign_ins("ann") == 1
            make_due()
            said = (await connected(port)).output
            assert f"{provider.issuer} renews this sign-in no more (no reason): sign in again" in said
            assert "hello\n" in said  # until the token expires
            make_due(has_expired=True)
            async with tunnel("connect", f"127.0.0.1:{port}").start() as command:
                assert await ended(command) == 4, command.output


@in_loop
async def test_a_client_that_the_provider_does_not_know_is_refused(tmp_path: Path, home: Path) -> None:
    async with glewlwyd(tmp_path) as provider, trusting(provider) as running:
        async with tunnel("login", "--sso", f"http://{running.addresses[0]}", "--proxy", "none").start() as command:
            assert await ended(command) == 4, command.output
        assert f"{provider.issuer} refuses the client 'tunnel'" in command.output
        assert read_login() is None
