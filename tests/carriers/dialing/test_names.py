"""The name of a relay's or a proxy's host: looked up once for everything, and outside the deadlines of exchanges."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from loadtests.harness.ports import hold_port
from tests.carriers.origin import Origin, answer
from tests.real.transfers import a_relay, move, until
from tests.real.transfers import client as real_client
from tests.support.certificates import CA, server_tls
from tests.support.loops import in_loop
from tests.support.name_server import NameServer
from tests.support.proxies import UpstreamProxy
from tunnel import Attachment, UnreachableError
from tunnel.carriers.dialing.dialing import Dialing
from tunnel.system.lookups import LOOKUPS
from tunnel_servlet.web.application import RELAY
from tunnel_servlet.web.running import RunningRelay

NAME = "relay.example"
SIZE = 64 << 10


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    found = NameServer(NAME)
    monkeypatch.setattr(socket, "getaddrinfo", found.getaddrinfo)
    yield found
    found.answers.set()


def client(port: int, **options: Any) -> Attachment:
    return real_client(f"http://{NAME}:{port}", insecure_http=True, **options)


def requests(running: RunningRelay) -> int:
    return running.app[RELAY].host.switch.stats().counters.requests


@asynccontextmanager
async def relay() -> AsyncIterator[tuple[int, RunningRelay]]:
    with hold_port() as port:
        async with a_relay(port) as running:
            yield port, running


def starting(attachment: Attachment) -> asyncio.Future[Attachment]:
    return asyncio.ensure_future(attachment.__aenter__())


class Helpful(UpstreamProxy):
    """Knows where every name leads."""

    async def dial(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await super().dial("127.0.0.1", port)


@pytest.mark.parametrize("carrier", ["poll", "auto"])
@in_loop
async def test_one_lookup_serves_all_connections_attachments_and_roads(server: NameServer, carrier: str) -> None:
    async with relay() as (port, _), client(port, carrier=carrier) as first, client(port, carrier=carrier) as second:
        await move(first, SIZE)
        await move(second, SIZE)
    assert server.asked == 1


@in_loop
async def test_a_slow_name_server_delays_the_start_by_its_own_time_alone(server: NameServer) -> None:
    """No request waits for the name, so none is repeated because of it."""
    server.answers.clear()
    async with relay() as (port, running):
        attachment = client(port, attach_timeout=30)
        started = starting(attachment)
        await until(lambda: server.asked)
        await until(lambda: attachment.stats().trouble == f"looking up {NAME} has taken 3 s")
        before = requests(running)
        server.answers.set()
        await started
        assert requests(running) - before <= 2  # ATTACH, and perhaps the first pull
        await move(attachment, SIZE)
        await attachment.close()
    assert server.asked == 1


@in_loop
async def test_an_endpoint_that_gives_up_names_the_lookup(server: NameServer) -> None:
    server.answers.clear()
    with pytest.raises(UnreachableError, match=rf"looking up {NAME} has taken \d s"):
        async with client(9, attach_timeout=0.3):
            raise AssertionError
    assert server.asked == 1


@in_loop
async def test_a_name_that_is_not_found_is_asked_for_again_until_it_is(server: NameServer) -> None:
    server.is_away = True
    async with relay() as (port, _):
        attachment = client(port)
        started = starting(attachment)
        await until(lambda: server.asked)
        await until(lambda: f"the name {NAME} cannot be resolved" in attachment.stats().trouble)
        server.is_away = False
        await started
        await move(attachment, SIZE)
        await attachment.close()


@in_loop
async def test_the_last_good_address_serves_while_no_name_server_answers(
    server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with relay() as (port, _), client(port) as attachment:
        await move(attachment, SIZE)
        usual = LOOKUPS._now
        monkeypatch.setattr(LOOKUPS, "_now", lambda: usual() + 3600)
        server.answers.clear()
        async with client(port) as other:
            await move(other, SIZE)
        await move(attachment, SIZE)
    assert server.asked == 2


@in_loop
async def test_through_a_proxy_only_the_name_of_the_proxy_is_looked_up(server: NameServer) -> None:
    other = "http://nowhere.invalid:{}"
    async with Helpful() as proxy, relay() as (port, _):
        options: dict[str, Any] = {"proxy": f"http://{NAME}:{proxy.port}", "insecure_http": True}
        async with real_client(other.format(port), **options) as attachment:
            await move(attachment, SIZE)
        async with Origin(answer("404 Not Found"), tls=server_tls()) as https:
            through = Dialing(f"https://nowhere.invalid:{https.port}", ca=CA, sni="localhost", proxy=options["proxy"])
            async with through.session() as session:
                response = await session.get(through.url("exchange"), proxy=through.proxy)
                assert response.status == 404
    assert server.asked == 1
    assert server.others.isdisjoint({"nowhere.invalid"})


def test_an_address_is_not_looked_up() -> None:
    for host in ("127.0.0.1", "[::1]"):
        assert not Dialing(f"http://{host}:9", proxy=None).has_name
    assert Dialing("http://localhost:9", proxy=None).has_name
    assert not Dialing("https://relay.example", proxy="http://127.0.0.1:3128").has_name
