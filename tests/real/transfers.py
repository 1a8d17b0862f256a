"""A relay in this process, and transfers of some MiB to it: both ways at once, compared by digest."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servlet.rig import TOKENS, settings
from tests.support.certificates import TLS
from tunnel import Attachment, StreamReader, StreamWriter, attach
from tunnel.core import ConnectionStats
from tunnel_servlet.config import ListenAddress, TlsFiles
from tunnel_servlet.web.running import RunningRelay

__all__ = [
    "CA",
    "MIB",
    "Moved",
    "a_relay",
    "access_log",
    "client",
    "digest_service",
    "move",
    "noise",
    "statuses",
    "until",
]

MIB = 1 << 20
_CHUNK_BYTES = 64 << 10
CA = str(TLS / "ca.pem")
_WAIT_S = 50  # only a hanging transfer reaches it


@dataclass
class Moved:
    """Statistics of a transfer."""

    carrier: str
    stats: list[ConnectionStats]  # of the connections that the client's endpoint still has after the transfer


@asynccontextmanager
async def a_relay(port: int, *, tls_port: int = 0, **changes: Any) -> AsyncIterator[RunningRelay]:
    """A relay at this port, with a service `reports` that sends back digests and noise. With `tls_port`, the relay
    also listens there, over TLS."""
    listen = [ListenAddress("127.0.0.1", port, False)]
    tls = None
    if tls_port:
        listen.append(ListenAddress("127.0.0.1", tls_port, True))
        tls = TlsFiles(str(TLS / "server.pem"), str(TLS / "server.pem"))
    config = settings(listen=tuple(listen), tls=tls, **changes)
    async with RunningRelay(config) as running, client(f"http://127.0.0.1:{port}", "ann", carrier="link") as service:
        await service.start_server(digest_service, "reports")
        yield running


def client(url: str, user: str = "bob", **options: Any) -> Attachment:
    """An attachment of this user; by default it uses no proxy, and exchanges only."""
    defaults: dict[str, Any] = {"token": TOKENS[user], "proxy": None, "carrier": "poll", "attach_timeout": 40}
    return attach(url, **{**defaults, **options})


async def digest_service(reader: StreamReader, writer: StreamWriter) -> None:
    """Read a size (8 bytes), send that much noise while reading to the end, then send the digest of the input."""
    size = int.from_bytes(await reader.readexactly(8), "big")

    async def send() -> None:
        data = noise(size, seed=2)
        for start in range(0, size, _CHUNK_BYTES):
            writer.write(data[start : start + _CHUNK_BYTES])
            await writer.drain()

    sending = asyncio.create_task(send())
    digest = hashlib.sha256()
    while data := await reader.read(_CHUNK_BYTES):
        digest.update(data)
    await sending
    writer.write(digest.digest())
    writer.close()
    await writer.wait_closed()


async def move(attachment: Attachment, size: int = 2 * MIB, connections: int = 2) -> Moved:
    """Move `size` bytes each way at once over each connection; assert that every byte is right."""
    async with asyncio.timeout(_WAIT_S):
        await asyncio.gather(*[_move_one(attachment, size, seed) for seed in range(10, 10 + connections)])
    stats = attachment.stats()
    return Moved(stats.carrier, list(stats.connections.values()))


async def _move_one(attachment: Attachment, size: int, seed: int) -> None:
    reader, writer = await attachment.open_connection("reports", timeout=40)
    data = noise(size, seed)

    async def send() -> None:
        writer.write(size.to_bytes(8, "big"))
        for start in range(0, size, _CHUNK_BYTES):
            writer.write(data[start : start + _CHUNK_BYTES])
            await writer.drain()
        writer.write_eof()

    sending = asyncio.create_task(send())
    try:
        received = await reader.readexactly(size)
        await sending
        assert received == noise(size, seed=2)
        assert await reader.read() == hashlib.sha256(data).digest()
        writer.close()
        await writer.wait_closed()
    finally:
        sending.cancel()


def noise(size: int, seed: int) -> bytes:
    """Return incompressible bytes, the same for the same seed."""
    return hashlib.shake_128(seed.to_bytes(4, "big")).digest(size)


def access_log(directory: Path) -> list[str]:
    """Return nginx's access log: a line for each request that it answered."""
    return (directory / "access.log").read_text().splitlines()


def statuses(directory: Path) -> list[int]:
    """Return the statuses of nginx's answers, in order."""
    return [int(line.split()[0]) for line in access_log(directory)]


async def until(condition: Callable[[], object]) -> None:
    """Return when the condition holds. It is polled, since other programs give no event to await."""
    async with asyncio.timeout(_WAIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
