"""A link and a websocket alike: lost, silent, or refused, beside the lanes (section 8)."""

import asyncio

import pytest

from loadtests.faultproxy.options import FaultProxyOptions
from loadtests.faultproxy.proxy import FaultProxy
from tests.carriers.harness import MIB, ask, echo, end, noise, say_and_hear
from tests.carriers.rig import moved_by, until
from tests.support.http_relay import LinkTestRelay, WebSocketTestRelay
from tests.support.loops import in_loop
from tests.support.relays import inside
from tunnel.exchange.config import SECOND_US

RELAYS = {"link": LinkTestRelay, "websocket": WebSocketTestRelay}
LOST = {
    "link": "the link was lost",
    "websocket": "the websocket was lost: the websocket was closed (code 1001: cut by the test)",
}
either = pytest.mark.parametrize("kind", RELAYS)


@either
@in_loop
async def test_8_3_a_lost_link_loses_no_bytes_of_its_streams(kind: str) -> None:
    told: list[str] = []

    class Listener:
        def read_closed(self, text: str) -> None:
            told.append(text)

    async with RELAYS[kind]() as relay, relay.attach("ann") as service, relay.attach("bob") as client:
        client.add_error_listener(Listener())
        await service.start_server(echo, "echo")
        reader, writer = await say_and_hear(client)
        for number in range(3):
            asking = asyncio.create_task(ask(reader, writer, noise(3 * MIB, number)))
            await asyncio.sleep(0)
            for link in list(relay.host.links.values()):
                link.end("cut by the test")
            await asking
            await until(lambda: moved_by(client) == moved_by(service) == kind)
        assert len(told) >= 3
        assert all(text.startswith(LOST[kind]) for text in told)
        await end(writer)


@either
@in_loop
async def test_lanes_take_over_while_a_link_is_silent(kind: str) -> None:
    async with RELAYS[kind]() as relay, relay.attach("ann") as service, relay.attach("bob") as client:
        await service.start_server(echo, "echo")
        reader, writer = await say_and_hear(client)
        for link in list(relay.host.links.values()):
            link._transport.pause_reading()  # type: ignore[attr-defined]
        await ask(reader, writer, b"are you there?")
        for link in list(relay.host.links.values()):
            link._transport.resume_reading()  # type: ignore[attr-defined]
        await ask(reader, writer, noise(MIB))
        await end(writer)


@either
@in_loop
async def test_a_relay_that_stood_still_is_not_taken_for_one_behind_a_queue(kind: str) -> None:
    """7.8: otherwise the next silence would be noticed late, after as much as half a minute."""
    async with RELAYS[kind]() as relay, relay.attach("ann") as service:
        await service.start_server(echo, "echo")
        async with FaultProxy(FaultProxyOptions(upstream=("127.0.0.1", relay.port))) as way:
            relay.url = f"{way.url}/prefix"
            async with relay.attach("bob", proxy=None) as client:
                reader, writer = await say_and_hear(client)
                await until(lambda: moved_by(client) == kind)
                with way.blackhole():
                    asking = asyncio.create_task(ask(reader, writer, b"are you there?"))
                    await until(lambda: not client.is_attached)
                await asking
                (driver,) = inside(client).drivers
                assert driver.carrier._lanes.path.round_trip.queued_us < SECOND_US  # type: ignore[attr-defined]
                await end(writer)


@either
@in_loop
async def test_lanes_carry_everything_where_no_link_can_open(kind: str) -> None:
    async with RELAYS[kind]() as relay:
        relay.refuse_links = True
        auto = "auto" if kind == "link" else kind
        async with relay.attach("ann") as service, relay.attach("bob", carrier=auto) as client:
            assert (moved_by(service), moved_by(client)) == ("poll", "poll")
            await service.start_server(echo, "echo")
            reader, writer = await say_and_hear(client)
            relay.refuse_links = False
            await until(lambda: moved_by(service) == kind)
            await ask(reader, writer, noise(MIB))
            await end(writer)
        assert relay.links > 2
