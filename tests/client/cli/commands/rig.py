"""Forwards and services in this process, through a real relay, and clients that are plain sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from tests.servlet.rig import TOKENS, relay, settings
from tests.support.targets import target
from tunnel import Attachment, attach
from tunnel_client.cli.commands.expose import Exposing
from tunnel_client.cli.commands.forward import Forwarding
from tunnel_client.forward.listening import address_of, bind
from tunnel_client.forward.traffic import Traffic
from tunnel_client.places import Address
from tunnel_servlet.web.running import RunningRelay

__all__ = ["HERE", "Rig", "echo", "open_rig", "target"]

HERE = "127.0.0.1"


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(65536):
        writer.write(chunk)
        await writer.drain()
    writer.write_eof()


class Rig:
    """A relay with an inline exit, and an attachment of ann, who may go anywhere on this machine."""

    def __init__(self, running: RunningRelay, attachment: Attachment, stack: AsyncExitStack) -> None:
        self.running = running
        self.attachment = attachment
        self.traffic = Traffic(attachment)
        self.stack = stack

    async def forward(self, host: str, port: int | None = None) -> int:
        """The local port that leads there."""
        sock = bind(Address(HERE, 0))
        self.stack.callback(sock.close)
        self.forwarding = Forwarding(self.attachment, Address(host, port), sock, self.traffic)
        local = address_of(sock).real_port
        await self.stack.enter_async_context(self.forwarding)
        return local

    async def expose(self, name: str, port: int) -> None:
        """A service that is a port of this machine."""
        await self.stack.enter_async_context(Exposing(self.attachment, name, Address(HERE, port), self.traffic))

    async def connect(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A plain connection, reset at the end unless it was closed."""
        reader, writer = await asyncio.open_connection(HERE, port)
        self.stack.callback(writer.transport.abort)
        return reader, writer


@asynccontextmanager
async def open_rig(**options: Any) -> AsyncIterator[Rig]:
    running = relay(settings(exit="inline", switch={"settle_us": 1}))  # services need no time to come back
    async with running, AsyncExitStack() as outer:
        url = f"http://{running.addresses[0]}"
        chosen = {"token": TOKENS["ann"], "proxy": None, "linger": 0.1, **options}
        attachment = await outer.enter_async_context(attach(url, **chosen))
        async with AsyncExitStack() as stack:
            yield Rig(running, attachment, stack)
