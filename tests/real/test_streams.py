"""Streamed answers through real proxies and through the fault proxy, which holds, cuts, changes or stalls them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from loadtests.faultproxy import Delay, FaultProxy, FaultProxyOptions, Flip, IdleCut, Truncate
from loadtests.harness.ports import hold_port
from tests.real.servers import start_apache, start_haproxy, start_nginx
from tests.real.transfers import MIB, a_relay, client, move, statuses, until
from tests.support.loops import run
from tunnel import Attachment

nginx = pytest.mark.real("nginx")


async def carriers(attachment: Attachment, size: int = 4 * MIB) -> str:
    """Move some MiB both ways, whole and unchanged; return the carrier in use."""
    moved = await move(attachment, size)
    return moved.carrier.partition(" ")[0]


async def is_streaming(attachment: Attachment) -> None:
    await until(lambda: attachment.stats().carrier.startswith("stream"))


def through_fault_proxy(**faults: Any) -> list[str]:
    """Move data three times through the fault proxy; return the carrier in use after each transfer."""
    used: list[str] = []

    async def main() -> None:
        options = FaultProxyOptions(upstream=("127.0.0.1", relay), seed=3, **faults)
        async with (
            a_relay(relay),
            FaultProxy(options) as proxy,
            client(proxy.url, carrier="stream") as attachment,
        ):
            for _ in range(3):
                used.append(await carriers(attachment, MIB))

    with hold_port() as relay:
        run(main())
    return used


@nginx
def test_nginx_with_its_defaults_lets_streams_pass(tmp_path: Path) -> None:
    counts: dict[str, int] = {}  # how many requests a transfer took, by carrier

    async def main() -> None:
        async with a_relay(relay):
            for carrier in ("poll", "stream"):
                async with client(server.url, carrier=carrier) as attachment:
                    assert (await carriers(attachment)) in (carrier, "poll")
                    if carrier == "stream":
                        await is_streaming(attachment)
                    before = len(statuses(tmp_path))
                    assert await carriers(attachment) == carrier
                    counts[carrier] = len(statuses(tmp_path)) - before

    with hold_port() as relay, start_nginx(tmp_path, "nginx-defaults.conf", relay=relay) as server:
        run(main())
    assert set(statuses(tmp_path)) <= {200, 499}
    assert counts["stream"] < counts["poll"]


@nginx
def test_auto_streams_where_no_link_passes(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_relay(relay), client(server.url, carrier="auto") as attachment:
            await carriers(attachment)
            await is_streaming(attachment)
            assert await carriers(attachment) == "stream"

    with hold_port() as relay, start_nginx(tmp_path, "nginx-defaults.conf", relay=relay) as server:
        run(main())


@pytest.mark.real("haproxy")
def test_haproxy_with_a_timeout_of_a_second(tmp_path: Path) -> None:
    """A stream that is silent for a second is cut; everything arrives nevertheless."""

    async def main() -> None:
        async with a_relay(relay), client(server.url, carrier="stream") as attachment:
            for _ in range(3):
                await carriers(attachment, MIB)
                await asyncio.sleep(1.2)

    with hold_port() as relay, start_haproxy(tmp_path, "haproxy-short-timeouts.cfg", relay=relay) as server:
        run(main())


@pytest.mark.real("apache2")
def test_apache_with_its_defaults_lets_streams_pass(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_relay(relay), client(server.url, carrier="stream") as attachment:
            await carriers(attachment)
            await is_streaming(attachment)
            assert await carriers(attachment) == "stream"

    with hold_port() as relay, start_apache(tmp_path, "apache-defaults.conf", relay=relay) as server:
        run(main())


def test_an_endpoint_polls_through_a_proxy_that_holds_answers_back_to_their_end() -> None:
    """The endpoint goes back to complete answers (poll), and everything arrives."""
    assert through_fault_proxy(buffer=True) == ["poll"] * 3


def test_through_a_proxy_that_cuts_answers_anywhere_all_data_arrives() -> None:
    assert len(through_fault_proxy(truncate=Truncate(0.3, "response"))) == 3


def test_through_a_proxy_that_flips_bits_all_data_arrives() -> None:
    assert len(through_fault_proxy(flip=Flip(0.3, "response", 4))) == 3


def test_a_proxy_that_delays_streams_lets_them_pass() -> None:
    assert through_fault_proxy(delay=Delay(50_000))[-1] == "stream"


def test_through_a_proxy_that_drops_idle_connections_silently_all_data_arrives() -> None:
    assert len(through_fault_proxy(idle_cut=IdleCut(400_000, silent=True))) == 3


# endpoints and relays with and without streamed answers


def test_an_endpoint_with_streams_uses_none_at_a_relay_without_them() -> None:
    async def main() -> None:
        async with (
            a_relay(relay, switch={"streams": False}),
            client(f"http://127.0.0.1:{relay}", carrier="stream") as attachment,
        ):
            assert await carriers(attachment) == "poll"

    with hold_port() as relay:
        run(main())


def test_an_endpoint_without_streams_uses_none_at_a_relay_with_them() -> None:
    async def main() -> None:
        async with a_relay(relay) as running, client(f"http://127.0.0.1:{relay}", carrier="poll") as attachment:
            assert await carriers(attachment) == "poll"
            assert running.relay.host.switch.stats().counters.streams_opened == 0

    with hold_port() as relay:
        run(main())
