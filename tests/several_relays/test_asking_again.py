"""A relay that refuses an endpoint, or a service, is asked again while another relay serves: its rules may change."""

from __future__ import annotations

import asyncio
import gc
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.several_relays.rig import AWAY, DENIED, Exit, Ruled, at, greeting, relays, several, until_answers
from tests.support.loops import in_loop, until
from tunnel import (
    DeniedError,
    ProxyPasswordError,
    refusals,
)
from tunnel.attached_endpoint import AttachedEndpoint
from tunnel.exchange import AttachRefused
from tunnel.streams.listener import Server


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
async def test_a_service_is_offered_again_at_a_relay_that_had_refused_the_endpoint_when_it_began() -> None:
    async with ruled() as (first, second), at(first, second, user="ann") as owner:
        second.fault = lambda message: DENIED
        several(owner)._start_next(everywhere=True)
        await until(lambda: [one.is_refused for one in owner.stats().relays] == [False, True])
        await owner.start_server(Exit(b"in.").serve, "reports")
        second.fault = lambda message: None
        await until(lambda: second.core.switch.stats().listeners == 1)
        second.names = frozenset()
        second.restart()
        await until(lambda: [*owner.stats().relays[1].services_refused] == ["reports"])
        second.names = first.names
        await until(lambda: owner.stats().relays[1].services_refused == {})
        async with second.attach("bob", linger=0.1) as bob:
            assert await greeting(bob, "reports", None) == b"in."


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
async def test_a_wrong_password_is_not_sent_to_a_proxy_again(caplog: pytest.LogCaptureFixture) -> None:
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
    (said,) = [record.getMessage() for record in caplog.records if record.getMessage().startswith("r1 ")]
    assert said.endswith("; not asked again with this password")


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
        with pytest.raises(DeniedError, match="revoked"):
            await exits.open_connection("db", 5432)


@pytest.mark.usefixtures("soon")
@in_loop
async def test_each_of_two_services_that_a_relay_refuses_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async with ruled() as (first, second), at(first, second, user="ann") as owner:
        first.names = frozenset({"reports", "bills"})
        second.names = frozenset()
        for name in first.names:
            await owner.start_server(Exit(b"in.").serve, name)
        await asyncio.sleep(0.1)  # both are offered again
    said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("r1 does not take")]
    assert len(said) == 2


@pytest.mark.usefixtures("soon")
@in_loop
async def test_a_service_that_a_relay_takes_and_then_refuses_again_is_said_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ruled() as (first, second), at(first, second, user="ann") as owner:
        await owner.start_server(Exit(b"in.").serve, "reports")
        for _ in range(2):
            await until_answers(owner, True, True)
            second.names = frozenset()
            second.restart()
            await until(lambda: [*owner.stats().relays[1].services_refused] == ["reports"])
            second.names = first.names
            await until(lambda: owner.stats().relays[1].services_refused == {})
    said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("r1 does not take")]
    assert len(said) == 2


@pytest.mark.usefixtures("soon")
@in_loop
async def test_a_wrong_password_is_not_sent_again_for_a_service_that_was_refused_before() -> None:
    async with ruled() as (first, second), at(first, second, user="ann") as owner:
        second.names = frozenset()
        await owner.start_server(Exit(b"in.").serve, "reports")
        place = several(owner)._places[1]
        assert place.asking is not None
        refused = place.endpoint
        refused._refused(AttachRefused(407, 0, "the proxy asks for a password"))
        await asyncio.sleep(0.1)
        assert place.endpoint is refused


@pytest.mark.usefixtures("soon")
@in_loop
async def test_an_endpoint_that_leaves_asks_no_relay_again() -> None:
    """A new endpoint there would take connections."""
    async with relays(b"", b"") as (first, second), at(first, second, user="exit", exit_handler=Exit(b"out")) as exits:
        await until_answers(exits, True, True)
        second.fault = lambda message: DENIED
        place = several(exits)._places[1]
        await until(lambda: place.refusal is not None)
        exits.leave()
        refused = place.endpoint
        await asyncio.sleep(0.1)
        assert place.endpoint is refused
        assert place.asking is None


@in_loop
async def test_a_refusal_while_the_endpoint_ends_leaves_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with relays(b"", b"") as (first, second), at(first, second, user="exit", exit_handler=Exit(b"out")) as exits:
        await until_answers(exits, True, True)
        place = several(exits)._places[1]
        endpoint, end = place.endpoint, place.endpoint.end

        async def refused() -> None:
            endpoint._refused(AttachRefused(403, 0, "revoked"))
            await end()

        monkeypatch.setattr(endpoint, "end", refused)
    assert place.refusal is not None
    assert place.asking is None


@in_loop
async def test_a_service_is_also_offered_at_a_relay_that_is_asked_again_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ruled() as (first, second), at(first, second, user="ann", exit_handler=Exit(b"out")) as owner:
        second.fault = lambda message: DENIED
        here, there = several(owner)._places
        await until(lambda: there.refusal is not None)
        may_serve, serve = asyncio.Event(), here.endpoint.serve

        async def late(*offer: Any) -> Server:
            await may_serve.wait()
            return await serve(*offer)

        monkeypatch.setattr(here.endpoint, "serve", late)
        serving = asyncio.ensure_future(owner.start_server(Exit(b"in.").serve, "reports"))
        await asyncio.sleep(0)
        second.restart()
        second.fault = lambda message: None
        several(owner)._ask_again(there)
        await until_answers(owner, True, True)
        may_serve.set()
        await serving
        await until(lambda: second.core.switch.stats().listeners == 1)


@in_loop
async def test_a_refused_start_that_ends_late_says_nothing_about_the_next_endpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with relays(b"", b"") as (first, second):
        second.fault = lambda message: AWAY
        async with at(first, second, user="exit", exit_handler=Exit(b"out")) as exits:
            place = several(exits)._places[1]
            (driver,) = place.endpoint.drivers
            may_close, close = asyncio.Event(), driver.close

            async def late() -> None:
                await may_close.wait()
                await close()

            monkeypatch.setattr(driver, "close", late)
            second.fault = lambda message: DENIED
            await until(lambda: place.refusal is not None)
            starting = place.starting
            assert starting is not None
            second.fault = lambda message: None
            several(exits)._ask_again(place)  # as new secrets do
            await until_answers(exits, True, True)
            may_close.set()
            await starting
            assert place.refusal is None
            assert place.asking is None


@pytest.mark.usefixtures("soon")
@in_loop
async def test_a_relay_that_answers_and_then_refuses_again_is_said_again(caplog: pytest.LogCaptureFixture) -> None:
    async with relays(b"", b"") as (first, second), at(first, second, user="exit", exit_handler=Exit(b"out")) as exits:
        for _ in range(2):
            second.fault = lambda message: None
            await until_answers(exits, True, True)
            second.fault = lambda message: DENIED
            await until(lambda: exits.stats().relays[1].is_refused)
            second.restart()
    said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("r1 refuses")]
    assert len(said) == 2


@in_loop
async def test_a_service_that_is_closed_while_others_are_offered_again_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another service may have its name by then."""
    async with ruled() as (first, second), at(first, second, user="ann") as owner:
        first.names = frozenset({"reports", "bills"})
        second.names = frozenset()
        servers = {name: await owner.start_server(Exit(b"in.").serve, name) for name in ("reports", "bills")}
        second.names = first.names
        place = several(owner)._places[1]
        serve, offered = place.endpoint.serve, []

        async def closing(*offer: Any) -> Server:
            offered.append(offer[1])
            servers["bills"].close()
            return await serve(*offer)

        monkeypatch.setattr(place.endpoint, "serve", closing)
        several(owner)._ask_if_served(place)
        await until(lambda: owner.stats().relays[1].services_refused == {})
        await asyncio.sleep(0.05)
        assert offered == ["reports"]


@in_loop
async def test_new_secrets_end_the_question_about_a_service_that_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The endpoint is refused meanwhile. The next one offers all services, and what the first one hears is old."""
    async with ruled() as (first, second), at(first, second, user="ann") as owner:
        first.names = frozenset({"reports", "bills"})
        second.names = frozenset()
        for name in ("reports", "bills"):
            await owner.start_server(Exit(b"in.").serve, name)
        place = several(owner)._places[1]
        may_end, old = asyncio.Event(), place.endpoint
        offered = []

        async def late(*offer: Any) -> Server:
            offered.append(offer[1])
            await may_end.wait()
            raise DeniedError("revoked")

        monkeypatch.setattr(old, "serve", late)
        several(owner)._ask_if_served(place)
        await until(lambda: offered == ["reports"])
        old._refused(AttachRefused(403, 0, "revoked"))
        second.names = first.names
        second.restart()
        several(owner)._ask_again(place)  # as new secrets do
        await until(lambda: second.core.switch.stats().listeners == 2)
        await until(lambda: owner.stats().relays[1].services_refused == {})
        may_end.set()
        await asyncio.sleep(0.05)
        assert offered == ["reports"]
        assert owner.stats().relays[1].services_refused == {}
        assert place.asking is None


@in_loop
async def test_an_endpoint_that_has_left_does_not_attach_with_new_secrets_either() -> None:
    async with relays(b"", b"") as (first, second), at(first, second, user="exit", exit_handler=Exit(b"out")) as exits:
        await until_answers(exits, True, True)
        place = several(exits)._places[1]
        second.fault = lambda message: DENIED
        await until(lambda: place.refusal is not None)
        exits.leave()
        refused = place.endpoint
        renew = several(exits).renew_at("r1")
        if renew is not None:
            renew("token", {}, None, lambda status: None)
        assert place.endpoint is refused


@in_loop
async def test_a_relay_that_is_asked_again_many_times_leaves_nothing_behind() -> None:
    async with relays(b"", b"") as (first, second), at(first, second, user="exit", exit_handler=Exit(b"out")) as exits:
        await until_answers(exits, True, True)
        found, place = several(exits), several(exits)._places[1]
        second.fault = lambda message: DENIED
        counts = []
        for _ in range(20):
            await until(lambda: place.refusal is not None and place.starting is not None and place.starting.done())
            await until(lambda: len(found._tasks._tasks) == 0)
            second._faults.clear()  # it keeps each answer
            gc.collect()
            counts.append(sum(type(one) is AttachedEndpoint for one in gc.get_objects()))
            assert len(found._siblings.members) == 2
            found._ask_again(place)
        assert counts[-1] == counts[1]


@pytest.mark.usefixtures("soon")
@in_loop
async def test_once_new_secrets_end_the_refusals_of_all_relays_the_others_are_asked_again() -> None:
    async with relays(b"", b"") as (first, second), at(first, second, user="exit", exit_handler=Exit(b"out")) as exits:
        await until_answers(exits, True, True)
        first.fault = second.fault = lambda message: DENIED
        await until(lambda: exits.refusal is not None)
        first.restart()
        second.restart()
        first.fault = second.fault = lambda message: None
        found = several(exits)
        await until(lambda: all(place.asking is None for place in found._places))
        found._ask_again(found._places[0])  # as new secrets do
        await until_answers(exits, True, True)
