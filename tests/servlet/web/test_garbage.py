"""Connections that have ended are freed at once, and leave nothing for Python's cyclic garbage collector.

Thousands of connections can end at once. If each left a cycle of objects, an idle relay would keep their memory, and a
busy one would stop for the collector again and again.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from tests.servlet.rig import Client, attach_body, relay, until
from tests.servlet.support import data
from tests.servlet.web.rig import close, connect, linked, request
from tests.support.loops import run
from tunnel_servlet.web.http.handler import RelayHandler
from tunnel_servlet.web.relay_link import RelayLink
from tunnel_servlet.web.running import RunningRelay

BODY = attach_body(7)


async def ask(running: RunningRelay) -> None:
    reader, writer = await connect(running)
    writer.write(request(BODY, "ann"))
    await reader.readuntil(b"\r\n\r\n")
    await close(writer)


async def ask_ahead(running: RunningRelay) -> None:
    reader, writer = await connect(running)
    writer.write(request(BODY, "ann") * 20)
    await reader.readuntil(b"\r\n\r\n")
    writer.transport.abort()


async def open_link(running: RunningRelay) -> None:
    async with Client(running) as client, linked(running, client) as link:
        link.send(data(1, 1, 1, b"x"))
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("use", [ask, ask_ahead, open_link])
def test_the_collector_finds_no_connection_that_has_ended(use: Callable[[RunningRelay], Awaitable[None]]) -> None:
    async def main() -> None:
        async with relay() as running:
            await use(running)  # what is made once for all connections is made now
            await until(lambda: not running.connections.total)
            gc.collect()
            gc.disable()
            for _ in range(5):
                await use(running)
            await until(lambda: not running.connections.total)
            await asyncio.sleep(0.05)
            left = [each for each in gc.get_objects() if isinstance(each, RelayHandler | RelayLink)]
            assert left == []

    try:
        run(main(), uvloop.new_event_loop)
    finally:
        gc.enable()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_link_keeps_nothing_that_served_its_request(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Thousands of links may be idle for days."""

    async def main() -> None:
        async with relay() as running, Client(running) as client:
            await client.attach()
            gc.collect()
            gc.disable()
            before = {id(each) for each in gc.get_objects() if isinstance(each, RelayHandler)}
            async with linked(running, client) as link:
                link.send(data(1, 1, 1, b"x"))
                await asyncio.sleep(0.05)
                links = [each for each in gc.get_objects() if isinstance(each, RelayLink)]
                handlers = [each for each in gc.get_objects() if isinstance(each, RelayHandler)]
                assert len(links) == 1
                assert [each for each in handlers if id(each) not in before] == []
                assert [task for task in asyncio.all_tasks() if "_handle_request" in repr(task)] == []
                total = running.connections.total
            await until(lambda: running.connections.total < total)

    try:
        run(main(), new_loop)
    finally:
        gc.enable()
