"""Bursts of connections to a service: they queue, as in the accept queue of TCP, and none is refused."""

import asyncio

from tests.carriers.harness import echo, on_carriers, on_every_carrier
from tests.support.relays import TestRelay
from tunnel import Attachment


async def talk(client: Attachment, number: int) -> None:
    """Connect to the service, hear an echo, and end."""
    reader, writer = await client.open_connection("echo", timeout=100)
    writer.write(b"%d" % number)
    writer.write_eof()
    assert await reader.read(-1) == b"%d" % number
    writer.close()
    await writer.wait_closed()


@on_carriers("memory", "poll on uvloop", "stream", "link on uvloop", "websocket")
async def test_a_thousand_connections_at_once_are_all_served(relay: TestRelay) -> None:
    async with relay.attach("ann") as service, relay.attach("bob") as client:
        await service.start_server(echo, "echo")
        await asyncio.gather(*(talk(client, number) for number in range(1000)))


@on_carriers("poll", "link on uvloop")  # the relay's queues are the same for all carriers
async def test_bursts_of_two_users_are_accepted_whole(relay: TestRelay) -> None:
    """Together they are more than the service lets wait."""
    async with relay.attach("exit") as service, relay.attach("bob") as bob, relay.attach("ann") as ann:
        await service.start_server(echo, "echo")
        burst = [client.open_connection("echo", timeout=100) for client in (bob, ann) for _ in range(1000)]
        for _, writer in await asyncio.gather(*burst):
            writer.transport.abort()


@on_every_carrier
async def test_a_short_backlog_delays_connections_but_refuses_none(relay: TestRelay) -> None:
    async with relay.attach("ann") as service, relay.attach("bob") as client:
        await service.start_server(echo, "echo", backlog=3)
        await asyncio.gather(*(talk(client, number) for number in range(100)))
