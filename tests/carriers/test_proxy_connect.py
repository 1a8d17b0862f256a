"""Connections to a proxy whose CONNECT fails. test_proxy_authentication.py has proxies that admit us."""

import asyncio

import aiohttp
import pytest

from tests.carriers.origin import Origin, answer
from tests.support.loops import in_loop
from tunnel.carriers.dialing import Dialing


@pytest.mark.parametrize("status", ["403 Forbidden", "407 Who are you", "502 Bad Gateway"])
@in_loop
async def test_each_refused_connect_closes_its_connection_to_the_proxy(status: str) -> None:
    """An attachment tries for as long as it runs: what it leaves open adds up."""
    async with Origin(answer(status)) as proxy:
        dialing = Dialing("https://relay.invalid", proxy=proxy.url)
        async with dialing.session() as session:
            for _ in range(2):
                with pytest.raises(aiohttp.ClientHttpProxyError):
                    await session.get(dialing.url("exchange"))
                async with asyncio.timeout(10):
                    assert await proxy.ended.get() == proxy.ports[-1]
