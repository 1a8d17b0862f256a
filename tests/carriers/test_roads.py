"""The carrier auto climbs its ladder: a better road takes over, and nothing waits for the one that it replaces."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from tests.carriers.harness import MIB, ask, echo, end, noise, say_and_hear
from tests.carriers.rig import CountingRelay, moved_by, until
from tests.support.http_relay import LinkTestRelay, token_of
from tests.support.loops import in_loop
from tunnel import Attachment
from tunnel.attached_endpoint import AttachedEndpoint
from tunnel.carriers.dialing.dialing import Dialing
from tunnel.carriers.roads import RoadCarrier
from tunnel.core import EndpointConfig


def climbing(relay: LinkTestRelay, links: int = 1) -> Attachment:
    """Return an attachment that tries both roads every second."""
    dialing = Dialing(relay.url, token=token_of("bob"), proxy=None)
    return Attachment(
        lambda: AttachedEndpoint(
            lambda secret, random: RoadCarrier(
                dialing, secret, random, eager=True, links=links, roads=("link", "websocket")
            ),
            EndpointConfig(),
        )
    )


class Woken:
    """The host of a carrier, which counts how often the carrier wakes it."""

    def __init__(self) -> None:
        self.pumps = 0

    def now(self) -> int:
        return 10_000_000

    def pump(self) -> None:
        self.pumps += 1

    def deliver(self) -> None:
        self.pumps += 1


class Aborted:
    """A link that the relay has accepted, and that is not wanted any more."""

    owner: object = None
    is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


def states(attachment: Attachment) -> list[str]:
    return [road.state for road in attachment.stats().roads]


@in_loop
async def test_a_better_road_takes_over_in_a_transfer() -> None:
    async with (
        CountingRelay("tunnel-link/1") as relay,
        relay.attach("ann", carrier="poll") as service,
        climbing(relay, links=2) as client,
    ):
        await service.start_server(echo, "echo")
        reader, writer = await say_and_hear(client)
        await until(lambda: moved_by(client) == "websocket" and "over 2 connections" in client.stats().carrier)
        asking = asyncio.create_task(ask(reader, writer, noise(8 * MIB)))
        relay.refused = ()
        await until(lambda: moved_by(client) == "link")
        await asking
        assert states(client) == ["used", "unknown"]
        await ask(reader, writer, noise(MIB))
        await until(lambda: len(relay.host.links) == 2)  # the link and its spare: the websockets are closed
        await end(writer)


@in_loop
async def test_bytes_on_a_silent_road_that_was_replaced_are_sent_again_soon() -> None:
    async with (
        CountingRelay("tunnel-link/1") as relay,
        relay.attach("ann", carrier="poll") as service,
        climbing(relay) as client,
    ):
        await service.start_server(echo, "echo")
        reader, writer = await say_and_hear(client)
        await until(lambda: moved_by(client) == "websocket")
        (silent,) = relay.host.links.values()
        silent._transport.pause_reading()  # type: ignore[attr-defined]
        asking = asyncio.create_task(ask(reader, writer, b"are you there?"))
        relay.refused = ()
        await until(lambda: moved_by(client) == "link")
        async with asyncio.timeout(5):  # a silent road that nothing replaces is closed after 10 s only
            await asking
        await end(writer)


@in_loop
async def test_where_the_best_road_is_refused_the_next_is_tried_and_the_refusal_reported() -> None:
    async with CountingRelay("tunnel-link/1") as relay, relay.attach("bob", carrier="auto") as client:
        await until(lambda: moved_by(client) == "websocket")
        assert relay.asked[0] == "tunnel-link/1"
        link, websocket = client.stats().roads
        assert (link.name, link.state, websocket.state, websocket.tries) == ("link", "resting", "used", 1)
        assert link.why == "HTTP 404 instead of an upgrade: no link here"


@pytest.mark.interpreted  # the link and the host are no real ones
@pytest.mark.parametrize("is_closed", [False, True])
@in_loop
async def test_a_road_that_waits_for_a_late_opening_is_tried_when_that_ends(is_closed: bool) -> None:
    """The link belongs to a generation that has ended: in the new one, a road waits until the opening is over."""
    host: Any = Woken()
    link: Any = Aborted()
    carrier = RoadCarrier(Dialing("http://relay.invalid", proxy=None), bytes(32), Random(1))
    carrier.start(host)
    carrier._attached = True
    assert carrier._tries.want("link", 0, is_narrow=False, carries=True)
    carrier._tries.on_detached()
    assert not carrier._tries.want("link", 0, is_narrow=False, carries=False)
    assert carrier.next_timeout() is None
    if is_closed:
        await carrier.close()
    pumps = host.pumps
    carrier.link_opened(link, "link", 9_000_000)
    assert link.is_aborted
    assert host.pumps == pumps + (not is_closed)  # it asks for the next timeout again, which is due now
    if not is_closed:
        assert carrier.next_timeout() is not None
        await carrier.close()
