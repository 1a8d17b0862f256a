"""An exit whose rules change: the connections that they no longer allow end, also those that are being dialled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

import pytest

from tests.servlet.exit.rig import addresses, close, echo, tunnel
from tests.servlet.rig import until
from tests.support.loops import in_loop
from tests.support.targets import target
from tunnel import DeniedError, LostError, LostReason
from tunnel_servlet.access.addresses import IPAddress
from tunnel_servlet.access.rules import Ruleset, parse_rule
from tunnel_servlet.exit.dialer import Dialer


class Changing(Dialer):
    """A dialer whose rules can be replaced."""

    rules = Ruleset([parse_rule("127.0.0.1:*"), parse_rule("[::1]:*"), parse_rule("here:*")])

    def __init__(self, rules_of: Callable[[str], Ruleset], **options: Any) -> None:
        super().__init__(lambda user: self.rules, **options)


@in_loop
async def test_a_connection_ends_when_the_rule_for_its_address_is_removed() -> None:
    """The name is still allowed, but the address to which it led is not."""
    async with (
        target(echo) as port,
        tunnel(kind=Changing, resolve=addresses("127.0.0.1")) as (client, dialer),
    ):
        assert isinstance(dialer, Changing)
        by_name, by_address = (
            await client.open_connection("here", port),
            await client.open_connection("127.0.0.1", port),
        )
        list(dialer.recheck())
        assert dialer.connections == 2
        dialer.rules = Ruleset([parse_rule("here:*"), parse_rule("127.0.0.1:1")])
        list(dialer.recheck())
        for reader, writer in (by_name, by_address):
            with pytest.raises(LostError, match="the rules of the exit were changed") as lost:
                await reader.read()
            assert lost.value.reason is LostReason.DENIED
            await asyncio.gather(close(writer), return_exceptions=True)
        await until(lambda: dialer.connections == 0)


@in_loop
async def test_a_connection_that_was_being_dialled_when_its_rule_was_removed_is_refused() -> None:
    is_asked, goes_on = asyncio.Event(), asyncio.Event()

    async def slowly(host: str, port: int) -> list[IPAddress]:
        is_asked.set()
        await goes_on.wait()
        return [ip_address("127.0.0.1")]

    async with target(echo) as port, tunnel(kind=Changing, resolve=slowly) as (client, dialer):
        assert isinstance(dialer, Changing)
        opening = asyncio.ensure_future(client.open_connection("here", port))
        await is_asked.wait()
        dialer.rules = Ruleset([])
        list(dialer.recheck())
        goes_on.set()
        with pytest.raises(DeniedError):
            await opening
        assert dialer.connections == 0


@in_loop
async def test_datagrams_end_with_their_rule() -> None:
    async with tunnel(kind=Changing) as (client, dialer):
        assert isinstance(dialer, Changing)
        dialer.rules = Ruleset([parse_rule("udp/127.0.0.1:*")])
        reader, writer = await client.open_connection("udp:127.0.0.1", 9)
        list(dialer.recheck())
        assert dialer.connections == 1
        dialer.rules = Ruleset([parse_rule("127.0.0.1:*")])
        list(dialer.recheck())
        with pytest.raises(LostError, match="rules of the exit"):
            await reader.read()
        await asyncio.gather(close(writer), return_exceptions=True)
