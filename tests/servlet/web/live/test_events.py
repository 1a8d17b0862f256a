"""The stream of the live page: what it holds, whom it answers, and when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import msgspec
import pytest

from tests.servlet.web.live.rig import attached, echo, inline, opener
from tests.servlet.web.rig import SECRET, ask
from tests.support.loops import in_loop
from tests.support.targets import target
from tunnel import DeniedError
from tunnel_servlet.web.live.events import LOOKERS_MAX
from tunnel_servlet.web.running import RunningRelay


class Stream:
    """One who looks."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def event(self) -> Any:
        line = (await self.response.content.readuntil(b"\n\n")).decode()
        return msgspec.json.decode(line.removeprefix("data: "))

    async def ended(self) -> None:
        """Read to the end. At most two events may be on their way: a stream that goes on fails here."""
        found = b""
        while data := await self.response.content.readany():
            found += data
            assert found.count(b"\n\n") <= 2


@asynccontextmanager
async def looks(running: RunningRelay, query: str = "", **headers: str) -> AsyncIterator[Stream]:
    sent = {"Tunnel-Admin": SECRET} | {name.replace("_", "-"): value for name, value in headers.items()}
    timeout = aiohttp.ClientTimeout(total=60)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(f"http://{running.admin}/events?{query}", headers=sent) as response,
    ):
        assert response.status == 200, await response.text()
        yield Stream(response)


@in_loop
async def test_an_event_holds_points_a_summary_and_a_page_with_rates() -> None:
    async with (
        target(echo) as port,
        inline() as running,
        attached(running, "ann") as ann,
        opener() as opened,
        looks(running, "limit=1&sort=bytes&reverse=1") as stream,
    ):
        first = await stream.event()
        assert (first["points"], first["table"]["total"], first["detail"]) == ([], 0, None)
        summary = first["summary"]
        assert (summary["ready"], summary["draining"], summary["users"], summary["exits"]) == (True, False, 1, 1)
        streams = await opened(ann, port, 1000)
        await opened(ann, port, 90_000)
        while (event := await stream.event())["table"]["matched"] < 2:
            pass
        assert [row["bytes_up"] for row in event["table"]["rows"]] == [1000]
        assert len(event["rates"]) == 1
        assert event["summary"]["open"] == 2
        (point,) = event["points"]
        assert point["bytes_in"] > 0
        await opened.echo(streams)
        assert (await stream.event())["points"][0]["at_s"] > point["at_s"]  # each point comes once


@in_loop
async def test_a_late_looker_gets_the_earlier_points_too() -> None:
    async with inline() as running, looks(running) as stream:
        while not (await stream.event())["points"]:
            pass
        async with looks(running) as late:
            assert len((await late.event())["points"]) >= 1


@in_loop
async def test_one_connection_is_shown_until_it_has_ended() -> None:
    async with target(echo) as port, inline() as running, attached(running, "ann") as ann, opener() as opened:
        await opened(ann, port)
        (row,) = msgspec.json.decode((await ask(running, "/connections"))[1])["rows"]
        async with looks(running, f"detail={row['id']}") as stream:
            detail = (await stream.event())["detail"]
            assert (detail["row"]["id"], detail["opener"]["user"]) == (row["id"], "ann")
            assert detail["acceptor"]["name"] == "inline"
            assert (await ask(running, f"/connections?id={row['id']}", "DELETE"))[0] == 200
            assert (await stream.event())["detail"] is None
        async with looks(running, "detail=c1-0000") as stream:  # from before a restart
            assert (await stream.event())["detail"] is None


@in_loop
async def test_refusals_come_with_the_line_that_would_allow_them() -> None:
    async with inline() as running, attached(running, "ann") as ann, looks(running, "table=denials") as stream:
        for _ in range(2):
            with pytest.raises(DeniedError):
                await ann.open_connection("db.internal", 5432)
        while not (rows := (await stream.event())["table"]["rows"]):
            pass
        assert [(row["user"], row["what"]) for row in rows] == [("ann", "db.internal:5432")]
        assert "under [users.ann] in the relay's configuration, this line would allow it: connect" in rows[0]["text"]


@in_loop
async def test_a_question_is_no_refusal() -> None:
    async with inline() as running, attached(running, "ann") as ann:
        with pytest.raises(DeniedError):
            await ann.check("db.internal", 5432)
        assert msgspec.json.decode((await ask(running, "/denials"))[1])["total"] == 0


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("table=secrets", "there is no table 'secrets': table is one of connections, attachments, users"),
        ("limit=201", "an event holds at most 200 rows"),
        ("detail=17", "'17' is not the id of a connection"),
        ("sort=colour", "cannot sort by 'colour'"),
        ("colour=red", "'colour' is not known"),
    ],
)
@in_loop
async def test_a_wrong_query_is_explained_and_nobody_looks(query: str, why: str) -> None:
    async with inline() as running:
        status, text = await ask(running, f"/events?{query}")
        assert (status, why in text) == (400, True), text
        async with looks(running) as stream:
            await stream.event()


@in_loop
async def test_the_number_of_those_who_look_is_bounded_and_counts_those_who_left() -> None:
    async with inline() as running:
        async with AsyncExitStack() as stack:
            for _ in range(LOOKERS_MAX):
                await (await stack.enter_async_context(looks(running))).event()
            status, text = await ask(running, "/events")
            assert (status, text) == (429, f"{LOOKERS_MAX} pages look at this relay already: close one\n")
            assert (await ask(running, "/livez"))[0] == 200
        watch = 429
        while watch == 429:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://{running.admin}/events", headers={"Tunnel-Admin": SECRET}) as response,
            ):
                watch = response.status
        assert watch == 200


@in_loop
async def test_the_stream_ends_when_the_secret_is_replaced() -> None:
    async with inline() as running, looks(running) as stream:
        await stream.event()
        running.relay.reload(replace(running.config, admin_secret="x" * 43))
        await stream.ended()
        assert (await ask(running, "/events", Tunnel_Admin=SECRET))[0] == 403


@in_loop
async def test_the_relay_stops_although_pages_look() -> None:
    async with inline() as running, looks(running) as stream:
        await stream.event()
        await running.close()
        await stream.ended()


@in_loop
async def test_two_users_another_user_of_the_machine_displaces_nobody_who_looks() -> None:
    """Half requests without a secret fill the places of the listener; they make room for each other alone."""
    async with inline() as running, looks(running) as stream:
        await stream.event()
        assert running.admin is not None
        half: list[asyncio.StreamWriter] = []
        for _ in range(100):
            _, writer = await asyncio.open_connection("127.0.0.1", running.admin.port)
            writer.write(b"GET /events HTTP/1.1\r\n")
            half.append(writer)
        await stream.event()
        await stream.event()
        for writer in half:
            writer.transport.abort()
