"""The carriers against a complete relay: its web application, tokens, rules and inline exit."""

import asyncio

import pytest

from tests.carriers.harness import MIB, ask, echo, end, noise, say_and_hear
from tests.servlet.rig import TOKENS, relay, settings
from tests.support.loops import in_loop
from tunnel import DeniedError, NotAuthenticatedError, RefusedError, attach
from tunnel_servlet.web.running import RunningRelay


def url_of(running: RunningRelay) -> str:
    return f"http://{running.addresses[0]}"


async def plain_echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(MIB):
        writer.write(data)
        await writer.drain()
    writer.close()


@pytest.mark.parametrize("carrier", ["poll", "link"])
def test_a_service_is_reached_over_a_real_relay(carrier: str) -> None:
    @in_loop
    async def scenario() -> None:
        async with (
            relay() as running,
            attach(url_of(running), token=TOKENS["ann"], proxy=None, carrier=carrier) as service,
            attach(url_of(running), token=TOKENS["bob"], proxy=None, carrier=carrier) as client,
        ):
            assert client.stats().carrier.startswith(carrier)
            await service.start_server(echo, "reports")
            reader, writer = await say_and_hear(client, "reports")
            await ask(reader, writer, noise(MIB))
            await end(writer)
            with pytest.raises(DeniedError, match="other"):
                await service.start_server(echo, "other")

    scenario()


@pytest.mark.parametrize("carrier", ["poll", "link"])
def test_the_inline_exit_of_a_real_relay_dials(carrier: str) -> None:
    @in_loop
    async def scenario() -> None:
        target = await asyncio.start_server(plain_echo, "127.0.0.1", 0)
        port = target.sockets[0].getsockname()[1]
        async with (
            relay(settings(exit="inline")) as running,
            attach(url_of(running), token=TOKENS["ann"], proxy=None, carrier=carrier) as client,
        ):
            reader, writer = await client.open_connection("127.0.0.1", port)
            await ask(reader, writer, noise(MIB))
            await end(writer)
            target.close()
            await target.wait_closed()
            with pytest.raises(RefusedError, match="refused the connection"):
                await client.open_connection("127.0.0.1", port)

    scenario()


@in_loop
async def test_a_real_relay_refuses_an_unknown_token() -> None:
    async with relay() as running:
        with pytest.raises(NotAuthenticatedError, match="no such token"):
            await attach(url_of(running), token="tnl_00000000_wrong", proxy=None).start()
        with pytest.raises(NotAuthenticatedError):
            await attach(url_of(running), proxy=None).start()
