"""Parts of the tests of an exit: addresses, an echo, and clients on a tunnel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Any

from tunnel import Attachment, StreamWriter, memory_attach
from tunnel_servlet.access.addresses import IPAddress
from tunnel_servlet.access.grants import EXIT_USER, GrantTable
from tunnel_servlet.access.rules import Ruleset, parse_rule
from tunnel_servlet.exit.dialer import Dialer
from tunnel_servlet.exit.resolver import Resolve
from tunnel_servlet.switch.config import SwitchConfig
from tunnel_servlet.web.host import SwitchHost

__all__ = ["addresses", "close", "echo", "tunnel", "two_clients"]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(65536):
        writer.write(chunk)
        await writer.drain()
    writer.write_eof()


def addresses(*texts: str) -> Resolve:
    """Return a resolver that always finds these addresses."""

    async def answer(host: str, port: int) -> list[IPAddress]:
        return [ip_address(text) for text in texts]

    return answer


@asynccontextmanager
async def tunnel(*rules: str, kind: type[Dialer] = Dialer, **options: Any) -> AsyncIterator[tuple[Attachment, Dialer]]:
    """Attach a user who has these rules at the exit; the rules at the switch allow far more."""
    ruleset = Ruleset(map(parse_rule, rules))
    policy = GrantTable().with_rules(ruleset.rules, allows_all=True)
    host = SwitchHost(SwitchConfig(), policy.authorise, may_listen=policy.may_listen)
    dialer = kind(lambda user: ruleset, **options)
    exit_ = memory_attach(host, user=EXIT_USER, exit_handler=dialer, linger=1)
    async with exit_, memory_attach(host, user="ann", linger=5) as client:
        yield client, dialer
        dialer.abort()
    host.close()


@asynccontextmanager
async def two_clients(*rules: str, **options: Any) -> AsyncIterator[tuple[Attachment, Attachment, Dialer]]:
    """Attach two users who have the same rules at one exit."""
    ruleset = Ruleset(map(parse_rule, rules))
    policy = GrantTable().with_rules(ruleset.rules, allows_all=True)
    host = SwitchHost(SwitchConfig(), policy.authorise, may_listen=policy.may_listen)
    dialer = Dialer(lambda user: ruleset, **options)
    exit_ = memory_attach(host, user=EXIT_USER, exit_handler=dialer, linger=1)
    async with (
        exit_,
        memory_attach(host, user="ann", linger=1) as ann,
        memory_attach(host, user="bob", linger=5) as bob,
    ):
        yield ann, bob, dialer
        dialer.abort()
    host.close()


async def close(writer: StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()
