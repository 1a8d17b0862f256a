"""What holds for all relays of a list at once: exits and services, and the interval between pulls."""

from __future__ import annotations

import asyncio

import pytest

from tests.several_relays.rig import AWAY, DENIED, Exit, Ruled, at, greeting, relays, several, until_answers
from tests.support.loops import in_loop, until
from tests.support.relays import MemoryTestRelay
from tunnel import DeniedError, RefusedError, TunnelError, UnreachableError


@in_loop
async def test_an_exit_and_a_service_sit_at_each_relay() -> None:
    async with (
        relays(b"", b"") as (first, second),
        at(first, second, user="exit", exit_handler=Exit(b"out")) as everywhere,
        first.attach("ann", linger=0.1) as ann,
        second.attach("bob", linger=0.1) as bob,
    ):
        await until_answers(everywhere, True, True)
        assert [await greeting(one) for one in (ann, bob)] == [b"out", b"out"]
        server = await everywhere.start_server(Exit(b"in.").serve, "reports")
        assert [await greeting(one, "reports", None) for one in (ann, bob)] == [b"in.", b"in."]
        server.close()
        await server.wait_closed()
        with pytest.raises(RefusedError):
            await greeting(bob, "reports", None)


@in_loop
async def test_it_is_said_once_that_two_of_the_relays_are_one(caplog: pytest.LogCaptureFixture) -> None:
    async with relays(b"", b"") as (first, second), at(first, second, first, user="ann") as everywhere:
        server = await everywhere.start_server(Exit(b"in.").serve, "reports")
        await until_answers(everywhere, True, True, True)
        first.restart()
        await until(lambda: first.core.switch.stats().listeners == 2)
        server.close()
    (said,) = (record.getMessage() for record in caplog.records if "one relay" in record.getMessage())
    assert said in [f"{names} are one relay under two names: name it once" for names in ("r0 and r2", "r2 and r0")]


@in_loop
async def test_relays_that_are_not_one_cause_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with relays(b"", b"") as (first, second), at(first, second, user="ann") as everywhere:
        await everywhere.start_server(Exit(b"in.").serve, "reports")
        await until_answers(everywhere, True, True)
        first.fault = second.fault = lambda message: AWAY
        await until_answers(everywhere, False, False)
    assert [record for record in caplog.records if "one relay" in record.getMessage()] == []


@pytest.mark.parametrize("when", ["at first", "while it answers", "when it was away"])
@in_loop
async def test_it_is_said_once_that_a_relay_refuses_the_endpoint_for_good(
    when: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with relays(b"", b"") as (first, second), at(first, second, user="ann") as everywhere:
        if when == "at first":
            second.fault = lambda message: DENIED
        await everywhere.start_server(Exit(b"in.").serve, "reports")
        if when != "at first":
            await until_answers(everywhere, True, True)
        if when == "when it was away":
            second.fault = lambda message: AWAY
            await until_answers(everywhere, True, False)
        second.fault = lambda message: DENIED
        await until(lambda: everywhere.stats().relays[1].is_refused)
    said = [record.getMessage() for record in caplog.records if "refuses" in record.getMessage()]
    assert [text.partition(": ")[0] for text in said] == ["r1 refuses this endpoint"]
    assert "revoked" in said[0]


@in_loop
async def test_a_name_that_only_some_relays_take_is_served_there() -> None:
    async with MemoryTestRelay() as first, Ruled() as second, at(first, second, user="ann") as owner:
        second.names = frozenset({"forbidden"})
        server = await owner.start_server(Exit(b"in.").serve, "forbidden")
        assert server.is_serving()
        refused = [relay.services_refused for relay in owner.stats().relays]
        assert [*refused[0]] == ["forbidden"]
        assert "does not allow" in refused[0]["forbidden"]
        assert refused[1] == {}
        async with second.attach("bob", linger=0.1) as bob:
            assert await greeting(bob, "forbidden", None) == b"in."


@in_loop
async def test_a_name_that_no_relay_takes_is_an_error() -> None:
    async with relays(b"", b"") as (first, second), at(first, second, user="ann") as owner:
        with pytest.raises(DeniedError):
            await owner.start_server(Exit(b"in.").serve, "forbidden")


@in_loop
async def test_the_interval_between_pulls_waits_for_no_relay_that_is_away() -> None:
    async with relays(b"one", b"two", b"3rd") as (first, second, third), at(first, second, third) as client:
        first.fault = lambda message: AWAY
        await until_answers(client, False, True)
        async with asyncio.timeout(10):
            assert await client.set_pull_interval(2.0) == 2.0
        first.fault = lambda message: None
        await until_answers(client, True, True)  # it was asked too, and hears of it now
        endpoints = [place.endpoint for place in several(client)._places]
        await until(lambda: endpoints[0].stats().pull_interval == 2.0)
        first.fault = second.fault = lambda message: AWAY
        await until_answers(client, False, False, True)  # a relay whose turn comes later is asked as well
        await until(lambda: endpoints[2].stats().pull_interval == 2.0)


@in_loop
async def test_the_interval_between_pulls_is_settled_with_the_relay_that_answers_first() -> None:
    async with relays(b"one", b"two") as (first, second), at(first, second) as client:
        first.fault = lambda message: AWAY
        await until_answers(client, False, True)
        second.fault = lambda message: AWAY
        await until_answers(client, False, False)
        asking = asyncio.ensure_future(client.set_pull_interval(2.0))
        with pytest.raises(ValueError, match="pull interval"):
            await client.set_pull_interval(-1)
        assert not asking.done()
        second.fault = lambda message: None
        assert await asking == 2.0
        asking = asyncio.ensure_future(client.set_pull_interval(3.0))
    with pytest.raises((RuntimeError, TunnelError)):
        await asking


@in_loop
async def test_the_interval_between_pulls_of_an_endpoint_that_all_refuse_is_an_error() -> None:
    async with relays(b"one", b"two") as found, at(*found) as client:
        error = UnreachableError("the end")
        for place in several(client)._places:
            place.error = error
        with pytest.raises(UnreachableError, match="the end"):
            await client.set_pull_interval(2.0)
