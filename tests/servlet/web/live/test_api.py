"""The tables of the admin listener, and the ends that the operator orders there, with real endpoints."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from structlog.testing import capture_logs

from tests.servlet.rig import until
from tests.servlet.web.live.rig import attached, echo, inline, opener, reports
from tests.servlet.web.rig import SECRET, ask
from tests.support.loops import in_loop
from tests.support.targets import target
from tunnel import LostReason, ResetError
from tunnel_servlet.switch.operating.operator import KICKED
from tunnel_servlet.web.running import RunningRelay


class Ends:
    """A target that says how its connections end."""

    def __init__(self) -> None:
        self.resets = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await echo(reader, writer)
        except ConnectionResetError:
            self.resets += 1


async def table(running: RunningRelay, path: str) -> Any:
    status, text = await ask(running, path)
    assert status == 200, text
    return msgspec.json.decode(text)


async def end(running: RunningRelay, path: str) -> tuple[int, str]:
    return await ask(running, path, "DELETE")


@pytest.mark.parametrize("carrier", ["poll", "link"])
@in_loop
async def test_two_users_the_operator_ends_one_connection_and_both_ends_get_a_reset(carrier: str) -> None:
    ends = Ends()
    async with (
        target(ends) as port,
        inline() as running,
        attached(running, "ann", carrier=carrier) as ann,
        attached(running, "bob", carrier=carrier) as bob,
        opener() as opened,
    ):
        mine, theirs = await opened(ann, port), await opened(bob, port)
        page = await table(running, "/connections?sort=user")
        assert (page["total"], page["matched"]) == (2, 2)
        row = page["rows"][0]
        assert (row["user"], row["target"], row["acceptor_user"]) == ("ann", f"127.0.0.1:{port}", "relay:exit")
        assert (row["bytes_up"], row["bytes_down"]) == (5, 5)
        with capture_logs() as logs:
            status, text = await end(running, f"/connections?id={row['id']}")
        assert (status, msgspec.json.decode(text)["connections"]) == (200, 1)
        with pytest.raises(ResetError) as lost:
            await mine[0].read()
        assert lost.value.reason is LostReason.RESET
        assert KICKED in str(lost.value)
        await until(lambda: ends.resets == 1)
        await opened.echo(theirs)
        (line,) = [line for line in logs if line["event"] == "ended"]
        assert (line["user"], line["kind"], line["text"]) == ("ann", "connection", KICKED)
        await opened.echo(await opened(ann, port))  # the user may open another one
        assert (await end(running, f"/connections?id={row['id']}"))[0] == 404


@pytest.mark.parametrize("carrier", ["poll", "link"])
@in_loop
async def test_two_users_the_operator_ends_all_of_one_user(carrier: str) -> None:
    ends = Ends()
    async with (
        target(ends) as port,
        inline() as running,
        attached(running, "ann", carrier=carrier) as ann,
        attached(running, "bob", carrier=carrier) as bob,
        opener() as opened,
    ):
        mine = [await opened(ann, port) for _ in range(3)]
        theirs = await opened(bob, port)
        status, text = await end(running, "/users?name=ann")
        found = msgspec.json.decode(text)
        assert (status, found["connections"], found["attachments"]) == (200, 3, 1)
        for reader, _ in mine:
            with pytest.raises(ResetError):
                await reader.read()
        await until(lambda: ends.resets == 3)
        await opened.echo(theirs)
        await opened.echo(await opened(ann, port))  # its endpoint has attached again
        counters = running.relay.host.switch.stats().counters
        assert (counters.routes_kicked, counters.attachments_kicked) == (3, 1)


@in_loop
async def test_the_inline_exit_serves_on_although_the_operator_orders_its_end() -> None:
    async with target(echo) as port, inline() as running, attached(running, "ann") as ann, opener() as opened:
        page = await table(running, "/attachments?user=relay%3Aexit")
        assert [row["name"] for row in page["rows"]] == ["inline"]
        status, text = await end(running, f"/attachments?id={page['rows'][0]['id']}")
        assert (status, "it is a part of the relay" in text) == (409, True)
        assert (await end(running, "/users?name=relay:exit"))[0] == 404
        await opened(ann, port)


@in_loop
async def test_an_order_goes_on_when_the_one_who_gave_it_is_gone() -> None:
    async with target(echo) as port, inline() as running, attached(running, "ann") as ann, opener() as opened:
        for _ in range(20):
            await opened(ann, port)
        assert running.admin is not None
        _, writer = await asyncio.open_connection("127.0.0.1", running.admin.port)
        head = f"DELETE /users?name=ann HTTP/1.1\r\nHost: localhost\r\nTunnel-Admin: {SECRET}\r\n\r\n"
        writer.write(head.encode())
        counters = running.relay.host.switch.stats
        await until(lambda: counters().counters.routes_kicked)
        writer.transport.abort()
        await until(lambda: counters().counters.attachments_kicked == 1)
        assert counters().counters.routes_kicked == 20


HOSTILE = ["<script>alert(1)</script>", "a&b=c", "ann/../bob", "\u202eann", "x" * 64]


@in_loop
async def test_hostile_names_are_data() -> None:
    async with inline() as running:
        for name in HOSTILE:
            async with attached(running, "ann", name=name):
                page = await table(running, f"/attachments?find={quote(name, safe='')}")
                assert [row["name"] for row in page["rows"]] == [name]
                status, text = await end(running, f"/users?name={quote(name, safe='')}")
                assert (status, text) == (404, f"no endpoint of {name} is attached\n")


NOT_UNDERSTOOD = [
    ("/connections?limit=x", "GET", "limit is a whole number"),
    ("/connections?sort=colour", "GET", "cannot sort by 'colour'"),
    ("/connections?id=17", "DELETE", "'17' is not the id of a connection: one looks like c17-9f3a"),
    ("/attachments?id=c1-0000", "DELETE", "is not the id of an attachment: one looks like a7-9f3a"),
    ("/connections", "DELETE", "the query must hold id=..., once, and nothing else"),
    ("/users?name=", "DELETE", "the query must hold name=..., once"),
    ("/users?name=ann&name=bob", "DELETE", "the query must hold name=..., once"),
    ("/users?name=ann&limit=1", "DELETE", "the query must hold name=..., once"),
]


@in_loop
async def test_what_is_not_understood_is_explained_and_ends_nothing() -> None:
    async with inline() as running, attached(running, "ann"):
        for path, method, why in NOT_UNDERSTOOD:
            status, text = await ask(running, path, method)
            assert (status, why in text) == (400, True), text
        assert running.relay.host.switch.stats().counters.attachments_kicked == 0


@in_loop
async def test_services_and_users_are_listed() -> None:
    async with inline() as running, attached(running, "ann", name="desk") as ann, reports(ann):
        (row,) = (await table(running, "/services"))["rows"]
        assert (row["name"], row["user"], row["endpoint"]) == ("reports", "ann", "desk")
        (row,) = (await table(running, "/users?sort=bytes"))["rows"]
        assert (row["user"], row["attachments"]) == ("ann", 1)
        assert row["traffic"]["packets_received"] > 0
        assert (await table(running, "/services?sort=pending&user=bob"))["matched"] == 0


ORDERS = {
    "connections": ("user", "target", "state", "age", "bytes", "up", "down", "waiting"),
    "attachments": ("user", "name", "age", "silent", "connections", "waiting"),
    "users": ("user", "attachments", "connections", "held", "bytes"),
    "services": ("name", "user", "pending"),
}


@in_loop
async def test_each_order_can_be_asked_for() -> None:
    async with (
        target(echo) as port,
        inline() as running,
        attached(running, "ann") as ann,
        reports(ann),
        opener() as opened,
    ):
        await opened(ann, port)
        for name, keys in ORDERS.items():
            for key in keys:
                assert (await table(running, f"/{name}?sort={key}"))["matched"] >= 1, key


@in_loop
async def test_connections_are_found_by_their_names() -> None:
    async with (
        target(echo) as port,
        inline() as running,
        attached(running, "ann", name="Desk") as ann,
        opener() as opened,
    ):
        await opened(ann, port)
        for query, matched in (
            ("find=desk", 1),
            ("find=INLINE", 1),
            (f"find={port}", 1),
            ("find=nowhere", 0),
            ("user=relay%3Aexit", 1),
            ("user=bob", 0),
        ):
            assert (await table(running, f"/connections?{query}"))["matched"] == matched, query
