"""Paths that let only text pass, in requests and in answers: the endpoint finds the format that passes, by itself.

Clause 7.19 of docs/PROTOCOL.md.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from loadtests.harness.ports import hold_port
from tests.field.alterations import ALTERATIONS
from tests.field.scripted import Behaviour, ScriptedProxy
from tests.real.transfers import MIB, a_relay, client, move
from tests.support.loops import in_loop
from tunnel import Attachment, NotAuthenticatedError

TEXT_ONLY = ["json", "text", "ascii", "entropy"]


@asynccontextmanager
async def through(behaviour: Behaviour, **options: Any) -> AsyncIterator[Attachment]:
    """An attachment through a proxy of this behaviour."""
    with hold_port() as port:
        proxy = ScriptedProxy(behaviour, port)
        server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=1 << 20)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, a_relay(port), client(url, user_timeout=60, **options) as attachment:
            yield attachment


@pytest.mark.parametrize("carrier", ["poll", "auto"])
@pytest.mark.parametrize("name", TEXT_ONLY)
@in_loop
async def test_transfers_are_whole_where_only_text_passes(name: str, carrier: str) -> None:
    async with through(Behaviour(scans="403", admits=name), carrier=carrier) as attachment:
        await move(attachment, MIB)
        assert attachment.refusal is None


@pytest.mark.parametrize("carrier", ["poll", "auto"])
@pytest.mark.parametrize("alters", ALTERATIONS)
@in_loop
async def test_transfers_are_whole_where_binary_bodies_arrive_altered(alters: str, carrier: str) -> None:
    async with through(Behaviour(alters=alters), carrier=carrier) as attachment:
        await move(attachment, MIB)
        assert attachment.refusal is None


@in_loop
async def test_transfers_are_whole_where_every_body_is_declared_to_be_text() -> None:
    async with through(Behaviour(types="text/plain")) as attachment:
        await move(attachment, MIB)


@pytest.mark.parametrize("scans", ["reset", "page"])
@pytest.mark.parametrize("name", ["json", "ascii", "entropy"])
@in_loop
async def test_transfers_are_whole_where_other_bodies_are_answered_by_a_reset_or_a_page(name: str, scans: str) -> None:
    async with through(Behaviour(scans=scans, admits=name)) as attachment:
        await move(attachment, MIB, connections=1)


@pytest.mark.parametrize("carrier", ["poll", "websocket", "auto"])
@in_loop
async def test_transfers_are_whole_where_our_name_is_refused(carrier: str) -> None:
    """In paths, headers of requests and headers of answers."""
    behaviour = Behaviour(scans="403", admits="word")
    async with through(behaviour, carrier=carrier, headers={"User-Agent": "Mozilla/5.0"}) as attachment:
        await move(attachment, MIB)


@in_loop
async def test_a_refused_token_is_told_where_our_name_is_refused() -> None:
    behaviour = Behaviour(scans="403", admits="word")
    with pytest.raises(NotAuthenticatedError, match="no such token"):
        async with through(behaviour, token="tnl_00000009_x", headers={"User-Agent": "Mozilla/5.0"}):
            raise AssertionError
