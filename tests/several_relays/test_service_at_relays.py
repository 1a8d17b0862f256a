"""A service that several relays offer, as the application sees it."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.loops import in_loop
from tunnel import DeniedError
from tunnel.streams.listener import OfferedService, Server
from tunnel.streams.service_at_relays import ServiceAtRelays


class Offer:
    """A service at two relays, which the test refuses and closes at each of them."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.offered = {url: self.one() for url in ("r0", "r1")}
        servers = {url: one.server for url, one in self.offered.items()}
        self.service = ServiceAtRelays("reports", servers, lambda url, error: self.told.append(url))
        self.server = Server(self.service)

    def one(self) -> OfferedService:
        return OfferedService("reports", lambda name: None, lambda made: None)

    def refuse(self, url: str) -> DeniedError:
        one, error = self.offered[url], DeniedError(f"refused at {url}")
        one.refusal, one.is_serving = error, False
        one.refused.set_result(error)
        one.closed.set_result(None)
        return error


@in_loop
async def test_a_service_is_refused_when_every_relay_has_refused_it() -> None:
    offer = Offer()
    refused = asyncio.ensure_future(offer.server.refused())
    serving = asyncio.ensure_future(offer.server.serve_forever())
    first = offer.refuse("r0")
    await asyncio.sleep(0.01)
    assert offer.told == ["r0"]
    assert offer.server.is_serving()
    assert not refused.done()
    assert not serving.done()
    offer.refuse("r1")
    async with asyncio.timeout(10):
        assert await refused is first
        with pytest.raises(DeniedError, match="refused at r0"):
            await serving
        await offer.server.wait_closed()
    assert offer.told == ["r0", "r1"]


@in_loop
async def test_a_relay_that_takes_a_service_later_keeps_it_open() -> None:
    offer = Offer()
    offer.service.refuse("r2", DeniedError("not yet"))
    assert offer.service.why_not_at("r2") == "not yet"
    offer.offered["r2"] = offer.one()
    offer.service.add("r2", offer.offered["r2"].server)
    assert offer.service.why_not_at("r2") == ""
    offer.refuse("r0")
    offer.refuse("r1")
    await asyncio.sleep(0.01)
    assert offer.server.is_serving()
    assert not offer.service.closed.done()
    assert not offer.service.refused.done()
    offer.refuse("r2")
    async with asyncio.timeout(10):
        await offer.server.wait_closed()
