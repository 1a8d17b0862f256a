"""A real relay behind the fault proxy, one fault at a time: every byte arrives once (scenarios 1 to 4, 7, 12, 14, 18,
19, 21)."""

import asyncio
import dataclasses

import pytest

from loadtests.faultproxy import (
    Drop,
    FaultProxy,
    FaultProxyOptions,
    Flip,
    IdleCut,
    LateDuplicate,
    Status,
)
from loadtests.harness.ports import hold_port
from tests.real.transfers import MIB, a_relay, client, move, until
from tests.support.loops import run
from tunnel.exchange import LaneConfig

SMALL_BODIES = LaneConfig(body_bytes_max=64 << 10, answer_bytes_max=64 << 10)  # more exchanges, hence more faults
SHORT_HOLDS = LaneConfig(hold_us=2_000_000, hold_us_min=200_000)

FAULTS: dict[str, FaultProxyOptions] = {
    "1 requests are reset": FaultProxyOptions(seed=1, drop_request=Drop(0.2)),
    "2 responses are reset": FaultProxyOptions(seed=2, drop_response=Drop(0.2)),
    "2 responses vanish": FaultProxyOptions(seed=3, drop_response=Drop(0.1, silent=True)),
    "3 requests come twice": FaultProxyOptions(seed=4, duplicate=0.5),
    "3 requests come again late": FaultProxyOptions(seed=5, late_duplicate=LateDuplicate(0.5, 300_000)),
    "7 bits flip": FaultProxyOptions(seed=6, flip=Flip.parse("0.2:bits=64")),
    "14 errors of proxies": FaultProxyOptions(
        seed=7, statuses=tuple(Status.parse(f"{code}:0.05") for code in (429, 502, 503, 504, 524))
    ),
    "14 errors after the relay had it": FaultProxyOptions(seed=8, statuses=(Status.parse("502:0.2:after"),)),
    "21 a third is lost and a fifth fails": FaultProxyOptions(
        seed=9, drop_request=Drop(0.3, silent=True), drop_response=Drop(0.2)
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_cost_only_time(name: str) -> None:
    options = FAULTS[name]
    size = MIB // (16 if name.startswith("21") else 2)

    async def main() -> None:
        through = dataclasses.replace(options, upstream=("127.0.0.1", relay))
        async with (
            a_relay(relay),
            FaultProxy(through) as proxy,
            client(proxy.url, lanes=SMALL_BODIES) as attachment,
        ):
            # The number of exchanges, and so of faults, depends on timing: move data until there were some faults.
            while sum(proxy.counts.faults.values()) <= 2:
                await move(attachment, size, connections=1)

    with hold_port() as relay:
        run(main())


def test_4_a_duplicated_connect_dials_once() -> None:
    dialled = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal dialled
        dialled += 1
        writer.write(await reader.read(5))
        writer.close()

    async def main() -> None:
        options = FaultProxyOptions(upstream=("127.0.0.1", relay), duplicate=1.0, drop_response=Drop(0.2), seed=4)
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, a_relay(relay, exit="inline"), FaultProxy(options) as proxy, client(proxy.url) as attachment:
            for _ in range(4):
                reader, writer = await attachment.open_connection("127.0.0.1", port, timeout=40)
                writer.write(b"hello")
                assert await reader.read() == b"hello"
                writer.close()
        assert dialled == 4
        assert proxy.counts.faults["duplicate"] > 4

    with hold_port() as relay:
        run(main())


@pytest.mark.parametrize("silent", [False, True])
def test_12_bytes_arrive_although_idle_connections_are_cut(silent: bool) -> None:
    """A request that is held for longer than the path allows is lost, but later bytes arrive."""

    async def main() -> None:
        options = FaultProxyOptions(upstream=("127.0.0.1", relay), idle_cut=IdleCut(500_000, silent=silent))
        async with a_relay(relay), FaultProxy(options) as proxy, client(proxy.url, lanes=SHORT_HOLDS) as attachment:
            await until(lambda: proxy.counts.faults["idle_cut"] >= 2)
            await move(attachment, MIB // 4, connections=1)

    with hold_port() as relay:
        run(main())


@pytest.mark.parametrize("side", ["", "request", "response"])
def test_18_and_19_a_transfer_survives_a_blackhole(side: str) -> None:
    async def main() -> None:
        options = FaultProxyOptions(upstream=("127.0.0.1", relay))
        async with a_relay(relay), FaultProxy(options) as proxy, client(proxy.url, lanes=SMALL_BODIES) as attachment:
            goes_on = True

            async def move_until_then() -> None:
                while goes_on:  # on a fast machine, one transfer can end before the blackhole begins
                    await move(attachment, 4 * MIB, connections=1)

            moving = asyncio.create_task(move_until_then())
            await until(lambda: proxy.counts.exchanges >= 20)
            with proxy.blackhole(side):
                await asyncio.sleep(2)  # the scenario itself
                assert not moving.done()
                goes_on = False
            await moving

    with hold_port() as relay:
        run(main())
