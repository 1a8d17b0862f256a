"""Single POST requests: which connection each uses, and how much of an answer is read."""

import asyncio
import contextlib
from random import Random

import msgspec

from tests.carriers.origin import Origin, answer
from tests.carriers.rig import Recorded
from tests.support.loops import in_loop
from tunnel.carriers.dialing.dialing import Dialing
from tunnel.carriers.http.http_exchanger import HttpExchanger
from tunnel.exchange import LaneConfig, Lanes
from tunnel.wire import Buffer

MIB = 1 << 20


@in_loop
async def test_7_5_a_repeat_and_all_later_requests_leave_the_old_connections() -> None:
    request = Lanes(LaneConfig(), bytes(32), Random(1)).poll_request(0)
    assert request is not None
    told = Recorded()
    async with Origin(answer("200 OK", b"ok")) as relay:
        exchanger = HttpExchanger(Dialing(relay.url, proxy=None), LaneConfig())
        exchanger.start(told)
        for number, repeat in enumerate((0, 0, 1, 0, 2)):
            exchanger.send(msgspec.structs.replace(request, id=number, repeat=repeat))
            assert await told.outcomes.get() == b"ok"
        first, second, repeated, later, again = relay.ports
        assert first == second
        assert repeated == later
        assert len({first, repeated, again}) == 3
        async with asyncio.timeout(10):  # the exchanger closes the old connections
            assert [await relay.ended.get(), await relay.ended.get()] == [first, repeated]
        await exchanger.close()


class Endless(Origin):
    """Answers with more than a relay ever sends, and never ends its answer."""

    async def respond(self, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n")
        for _ in range(64):
            writer.write(bytes(MIB))
            await writer.drain()


@in_loop
async def test_an_answer_without_end_is_read_to_the_limit_and_its_connection_closed() -> None:
    request = Lanes(LaneConfig(), bytes(32), Random(1)).poll_request(0)
    assert request is not None
    told = Recorded()
    async with Endless(b"") as stranger:
        exchanger = HttpExchanger(Dialing(stranger.url, proxy=None), LaneConfig())
        exchanger.start(told)
        exchanger.send(request)
        async with asyncio.timeout(10):
            body = await told.outcomes.get()
            assert isinstance(body, bytes)
            assert MIB < len(body) < 4 * MIB
            assert await stranger.ended.get() == stranger.ports[0]
        await exchanger.close()


class Hasty(Origin):
    """Keeps a connection open after its first answer, and closes it when the next request comes."""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(asyncio.IncompleteReadError):
                await self._answer_one(reader, writer)
                await reader.readuntil(b"\r\n\r\n")
        finally:
            writer.transport.abort()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.ports.append(writer.get_extra_info("peername")[1])
        await reader.readexactly(int(head.lower().split("content-length: ")[1].split()[0]))
        await self.respond(writer)
        await writer.drain()


@in_loop
async def test_where_connections_die_when_they_are_used_again_each_is_used_only_once() -> None:
    request = Lanes(LaneConfig(), bytes(32), Random(1)).poll_request(0)
    assert request is not None
    told = Recorded()
    outcomes: list[bytes | str] = []
    async with Hasty(answer("200 OK", b"ok")) as proxy:
        exchanger = HttpExchanger(Dialing(proxy.url, proxy=None), LaneConfig())
        exchanger.start(told)
        repeat = 0
        for number in range(20):
            exchanger.send(msgspec.structs.replace(request, id=number, repeat=repeat))
            outcomes.append(await told.outcomes.get())
            repeat = int(isinstance(outcomes[-1], str))
        await exchanger.close()
    assert [outcome == b"ok" for outcome in outcomes] == [True, False] * 3 + [True] * 14
    assert len(set(proxy.ports)) == len(proxy.ports)


class Paused(Recorded):
    """Keeps the status of each answer and the pause that it asks for, in place of its body."""

    def on_answered(self, request_id: int, status: int, body: Buffer, retry_after_us: int, by: str = "") -> None:
        self.outcomes.put_nowait(f"{status}, {retry_after_us}")


@in_loop
async def test_a_proxy_that_refuses_a_connection_may_ask_for_a_pause() -> None:
    request = Lanes(LaneConfig(), bytes(32), Random(1)).poll_request(0)
    assert request is not None
    told = Paused()
    async with Origin(answer("503 Service Unavailable", b"", **{"Retry-After": "7"})) as proxy:
        exchanger = HttpExchanger(Dialing("https://relay.invalid", proxy=proxy.url), LaneConfig())
        exchanger.start(told)
        exchanger.send(request)
        assert await told.outcomes.get() == "503, 7000000"
        await exchanger.close()
