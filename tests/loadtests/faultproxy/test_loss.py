"""Requests and responses that are lost or sent again."""

import asyncio

import pytest

from loadtests.faultproxy import Drop, FaultProxyOptions, LateDuplicate, Truncate
from loadtests.faultproxy.context import COPIES_BYTES_MAX
from loadtests.faultproxy.faults import Fate, plan_exchange
from tests.loadtests.faultproxy.rig import Received, Rig, echo, in_loop

BODY = bytes(range(256)) * 2048


def seed_with(fates: list[Fate], **options: Drop) -> int:
    """Find a seed that gives these fates to the first exchanges."""
    for seed in range(1000):
        planned = FaultProxyOptions(seed=seed, **options)  # type: ignore[arg-type]
        if [plan_exchange(planned, number + 1).fate for number in range(len(fates))] == fates:
            return seed
    raise AssertionError("no such seed")


@in_loop
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_dropped_request_closes_the_connection(chunked: bool) -> None:
    async with Rig(drop_request=Drop(1)) as rig:
        client = await rig.connect()
        await (client.chunked(BODY) if chunked else client.request(body=BODY))
        assert await client.ended() == b""
        assert (rig.origin.connections, rig.origin.received) == (0, [])
        assert rig.faults == [("request_lost", 1, "drop_request")]
        assert rig.proxy.counts.faults["drop_request"] == 1


@in_loop
async def test_a_dropped_request_closes_the_connection_before_100_continue() -> None:
    async with Rig(drop_request=Drop(1)) as rig:
        client = await rig.connect()
        await client.request("POST", Expect="100-continue", Content_Length="4")
        assert await client.ended() == b""


@in_loop
async def test_a_silently_dropped_request_leaves_the_connection_open() -> None:
    drop = Drop(0.5, silent=True)
    seed = seed_with([Fate.REQUEST_DROPPED, Fate.PASSED, Fate.PASSED], drop_request=drop)
    async with Rig(drop_request=drop, seed=seed) as rig:
        silent, other = await rig.connect(), await rig.connect()
        await silent.request(body=b"lost")
        await rig.turns()
        assert (await other.post(b"passed")).status == 200
        await silent.request(body=b"lost too")  # the connection is dead from now on
        assert (await other.post(b"passed too")).status == 200
        assert not silent.reader.at_eof()
        silent.writer.write_eof()
        assert await silent.ended() == b""
        assert [request.body for request in rig.origin.received] == [b"passed", b"passed too"]
        assert rig.faults == [("request_lost", 1, "drop_request silent")]


@in_loop
async def test_a_dropped_response_has_taken_effect() -> None:
    async with Rig(drop_response=Drop(1)) as rig:
        client = await rig.connect()
        await client.request(body=BODY)
        assert await client.ended() == b""
        assert [request.body for request in rig.origin.received] == [BODY]
        assert rig.faults == [("response_lost", 1, "drop_response")]


@in_loop
async def test_a_silently_dropped_response_leaves_the_connection_open() -> None:
    drop = Drop(0.5, silent=True)
    seed = seed_with([Fate.RESPONSE_DROPPED, Fate.PASSED], drop_response=drop)
    async with Rig(drop_response=drop, seed=seed) as rig:
        silent, other = await rig.connect(), await rig.connect()
        await silent.request(body=b"no answer")
        await rig.origin.arrivals.get()
        await rig.turns()
        assert (await other.post(b"answered")).status == 200
        assert not silent.reader.at_eof()
        silent.writer.write_eof()
        assert await silent.ended() == b""
        assert rig.faults == [("response_lost", 1, "drop_response silent")]


@in_loop
async def test_a_client_may_reset_a_silent_connection() -> None:
    async with Rig(drop_response=Drop(1, silent=True)) as rig:
        client = await rig.connect()
        await client.request()
        await rig.origin.arrivals.get()
        await rig.turns()
        client.writer.transport.abort()
        await rig.turns()
        assert rig.proxy.counts.connections == 1


@in_loop
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_duplicate_is_sent_at_once_and_its_answer_is_discarded(chunked: bool) -> None:
    async with Rig(duplicate=1.0) as rig:
        client = await rig.connect()
        for body in (BODY, b"second"):
            await (client.chunked(body) if chunked else client.request(body=body))
            assert (await client.answer()).body == body
            arrived = [await rig.origin.arrivals.get() for _ in range(2)]
            assert [(request.body, request.complete) for request in arrived] == [(body, True)] * 2
            assert arrived[0].headers == arrived[1].headers
        assert rig.origin.connections == 3
        assert [record.size_bytes for record in rig.records] == [len(BODY), 6]
        assert rig.faults == [("request_duplicated", 1, "duplicate"), ("request_duplicated", 2, "duplicate")]


@in_loop
async def test_a_late_duplicate_is_sent_later() -> None:
    async with Rig(late_duplicate=LateDuplicate(1, 20_000)) as rig:
        client = await rig.connect()
        await client.post(b"first")
        arrived = [await rig.origin.arrivals.get() for _ in range(2)]
        assert [request.body for request in arrived] == [b"first", b"first"]
        record = rig.records[-1]
        assert (record.cause, record.exchange, record.latency_us) == ("request_duplicated", 1, 20_000)


@in_loop
async def test_a_duplicate_waits_for_the_end_of_a_blackhole() -> None:
    async with Rig(late_duplicate=LateDuplicate(1, 1)) as rig:
        client = await rig.connect()
        await client.request(body=b"first")
        await rig.origin.arrivals.get()
        with rig.proxy.blackhole("request"):
            await rig.turns()
        await client.answer()
        assert (await rig.origin.arrivals.get()).body == b"first"


@in_loop
async def test_a_duplicate_is_given_up_when_upstream_has_closed() -> None:
    async with Rig(late_duplicate=LateDuplicate(1, 1_000)) as rig:
        client = await rig.connect()
        await client.post(b"first")
        rig.origin._server.close()
        await rig.turns(100)
    assert rig.proxy.counts.upstream_errors in (0, 1)  # the duplicate may have arrived in time


@in_loop
async def test_answers_to_a_duplicate_are_discarded() -> None:
    async def busy(request: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 103 Early\r\n\r\n")
        if request.connection == 1:
            await echo(request, reader, writer)
        writer.close()

    async with Rig(busy, duplicate=1.0) as rig:
        client = await rig.connect()
        await client.request(body=b"x")
        assert (await client.answer()).status == 103
        assert (await client.answer()).status == 200
        while rig.proxy.counts.upstream_errors == 0:
            await rig.turns(1)
        assert rig.faults == [("request_duplicated", 1, "duplicate")]


@in_loop
async def test_closing_the_proxy_cancels_late_duplicates() -> None:
    async with Rig(late_duplicate=LateDuplicate(1, 3_600_000_000)) as rig:
        client = await rig.connect()
        for _ in range(3):
            await client.post(BODY)
        assert rig.proxy._context is not None
        assert rig.proxy._context.copies_room_bytes == COPIES_BYTES_MAX - 3 * len(BODY)
    assert rig.records == []


@in_loop
async def test_requests_too_large_to_keep_are_not_duplicated() -> None:
    async with Rig(duplicate=1.0) as rig:
        assert rig.proxy._context is not None
        rig.proxy._context.copies_room_bytes = len(BODY) - 1
        client = await rig.connect()
        assert (await client.post(BODY)).body == BODY
        assert (await client.post(b"small")).body == b"small"
        await asyncio.gather(*(rig.origin.arrivals.get() for _ in range(3)))
        assert [record.exchange for record in rig.records] == [2]


@in_loop
async def test_a_truncated_request_is_not_duplicated() -> None:
    async with Rig(duplicate=1.0, truncate=Truncate(1, "request", "cut")) as rig:
        client = await rig.connect()
        await client.request(body=BODY)
        assert not await client.ended()
        assert rig.faults == [("request_truncated", 1, "truncate request cut")]
