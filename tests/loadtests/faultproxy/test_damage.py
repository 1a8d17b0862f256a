"""Bodies that are delayed, truncated or altered, and answers that the proxy makes up."""

import asyncio
from collections.abc import Callable

import pytest

from loadtests.faultproxy import Delay, Flip, Html, Status, Truncate, sources
from loadtests.faultproxy.answers import ELSEWHERE, PAGE
from loadtests.faultproxy.sources import DelayLine, Source
from tests.loadtests.faultproxy.rig import Client, Handler, Received, Rig, in_loop

BODY = bytes(range(256)) * 2048


def chunked_echo(*, size: int) -> Handler:
    async def handler(request: Received, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for start in range(0, len(request.body), size):
            chunk = request.body[start : start + size]
            writer.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        writer.write(b"0\r\n\r\n")

    return handler


@in_loop
async def test_each_message_is_delayed() -> None:
    async with Rig(delay=Delay(5_000, 4_000)) as rig:
        client = await rig.connect()
        for body in (BODY, b"b"):
            assert (await client.post(body)).body == body
        assert rig.faults == [
            (cause, number, text)
            for number in (1, 2)
            for cause, text in (("request_delayed", "delay request"), ("response_delayed", "delay response"))
        ]
        latencies = [record.latency_us for record in rig.records]
        assert all(1_000 <= latency <= 9_000 for latency in latencies)
        assert len(set(latencies)) == 4
        assert rig.proxy.counts.faults["delay"] == 4


@in_loop
async def test_a_stream_of_delayed_chunks_arrives_whole() -> None:
    async with Rig(chunked_echo(size=50_000), delay=Delay(2_000)) as rig:
        client = await rig.connect()
        await client.chunked(BODY[:100_000], BODY[100_000:])
        answer = await client.answer()
        assert (answer.body, answer.complete) == (BODY, True)
        assert rig.origin.received[0].complete


@in_loop
async def test_a_delayed_request_arrives_even_if_its_client_has_left() -> None:
    async with Rig(delay=Delay(5_000)) as rig:
        client = await rig.connect()
        await client.request(body=BODY)
        await client.close()
        request = await rig.origin.arrivals.get()
        assert (request.body, request.complete) == (BODY, True)


@in_loop
@pytest.mark.parametrize("how", ["short", "cut"])
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_request_is_truncated(how: str, chunked: bool) -> None:
    async with Rig(truncate=Truncate(1, "request", how)) as rig:
        client = await rig.connect()
        await (client.chunked(BODY * 3) if chunked else client.request(body=BODY * 3))
        if how == "cut":
            assert not await client.ended()
        else:
            assert (await client.answer()).status == 200
        request = await rig.origin.arrivals.get()
        assert BODY.startswith(request.body[: len(BODY)])
        assert len(request.body) < 3 * len(BODY)
        assert request.complete == (how == "short")
        (record,) = rig.records
        assert (record.cause, record.text) == ("request_truncated", f"truncate request {how}")
        assert record.size_bytes == len(request.body)
        if how == "short":
            assert (await client.post(b"")).status == 200  # the rest of the body was not parsed as a request


@in_loop
@pytest.mark.parametrize("how", ["short", "cut"])
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_response_is_truncated(how: str, chunked: bool) -> None:
    options = {"handler": chunked_echo(size=10_000)} if chunked else {}
    async with Rig(truncate=Truncate(1, "response", how), **options) as rig:
        client = await rig.connect()
        answer = await client.post(BODY * 3)
        assert (BODY * 3).startswith(answer.body)
        assert len(answer.body) < 3 * len(BODY)
        assert answer.complete == (how == "short")
        (record,) = rig.records
        assert (record.cause, record.text) == ("response_truncated", f"truncate response {how}")
        assert record.size_bytes == len(answer.body)
        assert rig.origin.received[0].body == BODY * 3
        if how == "short":
            assert (await client.post(b"x")).status == 200
            assert rig.origin.connections == 2
        else:
            assert await client.ended() == b""
        assert rig.proxy.counts.upstream_errors == 0


@in_loop
async def test_the_kind_and_place_of_a_truncation_are_random_by_default() -> None:
    async with Rig(truncate=Truncate(0.7)) as rig:
        for _ in range(30):
            client = await rig.connect()
            await client.request(body=BODY)
            await client.ended_or_answered()
            await client.close()
        texts = {record.text for record in rig.records}
        assert texts == {f"truncate {side} {how}" for side in ("request", "response") for how in ("short", "cut")}
        assert len({record.size_bytes for record in rig.records}) > 15


@in_loop
async def test_messages_without_a_body_are_not_damaged() -> None:
    async with Rig(truncate=Truncate(1), flip=Flip(1)) as rig:
        client = await rig.connect()
        await client.request("HEAD")
        assert (await client.answer(bodiless=True)).headers["content-length"] == "7"
        assert rig.records == []


def differing_bits(one: bytes, other: bytes) -> int:
    assert len(one) == len(other)
    return (int.from_bytes(one) ^ int.from_bytes(other)).bit_count()


@in_loop
@pytest.mark.parametrize("bits", [1, 64])
@pytest.mark.parametrize("side", ["request", "response"])
async def test_bits_of_bodies_flip(side: str, bits: int) -> None:
    async with Rig(flip=Flip(1, side, bits)) as rig:
        client = await rig.connect()
        for number in range(3):
            answer = await client.post(BODY)
            received = rig.origin.received[number].body
            request_bits, response_bits = differing_bits(BODY, received), differing_bits(received, answer.body)
            record = rig.records[number]
            assert (record.cause, record.exchange) == (f"{side}_corrupted", number + 1)
            assert 1 <= record.count <= bits
            assert (request_bits, response_bits) == ((record.count, 0) if side == "request" else (0, record.count))


@in_loop
async def test_bits_of_chunked_bodies_flip() -> None:
    async with Rig(chunked_echo(size=5_000), flip=Flip(1, bits_max=64)) as rig:
        client = await rig.connect()
        await client.chunked(BODY * 3)
        answer = await client.answer()
        received = rig.origin.received[0].body
        assert [record.cause for record in rig.records] == ["request_corrupted", "response_corrupted"]
        assert differing_bits(BODY * 3, received) >= 1
        assert differing_bits(received, answer.body) >= 1


@in_loop
@pytest.mark.parametrize("send", [lambda client: client.request(body=BODY), lambda client: client.chunked(BODY)])
async def test_a_status_replaces_the_answer(send: "Callable[[Client], asyncio.Future[None]]") -> None:
    async with Rig(statuses=(Status(503, 1, retry_after_s=2),)) as rig:
        client = await rig.connect()
        for number in (1, 2):
            await send(client)
            answer = await client.answer()
            assert (answer.status, answer.body, answer.headers["retry-after"]) == (503, b"503\n", "2")
            assert rig.faults[-1] == ("answer_replaced", number, "status")
            assert rig.records[-1].status == 503
        assert rig.origin.received == []


@in_loop
async def test_a_status_replaces_the_answer_after_the_request_took_effect() -> None:
    async with Rig(statuses=(Status(429, 0), Status(504, 1, after=True))) as rig:
        client = await rig.connect()
        for number in range(2):
            assert (await client.post(BODY)).status == 504
            assert rig.origin.received[number].complete
        assert rig.origin.connections == 1
        assert rig.faults == [("answer_replaced", 1, "status after"), ("answer_replaced", 2, "status after")]


@in_loop
async def test_a_redirect_leads_to_another_origin() -> None:
    async with Rig(statuses=(Status(307, 1),)) as rig:
        answer = await (await rig.connect()).post(b"x")
        assert (answer.status, answer.headers["location"]) == (307, ELSEWHERE.decode())


@in_loop
async def test_not_modified_has_no_body() -> None:
    async with Rig(statuses=(Status(304, 1),)) as rig:
        client = await rig.connect()
        for _ in range(2):
            await client.request("GET")
            assert (await client.answer(bodiless=True)).status == 304


@in_loop
@pytest.mark.parametrize("after", [False, True])
async def test_a_page_replaces_the_answer(after: bool) -> None:
    async with Rig(html=Html(1, after=after)) as rig:
        client = await rig.connect()
        answer = await client.post(BODY)
        assert (answer.status, answer.body) == (200, PAGE)
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert len(rig.origin.received) == after
        assert rig.faults == [("answer_replaced", 1, "html after" if after else "html")]
        await client.request("HEAD")
        assert (await client.answer(bodiless=True)).headers["content-length"] == str(len(PAGE))


@in_loop
@pytest.mark.parametrize("after", [False, True])
async def test_a_client_that_expects_100_continue_gets_the_page_at_once(after: bool) -> None:
    async with Rig(html=Html(1, after=after)) as rig:
        client = await rig.connect()
        await client.request("POST", Expect="100-continue", Content_Length="4")
        answer = await client.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await client.ended() == b""


def pieces_of(*pieces: bytes, error: Exception | None = None) -> Source:
    left = list(pieces)

    async def read() -> bytes | None:
        if not left and error is not None:
            raise error
        return left.pop(0) if left else None

    return read


@in_loop
async def test_a_delay_line_delivers_an_error_in_its_turn() -> None:
    async with DelayLine(pieces_of(b"a", error=ConnectionResetError("x")), 1_000) as line:
        assert await line() == b"a"
        with pytest.raises(ConnectionResetError):
            await line()


@in_loop
async def test_a_delay_line_holds_a_bounded_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "LINE_BYTES_MAX", 10)
    taken = 0

    async def read() -> bytes | None:
        nonlocal taken
        taken += 1
        return b"12345678" if taken <= 100 else None

    async with DelayLine(read, 1) as line:
        for number in range(100):
            await line()
            assert taken <= number + 5
        assert await line() is None


@in_loop
async def test_a_delay_line_that_is_left_early_stops() -> None:
    async def never() -> bytes | None:
        await asyncio.Event().wait()
        return None

    async with DelayLine(never, 1):
        pass
