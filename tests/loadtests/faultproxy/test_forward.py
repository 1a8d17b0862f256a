"""The proxy as a forward proxy: absolute URLs and CONNECT."""

import asyncio

import pytest

from loadtests.faultproxy import Drop, Status
from loadtests.harness.ports import hold_port
from tests.loadtests.faultproxy.rig import Client, Origin, Rig, ended, in_loop, reset


async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server that answers in capitals, and says `bye` after the client's end of stream."""
    while data := await reader.read(65536):
        writer.write(data.upper())
    writer.write(b" bye")
    writer.close()
    await writer.wait_closed()


async def connect(client: Client, address: tuple[str, int], *, more: bytes = b"") -> int:
    """Ask for a tunnel, and send `more` without waiting for the answer; return the status."""
    host, port = address
    await client.send(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode() + more)
    answer = await client.answer(bodiless=True)
    assert "content-length" not in answer.headers or answer.status != 200
    return answer.status


@in_loop
async def test_requests_with_absolute_urls_reach_the_hosts_in_them() -> None:
    async with Rig(upstream=None) as rig, Origin() as second:
        client = await rig.connect()
        for origin in (rig.origin, second, rig.origin):
            answer = await client.post(b"body", f"{origin.url}/path?query")
            assert (answer.body, answer.headers["x-target"]) == (b"body", "/path?query")
        host = "{}:{}".format(*second.address)
        assert [request.headers["host"] for request in second.received] == [host]
        assert rig.origin.connections == 2  # a client's connection has one upstream connection at a time
        await client.request("GET", rig.origin.url)
        assert (await client.answer()).headers["x-target"] == "/"


@in_loop
@pytest.mark.parametrize(
    "target", ["/", "https://origin.test/", "ftp://origin.test/", "http:///", "http://origin.test:x/"]
)
async def test_a_request_without_a_usable_target_is_refused(target: str) -> None:
    async with Rig(upstream=None) as rig:
        client = await rig.connect()
        answer = await client.post(b"body", target)
        assert (answer.status, answer.body) == (400, b"400 the proxy cannot tell where to forward this request\n")
        assert rig.proxy.counts.bad_requests == 1
        assert (await client.post(b"body", rig.origin.url)).status == 200


@in_loop
async def test_connect_makes_a_tunnel() -> None:
    async with await asyncio.start_server(shout, "127.0.0.1", 0) as server, Rig() as rig:
        client = await rig.connect()
        assert await connect(client, server.sockets[0].getsockname(), more=b"early ") == 200
        await client.send(b"words")
        assert await client.reader.readexactly(11) == b"EARLY WORDS"
        client.writer.write_eof()
        assert await client.ended() == b" bye"  # each direction has its own end
        counts = rig.proxy.counts
        assert (counts.tunnels, counts.exchanges, counts.request_bytes, counts.response_bytes) == (1, 1, 11, 15)
        assert rig.origin.connections == 0


@in_loop
async def test_http_inside_a_tunnel_is_not_parsed() -> None:
    async with Rig(statuses=(Status(503, 0),)) as rig:
        client = await rig.connect()
        assert await connect(client, rig.origin.address) == 200
        for _ in range(3):
            assert (await client.post(b"x" * 500_000)).body == b"x" * 500_000
        assert rig.proxy.counts.exchanges == 1


@in_loop
async def test_a_broken_tunnel_is_broken_on_both_sides() -> None:
    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        broken.set_result(await ended(reader) is None)
        writer.close()

    broken = asyncio.get_running_loop().create_future()
    async with await asyncio.start_server(listen, "127.0.0.1", 0) as server, Rig() as rig:
        client = await rig.connect()
        assert await connect(client, server.sockets[0].getsockname()) == 200
        reset(client.writer)
        assert await broken


@in_loop
async def test_connect_to_a_closed_port_gets_502_and_to_an_invalid_target_400() -> None:
    with hold_port() as port:
        async with Rig() as rig:
            client = await rig.connect()
            assert await connect(client, ("127.0.0.1", port)) == 502
            assert (await client.reader.readexactly(27)).endswith(b"upstream\n")
            assert (await client.post(b"x")).status == 200  # the connection still speaks HTTP
    async with Rig() as rig:
        client = await rig.connect()
        await client.send(b"CONNECT nonsense HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await client.answer()).status == 400


@in_loop
async def test_connect_can_be_dropped_and_replaced() -> None:
    async with Rig(drop_request=Drop(1)) as rig:
        client = await rig.connect()
        await client.send(b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n")
        assert await client.ended() == b""
        assert rig.faults == [("request_lost", 1, "drop_request")]
    async with Rig(drop_response=Drop(1)) as rig:
        client = await rig.connect()
        await client.send("CONNECT {}:{} HTTP/1.1\r\nHost: a\r\n\r\n".format(*rig.origin.address).encode())
        assert await client.ended() == b""
        assert (rig.faults, rig.origin.connections) == ([("response_lost", 1, "drop_response")], 1)
    async with Rig(statuses=(Status(504, 1, after=True),)) as rig:
        assert await connect(await rig.connect(), rig.origin.address) == 504
        assert rig.faults == [("answer_replaced", 1, "status after")]
