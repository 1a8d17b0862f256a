"""What is cancelled, closed or refused for good at several relays leaves nothing behind."""

from __future__ import annotations

import asyncio

import pytest

from tests.several_relays.rig import AWAY, Exit, at, greeting, relays, several, until_answers
from tests.support.loops import in_loop, until
from tests.support.relays import LOSE_REQUEST
from tunnel import TunnelError, UnreachableError
from tunnel.streams.transport import MadeTransport


@pytest.mark.parametrize("rounds", range(6))
def test_a_connect_that_is_cancelled_while_it_is_answered_leaves_no_connection(rounds: int) -> None:
    async def scene() -> None:
        async with relays(b"one", b"two") as (first, second), at(first, second) as client:
            endpoint = several(client)._places[0].endpoint
            opened = asyncio.Event()
            connect = endpoint.connect

            async def noted(host: str, port: int | None, seconds: float | None) -> MadeTransport:
                made = await connect(host, port, seconds)
                opened.set()
                return made

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(endpoint, "connect", noted)
                connecting = asyncio.ensure_future(several(client).connect("db", 5432, None))
                await opened.wait()
            for _ in range(rounds):
                await asyncio.sleep(0)
            connecting.cancel()
            outcome = (await asyncio.gather(connecting, return_exceptions=True))[0]
            if isinstance(outcome, MadeTransport):
                outcome.transport.abort()
            await until(lambda: not endpoint.stats().connections)

    asyncio.run(scene())


@in_loop
async def test_a_start_of_a_service_that_is_cancelled_offers_nothing() -> None:
    async with relays(b"one", b"two") as (first, second), at(first, second, user="ann") as client:
        await client.start_server(Exit(b"in.").serve, "other")  # attaches everywhere
        await until_answers(client, True, True)
        second.fault = lambda message: LOSE_REQUEST
        endpoints = [place.endpoint for place in several(client)._places]
        starting = asyncio.ensure_future(client.start_server(Exit(b"in.").serve, "reports"))
        services = endpoints[0].drivers[0].endpoint.services
        await until(lambda: "reports" in endpoints[0]._servers and services.is_answered("reports"))
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        assert [list(endpoint._servers) for endpoint in endpoints] == [["other"], ["other"]]
        second.fault = lambda message: None
        await client.start_server(Exit(b"in.").serve, "reports")  # the name is free


@pytest.mark.parametrize("rounds", range(4))
def test_a_start_that_is_cancelled_while_a_relay_answers_leaves_no_endpoint(rounds: int) -> None:
    async def scene() -> None:
        async with relays(b"one", b"") as found:
            found[1].fault = lambda message: AWAY
            client = at(*found, user="exit", exit_handler=Exit(b"out"))
            starting = asyncio.ensure_future(client.start())
            await asyncio.sleep(0)
            await several(client)._changed
            assert several(client)._places[0].is_present
            for _ in range(rounds):
                await asyncio.sleep(0)
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            if not starting.cancelled():
                await client.close()
            for each in several(client)._places:
                for driver in each.endpoint.drivers:
                    assert driver._closed
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            assert not [task for task in tasks if "SeveralRelays" in repr(task)]

    asyncio.run(scene())


@in_loop
async def test_closing_ends_what_waits_at_a_relay_that_never_answered() -> None:
    async with relays(b"one", b"") as (first, second):
        second.fault = lambda message: AWAY
        async with at(first, second) as client:
            server = await client.start_server(Exit(b"in.").serve, "reports")
            serving = asyncio.ensure_future(server.serve_forever())
            first.fault = lambda message: AWAY
            await until_answers(client, False, False)
            first_place, second_place = several(client)._places
            opening = asyncio.ensure_future(second_place.endpoint.connect("db", 5432, None))
            await until(lambda: second_place.endpoint.stats().connections)
            waiting = asyncio.ensure_future(client.open_connection("db", 5432))
            await until(lambda: first_place.endpoint.stats().connections)
        async with asyncio.timeout(10):
            await server.wait_closed()
            await serving
            with pytest.raises(UnreachableError):
                await opening
            with pytest.raises((TunnelError, ConnectionError)):
                await waiting
    assert not server.is_serving()


@in_loop
async def test_a_relay_that_never_answered_and_ends_for_good_ends_what_waits_there() -> None:
    async with relays(b"one", b"") as (first, second):
        second.fault = lambda message: AWAY
        async with at(first, second) as client:
            server = await client.start_server(Exit(b"in.").serve, "reports")
            place = several(client)._places[1]
            opening = asyncio.ensure_future(place.endpoint.connect("db", 5432, None))
            await until(lambda: place.endpoint.stats().connections)
            place.endpoint.trouble("the certificate is wrong", final=True)
            async with asyncio.timeout(10):
                with pytest.raises(UnreachableError, match="the certificate is wrong"):
                    await opening
            assert server.is_serving()  # at the first relay
            with pytest.raises(UnreachableError, match="the certificate is wrong"):
                await place.endpoint.connect("db", 5432, None)
            with pytest.raises(UnreachableError, match="the certificate is wrong"):
                await place.endpoint.serve(lambda made: None, "other", 1, None)
            assert await greeting(client) == b"one"
