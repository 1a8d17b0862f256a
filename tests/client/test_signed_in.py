"""Attachments whose token comes from a sign-in: it is renewed while they last, by one of all commands at a time."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.servlet.rig import TOKENS, relay, settings, until
from tests.servlet.web.rig import Echo, hang_up, still_echoes
from tests.support.identity_provider import DeviceProvider, provided
from tests.support.loops import in_loop
from tests.support.targets import target
from tunnel import Attachment, NotAuthenticatedError
from tunnel.attachment import endpoint_of
from tunnel.several_relays import SeveralRelays
from tunnel_client import signed_in
from tunnel_client.login_file import lock_path, read_login, read_logins, remove_login, write_login
from tunnel_client.settings import RelaySettings, find_settings
from tunnel_client.signed_in import Renewal
from tunnel_client.stored_login import Login
from tunnel_client.stored_sign_in import StoredSignIn
from tunnel_servlet.access.grants import Grant, GrantTable
from tunnel_servlet.access.rules import parse_rule
from tunnel_servlet.access.sso import SsoTerms
from tunnel_servlet.web.running import RunningRelay

pytestmark = pytest.mark.usefixtures("home")
STAFF = Grant(connect=(parse_rule("127.0.0.0/8:*"),))


def stored() -> Login:
    found = read_login()
    assert found is not None
    return found


async def fresh_token(settings: RelaySettings) -> str:
    assert settings.sign_in is not None
    return await Renewal(settings.url, settings, settings.sign_in).fresh()


def has_more(items: list[Any], count: int) -> bool:
    return len(items) > count


def change(**changes: Any) -> None:
    """Change the stored sign-in."""
    found = stored()
    assert found.sign_in is not None
    write_login(Login(found.relay, replace(found.sign_in, **changes), **found.options()))


def all_attached(attachment: Attachment, count: int) -> bool:
    return [each.attached for each in attachment.stats().relays] == [True] * count


@asynccontextmanager
async def signed_in_at() -> AsyncIterator[tuple[DeviceProvider, RunningRelay, RelaySettings]]:
    """Run a provider and a relay, and store a sign-in."""
    provider = DeviceProvider()
    async with provided(provider):
        sso = SsoTerms(provider.url, "tunnel")
        grants = GrantTable({"bob": STAFF}, groups={"staff": STAFF, "guests": STAFF})
        async with relay(settings(exit="inline", grants=grants, sso=sso)) as running:
            found, ends_s = provider.tokens(), int(time.time()) + 600
            sign_in = StoredSignIn(
                provider.url, "tunnel", "tunnel", "openid", f"{provider.url}/token", "refresh-1", ends_s - 60, ends_s
            )
            write_login(Login(f"http://{running.addresses[0]}", sign_in, token=found["id_token"], proxy="none"))
            yield provider, running, find_settings()


@pytest.mark.parametrize("carrier", ["poll", "link"])
@in_loop
async def test_a_connection_outlives_the_token_with_which_it_was_opened(
    monkeypatch: pytest.MonkeyPatch, carrier: str
) -> None:
    monkeypatch.setattr(signed_in, "_LOOK_S", 0.05)
    echo = Echo()
    async with signed_in_at() as (provider, running, found), target(echo) as port:
        running.relay.clock = partial(float, time.time())
        async with found.attach(carrier=carrier, linger=0.1) as attachment:
            streams = await attachment.open_connection("127.0.0.1", port)
            await still_echoes(streams)
            later_s = int(time.time()) + 700
            provider.claims = {"iat": later_s - 680, "exp": later_s + 600}
            change(renew_s=0)
            assert running.relay.provider is not None
            checked = running.relay.provider._checked
            await until(lambda: len(checked) == 2)
            running.relay.clock = partial(float, later_s)
            running.relay._look_for_expired()
            await still_echoes(streams)
            assert attachment.refusal is None
            await hang_up(streams)
        assert stored().token != found.token


@pytest.mark.parametrize("is_first", [True, False])
@in_loop
async def test_two_users_a_renewed_token_goes_to_its_own_relay_alone(*, is_first: bool) -> None:
    """The other relay would see a token that it could use."""
    async with signed_in_at() as (_, _, found), relay(settings(exit="inline")) as other:
        change(renew_s=0)
        another = Login(f"http://{other.addresses[0]}", token=TOKENS["ann"])
        logins = [stored(), another] if is_first else [another, stored()]
        write_login(*logins)
        async with find_settings().attach(linger=0.1) as attachment:
            endpoint = endpoint_of(attachment)
            assert isinstance(endpoint, SeveralRelays)
            endpoint._start_next(everywhere=True)
            await until(lambda: all_attached(attachment, 2))
        renewed = read_login(found.url)
        assert renewed is not None
        assert renewed.token != found.token
        assert read_logins() == ([renewed, another] if is_first else [another, renewed])


@asynccontextmanager
async def both_signed_in() -> AsyncIterator[tuple[DeviceProvider, DeviceProvider, list[Login]]]:
    """Run two relays, each with a provider of its own, and store an expired sign-in for each."""
    async with signed_in_at() as (one, _, _):
        first = stored()
        async with signed_in_at() as (two, _, _):
            logins = [first, stored()]
            expired = [
                replace(each, token="expired", sign_in=replace(each.sign_in, renew_s=0, expires_s=0))
                for each in logins
                if each.sign_in is not None
            ]
            write_login(*expired)
            yield one, two, expired


@in_loop
async def test_each_of_several_sign_ins_is_renewed() -> None:
    async with both_signed_in() as (one, two, logins):
        async with find_settings().attach(linger=0.1) as attachment:
            assert attachment.is_attached
            now = read_logins()
            assert all(new.token != old.token for new, old in zip(now, logins, strict=True))
        assert [len(provider.forms) for provider in (one, two)] == [1, 1]


@in_loop
async def test_a_sign_in_that_has_ended_keeps_no_other_relay_from_being_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(signed_in, "_SOON_S", 0.05)
    async with both_signed_in() as (one, two, logins):
        one.refresh_token = "revoked"
        async with find_settings().attach(linger=0.1, wait=True) as attachment:
            await until(lambda: [each.attached for each in attachment.stats().relays] == [False, True])
            assert f"{logins[0].relay}: the token is not renewed" in caplog.text
        two.refresh_token = "revoked"
        write_login(*logins)
        with pytest.raises(NotAuthenticatedError, match="sign in again"):
            await find_settings().attach(linger=0.1).start()


@in_loop
async def test_a_provider_that_is_silent_keeps_no_other_relay_waiting_and_its_relay_is_asked_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(signed_in, "_OTHERS_S", 0.05)
    monkeypatch.setattr(signed_in, "_SOON_S", 0.05)
    monkeypatch.setattr(signed_in, "_ENDING_S", 0.05)
    async with both_signed_in() as (one, _, _):
        one.gate = asyncio.Event()
        async with find_settings().attach(linger=0.1) as attachment:
            await until(lambda: [each.attached for each in attachment.stats().relays] == [False, True])
            one.gate.set()
            await until(lambda: all_attached(attachment, 2))


@in_loop
async def test_without_a_renewal_the_connection_ends_with_the_token() -> None:
    async with (
        signed_in_at() as (_, running, found),
        target(Echo()) as port,
        found.attach(carrier="link", linger=0.1) as attachment,
    ):
        _, writer = await attachment.open_connection("127.0.0.1", port)
        running.relay.clock = partial(float, time.time() + 700)
        running.relay._look_for_expired()
        await until(lambda: attachment.refusal is not None)
        assert isinstance(attachment.refusal, NotAuthenticatedError)
        writer.close()


@in_loop
async def test_many_commands_at_once_use_each_refresh_token_once() -> None:
    """The provider ends the sign-in when a refresh token comes twice."""
    async with signed_in_at() as (provider, _, found):
        change(renew_s=0)
        again = find_settings()
        renewed = await asyncio.gather(*(fresh_token(one) for one in [found, *[again] * 9]))
        assert len([path for path, _ in provider.forms if path == "/token"]) == 1
        assert set(renewed) == {stored().token}


@in_loop
async def test_a_command_that_ends_while_it_renews_stores_what_the_provider_has_issued() -> None:
    async with signed_in_at() as (provider, _, _):
        change(renew_s=0)
        provider.gate = asyncio.Event()
        task = asyncio.create_task(fresh_token(find_settings()))
        await until(partial(has_more, provider.forms, 0))
        task.cancel()
        await asyncio.sleep(0.05)
        provider.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        sign_in = stored().sign_in
        assert sign_in is not None
        assert sign_in.refresh_token != "refresh-1"  # which the provider would not take again


@in_loop
async def test_a_command_that_ends_does_not_wait_for_a_provider_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signed_in, "_ENDING_S", 0.05)
    async with signed_in_at() as (provider, _, _):
        change(renew_s=0)
        provider.gate = asyncio.Event()
        task = asyncio.create_task(fresh_token(find_settings()))
        await until(partial(has_more, provider.forms, 0))
        task.cancel()
        async with asyncio.timeout(5):
            with pytest.raises(asyncio.CancelledError):
                await task
        provider.gate.set()


@in_loop
async def test_a_login_that_is_removed_or_replaced_meanwhile_stays_so() -> None:
    async with signed_in_at() as (provider, _, found):
        for other in (None, Login("https://other.example", token="other")):
            before = stored() if read_login() else None
            change(renew_s=0)
            provider.gate = asyncio.Event()
            count = len(provider.forms)
            renewing = asyncio.ensure_future(fresh_token(found))
            await until(partial(has_more, provider.forms, count))
            if other is None:
                remove_login()
            else:
                write_login(other)
            provider.gate.set()
            assert await renewing != found.token  # this command goes on
            assert read_login() == other
            if before is not None:
                write_login(before)
                change(refresh_token=provider.refresh_token)


@in_loop
async def test_a_command_that_runs_takes_up_a_new_sign_in(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(signed_in, "_LOOK_S", 0.05)
    monkeypatch.setattr(signed_in, "_SOON_S", 0.05)
    async with signed_in_at() as (provider, running, found), found.attach(linger=0.1) as attachment:
        provider.refresh_token = "revoked"
        change(renew_s=0)
        await until(lambda: "sign in again with `tunnel login --sso" in caplog.text)
        asked = len(provider.forms)
        remove_login()
        await until(lambda: "holds this sign-in no more: connections end when the token expires" in caplog.text)
        assert len(provider.forms) == asked  # a refused token is not shown again
        newer, ends_s = provider.tokens(), int(time.time()) + 900
        assert found.sign_in is not None
        sign_in = replace(found.sign_in, refresh_token="refresh-2", renew_s=ends_s - 60, expires_s=ends_s)
        write_login(Login(found.url, sign_in, token=newer["id_token"], proxy="none"))
        assert running.relay.provider is not None
        checked = running.relay.provider._checked
        await until(lambda: len(checked) == 2)
        assert attachment.refusal is None
    assert newer["id_token"] not in caplog.text


@in_loop
async def test_a_provider_that_is_away_keeps_nothing_from_going_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(signed_in, "_LOOK_S", 0.05)
    monkeypatch.setattr(signed_in, "_SOON_S", 0.05)
    async with signed_in_at() as (provider, _, found), target(Echo()) as port:
        provider.refreshes = [lambda: web.Response(status=503)] * 3
        change(renew_s=0)
        async with found.attach(linger=0.1) as attachment:
            streams = await attachment.open_connection("127.0.0.1", port)
            await until(lambda: stored().token != found.token)
            await still_echoes(streams)
            await hang_up(streams)
    assert caplog.text.count("answered 503") == 2  # once at the start, once in use, and not at each attempt


@in_loop
async def test_a_token_that_cannot_be_stored_is_used_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with signed_in_at() as (provider, _, found):
        change(renew_s=0)
        assert found.sign_in is not None
        renewal = Renewal(found.url, find_settings(), found.sign_in)

        def fail(path: Path, content: bytes) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("tunnel_client.login_file.write_private", fail)
        first = await renewal.fresh()
        assert first != found.token
        assert "the renewed token is not stored" in caplog.text
        assert await renewal.fresh() == first
        assert len(provider.forms) == 1


@in_loop
async def test_a_command_that_holds_the_lock_for_ever_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signed_in, "_LOCK_S", 0.0)
    async with signed_in_at() as (_, _, found):
        change(renew_s=0)
        descriptor = os.open(lock_path(found.url), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            with pytest.raises(OSError, match="another tunnel command has renewed the token for 0 s: end it"):
                await fresh_token(found)
        finally:
            os.close(descriptor)
        assert await fresh_token(found) != found.token


@in_loop
async def test_secrets_of_a_sign_in_are_in_no_text() -> None:
    async with signed_in_at() as (_, _, found):
        assert "refresh-1" not in repr(found) + repr(found.sign_in) + repr(stored())
        assert found.token is not None
        assert found.token not in repr(found) + repr(stored())
