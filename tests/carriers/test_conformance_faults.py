"""The behaviour that users may expect of every carrier when something goes wrong between endpoint and relay."""

import asyncio
from collections.abc import Callable

import pytest

from tests.carriers.harness import MIB, ask, echo, end, noise, on_every_carrier, say_and_hear
from tests.support.relays import LOSE_REQUEST, LOSE_RESPONSE, Fault, TestRelay
from tunnel.wire import Exchange, Message


@on_every_carrier
async def test_streams_survive_a_restart_of_the_relay(relay: TestRelay) -> None:
    async with relay.attach("ann") as service, relay.attach("bob") as client:
        told: list[str] = []

        class Listener:
            def disconnected(self, reason: str) -> None:
                told.append("disconnected")

            def reconnected(self) -> None:
                told.append("reconnected")

        client.add_connection_listener(Listener())
        await service.start_server(echo, "echo")
        reader, writer = await say_and_hear(client)
        for number in range(2):
            relay.restart()
            await ask(reader, writer, noise(100_000, number))
        _, writer_2 = await say_and_hear(client)
        await end(writer_2)
        await end(writer)
        assert told == ["disconnected", "reconnected"] * 2


def every(count: int, fault: Fault) -> Callable[[Message], Fault | None]:
    """Return a function that causes the fault for every `count`-th exchange."""
    seen = 0

    def judge(message: Message) -> Fault | None:
        nonlocal seen
        seen += isinstance(message, Exchange)
        return fault if isinstance(message, Exchange) and seen % count == 0 else None

    return judge


FAULTS = {
    "requests lost": LOSE_REQUEST,
    "responses lost": LOSE_RESPONSE,
    "an HTML page": Fault(200, b"<html>please log in</html>"),
    "busy": Fault(503, b"", {"Retry-After": "0"}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_exchanges_lose_no_byte(fault: str) -> None:
    @on_every_carrier
    async def scenario(relay: TestRelay) -> None:
        async with relay.attach("ann") as service, relay.attach("bob") as client:
            await service.start_server(echo, "echo")
            reader, writer = await say_and_hear(client)
            relay.fault = every(5, FAULTS[fault])
            data = noise(MIB)
            await asyncio.gather(ask(reader, writer, data))
            relay.fault = lambda message: None
            await end(writer)

    for name in ("memory", "poll"):
        scenario(name)


@on_every_carrier
async def test_bodies_shrink_when_one_is_refused_as_too_large(relay: TestRelay) -> None:
    def small_only(message: Message) -> Fault | None:
        return Fault(413) if isinstance(message, Exchange) and len(message.data) > 20_000 else None

    async with relay.attach("ann") as service, relay.attach("bob") as client:
        await service.start_server(echo, "echo")
        reader, writer = await say_and_hear(client)
        relay.fault = small_only
        await ask(reader, writer, noise(MIB))
        await end(writer)


@on_every_carrier
async def test_buffered_and_written_bytes_are_counted(relay: TestRelay) -> None:
    class Collector:
        buffered = written = 0

        def increment_out_bytes(self, size_bytes: int) -> None:
            self.buffered += size_bytes

        def register_write(self, size_bytes: int) -> None:
            self.written += size_bytes

    async with relay.attach("ann") as service, relay.attach("bob") as client:
        collector = Collector()
        client.set_statistics_collector(collector)
        await service.start_server(echo, "echo")
        reader, writer = await say_and_hear(client)
        await ask(reader, writer, noise(50_000))
        assert collector.written >= collector.buffered > 50_000
        await end(writer)
