"""Transfers of some MiB both ways through real reverse proxies, each with a committed configuration (config/)."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadtests.faultproxy import Drop, FaultProxy, FaultProxyOptions
from loadtests.harness.ports import hold_port
from tests.real.servers import start_apache, start_caddy, start_haproxy, start_nginx
from tests.real.transfers import CA, MIB, a_relay, access_log, client, move, statuses, until
from tests.support.loops import run
from tunnel import DeniedError, UnreachableError
from tunnel.exchange import LaneConfig

LEARNED_S = 120  # beside four busy processes on two cores it took 5 to 8 s until haproxy's slots were learned

nginx = pytest.mark.real("nginx")
haproxy = pytest.mark.real("haproxy")
ALWAYS = Drop(1)
SMALL_BODIES = LaneConfig(body_bytes_max=64 << 10, answer_bytes_max=64 << 10)
SHORT_HOLDS = LaneConfig(hold_us=1_500_000, hold_us_min=250_000)


@nginx
def test_data_passes_nginx_with_its_defaults(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_relay(relay), client(server.url) as attachment:
            moved = await move(attachment, 4 * MIB)
            assert moved.carrier.startswith("poll")

    with hold_port() as relay, start_nginx(tmp_path, "nginx-defaults.conf", relay=relay) as server:
        run(main())
    assert set(statuses(tmp_path)) <= {200, 499}  # 499: the client closed a held request


@nginx
@pytest.mark.parametrize("body", ["100k", "16k", "8k", "4k"])
def test_nginx_that_refuses_large_bodies(tmp_path: Path, body: str) -> None:
    """Bodies shrink after a 413, and the limit is remembered: more than four bodies pass for each that is too large."""

    async def main() -> None:
        async with a_relay(relay), client(server.url) as attachment:
            await move(attachment, MIB)

    with hold_port() as relay, start_nginx(tmp_path, "nginx-small-bodies.conf", relay=relay, body=body) as server:
        run(main())
    answers = statuses(tmp_path)
    assert 0 < answers.count(413) < answers.count(200) / 4


@nginx
@pytest.mark.parametrize(("status", "burst"), [(503, ""), (429, "burst=20 nodelay"), (503, "burst=20")])
def test_nginx_that_limits_the_rate_of_requests(tmp_path: Path, status: int, burst: str) -> None:
    """The rate is learned: then fewer requests are refused than pass, and bodies grow, even if nginx delays some."""

    async def main() -> None:
        async with a_relay(relay), client(server.url, carrier="poll") as attachment:
            await move(attachment, 4 * MIB)
            learned.append(len(statuses(tmp_path)))
            await move(attachment, 4 * MIB)

    learned: list[int] = []
    with (
        hold_port() as relay,
        start_nginx(tmp_path, "nginx-request-rate.conf", relay=relay, rate=10, status=status, burst=burst) as server,
    ):
        run(main())
    answers = statuses(tmp_path)[learned[0] :]
    assert answers.count(status) < answers.count(200)  # without learning, several are refused for each that passes
    assert answers.count(200) < 16 * MIB / (64 << 10)  # bodies of 64 KiB would need more


@haproxy
def test_haproxy_that_limits_the_rate_of_requests_and_their_size(tmp_path: Path) -> None:
    """haproxy counts refused requests, too, so an endpoint that does not slow down gets nothing through."""

    async def main() -> None:
        async with a_relay(relay), client(server.url) as attachment:
            await move(attachment, MIB)

    with hold_port() as relay, start_haproxy(tmp_path, "haproxy-request-rate.cfg", relay=relay) as server:
        run(main())


@haproxy
@pytest.mark.parametrize("slots", [1, 2])
def test_haproxy_that_passes_few_requests_at_once(tmp_path: Path, slots: int) -> None:
    """The endpoint learns to hold fewer pulls than there are slots.

    How soon it learns this, and whether it holds still fewer for a while, depends on the load of the machine.
    """

    async def main() -> None:
        async with a_relay(relay), client(server.url) as attachment:
            await move(attachment, 4 * MIB)
            path = attachment._endpoint._driver.carrier._lanes.path  # type: ignore[union-attr]
            async with asyncio.timeout(LEARNED_S):
                while path.held.most >= slots:
                    await move(attachment, 10, connections=1)

    with (
        hold_port() as relay,
        start_haproxy(tmp_path, "haproxy-few-slots.cfg", relay=relay, slots=slots) as server,
    ):
        run(main())


@pytest.mark.parametrize(
    ("start", "config"),
    [
        pytest.param(start_nginx, "nginx-retry.conf", marks=nginx, id="nginx"),
        pytest.param(start_haproxy, "haproxy-retry.cfg", marks=haproxy, id="haproxy"),
    ],
)
def test_a_proxy_that_repeats_requests(tmp_path: Path, start: Callable[..., Any], config: str) -> None:
    """With proxy_next_upstream non_idempotent, or retry-on all-retryable-errors, the relay gets requests twice, and
    applies them once."""

    async def main() -> None:
        lossy = FaultProxyOptions(listen=("127.0.0.1", lossy_port), upstream=("127.0.0.1", relay), drop_response=ALWAYS)
        async with a_relay(relay), FaultProxy(lossy) as proxy, client(server.url) as attachment:
            await move(attachment, MIB)
        assert proxy.counts.faults["drop_response"] > 5

    with (
        hold_port() as relay,
        hold_port() as lossy_port,
        start(tmp_path, config, relay=relay, lossy=lossy_port) as server,
    ):
        run(main())
    if start is start_nginx:
        assert any(line.split()[2:4] == ["502,", "200"] for line in access_log(tmp_path))


@nginx
def test_nginx_that_closes_after_each_request(tmp_path: Path) -> None:
    """With keepalive_requests 1 no connection is used twice, and the client does not rely on a closed one."""

    async def main() -> None:
        async with a_relay(relay), client(server.url) as attachment:
            await move(attachment, MIB)

    with hold_port() as relay, start_nginx(tmp_path, "nginx-one-request.conf", relay=relay) as server:
        run(main())
    assert set(statuses(tmp_path)) <= {200, 499}


@nginx
def test_nginx_with_a_forced_cache(tmp_path: Path) -> None:
    """An answer to another request is ignored, and the request is sent again."""

    async def main() -> None:
        async with a_relay(relay), client(server.url, lanes=SMALL_BODIES) as attachment:
            await move(attachment, MIB)

    with hold_port() as relay, start_nginx(tmp_path, "nginx-forced-cache.conf", relay=relay) as server:
        run(main())
    assert any(line.endswith(" HIT") for line in access_log(tmp_path))


@nginx
def test_nginx_that_cuts_held_requests(tmp_path: Path) -> None:
    """A pull that is held for longer than the proxy waits is answered with 504, so holds become shorter."""

    async def main() -> None:
        async with a_relay(relay), client(server.url, lanes=SHORT_HOLDS) as attachment:
            await until(lambda: 504 in statuses(tmp_path) and statuses(tmp_path)[-4:] == [200] * 4)
            await move(attachment, MIB)

    with hold_port() as relay, start_nginx(tmp_path, "nginx-short-timeouts.conf", relay=relay) as server:
        run(main())
    assert 504 in statuses(tmp_path)


@nginx
@pytest.mark.parametrize("carrier", ["poll", "link", "websocket"])
def test_poll_link_and_websocket_work_through_nginx_that_passes_upgrades(tmp_path: Path, carrier: str) -> None:
    async def main() -> None:
        async with a_relay(relay), client(server.url, carrier=carrier) as attachment:
            moved = await move(attachment, 4 * MIB)
            assert moved.carrier.startswith(carrier)

    with hold_port() as relay, start_nginx(tmp_path, "nginx-upgrade.conf", relay=relay) as server:
        run(main())
    assert (101 in statuses(tmp_path)) == (carrier != "poll")


@pytest.mark.parametrize(
    ("start", "template", "passes"),
    [
        pytest.param(start_haproxy, "haproxy-upgrade.cfg", ("link", "websocket"), marks=haproxy),
        pytest.param(start_caddy, "Caddyfile-upgrade", ("link", "websocket"), marks=pytest.mark.real("caddy")),
        pytest.param(start_apache, "apache-websocket.conf", ("websocket",), marks=pytest.mark.real("apache2")),
    ],
    ids=["haproxy", "caddy", "apache"],
)
@pytest.mark.parametrize("carrier", ["link", "websocket"])
def test_proxies_that_pass_upgrades(
    tmp_path: Path, start: Callable[..., Any], template: str, passes: tuple[str, ...], carrier: str
) -> None:
    """Apache passes only the upgrades that its configuration names."""

    async def main() -> None:
        async with a_relay(relay), client(server.url, carrier=carrier) as attachment:
            moved = await move(attachment, 4 * MIB)
            assert moved.carrier.startswith((carrier,) if carrier in passes else ("poll", "stream"))

    with hold_port() as relay, start(tmp_path, template, relay=relay) as server:
        run(main())


@nginx
@pytest.mark.parametrize("carrier", ["poll", "link"])
def test_a_gateway_gets_the_key_and_the_names_that_it_asks_for(tmp_path: Path, carrier: str) -> None:
    gate: dict[str, Any] = {"ca": CA, "sni": "localhost", "hostname": "relay.internal"}
    key = {"X-Gateway-Key": "s3cret"}

    async def main() -> None:
        url = server.url.replace("http:", "https:")
        async with a_relay(relay), client(url, carrier=carrier, headers=key, **gate) as attachment:
            moved = await move(attachment, MIB)
            assert moved.carrier.startswith(carrier)
        wrongs: list[dict[str, Any]] = [{"headers": {}}, {"hostname": "localhost"}, {"sni": "relay.internal"}]
        for wrong in wrongs:
            stranger = client(url, **{"headers": key, **gate, **wrong, "attach_timeout": 0.5})
            with pytest.raises((DeniedError, UnreachableError)):
                await stranger.start()

    certificate = Path(CA).parent / "server.pem"
    with (
        hold_port() as relay,
        start_nginx(tmp_path, "nginx-gateway.conf", relay=relay, certificate=certificate) as server,
    ):
        run(main())
    assert {403, 421} <= set(statuses(tmp_path))


@nginx
@pytest.mark.parametrize("carrier", ["link", "websocket"])
def test_nginx_that_blocks_upgrades(tmp_path: Path, carrier: str) -> None:
    """An endpoint that asked for a link or a websocket goes on with exchanges."""

    async def main() -> None:
        async with a_relay(relay), client(server.url, carrier=carrier) as attachment:
            moved = await move(attachment, MIB)
            assert moved.carrier.startswith(("poll", "stream"))

    with hold_port() as relay, start_nginx(tmp_path, "nginx-defaults.conf", relay=relay) as server:
        run(main())


@haproxy
@pytest.mark.parametrize("carrier", ["poll", "link"])
def test_haproxy_with_short_timeouts(tmp_path: Path, carrier: str) -> None:
    """The proxy cuts requests that are silent for a second; all data arrives nevertheless."""

    async def main() -> None:
        async with a_relay(relay), client(server.url, carrier=carrier) as attachment:
            moved = await move(attachment, 2 * MIB)
            assert moved.carrier.startswith(carrier)

    with hold_port() as relay, start_haproxy(tmp_path, "haproxy-short-timeouts.cfg", relay=relay) as server:
        run(main())


@haproxy
@pytest.mark.parametrize("body", [65_536, 30_000, 4_096])
def test_haproxy_that_refuses_large_answers(tmp_path: Path, body: int) -> None:
    """haproxy answers 403 instead of a large answer. The endpoint cannot know why; it also asks for smaller answers."""

    async def main() -> None:
        async with a_relay(relay), client(server.url) as attachment:
            await move(attachment, MIB)

    with hold_port() as relay, start_haproxy(tmp_path, "haproxy-small-answers.cfg", relay=relay, body=body) as server:
        run(main())


@nginx
def test_nginx_that_sends_requests_to_two_relays_by_turns(tmp_path: Path) -> None:
    """No attachment lasts, and the error says that several relays answer."""

    async def main() -> None:
        async with a_relay(relay), a_relay(other):
            attachment = client(server.url, attach_timeout=None)
            with pytest.raises(UnreachableError, match="several relays answer at this address by turns"):
                async with attachment:
                    await attachment.open_connection("reports", timeout=None)

    with (
        hold_port() as relay,
        hold_port() as other,
        start_nginx(tmp_path, "nginx-two-relays.conf", relay=relay, other=other) as server,
    ):
        run(main())
