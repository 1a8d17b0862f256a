"""Limits between an attachment and its relay: what is said, and that the attachment goes on when they end."""

import asyncio

from loadtests.harness.limiter import Limit, Limiter
from tests.carriers.harness import ask, echo, end, noise, say_and_hear
from tests.carriers.rig import until
from tests.support.http_relay import HttpTestRelay, token_of
from tests.support.loops import in_loop
from tunnel import attach


class Told:
    """A listener of connections that keeps what it receives."""

    def __init__(self) -> None:
        self.reasons: asyncio.Queue[str] = asyncio.Queue()
        self.returned = asyncio.Event()

    def disconnected(self, reason: str) -> None:
        self.reasons.put_nowait(reason)

    def reconnected(self) -> None:
        self.returned.set()


@in_loop
async def test_a_path_that_refuses_only_larger_bodies_is_named_with_its_page_and_server() -> None:
    """Such a path lets the attachment begin and pulls pass; without a sentence the connection would only be silent."""
    limit = Limit("", status=413, body_bytes=1000)
    told = Told()
    async with HttpTestRelay() as relay, relay.attach("ann") as service, Limiter(limit, relay.port) as limiter:
        await service.start_server(echo, "echo")
        url = f"http://127.0.0.1:{limiter.port}/prefix"
        async with attach(url, token=token_of("bob"), proxy=None, carrier="poll", linger=0.0) as client:
            client.add_connection_listener(told)
            reader, writer = await say_and_hear(client)
            asking = asyncio.create_task(ask(reader, writer, noise(10_000)))
            async with asyncio.timeout(60):
                reason = await told.reasons.get()
            assert reason.startswith("requests that carry data are refused, here one of ")
            assert "while others pass: HTTP 413" in reason
            assert reason.endswith("the page '413 Content Too Large', Server: limiter")
            assert client.stats().trouble == reason
            limit.status = 0
            async with asyncio.timeout(60):
                await asking
                await told.returned.wait()
            assert client.stats().trouble == ""
            await end(writer)


@in_loop
async def test_new_connections_are_refused_while_the_relay_is_away_and_it_is_found_again() -> None:
    """Five in ten seconds, and those that are cut count, too: at least one of the lanes always finds its way."""
    limit = Limit("", status=0, connections=5, window_s=2.0)
    async with HttpTestRelay() as relay, relay.attach("ann") as service, Limiter(limit, relay.port) as limiter:
        await service.start_server(echo, "echo")
        url = f"http://127.0.0.1:{limiter.port}/prefix"
        async with attach(url, token=token_of("bob"), proxy=None, carrier="poll", linger=0.0) as client:
            reader, writer = await say_and_hear(client)
            limit.status = 502
            asking = asyncio.create_task(ask(reader, writer, noise(100_000)))
            await until(lambda: limiter.refused >= 4)
            limit.status = 0
            async with asyncio.timeout(60):
                await asking
            await end(writer)
