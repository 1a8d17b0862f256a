"""The bytes of load tests, and the checks and figures about them."""

import asyncio
import math
import time

import pytest

from loadtests.harness.transfer import CHUNK_BYTES, Flow, percentile
from tests.support.loops import in_loop


def moved(flow: Flow) -> list[bytes]:
    return [bytes(chunk) for chunk in flow.chunks()]


def test_a_seed_determines_the_bytes_and_no_two_chunks_are_equal() -> None:
    chunks = moved(Flow(3_000_000, 1))
    assert sum(map(len, chunks)) == 3_000_000
    assert chunks == moved(Flow(3_000_000, 1))
    assert chunks != moved(Flow(3_000_000, 2))
    assert len(set(chunks)) == len(chunks)


def test_a_flow_is_right_only_if_all_written_bytes_arrive_in_order() -> None:
    right, wrong, less = Flow(3_000_000, 1), Flow(3_000_000, 1), Flow(3_000_000, 1)
    for chunk in moved(right):
        right.took(chunk)
    first, second, *rest = moved(wrong)
    for chunk in (second, first, *rest):
        wrong.took(chunk)
    for chunk in moved(less)[:-1]:
        less.took(chunk)
    assert [flow.is_right for flow in (right, wrong, less)] == [True, False, False]
    assert right.digests[0] == right.digests[1] == wrong.digests[0] != wrong.digests[1]
    assert less.in_flight_bytes > 0 == right.in_flight_bytes
    assert right.bytes_per_second > 0


def test_the_longest_time_without_a_byte_is_kept_until_the_next_measurement() -> None:
    flow = Flow(10, 1)
    began_s = time.monotonic() - 50
    flow.begin_quiet(began_s)
    assert flow.longest_quiet_s(began_s + 3) == pytest.approx(3)
    flow.took(b"1")
    assert flow.longest_quiet_s(flow.ended_s) == flow.ended_s - began_s >= 50
    assert flow.longest_quiet_s(flow.ended_s + 90) == pytest.approx(90)
    flow.begin_quiet(flow.ended_s)
    assert flow.longest_quiet_s(flow.ended_s) == 0


@in_loop
async def test_waits_for_goals_end_when_the_bytes_have_arrived() -> None:
    flow = Flow(10, 1)
    async with asyncio.TaskGroup() as group:
        waits = [group.create_task(flow.reach(size)) for size in (8, 3)]
        abandoned = group.create_task(flow.reach(9))
        await asyncio.sleep(0)
        abandoned.cancel()
        flow.took(b"1234")
        await asyncio.sleep(0)
        assert [wait.done() for wait in waits] == [False, True]
        flow.took(b"567890")
    await flow.reach(10)


@in_loop
async def test_after_a_blow_only_a_byte_counts_that_was_written_later() -> None:
    flow = Flow(3_000_000, 1)
    chunks = flow.chunks()
    early = bytes(next(chunks))
    async with asyncio.TaskGroup() as group:
        passed = group.create_task(flow.pass_on())
        await asyncio.sleep(0)
        flow.took(early)  # as from a socket of the relay that was killed
        await asyncio.sleep(0)
        assert not passed.done()
        flow.took(bytes(next(chunks)))
    assert passed.result() == flow.ended_s


@in_loop
async def test_a_goal_is_acted_on_before_more_is_read() -> None:
    flow = Flow(3_000_000, 1)
    reader = asyncio.StreamReader(limit=1 << 24)
    reader.feed_data(b"".join(moved(flow)))  # as after a recovery: all data arrives at once
    reader.feed_eof()

    async def watch() -> int:
        await flow.reach(1_000_000)
        return flow.received_bytes

    async with asyncio.TaskGroup() as group:
        watching = group.create_task(watch())
        await asyncio.sleep(0)
        group.create_task(flow.read_from(reader))
    assert 1_000_000 <= await watching < 2_000_000
    assert flow.is_right


@in_loop
async def test_streams_carry_a_flow() -> None:
    flow = Flow(3_000_000, 1)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await flow.write_to(writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        await flow.read_from(reader)
        writer.close()
    assert flow.is_right


@in_loop
async def test_a_writer_that_is_held_leaves_bytes_to_put_in_flight() -> None:
    flow = Flow(5 * CHUNK_BYTES, 1)
    flow.hold(2 * CHUNK_BYTES - 1)

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await flow.write_to(writer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        reading = asyncio.ensure_future(flow.read_from(reader))
        await flow.reach(2 * CHUNK_BYTES)
        for _ in range(5):
            await asyncio.sleep(0)
        assert (flow.written_bytes, flow.in_flight_bytes) == (2 * CHUNK_BYTES, 0)
        assert await flow.put_in_flight() == CHUNK_BYTES
        await flow.reach(3 * CHUNK_BYTES)
        flow.hold(flow.size_bytes)
        await reading
        writer.close()
    assert flow.is_right
    assert await flow.put_in_flight() == 0


def test_a_percentile_is_one_of_the_values_or_nan_if_there_are_none() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile(values, 1)) == (50, 99, 100)
    assert percentile([7.0], 0.5) == 7
    assert math.isnan(percentile([], 0.5))
