"""A relay with public ports, and strangers who dial them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import msgspec

from loadtests.harness.ports import hold_port
from tests.servlet.rig import LOOPBACK, TOKENS, relay, settings
from tunnel import Attachment, PublicPlace, Server, StreamReader, StreamWriter, attach
from tunnel_servlet.access.grants import Grant, GrantTable, parse_public_address
from tunnel_servlet.config import AuditSettings, ListenAddress, TlsFiles
from tunnel_servlet.web.running import RunningRelay

__all__ = ["Rig", "echo", "greet", "replace_tls", "request", "rig", "shut", "talk", "usual"]


class Rig:
    """A relay at which ann and bob may each open one port and one host name. Otherwise both have the same rights."""

    def __init__(self, running: RunningRelay, ports: dict[str, int], attachments: dict[str, Attachment]) -> None:
        self.running = running
        self.ports = ports
        self.users = attachments
        self.http = running.public_addresses[0].port
        self.public = running.relay.public_ports

    async def serve(
        self, user: str, name: str, place: PublicPlace, handler: Callable[..., Any] | None = None
    ) -> Server:
        return await self.users[user].start_server(handler or greet, name, public=place)

    def grants(self, everyone: Grant | None = None, **changes: Grant) -> GrantTable:
        """The table of the rig, with other grants for some users."""
        return GrantTable({**usual(self.ports), **changes}, everyone)


def replace_tls(address: ListenAddress) -> ListenAddress:
    return msgspec.structs.replace(address, tls=False)


def usual(ports: dict[str, int]) -> dict[str, Grant]:
    def grant(user: str) -> Grant:
        public = (parse_public_address(f"{LOOPBACK.host}:{ports[user]}"),)
        return Grant(listen=("*",), services=("*",), public=public, public_hosts=(f"{user}.example",))

    return {user: grant(user) for user in ("ann", "bob")}


@asynccontextmanager
async def rig(*, tls: TlsFiles | None = None, audit: AuditSettings | None = None, **limits: Any) -> AsyncIterator[Rig]:
    with hold_port() as one, hold_port() as other:
        ports = {"ann": one, "bob": other}
        config = settings(
            grants=GrantTable(usual(ports)),
            public_http=(LOOPBACK,),
            limits=limits,
            switch={"settle_us": 1},
            tls=tls,
            audit=audit,
        )
        if tls is not None:  # only strangers use TLS here
            config = replace(config, listen=(replace_tls(LOOPBACK),))
        async with relay(config) as running:
            url = f"http://{running.addresses[0]}"
            async with (
                attach(url, token=TOKENS["ann"], proxy=None, linger=0.1) as ann,
                attach(url, token=TOKENS["bob"], proxy=None, linger=0.1) as bob,
            ):
                yield Rig(running, ports, {"ann": ann, "bob": bob})


async def greet(reader: StreamReader, writer: StreamWriter) -> None:
    """Answer one HTTP request. The body of the answer is the whole request."""
    head = await reader.readuntil(b"\r\n\r\n")
    body = b""
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            body = await reader.readexactly(int(line.partition(b":")[2]))
    if b"chunked" in head.lower():
        body = await reader.readuntil(b"0\r\n\r\n")
    said = head + body
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(said), said))
    writer.write_eof()
    with suppress(Exception):
        await reader.read()
    writer.close()


async def echo(reader: StreamReader, writer: StreamWriter) -> None:
    with suppress(Exception):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    writer.close()


async def talk(port: int, sent: bytes, *, ends: bool = False, source: str = LOOPBACK.host) -> bytes:
    """Send bytes to a public port, and return all that comes back, or `reset` if the connection was reset."""
    reader, writer = await asyncio.open_connection(LOOPBACK.host, port, local_addr=(source, 0))
    try:
        writer.write(sent)
        if ends:
            writer.write_eof()
        return await reader.read()
    except OSError:
        return b"reset"
    finally:
        await shut(writer)


async def shut(*writers: asyncio.StreamWriter) -> None:
    """Close connections, and return when they are closed."""
    for writer in writers:
        writer.close()
    await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)


async def request(port: int, host: str, *lines: str, body: bytes = b"", source: str = LOOPBACK.host) -> bytes:
    head = "\r\n".join([f"POST /path?x=1 HTTP/1.1\r\nHost: {host}", *lines, "", ""])
    return await talk(port, head.encode() + body, source=source)
