"""The channel table: one live channel per address."""

import asyncio

import pytest

from tests.messages.streams import served, stream_pair
from tests.support.loops import HANGING_S, in_loop, in_loop_within
from tests.support.relays import MemoryTestRelay
from tunnel.messages.calls.calls import CallChannel, Request, Response, serve_calls
from tunnel.messages.calls.channels import ChannelTable, split_address
from tunnel.messages.errors import ChannelClosedError

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def echo(request: Request) -> Response:
    return Response(request.body)


@in_loop
async def test_many_callers_share_one_dial() -> None:
    async with served({1: echo}) as address:
        dials: list[str] = []

        async def dial(wanted: str) -> Streams:
            dials.append(wanted)
            host, port = split_address(wanted)
            return await asyncio.open_connection(host, port)

        async with ChannelTable(dial) as table:
            answers = await asyncio.gather(*(table.call(address, 1, b"%d" % number) for number in range(20)))
            assert [answer.body for answer in answers] == [b"%d" % number for number in range(20)]
            assert dials == [address]
            first = await table.channel(address)
            await first.close()
            second = await table.channel(address)
            assert second is not first
            assert (await second.call(1, b"again")).body == b"again"
            assert len(dials) == 2
        assert not second.is_open
        with pytest.raises(ChannelClosedError):
            await table.channel(address)


@in_loop
async def test_a_caller_that_gives_up_does_not_stop_the_others() -> None:
    async with served({1: echo}) as address:
        gate = asyncio.Event()

        async def dial(wanted: str) -> Streams:
            await gate.wait()
            host, port = split_address(wanted)
            return await asyncio.open_connection(host, port)

        async with ChannelTable(dial) as table:
            first, second = (asyncio.ensure_future(table.channel(address)) for _ in range(2))
            await asyncio.sleep(0)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            gate.set()
            assert (await second).is_open


@in_loop
async def test_a_dial_that_fails_is_tried_again_next_time() -> None:
    attempts = 0

    async def dial(address: str) -> Streams:
        nonlocal attempts
        attempts += 1
        raise ConnectionRefusedError("nobody there")

    async with ChannelTable(dial) as table:
        for number in (1, 2):
            with pytest.raises(ConnectionRefusedError):
                await table.channel("x:1")
            assert attempts == number


@in_loop_within(HANGING_S)
async def test_connecting_takes_three_seconds_at_most() -> None:
    async def never(address: str) -> Streams:
        await asyncio.Event().wait()
        raise AssertionError

    assert ChannelTable(never)._connect_timeout == 3.0
    async with ChannelTable(never, connect_timeout=0.01) as table:
        with pytest.raises(TimeoutError, match=r"x:1: no connection within 0\.01 s"):
            await table.channel("x:1")
    table = ChannelTable(never)
    waiting = asyncio.ensure_future(table.channel("x:1"))
    await asyncio.sleep(0)
    await table.close()
    with pytest.raises(ChannelClosedError):
        await waiting


@in_loop
async def test_addresses_are_tcp_addresses_by_default() -> None:
    async with served({1: echo}) as address, ChannelTable() as table:
        assert (await table.call(address, 1, b"x")).body == b"x"
        with pytest.raises(ValueError, match="has no port"):
            await table.channel("service")


@in_loop
async def test_channels_work_over_a_tunnel() -> None:
    async with MemoryTestRelay() as relay, relay.attach("bob") as bob, relay.attach("ann") as ann:
        await bob.start_server(serve_calls({1: echo}), "echo")
        async with ChannelTable(lambda address: ann.open_connection(*split_address(address))) as table:
            assert (await table.call("echo", 1, b"x")).body == b"x"


def test_addresses_are_parsed() -> None:
    assert split_address("host:80") == ("host", 80)
    assert split_address("[::1]:80") == ("::1", 80)
    assert split_address("reports") == ("reports", None)
    for wrong in (":80", "host:", "host:http"):
        with pytest.raises(ValueError, match="is not an address"):
            split_address(wrong)


@in_loop
async def test_a_channel_whose_peer_is_silent_is_dialled_again() -> None:
    dialled: list[asyncio.StreamWriter] = []
    async with stream_pair() as (near, _), stream_pair() as (again, far):

        async def dial(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            dialled.append((near if not dialled else again)[1])
            return near if len(dialled) == 1 else again

        async with (
            CallChannel(*far, {1: lambda request: Response(request.body)}),
            ChannelTable(dial, silent=0.0) as table,
        ):
            with pytest.raises(TimeoutError):
                await table.call("x:1", 1, b"a", timeout=0.01)
            assert (await table.call("x:1", 1, b"b")).data == b"b"
            assert len(dialled) == 2
