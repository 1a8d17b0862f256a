"""The carrier in the relay's process: its link, and what becomes of batches when the link ends."""

import asyncio
from collections.abc import Callable

import pytest

from tests.carriers.harness import ask, echo, end, noise, say_and_hear
from tests.carriers.rig import until
from tests.support.loops import in_loop
from tests.support.relays import InProcessTestRelay, TestRelay
from tunnel import Attachment
from tunnel.wire import Frame


def end_links(relay: TestRelay) -> None:
    """Let the relay forget all links, and tell their endpoints."""
    for number, link in list(relay.core.links.items()):
        relay.core.link_closed(number)
        link.end("a test has ended it")


@in_loop
async def test_an_echo_needs_no_exchange() -> None:
    async with InProcessTestRelay() as relay, relay.attach() as service, relay.attach("bob") as client:
        await service.start_server(echo, "echo")
        reader, writer = await say_and_hear(client)
        before = relay.requests
        await ask(reader, writer, noise(3_000_000))  # more than two batches
        await end(writer)
        assert relay.requests == before
        assert not relay.core.switch.stats().parked_pulls


@in_loop
async def test_exchanges_carry_after_the_relay_has_ended_the_link() -> None:
    async with InProcessTestRelay() as relay, relay.attach() as service, relay.attach("bob") as client:
        await service.start_server(echo, "echo")
        reader, writer = await say_and_hear(client)
        before = relay.requests
        for _ in range(2):
            writer.write(noise(2_000_000))
            await asyncio.sleep(0)  # batches are on their way
            end_links(relay)
            assert await reader.readexactly(2_000_000) == noise(2_000_000)
        assert relay.requests > before
        await end(writer)


@in_loop
async def test_a_link_is_opened_again_with_each_generation() -> None:
    async with InProcessTestRelay() as relay, relay.attach() as service, relay.attach("bob") as client:
        await service.start_server(echo, "echo")
        reader, writer = await say_and_hear(client)
        relay.restart()
        await ask(reader, writer, noise(100_000))
        assert len(relay.core.links) == 2
        await end(writer)


@in_loop
async def test_an_attachment_that_is_closed_leaves_no_link() -> None:
    async with InProcessTestRelay() as relay:
        attachments: list[Attachment] = [relay.attach(), relay.attach("bob")]
        for attachment in attachments:
            await attachment.start()
        assert len(relay.core.links) == 2
        for attachment in attachments:
            await attachment.close()
        assert not relay.core.links


class Hesitant(InProcessTestRelay):
    """A relay that handles batches only when it is allowed to, one at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[tuple[int, list[Frame], Callable[[], None]]] = []
        self.waiting_bytes_max = 0
        self.is_held = False

    def post_packets(self, link: int, frames: list[Frame], handled: Callable[[], None]) -> None:
        self.waiting.append((link, frames, handled))
        sizes = [sum(frame.size for frame in some) for _, some, _ in self.waiting]
        self.waiting_bytes_max = max(self.waiting_bytes_max, sum(sizes))
        if not self.is_held:
            self.go_on()

    def go_on(self) -> None:
        """Handle what waits, and what comes from now on."""
        self.is_held = False
        while self.waiting:
            super().post_packets(*self.waiting.pop(0))


@in_loop
async def test_no_more_than_two_batches_wait_for_a_relay_that_is_busy() -> None:
    """What an application writes beyond that waits in its own connection, which holds it up; memory stays bounded."""
    async with Hesitant() as relay, relay.attach() as service, relay.attach("bob") as client:
        await service.start_server(echo, "echo")
        pairs = [await say_and_hear(client) for _ in range(8)]
        relay.is_held = True
        for _, writer in pairs:
            writer.write(noise(1_000_000))
        await until(lambda: relay.waiting_bytes_max > 1 << 20)
        for _ in range(100):  # rounds of the loop, in each of which a batch could leave
            await asyncio.sleep(0)
        assert relay.waiting_bytes_max < 2 << 20
        relay.go_on()
        for reader, writer in pairs:
            assert await reader.readexactly(1_000_000) == noise(1_000_000)
            await end(writer)


@pytest.mark.interpreted
@in_loop
async def test_two_users_an_exception_in_one_batch_costs_a_link_and_no_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exchanges carry afterwards, and what was on its way is sent again."""
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, what: reported.append(what["exception"]))
    async with InProcessTestRelay() as relay, relay.attach() as service, relay.attach("bob") as client:
        await service.start_server(echo, "echo")
        reader, writer = await say_and_hear(client)
        error, take = RuntimeError("a test"), relay.core.switch.link_packets

        def fail_once(link: int, frames: list[Frame], now: int) -> None:
            if not reported:
                raise error
            take(link, frames, now)

        monkeypatch.setattr(relay.core.switch, "link_packets", fail_once)
        before = relay.requests
        await ask(reader, writer, noise(3_000_000))
        assert reported == [error]
        assert relay.requests > before
        await end(writer)
