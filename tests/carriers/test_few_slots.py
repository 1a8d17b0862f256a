"""Paths that carry only a few requests at once: a try of a road makes way for a push that has to wait (8.6)."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from loadtests.faultproxy import FaultProxy, FaultProxyOptions
from tests.carriers.harness import ask, echo, end, noise, say_and_hear
from tests.carriers.rig import moved_by, until
from tests.support.http_relay import HttpTestRelay, token_of
from tests.support.loops import in_loop
from tunnel import Attachment, attach
from tunnel.attached_endpoint import AttachedEndpoint
from tunnel.carriers.dialing.dialing import Dialing
from tunnel.carriers.roads import RoadCarrier
from tunnel.core import EndpointConfig
from tunnel.exchange import LaneConfig

WAITED = "other requests had to wait while the road was tried: the path carries only a few requests at once"


class MuteRelay(HttpTestRelay):
    """A relay on which links work only if `works` is set. If not, a request for one gets no answer or, with `answers`,
    only a 101."""

    kind = "poll"

    def __init__(self, *, answers: bool) -> None:
        super().__init__()
        self.answers = answers
        self.works = False
        self.held: list[int] = []  # at each request for a link: how many pulls of bob were held
        self.gone = asyncio.Event()

    def held_of(self, user: str) -> int:
        """The number of this user's pulls that are held."""
        attachments = self.host.switch._registry.by_id.values()
        return sum(len(one.held_lanes) for one in attachments if one.account.user == user)

    async def _link(self, request: web.Request) -> web.StreamResponse:
        self.links += 1
        self.held.append(self.held_of("bob"))
        if self.works:
            return await super()._link(request)
        response = web.StreamResponse(status=101, headers={"Connection": "Upgrade", "Upgrade": "tunnel-link/1"})
        response.force_close()
        if self.answers:
            await response.prepare(request)
        await self.gone.wait()
        return response

    async def __aenter__(self) -> MuteRelay:
        await super().__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.gone.set()
        await super().__aexit__(*exception)


def through(proxy: FaultProxy) -> Attachment:
    """Return an attachment that tries the link at once, and then every second; it asks for no streamed answers."""
    dialing = Dialing(f"{proxy.url}/prefix", token=token_of("bob"), proxy=None)
    config = LaneConfig(stream_after_us=1 << 40)
    return Attachment(
        lambda: AttachedEndpoint(
            lambda secret, random: RoadCarrier(dialing, secret, random, config=config, eager=True), EndpointConfig()
        )
    )


def why(client: Attachment) -> str:
    return client.stats().roads[0].why


@pytest.mark.parametrize("answers", [True, False])
@in_loop
async def test_a_try_that_hangs_makes_way_for_a_push(answers: bool) -> None:
    """The path has two slots: the held pull takes one, and a try would keep the other until the try is given up."""
    async with MuteRelay(answers=answers) as relay, relay.attach("ann") as service:
        await service.start_server(echo, "echo")
        options = FaultProxyOptions(upstream=("127.0.0.1", relay.port), slots=2)
        async with FaultProxy(options) as proxy:
            client = through(proxy)
            starting = asyncio.create_task(client.start())  # it waits for the first try
            await until(lambda: relay.links == 1)
            _, writer = await say_and_hear(client)
            assert why(client) == WAITED
            await starting
            await end(writer)
            await client.close()


@in_loop
async def test_the_next_try_takes_the_slot_of_the_held_pull_and_may_succeed() -> None:
    async with MuteRelay(answers=True) as relay, relay.attach("ann") as service:
        await service.start_server(echo, "echo")
        options = FaultProxyOptions(upstream=("127.0.0.1", relay.port), slots=2)
        async with FaultProxy(options) as proxy:
            client = through(proxy)
            starting = asyncio.create_task(client.start())
            await until(lambda: relay.links == 1)
            reader, writer = await say_and_hear(client)
            await starting
            await until(lambda: relay.links >= 3)
            assert relay.held[1:] == [0] * len(relay.held[1:])
            await ask(reader, writer, noise(1000))
            relay.works = True
            await until(lambda: moved_by(client) == "link")
            await ask(reader, writer, noise(100_000))
            await end(writer)
            await client.close()


@in_loop
async def test_a_try_on_a_path_with_room_for_all_is_not_given_up_for_others() -> None:
    async with MuteRelay(answers=True) as relay, relay.attach("ann") as service:
        await service.start_server(echo, "echo")
        async with FaultProxy(FaultProxyOptions(upstream=("127.0.0.1", relay.port))) as proxy, through(proxy) as client:
            reader, writer = await say_and_hear(client)
            while relay.links < 2:
                await ask(reader, writer, noise(100))
            assert why(client).startswith("the connection was upgraded (HTTP 101), but nothing came over it within")
            await end(writer)


@in_loop
async def test_a_narrow_path_of_one_user_delays_no_other_user() -> None:
    """The relay goes on to hold the other user's pulls, and answers them as soon as packets come."""
    async with MuteRelay(answers=True) as relay, relay.attach("exit") as service:
        await service.start_server(echo, "echo")
        options = FaultProxyOptions(upstream=("127.0.0.1", relay.port), slots=1)
        async with (
            FaultProxy(options) as proxy,
            through(proxy) as client,
            attach(relay.url, token=token_of("ann"), proxy=None, carrier="poll") as other,
        ):
            _, writer = await say_and_hear(client)
            assert why(client) == WAITED
            reader_2, writer_2 = await say_and_hear(other)
            for _ in range(20):
                await until(lambda: relay.held_of("ann") > 0)
                await ask(reader_2, writer_2, noise(1000))
            await end(writer_2)
            await end(writer)
