"""Clients that attack a relay process while an honest client must not notice (scenarios 38 and 39)."""

import asyncio
import gzip
from pathlib import Path

import aiohttp

from loadtests.harness.ports import hold_port
from tests.scenarios.rig import MIB, client, echo_digest, peak_resident_bytes, relay_process
from tests.servlet.rig import TOKENS, attach_body, exchange_body
from tests.support.loops import in_loop
from tunnel import Attachment, StreamReader, StreamWriter
from tunnel.wire import Attached, Packet, PacketType, decode_envelope

HEAD = (
    "POST /exchange HTTP/1.1\r\nHost: relay\r\nContent-Type: application/octet-stream\r\n"
    f"Authorization: Bearer {TOKENS['ann']}\r\n"
).encode()
CROWD = 200
MEMORY_BYTES_MAX = 64 * MIB  # the growth that abuse may cause


async def serve(reader: StreamReader, writer: StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


async def honest(attachment: Attachment, service: Attachment) -> tuple[StreamReader, StreamWriter]:
    await service.start_server(serve, "echo")
    reader, writer = await attachment.open_connection("echo", timeout=40)
    await echo_digest(reader, writer, 100_000)
    return reader, writer


async def send(port: int, *parts: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for part in parts:
        writer.write(part)
        await writer.drain()
    return reader, writer


async def status(port: int, *parts: bytes) -> int:
    """Send a request; return the status of its answer."""
    reader, writer = await send(port, *parts)
    line = await reader.readline()
    writer.close()
    return int(line.split()[1])


@in_loop
async def test_38_connections_that_send_no_complete_request_are_closed(tmp_path: Path) -> None:
    with hold_port() as port:
        async with (
            relay_process(tmp_path, port, header_seconds=2, body_seconds=2),
            client(port, "exits") as service,
            client(port) as attachment,
        ):
            reader, writer = await honest(attachment, service)
            starts = (b"", b"POST /exch", HEAD + b"Content-Length: 1000\r\n\r\nTUNL")
            crowd = [await send(port, starts[number % len(starts)]) for number in range(CROWD)]
            await echo_digest(reader, writer, MIB)
            for theirs, _ in crowd:
                answer = await theirs.read()
                assert answer == b"" or answer.startswith(b"HTTP/1.1 408 ")
            for _, theirs_out in crowd:
                theirs_out.close()
            await echo_digest(reader, writer, 100_000)
            writer.close()
            await writer.wait_closed()


@in_loop
async def test_39_hostile_bodies_are_refused_and_cost_little_memory(tmp_path: Path) -> None:
    with hold_port() as port:
        async with (
            relay_process(tmp_path, port) as relay,
            client(port, "exits") as service,
            client(port) as attachment,
        ):
            reader, writer = await honest(attachment, service)
            before = peak_resident_bytes(relay.pid)
            bomb = gzip.compress(bytes(32 * MIB))
            body = b"Content-Length: %d\r\n\r\n"
            for number in range(1, 3):
                assert await status(port, HEAD + b"Content-Encoding: gzip\r\n" + body % len(bomb) + bomb) == 415
                assert await status(port, HEAD + body % (1 << 31)) == 413
                assert await status(port, HEAD + b"Host: other\r\n" + body % 0) == 400
                assert await status(port, HEAD + b"Transfer-Encoding: chunked\r\n" + body % 1) == 400
                assert await status(port, HEAD + b"Content-Length: 1\r\n" + body % 2 + b"xx") == 400
                assert await status(port, *pieces(attach_body(7))) == 200
                assert await status(port, HEAD + body % (MIB - 1) + b"\xff" * (MIB - 1)) == 400
                assert await many_packets(f"http://127.0.0.1:{port}", number) == 413
                await echo_digest(reader, writer, 100_000)
            assert peak_resident_bytes(relay.pid) - before < MEMORY_BYTES_MAX
            writer.close()
            await writer.wait_closed()


def pieces(data: bytes) -> list[bytes]:
    """Return a request whose body comes in chunks of one byte each."""
    return [HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[b"1\r\n%c\r\n" % byte for byte in data], b"0\r\n\r\n"]


async def many_packets(url: str, number: int) -> int:
    """Attach, and send a body full of the smallest packets that exist; return the status of the answer."""
    packets = [Packet(PacketType.NOOP, 1, 2, 3, b"")] * (MIB // 24 - 10)
    headers = {"Authorization": f"Bearer {TOKENS['ann']}", "Content-Type": "application/octet-stream"}
    async with aiohttp.ClientSession(headers=headers) as session:
        async with session.post(f"{url}/exchange", data=attach_body(generation=number)) as response:
            attached = decode_envelope(await response.read())
        assert isinstance(attached, Attached)
        body = exchange_body(attached.epoch, 1, *packets, generation=number)
        async with session.post(f"{url}/exchange", data=body) as response:
            return response.status
