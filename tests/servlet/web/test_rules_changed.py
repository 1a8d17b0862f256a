"""Rules and tokens that change while people use the relay: what their applications see, and what goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from loadtests.harness.ports import hold_port
from loadtests.harness.processes import Process, python_command, says_event
from tests.servlet.rig import KEYS, TOKENS, Client, attach_body, exchange_body, relay, settings, until
from tests.servlet.web.rig import ALLOWED, ANY, Echo, Link, hang_up, inline, linked, opened, still_echoes, two_clients
from tests.support.loops import in_loop
from tests.support.targets import target
from tunnel import (
    DeniedError,
    LostReason,
    NotAuthenticatedError,
    ResetError,
    StreamReader,
    StreamWriter,
    attach,
)
from tunnel.ground.exit_codes import DENIED
from tunnel.wire import StatusCode
from tunnel_servlet.access.grants import Grant, GrantTable
from tunnel_servlet.access.rules import parse_rule
from tunnel_servlet.access.tokens import TokenTable
from tunnel_servlet.config import ListenAddress
from tunnel_servlet.exit.dialer import Dialer
from tunnel_servlet.web.running import RunningRelay


async def until_slowly(condition: Callable[[], object]) -> None:
    """Wait until the condition holds, and leave the processor to another process meanwhile."""
    while not condition():  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.02)


def changed(running: RunningRelay, tokens: dict[str, Any] | None = None, **grants: Grant) -> None:
    """Reload with other grants or tokens."""
    config = replace(running.config, grants=GrantTable({**ALLOWED, **grants}), tokens=TokenTable(tokens or KEYS))
    running.relay.reload(config)


@pytest.mark.parametrize("carrier", ["poll", "link"])
@in_loop
async def test_two_users_a_connection_whose_rule_is_removed_ends_and_says_so(carrier: str) -> None:
    echo = Echo()
    async with target(echo) as port, inline() as running, two_clients(running, carrier=carrier) as (ann, bob):
        mine, theirs = await opened(ann, port), await opened(bob, port)
        with capture_logs() as logs:
            changed(running, ann=Grant(connect=(parse_rule("127.0.0.1:1"),)))
            with pytest.raises(ResetError) as lost:
                await mine[0].read()
        assert lost.value.reason is LostReason.DENIED
        assert f"no rule allows 127.0.0.1:{port}" in str(lost.value)
        assert f'connect = ["127.0.0.1:1", "127.0.0.1:{port}"]' in str(lost.value)
        await until(lambda: echo.open == 1)
        await still_echoes(theirs, 1 << 20)
        (line,) = [line for line in logs if line["event"] == "ended" and "kind" in line]
        assert (line["user"], line["target"]) == ("ann", f"127.0.0.1:{port}")
        assert "no rule allows" in line["text"]
        with pytest.raises(DeniedError):
            await ann.open_connection("127.0.0.1", port)
        await hang_up(mine, theirs)


@in_loop
async def test_two_users_a_transfer_of_the_other_loses_no_byte_while_the_rules_change() -> None:
    echo = Echo()
    async with target(echo) as port, inline() as running, two_clients(running) as (ann, bob):
        mine, theirs = await opened(ann, port), await opened(bob, port)
        transfer = asyncio.ensure_future(still_echoes(theirs, 16 << 20))
        counters = running.relay.host.switch.stats
        begun = counters().counters.packets_streamed
        for rules in (Grant(), ANY, Grant()):
            await until(lambda: counters().counters.packets_streamed > begun + 20)  # noqa: B023 - called before `begun` changes
            begun = counters().counters.packets_streamed
            changed(running, ann=rules)
        await transfer
        await hang_up(mine, theirs)


@pytest.mark.parametrize("carrier", ["poll", "link"])
@in_loop
async def test_two_users_everything_of_a_revoked_user_ends_at_once(carrier: str) -> None:
    echo = Echo()
    async with target(echo) as port, inline() as running, two_clients(running, carrier=carrier) as (ann, bob):
        mine, theirs = await opened(ann, port), await opened(bob, port)
        changed(running, tokens={"bob": KEYS["bob"]})
        await until(lambda: echo.open == 1)
        with pytest.raises(NotAuthenticatedError):
            await mine[0].read()
        assert isinstance(ann.refusal, NotAuthenticatedError)
        await still_echoes(theirs)
        stats = running.relay.host.switch.stats()
        assert (stats.routes, stats.users) == (1, 2)  # bob and the inline exit
        await hang_up(mine, theirs)


@in_loop
async def test_two_users_the_rules_of_a_revoked_user_let_the_exit_dial_nothing() -> None:
    """The rules of a revoked user may still be in the configuration."""
    async with inline() as running:
        changed(running, tokens={"bob": KEYS["bob"]})
        allowed = [running.relay.rules_of(user).check_target("127.0.0.1", 1).allowed for user in ("ann", "bob")]
        assert allowed == [False, True]


@in_loop
async def test_two_users_connections_stay_when_the_other_token_of_their_user_is_revoked() -> None:
    """One of a user's two tokens is revoked. The user stays, and so do the connections of the other token."""
    echo = Echo()
    both = {**KEYS, "ann": [*KEYS["ann"], *KEYS["exits"]], "exits": []}
    async with target(echo) as port, inline() as running, two_clients(running) as (_, bob):
        changed(running, tokens=both)
        other = attach(f"http://{running.addresses[0]}", token=TOKENS["exits"], proxy=None, linger=0.1)
        async with other as ann:
            mine, theirs = await opened(ann, port), await opened(bob, port)
            changed(running, tokens={**both, "ann": KEYS["exits"]})
            await still_echoes(mine)
            await still_echoes(theirs)
            await hang_up(mine, theirs)


@in_loop
async def test_two_users_an_exit_that_may_no_longer_be_one_ends_and_the_next_one_takes_over() -> None:
    echo = Echo()
    running = relay(settings(grants=GrantTable({**ALLOWED, "bob": Grant(exit=True)}), switch={"settle_us": 0}))
    rules = GrantTable(ALLOWED)
    async with target(echo) as port, running:
        url = f"http://{running.addresses[0]}"
        common: dict[str, Any] = {"proxy": None, "linger": 0.1}
        dialers = [Dialer(rules.rules_of) for _ in range(2)]
        first, second = (
            attach(url, token=TOKENS[user], exit_handler=dialer, **common)
            for user, dialer in zip(("exits", "bob"), dialers, strict=True)
        )
        async with attach(url, token=TOKENS["ann"], **common) as ann, first:
            mine = await opened(ann, port)
            async with second:
                changed(running, exits=Grant(), bob=Grant(exit=True))
                with pytest.raises(ResetError) as lost:
                    await mine[0].read()
                assert lost.value.reason is LostReason.DENIED
                await until(lambda: echo.open == 0 and first.refusal is not None)
                assert "exits may not be an exit: exit = true is missing" in str(first.refusal)
                await until(lambda: running.relay.host.switch.stats().exits == 1)
                theirs = await opened(ann, port)
                assert [dialer.connections for dialer in dialers] == [0, 1]
                await hang_up(mine, theirs)


@in_loop
async def test_two_users_rules_that_changed_while_the_relay_was_away_end_a_connection_at_its_target_too() -> None:
    echo = Echo()
    with hold_port() as free:
        address = ListenAddress("127.0.0.1", free)
        url = f"http://{address}"
        common: dict[str, Any] = {"proxy": None, "linger": 0.1, "carrier": "poll"}
        dialer = Dialer(GrantTable(ALLOWED).rules_of)
        async with target(echo) as port, AsyncExitStack() as stack:
            running = relay(settings(listen=(address,), grants=GrantTable(ALLOWED)))
            await running.__aenter__()
            for_exit = attach(url, token=TOKENS["exits"], exit_handler=dialer, **common)
            clients = [attach(url, token=TOKENS[user], **common) for user in ("ann", "bob")]
            for one in (for_exit, *clients):
                await stack.enter_async_context(one)
            mine, theirs = [await opened(client, port) for client in clients]
            await running.close()
            rules = GrantTable({**ALLOWED, "ann": Grant(connect=(parse_rule("127.0.0.1:1"),))})
            async with relay(settings(listen=(address,), grants=rules)):
                with pytest.raises(ResetError, match=f"no rule allows 127.0.0.1:{port}"):
                    await mine[0].read()
                await until_slowly(lambda: echo.open == 1)
                await still_echoes(theirs)
                await hang_up(mine, theirs)
                dialer.abort()
                await stack.aclose()


# --- services


@in_loop
async def test_two_users_a_service_that_is_no_longer_allowed_is_told_and_others_go_on() -> None:
    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        while chunk := await reader.read(1 << 16):
            writer.write(chunk)

    async with inline() as running, two_clients(running) as (ann, bob):
        reports, news = await ann.start_server(serve, "reports"), await ann.start_server(serve, "news")
        ended, goes_on = await bob.open_connection("reports"), await bob.open_connection("news")
        await still_echoes(ended)
        await still_echoes(goes_on)
        changed(running, ann=Grant(listen=("news",)))
        error = await reports.refused()
        assert "does not allow this user to listen under this name" in str(error)
        assert not reports.is_serving()
        with pytest.raises(DeniedError):
            await reports.serve_forever()
        with pytest.raises(ResetError) as lost:
            await ended[0].read()
        assert lost.value.reason is LostReason.DENIED
        await still_echoes(goes_on)
        assert news.is_serving()
        await hang_up(ended, goes_on)


@in_loop
async def test_two_users_the_second_one_hears_that_the_name_has_an_owner() -> None:
    async with inline() as running, two_clients(running) as (ann, bob):
        server = await ann.start_server(lambda reader, writer: None, "reports")
        with pytest.raises(DeniedError, match="reports: another user has this name: choose another one, or ask"):
            await bob.start_server(lambda reader, writer: None, "reports")
        assert server.is_serving()
        changed(running, ann=Grant(listen=("reports",)), bob=Grant(listen=("reports",)))
        shared = await bob.start_server(lambda reader, writer: None, "reports")  # the rules of both users list the name
        assert shared.is_serving()
        assert server.is_serving()


@in_loop
async def test_two_users_of_the_command_hear_that_a_name_is_taken_or_no_longer_theirs() -> None:
    """`tunnel expose` goes on with the services that are left, and ends with code 5 after the last one."""
    async with inline() as running:
        url = f"http://{running.addresses[0]}"

        def expose(user: str, *services: str) -> Process:
            command = python_command("tunnel_client", "expose", *services, "--relay", url, "--proxy", "none")
            return Process(command, ready=says_event("listening"), environment={"TUNNEL_TOKEN": TOKENS[user]})

        first, second = (
            expose("ann", "reports", "127.0.0.1:9", "news", "127.0.0.1:9"),
            expose("bob", "news", "127.0.0.1:9"),
        )
        async with first:
            await until_slowly(lambda: running.relay.host.switch.stats().listeners == 2)
            second.start()
            assert await asyncio.to_thread(second.wait, 60) == DENIED
            assert "news: another user has this name: choose another one" in second.output
            changed(running, ann=Grant(listen=("news",)))
            await until_slowly(lambda: any(map(says_event("not_exposed"), first.output.splitlines())))
            assert first.is_running
            changed(running, ann=Grant())
            assert await asyncio.to_thread(first.wait, 60) == DENIED
            assert 'add "news" to the list' in first.output


# --- requests and links on their way


@in_loop
async def test_two_users_a_held_pull_ends_when_its_token_is_revoked() -> None:
    async with relay() as running, Client(running) as ann, Client(running, "bob") as bob:
        await ann.attach(1)
        await bob.attach(2)
        revoked = await ann.parked(exchange_body(ann.epoch, 1, pull=True))
        held = await bob.parked(exchange_body(bob.epoch, 1, pull=True, seed=2))
        running.relay.reload(settings(tokens=TokenTable({"bob": KEYS["bob"]})))
        running.relay.reload(settings(tokens=TokenTable({"bob": KEYS["bob"]})))  # a second reload at once
        reply = await revoked
        assert (reply.status, reply.message.code) == (401, StatusCode.NOT_AUTHORISED)
        assert "revoked" in reply.message.text
        assert not held.done()
        assert running.relay.host.switch.stats().parked_pulls == 1
        held.cancel()


async def attach_in_parts(goes_on: asyncio.Event) -> AsyncIterator[bytes]:
    body = attach_body()
    yield body[:10]
    await goes_on.wait()
    yield body[10:]


@in_loop
async def test_two_users_a_body_that_was_on_its_way_when_its_token_was_revoked_attaches_nothing() -> None:
    sent = asyncio.Event()
    async with relay() as running, Client(running) as ann:
        coming = asyncio.ensure_future(ann.post(attach_in_parts(sent)))
        await until(lambda: running.relay.token_bound)
        running.relay.reload(settings(tokens=TokenTable({"bob": KEYS["bob"]})))
        sent.set()
        assert (await coming).status == 401
        assert running.relay.host.switch.stats().attachments == 0


@in_loop
async def test_two_users_a_link_of_a_token_that_was_revoked_ends_and_the_other_stays() -> None:
    async with (
        relay() as running,
        Client(running) as ann,
        Client(running, "bob") as bob,
        linked(running, ann) as lost,
        linked(running, bob, "bob", 2),
    ):
        opening = await Link.connect(running)  # no first message yet
        running.relay.reload(settings(tokens=TokenTable({"bob": KEYS["bob"]})))
        assert await lost.ended() == await opening.ended() == b""
        await until(lambda: running.relay.host.switch.stats().links == 1)
        assert running.relay.host.switch.stats().attachments == 1
        await opening.close()


@in_loop
async def test_two_users_a_body_on_its_way_when_its_user_may_no_longer_be_an_exit_attaches_no_exit() -> None:
    """The exit would get the connections of other users."""
    sent = asyncio.Event()
    async with relay() as running, Client(running, "exits") as was_exit:
        coming = asyncio.ensure_future(was_exit.post(attach_in_parts(sent)))
        await until(lambda: running.relay.token_bound)
        changed(running, exits=Grant())
        sent.set()
        reply = await coming
        assert reply.status == 403
        assert "may not be an exit" in reply.message.text
        assert running.relay.host.switch.stats().attachments == 0
