"""A relay that refuses an endpoint, or a service, is asked again while another relay serves: its rules may change."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.several_relays.rig import Exit, at, greeting, relays, several, until_answers
from tests.support.loops import in_loop, until
from tests.support.relays import Fault, MemoryTestRelay, authorise
from tunnel import (
    DeniedError,
    NotAuthenticatedError,
    ProxyPasswordError,
    UnreachableError,
    refusals,
)
from tunnel.exchange import AttachRefused
from tunnel.wire import Status, StatusCode, encode_envelope
from tunnel_servlet.switch.config import SwitchConfig
from tunnel_servlet.web.host import SwitchHost

DENIED = Fault(status=403, body=b"".join(encode_envelope(Status(StatusCode.DENIED, text="revoked"))))


class Ruled(MemoryTestRelay):
    """A relay whose rules may change: who may listen under `names`."""

    names = frozenset({"reports"})

    def make_core(self, config: SwitchConfig) -> SwitchHost:
        return SwitchHost(config, authorise, may_listen=lambda user, name: name in self.names)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "_AGAIN_S", ((ProxyPasswordError, math.inf), (Exception, 0.02)))


@asynccontextmanager
async def ruled() -> AsyncIterator[tuple[Ruled, Ruled]]:
    async with Ruled() as first, Ruled() as second:
        yield first, second


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("when", ["at first", "while it answers"])
@in_loop
async def test_a_relay_that_has_refused_serves_again_once_its_rules_allow_it(
    when: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with relays(b"", b"") as (first, second), at(first, second, user="exit", exit_handler=Exit(b"out")) as exits:
        second.fault = lambda message: DENIED if when == "at first" else None
        await exits.start_server(Exit(b"in.").serve, "reports")
        if when == "while it answers":
            await until_answers(exits, True, True)
            second.fault = lambda message: DENIED
        await until(lambda: exits.stats().relays[1].is_refused)
        asked = second.requests
        await until(lambda: second.requests >= asked + 3)  # it is asked more than once
        second.restart()  # so that it forgets the endpoint that it has refused
        second.fault = lambda message: None
        await until_answers(exits, True, True)
        async with second.attach("bob", linger=0.1) as bob:
            assert await greeting(bob) == b"out"
            await until(lambda: second.core.switch.stats().listeners == 1)
            assert await greeting(bob, "reports", None) == b"in."
    said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("r1 ")]
    assert [text.partition(":")[0] for text in said] == ["r1 refuses this endpoint"]


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("when", ["at first", "later"])
@in_loop
async def test_a_service_that_a_relay_has_refused_is_offered_again(when: str, caplog: pytest.LogCaptureFixture) -> None:
    async with ruled() as (first, second), at(first, second, user="ann") as owner:
        if when == "at first":
            second.names = frozenset()
        server = await owner.start_server(Exit(b"in.").serve, "reports")
        if when == "later":
            await until_answers(owner, True, True)
            second.names = frozenset()
            second.restart()
        await until(lambda: [*owner.stats().relays[1].services_refused] == ["reports"])
        await asyncio.sleep(0.1)  # it is asked again, and refuses again
        second.names = first.names
        await until(lambda: owner.stats().relays[1].services_refused == {})
        async with second.attach("bob", linger=0.1) as bob:
            assert await greeting(bob, "reports", None) == b"in."
        assert server.is_serving()
    said = [record.getMessage() for record in caplog.records if "reports" in record.getMessage()]
    (text,) = [one for one in said if one.startswith("r1 does not take the service reports: ")]  # said once
    assert text.endswith("; asked again every 0.02 s while another relay serves")


@pytest.mark.usefixtures("soon")
@in_loop
async def test_a_service_that_was_closed_is_not_offered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ruled() as (first, second), at(first, second, user="ann") as owner:
        second.names = frozenset()
        server = await owner.start_server(Exit(b"in.").serve, "reports")
        place = several(owner)._places[1]
        assert place.asking is not None
        server.close()
        second.names = first.names
        offered: list[object] = []
        monkeypatch.setattr(place.endpoint, "serve", offered.append)
        await until(lambda: place.asking is None)
        await asyncio.sleep(0.05)
        assert offered == []


@pytest.mark.usefixtures("soon")
@in_loop
async def test_a_wrong_password_is_not_sent_to_a_proxy_again() -> None:
    """Proxies lock accounts for that."""
    async with relays(b"", b"") as found, at(*found, user="exit", exit_handler=Exit(b"out")) as exits:
        await until_answers(exits, True, True)
        place = several(exits)._places[1]
        refused = place.endpoint
        refused._refused(AttachRefused(407, 0, "the proxy asks for a password"))
        await asyncio.sleep(0.1)
        assert place.endpoint is refused
        assert place.asking is None
        assert exits.refusal is None


@pytest.mark.usefixtures("soon")
@in_loop
async def test_an_endpoint_that_all_relays_have_refused_ends_and_asks_none_again() -> None:
    async with relays(b"", b"") as (first, second), at(first, second, user="exit", exit_handler=Exit(b"out")) as exits:
        await until_answers(exits, True, True)
        first.fault = second.fault = lambda message: DENIED
        await until(lambda: exits.refusal is not None)
        asked = first.requests + second.requests
        await asyncio.sleep(0.1)
        assert first.requests + second.requests == asked
        assert isinstance(exits.refusal, DeniedError)


def test_a_refusal_says_how_soon_the_same_may_be_asked_again() -> None:
    kinds = (UnreachableError, DeniedError, NotAuthenticatedError, ProxyPasswordError)
    assert [refusals.asked_again_s(kind("")) for kind in kinds] == [15, 60, 300, math.inf]
