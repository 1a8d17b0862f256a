"""Tokens that expire, tokens for a single use, and what the relay stores of the use of tokens."""

from __future__ import annotations

import asyncio
import json
import math
import os
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.servlet.rig import KEYS, TOKENS, Client, attach_body, exchange_body, relay, settings, until
from tests.servlet.web.rig import Echo, Link, hang_up, inline, opened, opening, still_echoes, two_clients
from tests.support.loops import in_loop
from tests.support.targets import target
from tunnel import NotAuthenticatedError, attach
from tunnel.wire import Answer, Attached, Status, StatusCode, attachment_id
from tunnel_servlet.access.tokens import USED, Key, TokenTable, make_token
from tunnel_servlet.audit.event import AuditEvent, Kind
from tunnel_servlet.config import RelayConfig
from tunnel_servlet.web.running import RunningRelay
from tunnel_servlet.web.tokens.files import TokenUseFiles, endpoint_hash

EXPIRES_S = 1_800_000_000
EXPIRES = "2027-01-15T08:00:00Z"
GONE = "the token expired on 2027-01-15 08:00 UTC; ask the operator for a new one"
ONCE, ONCE_KEY = make_token(Random(20), expires=EXPIRES, single_use=True)


def short(user: str = "ann", **changes: Any) -> Key:
    """Return the record of the user's token, which expires."""
    changed = {"expires": EXPIRES, **changes}
    key = KEYS[user][0]
    return Key(key.id, key.sha256, **changed)


def with_tokens(**users: Key) -> TokenTable:
    return TokenTable({**KEYS, **{user: [key] for user, key in users.items()}})


class Clock:
    """The time since the epoch, as the test sets it."""

    def __init__(self, running: RunningRelay, now_s: float = EXPIRES_S - 0.02) -> None:
        self.now_s = now_s
        running.relay.clock = lambda: self.now_s
        running.relay.reload(running.config)  # it sets the timer by the new clock


# --- expiry


@pytest.mark.parametrize("carrier", ["poll", "stream", "link", "websocket"])
@in_loop
async def test_two_users_what_is_open_ends_when_its_token_expires_and_says_so(carrier: str) -> None:
    echo, running = Echo(), inline()
    running.config = replace(running.config, tokens=with_tokens(ann=short()))
    async with target(echo) as port, running:
        clock = Clock(running)
        async with two_clients(running, carrier=carrier) as (ann, bob):
            mine, theirs = await opened(ann, port), await opened(bob, port)
            with capture_logs() as logs:
                clock.now_s = EXPIRES_S
                with pytest.raises(NotAuthenticatedError) as ended:
                    await mine[0].read()
                await until(lambda: any(line["event"] == "tokens_expired" for line in logs))  # a request may be first
            assert str(ended.value).endswith(GONE)
            await until(lambda: echo.open == 1)
            await still_echoes(theirs)
            assert [line["keys"] for line in logs if line["event"] == "tokens_expired"] == [[KEYS["ann"][0].id]]
            stats = running.relay.host.switch.stats()
            assert (stats.routes, stats.users) == (1, 2)  # bob and the inline exit
            await hang_up(mine, theirs)


@in_loop
async def test_an_expired_token_attaches_nothing_and_its_answer_says_when() -> None:
    async with relay(settings(tokens=with_tokens(ann=short()))) as running, Client(running) as ann:
        clock = Clock(running, EXPIRES_S)
        reply = await ann.post(attach_body())
        assert (reply.status, reply.message.code, reply.message.text) == (401, StatusCode.NOT_AUTHORISED, GONE)
        assert (running.relay.failures.expired, running.relay.failures.wrong) == (1, 0)
        url = f"http://{running.addresses[0]}"
        with pytest.raises(NotAuthenticatedError) as refused:
            async with attach(url, token=TOKENS["ann"], proxy=None):
                pass
        assert str(refused.value).endswith(GONE)
        clock.now_s = EXPIRES_S - 1  # the clock is set back
        assert isinstance(await ann.attach(), Attached)


@in_loop
async def test_nobody_learns_that_a_token_expired_without_showing_the_token() -> None:
    async with relay(settings(tokens=with_tokens(ann=short()))) as running:
        Clock(running, EXPIRES_S)
        async with Client(running, TOKENS["ann"][:-1] + ("A" if TOKENS["ann"][-1] != "A" else "B")) as guessing:
            reply = await guessing.post(attach_body())
            assert reply.message.text == "no such token"
            assert running.relay.failures.expired == 0


@in_loop
async def test_a_user_whose_other_token_is_valid_keeps_what_it_has_attached() -> None:
    other, other_key = make_token(Random(30))
    tokens = TokenTable({**KEYS, "ann": [short(), other_key]})
    async with relay(settings(tokens=tokens)) as running, Client(running) as ann, Client(running, other) as same:
        clock = Clock(running)
        await ann.attach(1)
        await same.attach(2)
        held = await ann.parked(exchange_body(ann.epoch, 1, pull=True))
        stays = await same.parked(exchange_body(same.epoch, 1, pull=True, seed=2))
        clock.now_s = EXPIRES_S
        assert (await held).message.text == GONE
        assert not stays.done()
        assert running.relay.host.switch.stats().attachments == 2
        stays.cancel()


@in_loop
async def test_a_token_whose_time_is_moved_goes_on_and_one_whose_time_is_set_to_now_ends() -> None:
    """`tunnel-relay user expire` while the relay runs."""
    async with relay(settings(tokens=with_tokens(ann=short()))) as running, Client(running) as ann:
        clock = Clock(running)
        await ann.attach()
        held = await ann.parked(exchange_body(ann.epoch, 1, pull=True))
        later = with_tokens(ann=short(expires="2027-01-16T08:00:00Z"))
        running.relay.reload(replace(running.config, tokens=later))
        clock.now_s = EXPIRES_S + 3600
        assert running.relay.why_ended(running.relay.identify(f"Bearer {TOKENS['ann']}")) == ""  # type: ignore[arg-type]
        running.relay.reload(running.config)
        assert (await held).message.text == GONE


@in_loop
async def test_a_relay_without_tokens_that_expire_sets_no_timer() -> None:
    async with relay() as running:
        assert running.relay._next_expiry_s() == math.inf
        assert running.relay._watch._timer is None


@in_loop
async def test_a_relay_whose_tokens_have_all_expired_does_not_look_at_the_clock_all_the_time() -> None:
    async with relay(settings(tokens=with_tokens(ann=short()))) as running:
        loop = asyncio.get_running_loop()
        for now_s, least_s in ((EXPIRES_S, 20), (EXPIRES_S - 86_400, 20), (EXPIRES_S - 2, 1)):
            Clock(running, now_s)
            timer = running.relay._watch._timer
            assert timer is not None
            assert timer.when() - loop.time() > least_s


# --- single use


def single(**changes: Any) -> RelayConfig:
    return settings(tokens=TokenTable({**KEYS, "once": [ONCE_KEY]}), **changes)


@in_loop
async def test_two_users_of_many_endpoints_that_attach_at_once_exactly_one_gets_a_token_for_a_single_use(
    tmp_path: Path,
) -> None:
    async with relay(single(token_use=str(tmp_path / "use"))) as running:
        Clock(running)
        async with Client(running, ONCE) as client:
            replies = await asyncio.gather(*(client.post(attach_body(seed)) for seed in range(1, 13)))
            attached = [seed for seed, reply in enumerate(replies, 1) if isinstance(reply.message, Attached)]
            assert len(attached) == 1
            refused = [reply for reply in replies if isinstance(reply.message, Status)]
            assert {(reply.status, reply.message.text) for reply in refused} == {(401, USED)}
            assert running.relay.failures.used == 11
            assert running.relay.host.switch.stats().attachments == 1
            # The endpoint goes on, also in a new generation; another one sends nothing in its place.
            seed = attached[0]
            assert isinstance(await client.attach(seed, generation=2), Attached)
            mine = exchange_body(client.epoch, 1, seed=seed, generation=2, hold_ms=0)
            assert (await client.post(mine)).status == 200
            assert (await client.post(exchange_body(client.epoch, 1, seed=seed % 12 + 1))).message.text == USED


@in_loop
async def test_a_used_token_stays_used_by_its_endpoint_after_the_relay_was_killed(tmp_path: Path) -> None:
    config = single(token_use=str(tmp_path / "use"))
    async with relay(config) as running, Client(running, ONCE) as client:
        Clock(running)
        assert isinstance(await client.attach(1), Attached)
        # What is on disk now is all that a relay finds that starts after this one was killed.
        async with relay(config) as after:
            Clock(after)
            async with Client(after, ONCE) as again:
                assert (await again.attach(2)).text == USED
                assert isinstance(await again.attach(1), Attached)


@in_loop
async def test_a_token_that_cannot_be_stored_as_used_is_not_used_and_the_endpoint_may_try_again(tmp_path: Path) -> None:
    (tmp_path / "use").write_text("in the way")
    async with relay(single(token_use=str(tmp_path / "use"))) as running, Client(running, ONCE) as client:
        Clock(running)
        reply = await client.post(attach_body(1))
        assert (reply.status, reply.message.code) == (503, StatusCode.BUSY)
        assert "cannot store that this token for a single use is used" in reply.message.text
        assert running.relay.host.switch.stats().attachments == 0
        (tmp_path / "use").unlink()
        assert isinstance(await client.attach(2), Attached)
        assert (await client.attach(1)).text == USED


@in_loop
async def test_a_link_needs_the_endpoint_that_has_the_token() -> None:
    tokens = TokenTable({**KEYS, "ann": [*KEYS["ann"], ONCE_KEY]})
    async with relay(settings(tokens=tokens)) as running, Client(running) as ann, Client(running, ONCE) as once:
        Clock(running)
        await ann.attach(1)
        await once.attach(2)
        notes: list[AuditEvent] = []
        running.relay.audit.note = lambda event, payer=None: notes.append(event)  # type: ignore[method-assign]
        for seed, answer in ((1, Status), (2, Answer)):
            address = running.addresses[0]
            link = await Link.connect(running, token=ONCE, host=address.host, port=address.port)
            link.writer.write(opening(once, seed))
            assert isinstance(await link.message(), answer)
            await link.close()
    refused = [(one.reason, one.token, one.source) for one in notes if one.event is Kind.TOKEN_REFUSED]
    assert refused == [("used", ONCE_KEY.id, "127.0.0.1")]


@in_loop
async def test_two_users_a_token_for_a_single_use_takes_nothing_from_a_token_of_another_user() -> None:
    async with relay(single()) as running, Client(running, ONCE) as once, Client(running, "bob") as bob:
        Clock(running)
        assert isinstance(await bob.attach(1), Attached)
        assert (await once.attach(1)).code == StatusCode.UNKNOWN  # the id is bob's
        assert isinstance(await bob.attach(2), Attached)


# --- last use


def stored(folder: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((folder / "last.json").read_text())
    return found


@in_loop
async def test_the_last_use_is_stored_to_the_minute_and_read_at_the_next_start(tmp_path: Path) -> None:
    folder, ann_id, bob_id = tmp_path / "use", KEYS["ann"][0].id, KEYS["bob"][0].id
    async with relay(settings(token_use=str(folder))) as running, Client(running) as ann:
        clock = Clock(running, EXPIRES_S + 61)
        await ann.attach()
        await running.relay.uses.store()
        assert stored(folder) == {ann_id: "2027-01-15T08:01:00Z"}
        assert (folder / "last.json").stat().st_mode & 0o777 == 0o600
        assert folder.stat().st_mode & 0o777 == 0o700
        clock.now_s += 120
        await ann.attach(2)
    assert stored(folder) == {ann_id: "2027-01-15T08:03:00Z"}  # stored at the end
    async with relay(settings(token_use=str(folder))) as running, Client(running, "bob") as bob:
        Clock(running, EXPIRES_S + 240)
        await bob.attach(3)
    assert stored(folder) == {ann_id: "2027-01-15T08:03:00Z", bob_id: "2027-01-15T08:04:00Z"}


@in_loop
async def test_requests_of_one_minute_write_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[dict[str, str]] = []
    monkeypatch.setattr(TokenUseFiles, "store_last_uses", lambda self, uses: written.append(dict(uses)))
    async with relay(settings(token_use=str(tmp_path / "use"))) as running, Client(running) as ann:
        Clock(running, EXPIRES_S)
        for seed in range(1, 6):
            await ann.attach(seed)
            await running.relay.uses.store()
        assert len(written) == 1


@in_loop
async def test_a_link_that_stays_open_uses_its_token(tmp_path: Path) -> None:
    folder = tmp_path / "use"
    async with relay(settings(token_use=str(folder))) as running, Client(running) as ann:
        clock = Clock(running, EXPIRES_S)
        await ann.attach()
        link = await Link.connect(running)
        clock.now_s += 3600
        await running.relay.uses.store()
        assert stored(folder) == {KEYS["ann"][0].id: "2027-01-15T09:00:00Z"}
        await link.close()


@in_loop
async def test_the_relay_goes_on_where_the_last_use_cannot_be_stored_and_says_so_once(tmp_path: Path) -> None:
    (tmp_path / "use").write_text("in the way")
    with capture_logs() as logs:
        async with relay(settings(token_use=str(tmp_path / "use"))) as running, Client(running) as ann:
            clock = Clock(running, EXPIRES_S)
            for seed in (1, 2, 3):
                assert isinstance(await ann.attach(seed), Attached)
                await running.relay.uses.store()
                clock.now_s += 60
    lines = [line for line in logs if line["event"] == "token_use_not_stored"]
    assert len(lines) == 1
    assert "let the relay write into this folder" in lines[0]["text"]


@in_loop
async def test_a_relay_without_files_stores_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with relay(single()) as running, Client(running, ONCE) as once:
        Clock(running)
        assert isinstance(await once.attach(1), Attached)
        assert (await once.attach(2)).text == USED
        await running.relay.uses.store()
    assert os.listdir(tmp_path) == []


@in_loop
async def test_uses_of_tokens_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    folder = tmp_path / "use"
    async with relay(single(token_use=str(folder))) as running, Client(running, ONCE) as once:
        Clock(running)
        await once.attach(1)
        await running.relay.uses.store()
        assert list(stored(folder)) == [ONCE_KEY.id]
        running.relay.reload(replace(running.config, tokens=TokenTable(KEYS)))
        async with Client(running) as ann:
            await ann.attach(2)
        await running.relay.uses.store()
        assert list(stored(folder)) == [KEYS["ann"][0].id]
        assert running.relay.uses._owners == {}
        # A tokens file from a backup brings the token back, but not its use.
        running.relay.reload(running.config)
        assert (await once.attach(2)).text == USED
    assert TokenUseFiles(folder).use(ONCE_KEY.id, attachment_id(bytes(32)), EXPIRES) == endpoint_hash(
        attachment_id((1).to_bytes(32, "big"))
    )


@in_loop
async def test_a_used_token_that_was_prolonged_is_not_free_after_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "use"
    config = single(token_use=str(folder))
    TokenUseFiles(folder).use(ONCE_KEY.id, attachment_id((1).to_bytes(32, "big")), "2020-01-01T00:00:00Z")
    async with relay(config) as running, Client(running, ONCE) as once:
        Clock(running)
        assert getattr(await once.attach(2), "text", "") == USED
        assert isinstance(await once.attach(1), Attached)


@in_loop
async def test_a_relay_that_starts_without_its_tokens_file_forgets_no_used_token(tmp_path: Path) -> None:
    files = TokenUseFiles(tmp_path / "use")
    for table, is_kept in ({}, True), (KEYS, False):
        files.use(ONCE_KEY.id, bytes(16), "2020-01-01T00:00:00Z")
        async with relay(settings(token_use=str(files.folder), tokens=TokenTable(table))):
            assert files.is_used(ONCE_KEY.id) == is_kept
