"""The secrets for each of several relays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.servlet.rig import TOKENS, relay, settings
from tests.several_relays.rig import Exit, greeting
from tests.support.loops import in_loop, until
from tests.support.targets import target
from tunnel import NotAuthenticatedError, RefusedError, attach


@pytest.mark.usefixtures("hurry")
@in_loop
async def test_two_users_a_relay_gets_its_own_token_and_no_other_secrets() -> None:
    """A hostile relay of the list learns nothing that is of use at another one."""
    heard: list[list[bytes]] = [[], []]
    hearing = asyncio.Event()

    def listener(number: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]:
        async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard[number].append(await reader.readuntil(b"\r\n\r\n"))
            if all(heard):
                hearing.set()
            writer.close()

        return listen

    servers = [await asyncio.start_server(listener(number), "127.0.0.1", 0) for number in range(2)]
    urls = [f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers]
    attachment = attach(
        urls[0],
        token="one-token",
        headers={"X-Gateway": "one-secret"},
        hostname="one.example",
        proxy=None,
        carrier="poll",
        further_relays=[(urls[1], "two-token")],
    )
    starting = asyncio.ensure_future(attachment.start())
    await hearing.wait()
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    for server in servers:
        server.close()
    first, second = (b"".join(texts) for texts in heard)
    assert all(word in first for word in (b"one-token", b"one-secret", b"one.example"))
    assert b"Bearer two-token" in second
    assert not any(word in second for word in (b"one-token", b"one-secret", b"one.example"))
    assert b"two-token" not in first


def test_a_relay_is_named_once() -> None:
    with pytest.raises(ValueError, match="is named twice"):
        attach("http://127.0.0.1:1", further_relays=[("http://127.0.0.1:1/", None)])
    with pytest.raises(ValueError, match=r"http://LOCALHOST:80/ is named twice \(as http://localhost\): name each"):
        attach("http://localhost", further_relays=[("http://LOCALHOST:80/", None)])


@in_loop
async def test_a_relay_that_refuses_the_token_ends_only_what_is_there() -> None:
    async with relay(settings()) as first, relay(settings(exit="none", switch={"settle_us": 0})) as second:
        one, two = (f"http://{running.addresses[0]}" for running in (first, second))
        token = TOKENS["bob"]
        async with attach(one, token="wrong", proxy=None, further_relays=[(two, token)]) as client:
            await until(lambda: [bool(each.trouble) for each in client.stats().relays] == [True, False])
            assert client.refusal is None
            with pytest.raises(RefusedError, match="no exit is attached"):
                await client.open_connection("127.0.0.1", 9)
        with pytest.raises(NotAuthenticatedError):
            await attach(one, token="wrong", proxy=None, further_relays=[(two, "wrong")]).start()


async def still(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Echo until the other end is gone."""
    while data := await reader.read(100):
        writer.write(data)
    writer.close()


def secrets(token: str) -> dict[str, Any]:
    return {"token": token, "headers": {}, "proxy": None}


@in_loop
async def test_a_relay_that_has_refused_is_asked_again_with_another_token() -> None:
    """What is open at the other relay goes on, and services are offered at both."""
    async with relay(settings(exit="inline")) as first, relay(settings(exit="inline")) as second:
        one, two = (f"http://{running.addresses[0]}" for running in (first, second))
        token = TOKENS["ann"]
        async with (
            target(still) as port,
            attach(one, token=token, proxy=None, further_relays=[(two, "wrong")], linger=0.1) as client,
        ):
            await client.start_server(Exit(b"own").serve, "reports")
            streams = await client.open_connection("127.0.0.1", port)
            await until(lambda: bool(client.stats().relays[1].trouble))
            client.renew_secrets(**secrets(token), relay=f"{two}/")
            await until(lambda: [each.attached for each in client.stats().relays] == [True, True])
            streams[1].write(b"goes on")
            assert await streams[0].readexactly(7) == b"goes on"
            async with attach(two, token=token, proxy=None, linger=0.1) as other:
                assert await greeting(other, "reports", None) == b"own"
            with pytest.raises(ValueError, match="none of the relays of this attachment"):
                client.renew_secrets(**secrets(token), relay="http://other.example")
            streams[1].transport.abort()
        async with attach(one, token=token, proxy=None, linger=0.1) as alone:
            with pytest.raises(ValueError, match="is not the relay of this attachment"):
                alone.renew_secrets(**secrets(token), relay=two)
