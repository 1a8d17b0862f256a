"""A CONNECT that an acceptor cannot serve is answered at once: no user can fill the backlog of a service for free."""

import asyncio
from random import Random
from typing import Any

import pytest

from tests.carriers.harness import echo, end, say_and_hear
from tests.encryption.rig import key_file
from tests.servlet.rig import attach_body, exchange_body, until
from tests.servlet.support import connect
from tests.support.loops import in_loop
from tests.support.relays import MemoryTestRelay, TestRelay, inside
from tunnel import Attachment, ExitRequest, RefusedError, StreamReader, StreamWriter
from tunnel.wire import Target, TargetKind

ECHO = Target(TargetKind.SERVICE, "echo")
CONNECTS = 1100


async def hear(client: Attachment, *target: Any) -> None:
    reader, _ = await client.open_connection(*target)
    await reader.read()


def attack(relay: TestRelay) -> None:
    """Open connections with noise in place of a ClientHello, and never repeat a CONNECT."""
    noise = Random(1).randbytes

    def post(body: bytes) -> None:
        relay.core.post("eve", body, lambda status, answer: None, is_exit=False)

    post(attach_body(9))
    for number, first in enumerate(range(1, CONNECTS, 100), 1):
        batch = [connect(source, target=ECHO, encryption=noise(100)) for source in range(first, first + 100)]
        post(exchange_body(relay.core.switch.epoch, number, *batch, seed=9))


def pending(relay: TestRelay) -> int:
    stats = relay.core.switch.stats()
    return stats.routes_pending + stats.routes_waiting


@in_loop
async def test_two_users_noise_in_place_of_clienthellos_keeps_nobody_out() -> None:
    async with (
        MemoryTestRelay(routes_per_attachment_max=5000, routes_per_user_max=5000) as relay,
        relay.attach("ann", encryption="auto", key=key_file()) as service,
        relay.attach("bob", encryption="require") as victim,
    ):
        await service.start_server(echo, "echo")
        attack(relay)
        await until(lambda: relay.core.switch.stats().counters.connects == CONNECTS)
        async with asyncio.timeout(40):  # the relay would answer in place of the acceptor after 75 s
            _, writer = await say_and_hear(victim)
            await end(writer)
            await until(lambda: not pending(relay))
        assert inside(service)._encryption._turns._counts == {}


@in_loop
@pytest.mark.parametrize("text", ["x" * 70_000, "\udcff" * 8, "\u20ac" * 30_000], ids=["long", "surrogates", "wide"])
async def test_a_failure_whose_text_does_not_fit_is_answered_all_the_same(text: str) -> None:
    async def dial(request: ExitRequest) -> None:
        raise ConnectionRefusedError(text)

    async with (
        MemoryTestRelay() as relay,
        relay.attach("exit", exit_handler=dial),
        relay.attach("bob") as client,
    ):
        async with asyncio.timeout(40):
            with pytest.raises(RefusedError):
                await client.open_connection("db", 1)
        assert relay.core.switch.stats().routes_pending == 0


@in_loop
@pytest.mark.parametrize("is_encrypted", [True, False])
async def test_a_protocol_that_cannot_be_made_ends_the_connection(is_encrypted: bool) -> None:
    def make() -> asyncio.Protocol:
        raise RuntimeError("no protocol")

    async def dial(request: ExitRequest) -> None:
        request.accept(make)

    reports: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reports.append(context["exception"]))
    async with (
        MemoryTestRelay() as relay,
        relay.attach("exit", exit_handler=dial, encryption="auto", key=key_file()) as exit_,
        relay.attach("bob", encryption="require" if is_encrypted else "off") as client,
    ):
        async with asyncio.timeout(40):
            with pytest.raises((RefusedError, ConnectionError)):
                await hear(client, "db", 1)
        assert relay.core.switch.stats().routes_pending == 0
        assert inside(exit_)._encryption._turns._counts == {}
    assert [str(each) for each in reports] == ["no protocol"]


@in_loop
async def test_a_handler_that_raises_at_once_ends_its_connection_alone() -> None:
    def handle(reader: StreamReader, writer: StreamWriter) -> None:
        raise RuntimeError("no handler")

    reports: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reports.append(context["exception"]))
    async with MemoryTestRelay() as relay, relay.attach("ann") as service, relay.attach("bob") as client:
        await service.start_server(handle, "broken")
        await service.start_server(echo, "echo")
        async with asyncio.timeout(40):
            with pytest.raises(ConnectionError):
                await hear(client, "broken")
            _, writer = await say_and_hear(client)
            await end(writer)
    assert [str(each) for each in reports] == ["no handler"]
