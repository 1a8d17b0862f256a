"""What several tests of the web service share: raw HTTP, links, WebSocket frames, and the admin listener."""

from __future__ import annotations

import asyncio
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Self

import aiohttp
import pytest

from tests.servlet.rig import LOOPBACK, TOKENS, Client, exchange_body, relay, settings
from tunnel import Attachment, StreamReader, StreamWriter, attach
from tunnel.carriers.halves.link_protocol import LINK_LANE, LINK_PROTOCOL
from tunnel.exchange import LinkState
from tunnel.wire import (
    ENVELOPE_BYTES,
    LINK_HEADER_SIZE,
    Answer,
    LinkHeader,
    Packet,
    Target,
    TargetKind,
    decode_envelope,
    decode_link_header,
    encode_packets,
    parse_packets,
)
from tunnel_servlet.access.grants import Grant, GrantTable
from tunnel_servlet.access.rules import parse_rule
from tunnel_servlet.access.tokens import make_admin_secret
from tunnel_servlet.config import RelayConfig, TlsFiles
from tunnel_servlet.web.running import RunningRelay

__all__ = [
    "ALLOWED",
    "ANY",
    "BINARY",
    "CONTINUATION",
    "HEAD",
    "MASK",
    "METADATA",
    "NEVER_US",
    "PING",
    "SECRET",
    "STREAM",
    "TEXT",
    "Echo",
    "Link",
    "TurnCounter",
    "admin",
    "answer",
    "ask",
    "certificates",
    "close",
    "connect",
    "files",
    "frame",
    "hang_up",
    "inline",
    "linked",
    "opened",
    "opening",
    "openssl",
    "raw",
    "request",
    "still_echoes",
    "two_clients",
]

SECRET = make_admin_secret(Random(9))


def admin(**changes: Any) -> RelayConfig:
    return settings(admin=LOOPBACK, admin_secret=SECRET, **changes)


async def ask(running: RunningRelay, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    """Ask the admin listener as the operator does."""
    names = {"Tunnel-Admin": running.relay.admin_secret}
    names |= {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"http://{running.admin}{path}", headers=names) as response,
    ):
        return response.status, await response.text()


class TurnCounter:
    """Counts what happens in each turn of the event loop."""

    def __init__(self) -> None:
        self.turn = 0
        self.counts: Counter[int] = Counter()
        self._task = asyncio.ensure_future(self._count())

    async def _count(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)

    def note(self, number: int = 1) -> None:
        self.counts[self.turn] += number

    def stop(self) -> int:
        """Stop counting, and return the largest number of one turn."""
        self._task.cancel()
        return max(self.counts.values())


def request(body: bytes, user: str) -> bytes:
    head = f"POST /exchange HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKENS[user]}\r\n"
    return f"{head}Content-Type: application/octet-stream\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


HEAD = f"POST /exchange HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKENS['ann']}\r\n".encode()
HEAD += b"Content-Type: application/octet-stream\r\n"


async def connect(running: RunningRelay) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    address = running.addresses[0]
    return await asyncio.open_connection(address.host, address.port)


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Read one whole HTTP answer."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    return int(head.split()[1]), await reader.readexactly(int(length.split(b":")[1]))


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    await asyncio.gather(writer.wait_closed(), return_exceptions=True)


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with ca.pem, relay.pem and client.pem, and the key of each. The CA has signed the other two."""
    folder = tmp_path_factory.mktemp("certificates")
    new = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    openssl(folder, *new, "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem")
    for name in ("relay", "client"):
        signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "subjectAltName=IP:127.0.0.1"]
        openssl(folder, *new, *signed, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")
    return folder


def files(folder: Path, client_ca: str = "") -> TlsFiles:
    return TlsFiles(str(folder / "relay.pem"), str(folder / "relay.key"), client_ca and str(folder / client_ca))


NEVER_US = 1 << 60
METADATA = Target(TargetKind.TCP, "169.254.169.254", 80)


class Link:
    """The endpoint's side, on plain streams."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.state = LinkState()
        self.tokens = 0

    @classmethod
    async def connect(cls, running: RunningRelay, user: str = "ann", token: str = "", **options: Any) -> Self:
        """Send the HTTP request; return when 101 has arrived."""
        address = running.addresses[0]
        options = options or {"host": address.host, "port": address.port}
        reader, writer = await asyncio.open_connection(**options)
        head = f"GET /link HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: {LINK_PROTOCOL}\r\n"
        writer.write(f"{head}Authorization: Bearer {token or TOKENS[user]}\r\n\r\n".encode())
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 101")
        assert f"upgrade: {LINK_PROTOCOL}".encode() in answer.lower()
        return cls(reader, writer)

    async def message(self) -> Any:
        """Read the next envelope."""
        head = await self.reader.readexactly(ENVELOPE_BYTES)
        return decode_envelope(head + await self.reader.readexactly(int.from_bytes(head[8:12], "big")))

    def send(self, *packets: Packet) -> None:
        self.tokens += 1
        self.writer.writelines(map(bytes, self.state.send(list(encode_packets(packets)), self.tokens)))

    async def batch(self) -> tuple[LinkHeader, list[Packet]]:
        """Read the next batch; a lone receipt is a batch without packets."""
        head = await self.reader.readexactly(LINK_HEADER_SIZE)
        header = decode_link_header(head)
        assert header is not None
        body = await self.reader.readexactly(header.length)
        self.state.receive(head + body, 0)
        assert self.state.closed == ""
        return header, parse_packets(body)[0]

    async def packets(self) -> list[Packet]:
        """Read up to the next batch with packets; return them."""
        while not (found := (await self.batch())[1]):
            pass
        return found

    def send_receipt(self) -> None:
        self.writer.writelines(map(bytes, self.state.handle_timeout(NEVER_US)))

    async def ended(self) -> bytes:
        """Return the data up to the end of the stream, which must come."""
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return b""

    async def close(self) -> None:
        self.writer.close()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)


def opening(client: Client, seed: int = 1, **changes: Any) -> bytes:
    return exchange_body(client.epoch, seed=seed, **{"number": 0, "lane": LINK_LANE, "hold_ms": 0, **changes})


@asynccontextmanager
async def linked(running: RunningRelay, client: Client, user: str = "ann", seed: int = 1) -> AsyncIterator[Link]:
    """Attach, and open a link with its first message."""
    await client.attach(seed=seed)
    link = await Link.connect(running, user)
    link.writer.write(opening(client, seed))
    answer = await link.message()
    assert isinstance(answer, Answer)
    assert (answer.lane, answer.number, answer.serial, len(answer.data)) == (LINK_LANE, 0, 0, 0)
    try:
        yield link
    finally:
        await link.close()


BINARY, TEXT, CONTINUATION, PING = 0x2, 0x1, 0x0, 0x9
MASK = b"\1\2\3\4"


@asynccontextmanager
async def raw(running: RunningRelay, user: str, early: bytes = b"") -> AsyncIterator[Any]:
    """Open a websocket on plain streams, for frames that aiohttp does not send."""
    reader, writer = await connect(running)
    head = f"GET /link HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKENS[user]}\r\nConnection: Upgrade\r\n"
    more = "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
    writer.write((head + more).encode() + early)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
    try:
        yield reader, writer
    finally:
        await close(writer)


def frame(opcode: int, payload: bytes = b"", *, last: bool = True, size: int = -1, mask: bool = True) -> bytes:
    """Return a frame in its wire form. With `size` its header announces another length."""
    size = len(payload) if size < 0 else size
    short = size if size < 126 else 126 if size < 65536 else 127
    more = size.to_bytes({126: 2, 127: 8}[short], "big") if short > 125 else b""
    masked = bytes(byte ^ MASK[index % 4] for index, byte in enumerate(payload)) if mask else payload
    return bytes([opcode | 0x80 * last, short | 0x80 * mask]) + more + (MASK if mask else b"") + masked


STREAM = {"pull": True, "stream": True, "hold_ms": 20_000, "answer_bytes_max": 1 << 26}


ANY = Grant(connect=(parse_rule("127.0.0.0/8:*"),), services=("*",), listen=("*",))
ALLOWED = {"ann": ANY, "bob": ANY, "exits": Grant(exit=True)}


class Echo:
    """A target that echoes, and counts the connections that are open."""

    def __init__(self) -> None:
        self.open = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            while chunk := await reader.read(1 << 16):
                writer.write(chunk)
                await writer.drain()
        finally:
            self.open -= 1


Streams = tuple[StreamReader, StreamWriter]


@asynccontextmanager
async def two_clients(running: RunningRelay, **options: Any) -> AsyncIterator[tuple[Attachment, Attachment]]:
    """Attach ann and bob."""
    url = f"http://{running.addresses[0]}"
    common: dict[str, Any] = {"proxy": None, "linger": 0.1, **options}
    async with attach(url, token=TOKENS["ann"], **common) as ann, attach(url, token=TOKENS["bob"], **common) as bob:
        yield ann, bob


async def opened(client: Attachment, port: int) -> Streams:
    streams = await client.open_connection("127.0.0.1", port)
    await still_echoes(streams)
    return streams


async def still_echoes(streams: Streams, size: int = 5) -> None:
    reader, writer = streams
    payload = bytes(range(1, 251)) * (size // 250 + 1)
    writer.write(payload)
    assert await reader.readexactly(len(payload)) == payload


async def hang_up(*all_streams: Streams) -> None:
    for _, writer in all_streams:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


def inline(**switch: Any) -> RunningRelay:
    return relay(settings(exit="inline", grants=GrantTable(ALLOWED), switch={"settle_us": 0, **switch}))
