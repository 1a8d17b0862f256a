"""The proxy's settings: size limits, buffering, idle cuts, blackholes, one connection at a time."""

import asyncio
import contextlib
import socket

import pytest

from loadtests.faultproxy import Blackhole, Drop, IdleCut
from loadtests.faultproxy import responder as responder_module
from tests.loadtests.faultproxy.rig import Client, Received, Rig, echo, in_loop

BODY = bytes(range(256)) * 256  # 64 KiB


class Holding:
    """A handler that delays its answer until `go_on` is set."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def __call__(self, request: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.go_on.wait()
        await echo(request, reader, writer)


@in_loop
async def test_bodies_up_to_the_limit_pass() -> None:
    async with Rig(limit_bytes=len(BODY)) as rig:
        client = await rig.connect()
        assert (await client.post(BODY)).status == 200
        await client.chunked(BODY[:100], BODY[100:])
        assert (await client.answer()).status == 200
        assert rig.records == []


@in_loop
async def test_a_content_length_above_the_limit_is_refused() -> None:
    async with Rig(limit_bytes=len(BODY) - 1) as rig:
        client = await rig.connect()
        for _ in range(2):
            assert (await client.post(BODY)).status == 413
        await client.request("POST", Expect="100-continue", Content_Length="9999999")
        answer = await client.answer()
        assert (answer.status, answer.headers["connection"]) == (413, "close")
        assert rig.origin.received == []
        assert rig.faults == [("answer_replaced", number, "limit") for number in (1, 2, 3)]
        assert [(record.status, record.size_bytes) for record in rig.records] == [
            (413, len(BODY)),
            (413, len(BODY)),
            (413, 9_999_999),
        ]


@in_loop
@pytest.mark.parametrize("buffer", [False, True])
async def test_a_chunked_body_above_the_limit_is_refused(buffer: bool) -> None:
    async with Rig(limit_bytes=len(BODY) - 1, buffer=buffer) as rig:
        client = await rig.connect()
        for _ in range(2):
            await client.chunked(BODY[:-10], BODY[-10:], BODY)
            assert (await client.answer()).status == 413
        assert not any(request.complete for request in rig.origin.received)
        assert rig.faults == [("answer_replaced", number, "limit") for number in (1, 2)]
        assert rig.proxy.counts.upstream_errors == 0


@in_loop
async def test_a_body_that_exceeds_the_limit_after_the_answer_has_begun_ends_the_connection() -> None:
    async def hasty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"first")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhasty\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hasty, "127.0.0.1", 0)
    async with server, Rig(limit_bytes=10, upstream=server.sockets[0].getsockname()) as rig:
        client = await rig.connect()
        await client.chunked(b"first", end=False)
        await client.reader.readuntil(b"hasty\r\n")
        await client.send(b"6\r\nsecond\r\n")
        assert not await client.ended()
        assert rig.faults == [("answer_replaced", 1, "limit")]
        assert rig.proxy.counts.upstream_errors == 0


@in_loop
async def test_a_buffering_proxy_forwards_only_whole_requests() -> None:
    async with Rig(buffer=True) as rig:
        client = await rig.connect()
        await client.chunked(b"first ", end=False)
        await rig.turns()
        assert rig.origin.connections == 0
        await client.send(b"3\r\nend\r\n0\r\n\r\n")
        assert (await client.answer()).body == b"first end"
        headers = rig.origin.received[0].headers
        assert (headers["content-length"], "transfer-encoding" in headers) == ("9", False)
        assert (await client.post(BODY)).body == BODY


@in_loop
async def test_a_buffering_proxy_answers_expect_100_continue_itself() -> None:
    async with Rig(buffer=True) as rig:
        client = await rig.connect()
        await client.request("POST", Expect="100-continue", Content_Length="4")
        assert (await client.answer()).status == 100
        await client.send(b"body")
        assert (await client.answer()).body == b"body"
        assert "expect" not in rig.origin.received[0].headers


@in_loop
async def test_a_buffering_proxy_forwards_only_whole_responses() -> None:
    async def in_turns(_: Received, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        await go_on.wait()
        writer.write(b"1\r\nb\r\n0\r\n\r\n")

    go_on = asyncio.Event()
    async with Rig(in_turns, buffer=True) as rig:
        client = await rig.connect()
        await client.request("GET")
        reading = asyncio.ensure_future(client.answer())
        await rig.origin.arrivals.get()
        await rig.turns()
        assert not reading.done()
        go_on.set()
        answer = await reading
        assert (answer.body, answer.headers) == (b"ab", {"content-length": "2"})


@in_loop
async def test_bodies_too_large_for_the_buffer_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtests.faultproxy.exchange.COLLECTED_BYTES_MAX", len(BODY) - 1)
    monkeypatch.setattr(responder_module, "COLLECTED_BYTES_MAX", 6)
    async with Rig(buffer=True) as rig:
        client = await rig.connect()
        assert (await client.post(BODY)).status == 413
        await client.request("GET")
        assert (await client.answer()).status == 502
        assert rig.records == []  # no option asked for this fault, so that there is no record


@in_loop
async def test_a_held_response_is_cut() -> None:
    async with Rig(Holding(), idle_cut=IdleCut(300_000)) as rig:
        client = await rig.connect()
        await client.request(body=b"x")
        assert await client.ended() is None
        assert rig.faults == [("connection_reset", 0, "idle_cut")]
        assert len(rig.origin.received) == 1


@in_loop
async def test_a_connection_is_cut_when_it_has_been_idle_since_its_last_byte() -> None:
    async with Rig(idle_cut=IdleCut(500_000)) as rig:  # more than a slow machine takes for a request
        client = await rig.connect()
        for _ in range(3):
            assert (await client.post(b"x")).status == 200
        assert await client.ended() is None
        assert rig.proxy.counts.faults["idle_cut"] == 1


@in_loop
async def test_a_silently_cut_connection_carries_nothing_more() -> None:
    handler = Holding()
    async with Rig(handler, idle_cut=IdleCut(300_000, silent=True)) as rig:
        client = await rig.connect()
        await client.request(body=b"x")
        while not rig.records:
            await rig.turns(1)
        handler.go_on.set()
        await rig.turns()
        await client.request(body=b"y")
        await rig.turns()
        assert not client.reader.at_eof()
        client.writer.write_eof()
        assert await client.ended() == b""
        assert (len(rig.origin.received), rig.faults) == (1, [("connection_reset", 0, "idle_cut silent")])


@in_loop
async def test_a_silently_dropped_exchange_is_cut_when_idle() -> None:
    async with Rig(drop_request=Drop(1, silent=True), idle_cut=IdleCut(300_000)) as rig:
        client = await rig.connect()
        await client.request(body=b"x")
        assert await client.ended() is None
        assert [cause for cause, _, _ in rig.faults] == ["request_lost", "connection_reset"]


@in_loop
async def test_a_blackhole_cuts_nothing() -> None:
    async with Rig(idle_cut=IdleCut(1_000)) as rig:
        with rig.proxy.blackhole():
            client = await rig.connect()
            await rig.turns(100)
            assert rig.proxy.counts.faults["idle_cut"] == 0
        assert await client.ended() is None


@in_loop
async def test_a_cut_postponed_by_a_blackhole_does_not_outlive_the_proxy() -> None:
    with contextlib.ExitStack() as stack:
        async with Rig(idle_cut=IdleCut(1_000)) as rig:
            stack.enter_context(rig.proxy.blackhole())
            await rig.connect()
            await rig.turns(100)
    assert rig.proxy.counts.faults["idle_cut"] == 0


@in_loop
async def test_a_blackhole_of_requests_lets_responses_pass() -> None:
    handler = Holding()
    async with Rig(handler) as rig:
        one, other = await rig.connect(), await rig.connect()
        await one.request(body=b"before")
        await rig.origin.arrivals.get()
        with rig.proxy.blackhole("request"):
            await other.request(body=b"within")
            handler.go_on.set()
            assert (await one.answer()).body == b"before"
            await rig.turns()
            assert len(rig.origin.received) == 1
        assert (await other.answer()).body == b"within"
        assert rig.faults == [("blackhole", 0, "blackhole request"), ("faults_healed", 0, "blackhole request")]


@in_loop
async def test_a_blackhole_of_responses_lets_requests_pass() -> None:
    async with Rig() as rig:
        client = await rig.connect()
        with rig.proxy.blackhole("response"), rig.proxy.blackhole("response"):
            await client.request(body=b"x")
            await rig.origin.arrivals.get()
            reading = asyncio.ensure_future(client.answer())
            await rig.turns()
            assert not reading.done()
        assert (await reading).body == b"x"
        assert rig.proxy.counts.faults["blackhole"] == 2


@in_loop
async def test_a_blackhole_hides_the_end_of_a_connection() -> None:
    async def listen(_: Received, reader: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        await reader.read()
        gone.set()

    gone = asyncio.Event()
    async with Rig(listen) as rig:
        client = await rig.connect()
        await client.request()
        await rig.origin.arrivals.get()
        with rig.proxy.blackhole():
            await client.close()
            await rig.turns()
            assert not gone.is_set()
        await gone.wait()


@in_loop
async def test_blackholes_return() -> None:
    async with Rig(blackhole=Blackhole(1_000, 2_000, side="response")) as rig:
        client = await rig.connect()
        while rig.proxy.counts.faults["blackhole"] < 3:
            await client.post(b"x")
        causes = [cause for cause, _, _ in rig.faults]
        assert causes[:5] == ["blackhole", "faults_healed"] * 2 + ["blackhole"]


@in_loop
async def test_a_blackhole_with_the_option_once_does_not_return() -> None:
    async with Rig(blackhole=Blackhole(1_000, 1_000, once=True)) as rig:
        client = await rig.connect()
        while len(rig.records) < 2:
            await client.post(b"x")
        await rig.turns(100)
        assert rig.faults == [("blackhole", 0, "blackhole both"), ("faults_healed", 0, "blackhole both")]


@in_loop
async def test_the_end_of_the_proxy_ends_a_blackhole() -> None:
    async with Rig(blackhole=Blackhole(3_600_000_000, 1_000, once=True)) as rig:
        client = await rig.connect()
        while not rig.records:
            await rig.turns(1)
        await client.request()
    assert [cause for cause, _, _ in rig.faults] == ["blackhole", "faults_healed"]


@in_loop
async def test_only_one_connection_is_served_at_a_time() -> None:
    async with Rig(one_connection=True) as rig:
        first, second = await rig.connect(), await rig.connect()
        assert (await first.post(b"x")).status == 200
        assert await second.ended() is None
        assert rig.faults == [("connection_refused", 0, "one_connection")]
        assert (await first.post(b"x")).status == 200
        for _ in range(5):  # the proxy serves the next connection as soon as the first has ended
            await first.close()
            first = await rig.connect()
            assert (await first.post(b"x")).status == 200
        assert rig.proxy.counts.faults["one_connection"] == 1


async def small_client(rig: Rig) -> Client:
    """Return a client whose kernel buffers little unread data."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, rig.proxy.address)
    return Client(*await asyncio.open_connection(sock=connection, limit=65536))


PIECE = bytes(1 << 20)
PIECES = 64
HELD_BYTES_MAX = 24 << 20  # what the kernel's buffers between client and origin, and the proxy's own, can hold


@in_loop
async def test_a_slow_reader_slows_upstream_down() -> None:
    async def large(_request: Received, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(PIECE) * PIECES))
        for _ in range(PIECES):
            writer.write(PIECE)
            await writer.drain()
        done.set()

    done = asyncio.Event()
    async with Rig(large) as rig:
        client = await small_client(rig)
        await client.request("GET")
        await rig.turns(400)  # enough to move all of it
        assert not done.is_set()
        assert rig.proxy.counts.response_bytes < HELD_BYTES_MAX
        answer = await client.answer()
        assert (len(answer.body), answer.complete) == (len(PIECE) * PIECES, True)
        await client.close()


@in_loop
async def test_a_slow_upstream_slows_the_writer_down() -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await go_on.wait()
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(len(PIECE) * PIECES)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    go_on = asyncio.Event()
    server = await asyncio.start_server(slow, "127.0.0.1", 0)
    async with server, Rig(upstream=server.sockets[0].getsockname()) as rig:
        client = await rig.connect()
        sending = asyncio.ensure_future(client.request(body=PIECE * PIECES))
        await rig.turns(400)
        assert not sending.done()
        assert rig.proxy.counts.request_bytes < HELD_BYTES_MAX
        go_on.set()
        assert (await client.answer()).status == 200
        await sending


@in_loop
async def test_requests_beyond_the_slots_wait_for_their_turn() -> None:
    held = Holding()
    async with Rig(held, slots=2) as rig:
        clients = [await rig.connect() for _ in range(3)]
        for client in clients:
            await client.request("POST", "/", b"x")
        await rig.turns()
        assert len(rig.origin.received) == 2
        await clients[0].close()
        while len(rig.origin.received) < 3:
            await rig.turns(1)
