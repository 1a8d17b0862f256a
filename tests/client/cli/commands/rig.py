"""Forwards and services in this process, through a real relay, and clients that are plain sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from tests.servlet.rig import TOKENS, relay, settings
from tests.support.targets import target
from tunnel import Attachment, attach
from tunnel.ground.defaults import BACKLOG
from tunnel_client.cli.commands.expose import Exposing
from tunnel_client.cli.commands.forward import Forwarding
from tunnel_client.forward.listening import address_of, bind
from tunnel_client.forward.traffic import Traffic
from tunnel_client.places import Address
from tunnel_servlet.web.running import RunningRelay

__all__ = ["LOOPBACK", "Rig", "Waiting", "echo", "open_rig", "target"]

LOOPBACK = "127.0.0.1"


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(65536):
        writer.write(chunk)
        await writer.drain()
    writer.write_eof()


class Waiting:
    """A handler for `target()`: sends `greeting`, then reads to the end. `outcome`: the data it read, or the error."""

    def __init__(self, greeting: bytes = b"half") -> None:
        self.outcome: asyncio.Future[BaseException | bytes] = asyncio.get_running_loop().create_future()
        self._greeting = greeting

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self._greeting)
        try:
            self.outcome.set_result(await reader.read())
        except ConnectionError as error:
            self.outcome.set_result(error)


class Rig:
    """A relay with an inline exit, and an attachment of ann, who may connect to any public or loopback target."""

    def __init__(self, running: RunningRelay, attachment: Attachment, stack: AsyncExitStack) -> None:
        self.running = running
        self.attachment = attachment
        self.traffic = Traffic(attachment)
        self.stack = stack

    async def forward(self, host: str, port: int | None = None) -> int:
        """Forward a local port to this target; return the port."""
        sock = bind(Address(LOOPBACK, 0))
        self.stack.callback(sock.close)
        self.forwarding = Forwarding(self.attachment, Address(host, port), sock, self.traffic)
        local = address_of(sock).tcp_port
        await self.stack.enter_async_context(self.forwarding)
        return local

    async def expose(self, name: str, port: int, backlog: int = BACKLOG) -> None:
        """Expose a port of this machine as a service."""
        exposing = Exposing(self.attachment, name, Address(LOOPBACK, port), self.traffic, backlog)
        await self.stack.enter_async_context(exposing)

    async def connect(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A plain connection to a local port, reset at the end of the rig unless it was closed."""
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        self.stack.callback(writer.transport.abort)
        return reader, writer


@asynccontextmanager
async def open_rig(**options: Any) -> AsyncIterator[Rig]:
    running = relay(settings(exit="inline", switch={"settle_us": 1}))  # do not wait for services to attach again
    async with running, AsyncExitStack() as outer:
        url = f"http://{running.addresses[0]}"
        chosen = {"token": TOKENS["ann"], "proxy": None, "linger": 0.1, **options}
        attachment = await outer.enter_async_context(attach(url, **chosen))
        async with AsyncExitStack() as stack:
            yield Rig(running, attachment, stack)
