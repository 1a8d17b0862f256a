"""The doctor's link: it works only if data passes in both directions."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.carriers.origin import Origin, answer
from tests.carriers.rig import until
from tests.servlet.rig import TOKENS, settings
from tests.support.loops import in_loop
from tests.support.proxies import UpstreamProxy, splice
from tunnel.carriers.dialing.dialing import Dialing
from tunnel.carriers.probes.probe import Prober
from tunnel.wire import Answer, encode_envelope
from tunnel_servlet.web.running import RunningRelay

SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: tunnel-link/1\r\n\r\n"
ACCEPTED = b"".join(encode_envelope(Answer(0xFFFF, 0, 0)))
SILENCE_S = 0.1  # how long the doctor waits for a link that is meant to fail


class Script(Origin):
    """Passes exchanges on to a relay, and answers requests for links with `response`."""

    def __init__(self, response: bytes, relay: int) -> None:
        super().__init__(response)
        self._relay = relay

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            head = await reader.readuntil(b"\r\n\r\n")
            if b"GET /link" in head:
                writer.write(self.response)
                await reader.read()
                return
            there, back = await asyncio.open_connection("127.0.0.1", self._relay)
            with contextlib.closing(back):
                back.write(head + await reader.read(1 << 16))
                writer.write(await there.read(1 << 16))


async def tried(response: bytes) -> str:
    async with (
        RunningRelay(settings()) as relay,
        Script(response, relay.addresses[0].port) as script,
        Prober(Dialing(script.url, token=TOKENS["ann"], proxy=None)) as prober,
    ):
        await prober.attach()
        return await prober.link(SILENCE_S)


@in_loop
@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (SWITCHING, "upgraded (HTTP 101), but nothing came over it within 0.1 s"),
        (SWITCHING + ACCEPTED, "upgraded (HTTP 101), but data towards the relay did not pass within 0.1 s"),
        (SWITCHING + b"<html>" * 20, "upgraded, but then it ended: not a relay's answer to a link"),
        (answer("403 Forbidden", b"no"), "HTTP 403 instead of an upgrade: no"),
        (b"", "no answer to the request for an upgrade within 0.1 s"),
    ],
)
async def test_a_hop_that_does_not_carry_a_link_is_described(response: bytes, reason: str) -> None:
    assert reason in await tried(response)


@in_loop
@pytest.mark.parametrize("is_websocket", [False, True])
async def test_a_link_that_carries_data_both_ways_works_and_exchanges_go_on_after_it(is_websocket: bool) -> None:
    async with RunningRelay(settings()) as relay:
        url = f"http://{relay.addresses[0]}"
        async with Prober(Dialing(url, token=TOKENS["ann"], proxy=None)) as prober:
            await prober.attach()
            assert await prober.link(10, stay_s=0.1, is_websocket=is_websocket) == ""
            assert (await prober.exchange()).kind == "answer"  # the attachment still works after the link


@in_loop
@pytest.mark.parametrize("is_websocket", [False, True])
async def test_a_link_that_is_cut_while_it_should_stay_is_described(is_websocket: bool) -> None:
    async with RunningRelay(settings()) as relay, UpstreamProxy() as proxy:
        url = f"http://{relay.addresses[0]}"
        async with Prober(Dialing(url, token=TOKENS["ann"], proxy=f"http://127.0.0.1:{proxy.port}")) as prober:
            await prober.attach()
            trying = asyncio.ensure_future(prober.link(10, stay_s=60, is_websocket=is_websocket))
            await until(lambda: any(b"GET" in head for head in proxy.heads))
            await asyncio.sleep(0.5)  # the link is open, and data has moved
            proxy.cut()
            assert "the connection was upgraded, but then it ended" in await trying


@in_loop
async def test_a_link_that_carries_only_the_first_bytes_does_not_work() -> None:
    passing: set[asyncio.Task[None]] = set()
    async with RunningRelay(settings()) as relay:

        async def short(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            passing.add(task)
            there, back = await asyncio.open_connection("127.0.0.1", relay.addresses[0].port)
            ended = contextlib.suppress(ConnectionError, asyncio.CancelledError)
            with contextlib.closing(writer), contextlib.closing(back), ended:
                await asyncio.gather(splice(there, writer), _first(reader, back, 100_000))

        async with await asyncio.start_server(short, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with Prober(Dialing(url, token=TOKENS["ann"], proxy=None)) as prober:
                await prober.attach()
                assert "but data towards the relay did not pass within 0.5 s" in await prober.link(0.5)
        for task in passing:  # the relay keeps its end open
            task.cancel()
        await asyncio.wait(passing)


async def _first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, size: int) -> None:
    """Pass on this number of bytes, and swallow the others."""
    while data := await reader.read(1 << 16):
        writer.write(data[:size])
        size -= min(size, len(data))
