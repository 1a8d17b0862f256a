"""The audit of a real relay: one event for whatever happens, with who, from where, whereto, by which rule, how much."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from tests.servlet.rig import KEYS, LOOPBACK, TOKENS, Client, attach_body, relay, settings, until
from tests.servlet.web.public_ports_rig import echo, request, rig
from tests.servlet.web.rig import SECRET, admin, ask
from tests.support.loops import in_loop
from tests.support.targets import target
from tunnel import Attachment, DeniedError, PublicPlace, RefusedError, ResetError, attach
from tunnel_servlet.access.grants import Grant, GrantTable
from tunnel_servlet.access.proxies import TrustedProxies
from tunnel_servlet.access.rules import parse_rule
from tunnel_servlet.access.tokens import TokenTable, make_token
from tunnel_servlet.audit.event import AuditEvent, Kind, Result, decode_event
from tunnel_servlet.config import ConfigError, RelayConfig
from tunnel_servlet.settings import AuditSettings
from tunnel_servlet.web.running import RunningRelay

LOCAL = Grant(connect=(parse_rule("127.0.0.0/8:*"),), services=("reports",), listen=("reports",))
GRANTS = GrantTable({"ann": LOCAL, "bob": LOCAL})
NO_TOKEN = TOKENS["ann"][:-4] + "AAAA"


async def mirror(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)


def audited(folder: Path, **changes: Any) -> AuditSettings:
    return AuditSettings(file=str(folder / "audit.jsonl"), **changes)


def events(folder: Path, *kinds: Kind, user: str = "ann") -> list[AuditEvent]:
    """Return the events of these kinds, all by default, of this user."""
    lines = (folder / "audit.jsonl").read_bytes().splitlines()
    found = [event for event in map(decode_event, lines) if event is not None]
    assert len(found) == len(lines)
    return [one for one in found if (not kinds or one.event in kinds) and (not user or one.user == user)]


def client_of(running: RunningRelay, user: str = "ann", **options: Any) -> Attachment:
    return attach(f"http://{running.addresses[0]}", **{"token": TOKENS[user], "proxy": None, "linger": 0.1, **options})


@asynccontextmanager
async def inline(folder: Path, **changes: Any) -> AsyncIterator[RunningRelay]:
    config = settings(exit="inline", grants=GRANTS, audit=audited(folder), switch={"settle_us": 1})
    async with relay(replace(config, **changes)) as running:
        yield running


@in_loop
async def test_a_connection_has_one_event_when_it_is_allowed_and_one_when_it_has_ended(tmp_path: Path) -> None:
    async with target(mirror) as port, inline(tmp_path) as running, client_of(running, name="laptop") as ann:
        reader, writer = await ann.open_connection("127.0.0.1", port)
        writer.write(b"x" * 5000)
        assert await reader.readexactly(5000) == b"x" * 5000
        writer.close()
        await writer.wait_closed()
        await until(lambda: running.relay.host.switch.stats().counters.routes_closed)
    allowed, ended = events(tmp_path, Kind.CONNECTION_ALLOWED, Kind.CONNECTION_ENDED)
    assert (allowed.event, ended.event) == (Kind.CONNECTION_ALLOWED, Kind.CONNECTION_ENDED)
    for event in (allowed, ended):
        assert event.token == KEYS["ann"][0].id
        assert (event.source, event.endpoint, event.role) == ("127.0.0.1", "laptop", "client")
        assert (event.target, event.address) == (f"127.0.0.1:{port}", f"127.0.0.1:{port}")
        assert (event.rule, event.acceptor, event.acceptor_user) == ("127.0.0.0/8:*", "inline", "relay:exit")
        assert event.connection
        assert event.peer
    assert (ended.connection, ended.peer) == (allowed.connection, allowed.peer)
    assert (ended.reason, ended.sent_bytes, ended.received_bytes) == ("closed", 5000, 5000)
    assert ended.seconds is not None
    assert ended.seconds >= 0
    assert allowed.number < ended.number
    assert allowed.run == ended.run
    text = (tmp_path / "audit.jsonl").read_text()
    assert not [secret for secret in (*TOKENS.values(), "tnl_") if secret in text]
    assert (tmp_path / "audit.jsonl").stat().st_mode & 0o777 == 0o600


@in_loop
async def test_each_refusal_has_one_event_that_says_who_refused_and_why(tmp_path: Path) -> None:
    async with inline(tmp_path) as running, client_of(running) as ann:
        for host, port in (("10.0.0.1", 22), ("127.0.0.1", 1)):
            with pytest.raises((DeniedError, RefusedError)):
                await ann.open_connection(host, port)
        with pytest.raises(RefusedError):
            await ann.open_connection("reports")
        with pytest.raises(DeniedError):
            await ann.check("10.0.0.2", 23)
    found = events(tmp_path, Kind.CONNECTION_REFUSED)
    assert [(one.target or one.service, one.by, one.reason, one.question) for one in found] == [
        ("10.0.0.1:22", "relay", "denied", False),
        ("127.0.0.1:1", "exit", "refused", False),
        ("reports", "relay", "no_such_service", False),
        ("10.0.0.2:23", "relay", "denied", True),
    ]
    assert "no rule allows 10.0.0.1:22" in found[0].text
    assert (found[1].acceptor, found[1].rule) == ("inline", "127.0.0.0/8:*")
    assert {one.token for one in found} == {KEYS["ann"][0].id}


@in_loop
async def test_services_and_the_connections_to_them_name_both_users(tmp_path: Path) -> None:
    async with inline(tmp_path) as running, client_of(running, "bob", name="server") as bob, client_of(running) as ann:
        server = await bob.start_server(echo, "reports")
        with pytest.raises(DeniedError):
            await bob.start_server(echo, "secrets")
        _, writer = await ann.open_connection("reports")
        writer.transport.abort()
        await until(lambda: events(tmp_path, Kind.CONNECTION_ENDED))
        server.close()
    offered, refused = events(tmp_path, Kind.SERVICE_OFFERED, Kind.SERVICE_REFUSED, user="bob")
    assert (offered.event, offered.service) == (Kind.SERVICE_OFFERED, "reports")
    assert (refused.event, refused.service) == (Kind.SERVICE_REFUSED, "secrets")
    allowed, ended = events(tmp_path, Kind.CONNECTION_ALLOWED, Kind.CONNECTION_ENDED)
    assert (allowed.service, allowed.rule, allowed.target) == ("reports", "reports", "")
    assert (allowed.acceptor_user, allowed.acceptor) == ("bob", "server")
    assert ended.reason == "aborted"


@in_loop
async def test_an_endpoint_that_is_replaced_has_one_event_for_its_end(tmp_path: Path) -> None:
    async with (
        inline(tmp_path) as running,
        client_of(running, name="one", carrier="poll"),
        client_of(running, name="one", carrier="poll"),
    ):
        await until(lambda: running.relay.host.switch.stats().counters.attachments_replaced)
    found = events(tmp_path, Kind.ENDPOINT_ATTACHED, Kind.ENDPOINT_DETACHED)
    assert [(one.event, one.endpoint, one.reason) for one in found] == [
        (Kind.ENDPOINT_ATTACHED, "one", ""),
        (Kind.ENDPOINT_ATTACHED, "one", ""),
        (Kind.ENDPOINT_DETACHED, "one", "replaced"),
    ]


@in_loop
async def test_changed_tokens_and_rules_are_events_and_so_is_what_they_end(tmp_path: Path) -> None:
    async with target(mirror) as port, inline(tmp_path) as running, client_of(running) as ann:
        reader, writer = await ann.open_connection("127.0.0.1", port)
        less = Grant(listen=("reports",))
        tokens = TokenTable({"ann": KEYS["ann"], "exits": KEYS["exits"]})
        running.relay.reload(replace(running.config, tokens=tokens, grants=GrantTable({"ann": less, "bob": LOCAL})))
        with pytest.raises(ResetError):
            await reader.read()
        writer.close()
        running.relay.reload(running.config)
    revoked, added = events(tmp_path, Kind.TOKEN_REVOKED, Kind.TOKEN_ADDED, user="")
    assert (revoked.event, revoked.user, revoked.token) == (Kind.TOKEN_REVOKED, "bob", KEYS["bob"][0].id)
    assert (added.event, added.user, added.token) == (Kind.TOKEN_ADDED, "bob", KEYS["bob"][0].id)
    fewer, more = events(tmp_path, Kind.RULES_CHANGED)
    assert fewer.removed == more.added == ["connect 127.0.0.0/8:*", "services reports"]
    (ended,) = events(tmp_path, Kind.CONNECTION_ENDED)
    assert ended.reason == "denied"
    assert "no rule allows" in ended.text


@in_loop
async def test_what_an_operator_ends_is_recorded_with_the_order_and_its_effects(tmp_path: Path) -> None:
    listens = {"admin": LOOPBACK, "admin_secret": SECRET}
    async with (
        target(mirror) as port,
        inline(tmp_path, **listens) as running,
        client_of(running, name="laptop") as ann,
    ):
        _, writer = await ann.open_connection("127.0.0.1", port)
        (row,) = msgspec.json.decode((await ask(running, "/connections"))[1])["rows"]
        path = f"/connections?id={row['id']}"
        assert (await ask(running, path, "DELETE", Tunnel_Admin="wrong"))[0] == 403
        assert (await ask(running, path, "DELETE"))[0] == 200
        assert (await ask(running, path, "DELETE"))[0] == 404  # nothing was done
        assert (await ask(running, "/users?name=ann", "DELETE"))[0] == 200
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)
    refused, one, all_ = events(tmp_path, Kind.ADMIN, user="")
    assert (refused.act, refused.result, refused.user) == ("kick_connection", Result.REFUSED, "")
    assert (one.act, one.result, one.user, one.source) == ("kick_connection", Result.DONE, "ann", "127.0.0.1")
    assert (all_.act, all_.result, all_.user) == ("kick_user", Result.DONE, "ann")
    (ended,) = events(tmp_path, Kind.CONNECTION_ENDED)
    assert (ended.reason, ended.connection) == ("kicked", one.connection)
    assert ended.text == "the operator of the relay ended this connection"
    assert events(tmp_path, Kind.ENDPOINT_DETACHED)[0].reason == "kicked"


@in_loop
async def test_acts_of_operators_are_events_whether_they_were_allowed_or_not(tmp_path: Path) -> None:
    async with relay(admin(audit=audited(tmp_path))) as running:
        assert (await ask(running, "/drain", "POST", Tunnel_Admin="wrong"))[0] == 403
        assert (await ask(running, "/drain?timeout=soon", "POST"))[0] == 400  # nothing was done
        assert (await ask(running, "/drain", "POST"))[0] == 202
        running.reload_on_signal()
    refused, done, reloaded = events(tmp_path, Kind.ADMIN, user="")
    assert (refused.act, refused.result, refused.source) == ("drain", Result.REFUSED, "127.0.0.1")
    assert (done.act, done.result, done.text) == ("drain", Result.DONE, "")
    assert (reloaded.act, reloaded.source) == ("reload", "SIGHUP")
    assert SECRET not in (tmp_path / "audit.jsonl").read_text()


@in_loop
async def test_two_users_orders_without_the_secret_are_counted_beyond_the_limit_and_those_of_the_operator_are_not(
    tmp_path: Path,
) -> None:
    config = admin(audit=audited(tmp_path, events_per_minute=2))
    is_usable = iter([True, False])

    def load() -> RelayConfig:
        if not next(is_usable):
            raise ConfigError("the file is empty")
        return config

    async with relay(config, load=load) as running:
        for _ in range(5):
            assert (await ask(running, "/drain", "POST", Tunnel_Admin="wrong"))[0] == 403
            assert (await ask(running, "/users?name=ann", "DELETE", Tunnel_Admin="wrong"))[0] == 403
        running.reload_on_signal()
        running.reload_on_signal()
    acts = [(one.act, one.result) for one in events(tmp_path, Kind.ADMIN, user="")]
    assert acts == [
        ("drain", Result.REFUSED),
        ("kick_user", Result.REFUSED),
        ("reload", Result.DONE),
        ("reload", Result.REFUSED),
    ]
    (summed,) = events(tmp_path, Kind.EVENTS_SUMMED, user="")
    assert summed.counts == {"admin drain": 4, "admin kick_user": 4}


@in_loop
async def test_wrong_tokens_are_events_and_those_of_a_limited_address_say_so(tmp_path: Path) -> None:
    config = settings(audit=audited(tmp_path), limits={"auth_failures_per_minute": 1})
    async with relay(config) as running, Client(running, NO_TOKEN) as client:
        for status in (401, 429):
            assert (await client.post(b"")).status == status
        assert (await client.post(b"", Authorization="")).status == 401
    found = events(tmp_path, Kind.TOKEN_REFUSED, user="")
    assert [(one.source, one.reason) for one in found] == [("127.0.0.1", "wrong"), ("127.0.0.1", "limited")]
    assert NO_TOKEN not in (tmp_path / "audit.jsonl").read_text()


@in_loop
async def test_refused_tokens_of_users_name_the_user_and_the_client_behind_a_proxy_and_are_summed(
    tmp_path: Path,
) -> None:
    once, key = make_token(Random(20), expires="2100-01-01T00:00:00Z", single_use=True)
    gone, old = make_token(Random(21), expires="2020-01-01T00:00:00Z")
    tokens = TokenTable({"ann": [key], "bob": [old]})
    proxies = TrustedProxies([ip_network("127.0.0.1/32")])
    config = settings(tokens=tokens, proxies=proxies, audit=audited(tmp_path, events_per_minute=3))
    async with relay(config) as running:
        async with Client(running, once) as ann, Client(running, gone) as bob:
            named = {"X_Forwarded_For": "192.0.2.7"}
            assert (await ann.post(attach_body(1), **named)).status == 200
            for status in (401, 401):
                assert (await ann.post(attach_body(2), **named)).status == status
            with capture_logs() as logs:
                assert [(await bob.post(b"", **named)).status for _ in range(3)] == [401] * 3
        assert {log["address"] for log in logs if log["event"] == "expired_token"} == {"192.0.2.7"}
    found = events(tmp_path, Kind.TOKEN_REFUSED, user="")
    assert [(one.reason, one.user, one.token, one.source, one.forwarded) for one in found] == [
        ("used", "ann", key.id, "127.0.0.1", "192.0.2.7"),
        ("used", "ann", key.id, "127.0.0.1", "192.0.2.7"),
        ("expired", "bob", old.id, "127.0.0.1", "192.0.2.7"),
    ]
    (summed,) = events(tmp_path, Kind.EVENTS_SUMMED, user="")
    assert summed.counts == {"token_refused expired": 2}


@in_loop
async def test_a_token_that_expires_is_one_event_also_if_the_relay_reads_its_files_first(tmp_path: Path) -> None:
    _, soon = make_token(Random(22), expires="2100-01-01T00:00:00Z")
    _, later = make_token(Random(23), expires="2100-01-02T00:00:00Z")
    async with relay(settings(tokens=TokenTable({"ann": [soon, later]}), audit=audited(tmp_path))) as running:
        times = [soon.expires_s, later.expires_s]
        running.relay.clock = lambda: times[0]
        running.relay._look_for_expired()
        running.relay._look_for_expired()
        running.relay.clock = lambda: times[1]
        running.relay.reload(running.config)
        running.relay._look_for_expired()
    found = events(tmp_path, Kind.TOKEN_EXPIRED)
    assert [(one.user, one.token) for one in found] == [("ann", soon.id), ("ann", later.id)]


@in_loop
async def test_strangers_are_events_with_their_address_and_the_owner_of_the_service(tmp_path: Path) -> None:
    async with rig(audit=audited(tmp_path)) as scene:
        await scene.serve("ann", "web", PublicPlace(host="ann.example", http=True))
        assert b"200 OK" in await request(scene.http, "ann.example", source="127.0.0.9")
        await until(lambda: scene.running.relay.host.switch.stats().counters.routes_closed)
    (joined,) = events(tmp_path, Kind.STRANGER_JOINED, user="")
    assert (joined.source, joined.owner, joined.service) == ("127.0.0.9", "ann", "web")
    allowed, ended = [one for one in events(tmp_path, Kind.CONNECTION_ALLOWED, Kind.CONNECTION_ENDED) if one.owner]
    assert (allowed.connection, ended.connection) == (joined.connection, joined.connection)
    assert (allowed.owner, allowed.rule) == ("ann", "public")


@in_loop
async def test_connections_that_are_open_when_the_relay_stops_have_ended(tmp_path: Path) -> None:
    async with inline(tmp_path) as running:
        ann, bob = client_of(running), client_of(running, "bob")
        await asyncio.gather(ann.start(), bob.start())
        await bob.start_server(echo, "reports")
        _, writer = await ann.open_connection("reports")
    writer.transport.abort()
    await asyncio.gather(ann.close(), bob.close())
    *_, ended, stopped = events(tmp_path, user="")
    assert (ended.event, ended.reason) == (Kind.CONNECTION_ENDED, "stopped")
    assert stopped.event is Kind.RELAY_STOPPED
