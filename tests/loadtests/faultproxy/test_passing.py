"""Without faults, the proxy forwards messages and ends connections as HTTP requires."""

import asyncio

import pytest

from loadtests.faultproxy.http import authority
from loadtests.harness.ports import hold_port
from tests.loadtests.faultproxy.rig import Client, Handler, Received, Rig, in_loop, reset

LARGE = bytes(range(256)) * 8192  # 2 MiB


def answering(head: str, body: bytes = b"", *, close: bool = False) -> Handler:
    async def handler(_request: Received, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)
        if close:
            writer.close()

    return handler


@in_loop
async def test_bodies_pass_both_ways_on_one_connection() -> None:
    async with Rig() as rig:
        client = await rig.connect()
        for body in (b"first", LARGE, b"\0"):
            answer = await client.post(body, "/a?b=c")
            assert (answer.status, answer.body, answer.headers["x-target"]) == (200, body, "/a?b=c")
        assert [(request.body, request.headers["host"]) for request in rig.origin.received] == [
            (b"first", "origin.test"),
            (LARGE, "origin.test"),
            (b"\0", "origin.test"),
        ]
        assert rig.proxy.url == "http://{}:{}".format(*rig.proxy.address)
        counts = rig.proxy.counts
        assert (counts.connections, counts.exchanges, rig.origin.connections) == (1, 3, 1)
        assert counts.request_bytes == counts.response_bytes == len(LARGE) + 6
        assert rig.records == []
        assert set(counts.faults.values()) == {0}


@in_loop
async def test_chunked_bodies_stay_chunked() -> None:
    handler = answering(
        "HTTP/1.1 200 OK\nTransfer-Encoding: chunked", b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nTrailer: 1\r\n\r\n"
    )
    async with Rig(handler) as rig:
        client = await rig.connect()
        for _ in range(2):
            await client.chunked(b"one", LARGE[:100_000])
            answer = await client.answer()
            assert (answer.body, answer.complete, answer.headers["transfer-encoding"]) == (b"abcde", True, "chunked")
        assert [request.body for request in rig.origin.received] == [b"one" + LARGE[:100_000]] * 2
        assert rig.origin.received[0].headers["transfer-encoding"] == "chunked"


@in_loop
async def test_pieces_of_a_body_are_forwarded_as_they_arrive() -> None:
    async def in_turns(_: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        await go_on.wait()
        writer.write(b"1\r\nb\r\n0\r\n\r\n")

    go_on = asyncio.Event()
    async with Rig(in_turns) as rig:
        client = await rig.connect()
        await client.request("GET")
        assert await client.reader.readuntil(b"a\r\n")  # the answer is not complete yet
        go_on.set()
        assert await client.reader.readuntil(b"0\r\n\r\n") == b"1\r\nb\r\n0\r\n\r\n"


@in_loop
async def test_requests_and_answers_without_a_body_pass() -> None:
    async with Rig() as rig:
        client = await rig.connect()
        await client.request("HEAD")
        head = await client.answer(bodiless=True)
        assert (head.status, head.headers["content-length"]) == (200, "7")
        await client.request("GET")
        assert (await client.answer()).body == b"nothing"
        assert "content-length" not in rig.origin.received[1].headers
        for status in (204, 304):
            rig.origin.handler = answering(f"HTTP/1.1 {status} X\nETag: 7")
            await client.request("GET")
            answer = await client.answer(bodiless=True)
            assert (answer.status, answer.headers["etag"]) == (status, "7")
        assert rig.proxy.counts.connections == 1


@in_loop
async def test_requests_in_a_row_are_answered_in_order() -> None:
    async with Rig() as rig:
        client = await rig.connect()
        for number in range(5):
            await client.request("POST", f"/{number}", b"x" * number)
        assert [(await client.answer()).headers["x-target"] for _ in range(5)] == [f"/{number}" for number in range(5)]


@in_loop
async def test_hop_by_hop_headers_are_not_forwarded() -> None:
    async with Rig(answering("HTTP/1.1 200 Fine\nConnection: x-own\nX-Own: 1\nX-Far: 2\nContent-Length: 0")) as rig:
        client = await rig.connect()
        headers = {"Keep_Alive": "5", "TE": "x", "X_Near": "1", "X_End": "2", "Proxy_Authorization": "Basic abc"}
        answer = await client.post(b"a", Connection="keep-alive, X-Near", **headers)
        assert {"x-far", "content-length"} == set(answer.headers)
        assert set(rig.origin.received[0].headers) == {"host", "x-end", "content-length"}


@in_loop
async def test_a_client_that_expects_100_continue_gets_it_from_upstream() -> None:
    async def willing(request: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.body = await reader.readexactly(int(request.headers["content-length"]))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with Rig(willing) as rig:
        client = await rig.connect()
        for _ in range(2):
            await client.request("POST", Expect="100-continue", Content_Length="4")
            assert (await client.answer()).status == 100
            await client.send(b"body")
            assert (await client.answer()).body == b"ok"
        assert [request.body for request in rig.origin.received] == [b"body", b"body"]
        assert rig.origin.received[0].headers["expect"] == "100-continue"


@in_loop
async def test_a_client_that_expects_100_continue_may_get_a_refusal() -> None:
    async with Rig(answering("HTTP/1.1 417 No\nContent-Length: 2", b"no")) as rig:
        client = await rig.connect()
        await client.request("POST", Expect="100-continue", Content_Length="4")
        answer = await client.answer()
        assert (answer.status, answer.body, answer.headers["connection"]) == (417, b"no", "close")
        assert await client.ended() == b""


@in_loop
async def test_a_client_that_expects_100_continue_gets_502_when_upstream_fails() -> None:
    async with Rig(answering("nonsense", close=True)) as rig:
        client = await rig.connect()
        await client.request("POST", Expect="100-continue", Content_Length="4")
        answer = await client.answer()
        assert (answer.status, answer.headers["connection"]) == (502, "close")
        assert await client.ended() == b""


@in_loop
async def test_informational_answers_pass_except_to_clients_of_http_1_0() -> None:
    async with Rig(answering("HTTP/1.1 103 Early\nLink: x\n\nHTTP/1.1 200 OK\nContent-Length: 1", b"a")) as rig:
        client = await rig.connect()
        await client.request("GET")
        early = await client.answer()
        assert (early.status, early.headers) == (103, {"link": "x"})
        assert (await client.answer()).body == b"a"
        await client.close()
        old = await rig.connect()  # a client of HTTP/1.0, which knows no informational answers
        await old.send(b"GET / HTTP/1.0\r\n\r\n")
        assert (await old.answer()).status == 200


@in_loop
async def test_an_old_client_gets_a_body_that_ends_with_the_connection() -> None:
    handler = answering("HTTP/1.1 200 OK\nTransfer-Encoding: chunked", b"3\r\nabc\r\n0\r\n\r\n")
    async with Rig(handler) as rig:
        client = await rig.connect()
        await client.send(b"GET / HTTP/1.0\r\n\r\n")
        answer = await client.answer()
        assert (answer.body, "transfer-encoding" in answer.headers) == (b"abc", False)
        assert await client.ended() == b""


@in_loop
async def test_a_body_that_ends_with_the_connection_becomes_chunked() -> None:
    async with Rig(answering("HTTP/1.0 200 OK", b"until the end", close=True)) as rig:
        client = await rig.connect()
        for connections in (1, 2):  # the client's connection stays open
            answer = await client.post(b"x")
            assert (answer.body, answer.complete) == (b"until the end", True)
            assert rig.origin.connections == connections


@in_loop
async def test_a_client_gets_502_when_upstream_cannot_be_reached() -> None:
    with hold_port() as port:
        async with Rig(upstream=("127.0.0.1", port)) as rig:
            client = await rig.connect()
            for _ in range(2):
                assert (await client.post(b"x")).status == 502
            await client.request("HEAD", body=b"")
            assert (await client.answer(bodiless=True)).status == 502
            assert (rig.proxy.counts.upstream_errors, rig.proxy.counts.connections) == (3, 1)


@in_loop
@pytest.mark.parametrize("head", ["", "HTTP/1.1 20", "nonsense\n", "HTTP/1.1 101 Switching Protocols"])
async def test_a_client_gets_502_when_upstream_sends_no_valid_head(head: str) -> None:
    async with Rig(answering(head, close=True)) as rig:
        client = await rig.connect()
        for count in (1, 2):
            assert (await client.post(b"x")).status == 502
            assert rig.proxy.counts.upstream_errors == count


@in_loop
@pytest.mark.parametrize("framing", ["Content-Length: 9", "Transfer-Encoding: chunked"])
async def test_an_incomplete_answer_stays_incomplete_for_the_client(framing: str) -> None:
    async with Rig(answering(f"HTTP/1.1 200 OK\n{framing}", b"4\r\nbody", close=True)) as rig:
        client = await rig.connect()
        answer = await client.post(b"x")
        assert (answer.status, answer.complete) == (200, False)
        assert rig.proxy.counts.upstream_errors == 1


async def held(client: Client) -> None:
    await client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nbo")


@in_loop
@pytest.mark.parametrize("close", [True, False])
async def test_an_answer_may_come_before_the_request_has_ended(close: bool) -> None:
    async def hasty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"bo")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await writer.drain()
        if not close:
            await client_done.wait()
        writer.close()
        await writer.wait_closed()

    client_done = asyncio.Event()
    server = await asyncio.start_server(hasty, "127.0.0.1", 0)
    async with server, Rig(upstream=server.sockets[0].getsockname()) as rig:
        client = await rig.connect()
        for _ in range(2):
            await held(client)
            answer = await client.answer()
            assert (answer.status, answer.body) == (413, b"no")
            await client.send(b"dy goes")  # to be discarded: the answer has begun
            client_done.set()
        assert (rig.proxy.counts.upstream_errors, rig.proxy.counts.connections) == (0, 1)


@in_loop
async def test_a_client_that_closes_ends_its_pending_request() -> None:
    async def hold(_: Received, reader: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        assert await reader.read() == b""
        gone.set()

    gone = asyncio.Event()
    async with Rig(hold) as rig:
        client = await rig.connect()
        await client.request("GET")
        await rig.origin.arrivals.get()
        await client.close()
        await gone.wait()
        assert rig.proxy.counts.upstream_errors == 0


@in_loop
async def test_a_request_that_its_client_cuts_off_stays_incomplete_upstream() -> None:
    async with Rig() as rig:
        client = await rig.connect()
        await held(client)
        await client.close()
        request = await rig.origin.arrivals.get()
        assert (request.body, request.complete) == (b"bo", False)
        assert rig.proxy.counts.upstream_errors == 0


@in_loop
async def test_a_client_that_resets_breaks_its_upstream_connection_and_is_no_error() -> None:
    async def large(_request: Received, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n")
        try:
            while True:
                writer.write(LARGE)
                await writer.drain()
        except ConnectionError:
            broken.set()

    broken = asyncio.Event()
    async with Rig(large) as rig:
        idle, busy = await rig.connect(), await rig.connect()
        await idle.send(b"GET")
        await busy.request("GET")
        await busy.reader.readexactly(1000)
        for client in (idle, busy):
            reset(client.writer)
        await broken.wait()
        await rig.turns()
        assert (rig.proxy.counts.upstream_errors, rig.proxy.counts.bad_requests) == (0, 0)


@in_loop
async def test_a_client_gets_502_when_upstream_resets_in_the_middle_of_a_request() -> None:
    async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        reset(writer)

    server = await asyncio.start_server(rude, "127.0.0.1", 0)
    async with server, Rig(upstream=server.sockets[0].getsockname()) as rig:
        client = await rig.connect()
        for count in (1, 2):
            assert (await client.post(LARGE * 8)).status == 502
            assert rig.proxy.counts.upstream_errors == count


@in_loop
async def test_upstream_may_close_an_idle_connection() -> None:
    async with Rig(answering("HTTP/1.1 200 OK\nContent-Length: 1", b"a", close=True)) as rig:
        client = await rig.connect()
        for number in range(3):
            assert (await client.post(b"x")).status == 200
            assert rig.origin.connections == number + 1


@in_loop
@pytest.mark.parametrize(
    "sent", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n"]
)
async def test_invalid_http_is_refused(sent: bytes) -> None:
    async with Rig() as rig:
        client = await rig.connect()
        await client.send(sent)
        assert (await client.answer()).status == 400
        assert await client.ended() in (b"", None)
        assert (rig.proxy.counts.bad_requests, rig.origin.received) == (1, [])


@in_loop
async def test_an_endless_head_is_refused() -> None:
    async with Rig() as rig:
        client = await rig.connect()
        await client.send(b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000)
        assert (await client.answer()).status == 431


@in_loop
async def test_a_bad_chunk_ends_the_connection() -> None:
    async with Rig() as rig:
        client = await rig.connect()
        await client.chunked(b"good", end=False)
        await client.send(b"nonsense\r\n")
        assert b"400" in (await client.ended() or b"400")
        request = await rig.origin.arrivals.get()
        assert (request.body, request.complete) == (b"good", False)


@in_loop
async def test_chunked_encoding_overrides_content_length() -> None:
    async with Rig() as rig:
        client = await rig.connect()
        await client.send(
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 99\r\n\r\n1\r\na\r\n0\r\n\r\n"
        )
        assert (await client.answer()).body == b"a"
        assert "content-length" not in rig.origin.received[0].headers


def test_an_authority_leaves_out_port_80_and_has_ipv6_in_brackets() -> None:
    assert authority(("::1", 81)) == "[::1]:81"
    assert authority(("host.test", 80)) == "host.test"
