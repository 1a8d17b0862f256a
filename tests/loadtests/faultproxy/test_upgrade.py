"""An Upgrade makes a tunnel of raw bytes, which suffers the same faults as bodies."""

import asyncio
from typing import Any

import pytest

from loadtests.faultproxy import Delay, Drop, Flip, Html, IdleCut, Truncate
from tests.loadtests.faultproxy.rig import Client, Received, Rig, in_loop, reset

SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\nX-More: 1\r\n\r\n"


async def switching(request: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Switch protocols, then echo; say hello right after the head, and bye at the end."""
    if request.headers.get("upgrade") != "echo":
        writer.write(b"HTTP/1.1 426 Upgrade Required\r\nContent-Length: 0\r\n\r\n")
        return
    writer.write(SWITCH + b"hello ")
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.write(b" bye")
    writer.close()


async def upgrade(rig: Rig, *, more: bytes = b"") -> Client:
    client = await rig.connect()
    head = b"GET /link HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: echo\r\n\r\n"
    await client.send(head + more)
    return client


async def upgraded(rig: Rig, *, more: bytes = b"") -> Client:
    client = await upgrade(rig, more=more)
    answer = await client.answer()
    assert answer.status == 101
    assert answer.headers == {"x-more": "1", "upgrade": "echo", "connection": "Upgrade"}
    return client


@in_loop
@pytest.mark.parametrize("options", [{}, {"buffer": True}, {"duplicate": 1.0}, {"limit_bytes": 1}])
async def test_bytes_pass_both_ways(options: dict[str, Any]) -> None:
    async with Rig(switching, **options) as rig:
        client = await upgraded(rig, more=b"early ")
        data = bytes(range(256)) * 4096
        sending = asyncio.ensure_future(client.send(data))
        assert await client.reader.readexactly(12 + len(data)) == b"hello early " + data
        await sending
        client.writer.write_eof()
        assert await client.ended() == b" bye"
        assert (rig.proxy.counts.tunnels, len(rig.origin.received)) == (1, 1)
        assert rig.origin.received[0].headers["connection"] == "Upgrade"
        assert rig.records == []


@in_loop
async def test_an_upgrade_may_be_refused() -> None:
    async with Rig() as rig:
        client = await upgrade(rig)
        assert (await client.answer()).body == b"nothing"
        assert (await client.post(b"http")).body == b"http"


@in_loop
async def test_an_upgrade_may_be_stripped() -> None:
    async with Rig(switching, no_upgrade=True) as rig:
        client = await upgrade(rig)
        assert (await client.answer()).status == 426
        assert set(rig.origin.received[0].headers) == {"host"}


@in_loop
async def test_an_end_by_upstream_reaches_the_client() -> None:
    async def brief(_: Received, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SWITCH + b"that is all")
        writer.close()

    async with Rig(brief) as rig:
        client = await upgraded(rig)
        assert await client.ended() == b"that is all"


@in_loop
async def test_a_reset_by_upstream_reaches_the_client() -> None:
    async def rude(_: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SWITCH)
        await reader.readexactly(1)
        reset(writer)

    async with Rig(rude) as rig:
        client = await upgraded(rig)
        await client.send(b"x")
        assert await client.ended() is None


@in_loop
async def test_faults_of_the_response_apply_to_the_upgrade() -> None:
    async with Rig(switching, drop_response=Drop(1)) as rig:
        assert await (await upgrade(rig)).ended() == b""
        assert rig.faults == [("response_lost", 1, "drop_response")]
    async with Rig(switching, html=Html(1, after=True)) as rig:
        answer = await (await upgrade(rig)).answer()
        assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")


@in_loop
async def test_a_delayed_tunnel_keeps_its_bytes_and_their_order() -> None:
    async with Rig(switching, delay=Delay(2_000)) as rig:
        client = await upgraded(rig)
        assert await client.reader.readexactly(6) == b"hello "
        data = bytes(range(256)) * 40_000  # more than may be in flight
        sending = asyncio.ensure_future(client.send(data))
        assert await client.reader.readexactly(len(data)) == data
        await sending
        client.writer.write_eof()
        assert await client.ended() == b" bye"
        assert rig.faults == [("request_delayed", 1, "delay request"), ("response_delayed", 1, "delay response")]
        assert [record.latency_us for record in rig.records] == [2_000, 2_000]


@in_loop
async def test_a_client_may_reset_a_delayed_tunnel() -> None:
    async with Rig(switching, delay=Delay(2_000)) as rig:
        client = await upgraded(rig)
        client.writer.transport.abort()
        await rig.turns()
        assert rig.proxy.counts.tunnels == 1


@in_loop
@pytest.mark.parametrize(("side", "cause"), [("request", "request_truncated"), ("response", "response_truncated")])
async def test_a_tunnel_is_truncated(side: str, cause: str) -> None:
    async with Rig(switching, truncate=Truncate(1, side, "short")) as rig:
        client = await upgraded(rig)
        data = bytes(range(256)) * 4096  # 1 MiB: the place of a cut always lies within it
        sending = asyncio.ensure_future(client.send(data))
        got = await client.ended() or b""
        await asyncio.gather(sending, return_exceptions=True)
        (record,) = rig.records
        assert (record.cause, record.text) == (cause, f"truncate {side} cut")
        assert (b"hello " + data).startswith(got)
        assert len(got) <= len(data)
        assert side == "request" or len(got) <= record.size_bytes  # less if the end came as RST


@in_loop
async def test_bits_of_a_tunnel_flip() -> None:
    async with Rig(switching, flip=Flip(1, "response", 64)) as rig:
        client = await upgraded(rig)
        data = bytes(1 << 20)
        sending = asyncio.ensure_future(client.send(data))
        got = await client.reader.readexactly(len(data))
        await sending
        flipped = (int.from_bytes(got) ^ int.from_bytes((b"hello " + data)[: len(got)])).bit_count()
        (record,) = rig.records
        assert record.cause == "response_corrupted"
        assert 1 <= flipped <= record.count <= 64


@in_loop
async def test_an_idle_tunnel_is_cut() -> None:
    async with Rig(switching, idle_cut=IdleCut(300_000)) as rig:
        client = await upgraded(rig)
        assert await client.ended() is None
        assert rig.faults == [("connection_reset", 0, "idle_cut")]


@in_loop
async def test_a_blackhole_holds_the_bytes_of_a_tunnel() -> None:
    async with Rig(switching) as rig:
        client = await upgraded(rig)
        assert await client.reader.readexactly(6) == b"hello "
        reading = asyncio.ensure_future(client.reader.readexactly(6))
        with rig.proxy.blackhole():
            await client.send(b"behind")
            await rig.turns()
            assert not reading.done()
        assert await reading == b"behind"
        assert rig.faults == [("blackhole", 0, "blackhole both"), ("faults_healed", 0, "blackhole both")]
