"""TCP connections for exchanges, where the path carries only a few: requests wait for a connection that works."""

import asyncio
import errno
import socket
from contextlib import suppress
from random import Random
from typing import Self

import aiohttp
import msgspec
import pytest

from tests.carriers.origin import answer
from tests.carriers.rig import KEY, Recorded
from tests.support.loops import in_loop, until
from tunnel.carriers.dialing.dialing import Dialing
from tunnel.carriers.http.connections import Connection, Connections
from tunnel.carriers.http.http_exchanger import HttpExchanger
from tunnel.exchange import LaneConfig, Lanes, Request

FEWER = "the path carries fewer TCP connections at once: the request waits for one that works"


class OneAtATime:
    """A server that accepts a connection only when the one before has ended; the kernel completes the handshakes of
    the others.

    It answers each request, but those with a body of b"slow" only when `slow` is set.
    """

    def __init__(self) -> None:
        self.slow = asyncio.Event()
        self.requests = asyncio.Semaphore(0)  # counts the requests that came
        self.accepted = 0

    async def __aenter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=16)
        self._listener.setblocking(False)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._serving = asyncio.ensure_future(self._serve())
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._serving.cancel()
        with suppress(asyncio.CancelledError):
            await self._serving
        self._listener.close()

    async def _serve(self) -> None:
        while True:
            sock, _ = await asyncio.get_running_loop().sock_accept(self._listener)
            self.accepted += 1
            reader, writer = await asyncio.open_connection(sock=sock)
            try:
                with suppress(asyncio.IncompleteReadError, ConnectionError):
                    while True:
                        await self._answer(reader, writer)
            finally:
                writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        body = await reader.readexactly(int(head.split("content-length: ")[1].split()[0]))
        self.requests.release()
        if body == b"slow":
            await self.slow.wait()
        writer.write(answer("200 OK", b"ok"))
        await writer.drain()


def request(number: int, body: bytes = b"body") -> Request:
    made = Lanes(LaneConfig(), bytes(32), Random(1)).poll_request(0)
    assert made is not None
    return msgspec.structs.replace(made, id=number, number=number, body=[body])


@in_loop
async def test_a_connection_too_many_is_closed_and_requests_wait_for_one_that_works() -> None:
    told = Recorded()
    loop = asyncio.get_running_loop()
    async with OneAtATime() as front:
        began_s = loop.time()
        exchanger = HttpExchanger(Dialing(front.url, proxy=None), LaneConfig())
        exchanger.start(told)
        exchanger.send(request(1, b"slow"))
        await front.requests.acquire()
        stuck = request(2)
        exchanger.send(stuck)  # on a second connection
        front.slow.set()
        assert await told.outcomes.get() == b"ok"
        for number in range(3, 8):
            exchanger.send(request(number))
            assert await told.outcomes.get() == b"ok"
        await asyncio.sleep(2 * (loop.time() - began_s))  # no answer took longer than the time until now
        exchanger.send(msgspec.structs.replace(stuck, id=20, repeat=1))
        assert {await told.outcomes.get(), await told.outcomes.get()} == {FEWER, b"ok"}
        front.slow.clear()
        exchanger.send(request(30, b"slow"))
        exchanger.send(request(31))
        exchanger.send(request(32))
        exchanger.send(msgspec.structs.replace(request(31), id=33, repeat=1))  # replaces the first attempt
        exchanger.abandon(32)
        await asyncio.sleep(0)
        assert told.outcomes.empty()
        front.slow.set()
        assert [await told.outcomes.get(), await told.outcomes.get()] == [b"ok", b"ok"]
        assert told.outcomes.empty()
        assert front.accepted == 1
        exchanger.send(request(40))
        exchanger.send(request(41))  # waits when the exchanger closes
        await exchanger.close()
    assert told.outcomes.empty()


@in_loop
async def test_a_silent_connection_proves_nothing_while_another_has_few_answers() -> None:
    told = Recorded()
    async with OneAtATime() as front:
        exchanger = HttpExchanger(Dialing(front.url, proxy=None), LaneConfig())
        exchanger.start(told)
        exchanger.send(request(1, b"slow"))
        await front.requests.acquire()
        exchanger.send(request(2))
        front.slow.set()
        for number in range(3, 6):
            assert await told.outcomes.get() == b"ok"
            exchanger.send(request(number))
        assert await told.outcomes.get() == b"ok"
        exchanger.send(msgspec.structs.replace(request(2), id=20, repeat=1))
        # The first connection is closed for the repeat, so that the others are accepted, one after another.
        assert await told.outcomes.get() == b"ok"
        await exchanger.close()


@pytest.mark.parametrize(
    ("sizes", "passed"),
    [
        ((8000, 0), (8000, 0)),
        ((0, 64 << 10), (0, 32 << 10)),
    ],
)
@in_loop
async def test_what_is_larger_than_all_that_has_passed_may_be_lost_for_its_size(
    sizes: tuple[int, int], passed: tuple[int, int]
) -> None:
    connections = Connections(Dialing("http://127.0.0.1:9", proxy=None))
    working, silent = connections.take(0), connections.take(0)
    assert working is not None
    assert silent is not None
    for _ in range(5):
        connections.on_answered(working, 0, by_relay=True, body_bytes=4000, answer_bytes=4000)
    assert not connections.is_one_too_many(silent, 0, *sizes)
    connections.on_answered(working, 0, by_relay=True, body_bytes=passed[0], answer_bytes=passed[1])
    assert connections.is_one_too_many(silent, 0, *sizes)
    for used in (working, silent):
        connections.give_back(used)
    await connections.close()


@in_loop
async def test_a_limit_of_connections_lasts_for_a_minute_and_the_next_for_twice_as_long() -> None:
    connections = Connections(Dialing("http://127.0.0.1:9", proxy=None))
    working, silent = connections.take(0), connections.take(0)
    assert working is not None
    assert silent is not None
    for _ in range(4):
        connections.on_answered(working, 0, by_relay=True)
    assert not connections.is_one_too_many(silent, 0)
    connections.on_answered(working, 0, by_relay=True)
    assert connections.is_one_too_many(silent, 0)
    connections.give_back(silent)
    silent.has_answer = False
    assert connections.take(1) is silent
    assert connections.take(59.9) is None
    third = connections.take(60)
    assert third is not None
    for _ in range(5):
        connections.on_answered(working, 0, by_relay=True)
    assert connections.is_one_too_many(third, 60)
    assert connections.take(179.9) is None
    for used in (working, silent, third):
        connections.give_back(used)
    await connections.close()


@in_loop
async def test_a_connection_that_has_brought_an_answer_is_not_one_too_many() -> None:
    connections = Connections(Dialing("http://127.0.0.1:9", proxy=None))
    first, second = connections.take(0), connections.take(0)
    assert first is not None
    assert second is not None
    connections.on_answered(second, 0, by_relay=True)
    for _ in range(10):
        connections.on_answered(first, 0, by_relay=True)
    assert not connections.is_one_too_many(second, 0)
    connections.give_back(first)
    connections.give_back(second)
    await connections.close()


@in_loop
async def test_a_connection_is_silent_only_for_twice_as_long_as_the_slowest_request_of_late() -> None:
    connections = Connections(Dialing("http://127.0.0.1:9", proxy=None))
    working, new = connections.take(0), connections.take(0)
    assert working is not None
    assert new is not None
    connections.on_answered(working, 0.4, by_relay=True)
    for number in range(5):
        connections.on_answered(
            working, 9.0 + number, by_relay=True, is_held=True
        )  # a hold says nothing about the path
    assert not connections.is_one_too_many(new, 0.79)
    assert connections.is_one_too_many(new, 0.81)
    connections.give_back(working)
    working = connections.take(100.0)
    assert working is not None
    connections.on_answered(working, 100.1, by_relay=True)
    assert not connections.is_one_too_many(new, 0.7)  # the slowest request counts for a second window
    connections.on_answered(working, 130.1, by_relay=True, is_held=True)
    connections.give_back(working)
    working = connections.take(131.0)
    assert working is not None
    connections.on_answered(working, 131.1, by_relay=True)
    assert connections.is_one_too_many(new, 0.7)
    for used in (working, new):
        connections.give_back(used)
    await connections.close()


class FewConnections:
    """A server that refuses each request that comes while more than `most` connections are open."""

    def __init__(self, most: int, refusal: bytes) -> None:
        self._most = most
        self._refusal = refusal
        self.open = self.refused = 0
        self.slow = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                    body = await reader.readexactly(int(head.split("content-length: ")[1].split()[0]))
                    if self.open > self._most:
                        self.refused += 1
                        writer.write(self._refusal)
                        return
                    if body == b"slow":
                        await self.slow.wait()
                    writer.write(answer("200 OK", b"TUNL"))
                    await writer.drain()
        finally:
            self.open -= 1
            writer.close()


REFUSALS = {
    "403": answer("403 Forbidden", b"no"),
    "429": answer("429 Too Many Requests", b"no"),
    "503": answer("503 Service Unavailable", b"no"),
}


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
@in_loop
async def test_a_request_that_is_refused_on_a_further_connection_waits_for_one_that_works(refusal: bytes) -> None:
    told = Recorded()
    async with FewConnections(2, refusal) as front:
        exchanger = HttpExchanger(Dialing(front.url, proxy=None), LaneConfig())
        exchanger.start(told)
        exchanger.send(request(1))
        assert await told.outcomes.get() == b"TUNL"
        exchanger.send(request(2, b"slow"))  # on the first connection
        exchanger.send(request(3))
        assert await told.outcomes.get() == b"TUNL"
        for turn in range(1, 8):
            exchanger.send(request(10 * turn))
            exchanger.send(request(10 * turn + 1))  # on a third connection
            assert [await told.outcomes.get(), await told.outcomes.get()] == [b"TUNL", b"TUNL"]
        assert front.refused == 4  # from then on no third connection is opened
        front.slow.set()
        assert await told.outcomes.get() == b"TUNL"
        await exchanger.close()


class Squid(FewConnections):
    """Refuses as soon as it has read the head of a request, and then reads on, but at most 512 KiB of the body.

    Squid does so by default (client_request_buffer_max_size). After that it no longer looks at the connection, which
    counts as open for 15 minutes, even if the client has reset it.
    """

    READS_BYTES = 512 << 10

    def __init__(self, most: int) -> None:
        super().__init__(most, REFUSALS["403"])
        self._kept: list[asyncio.StreamWriter] = []  # of connections at which it no longer looks

    @property
    def stuck(self) -> int:
        return len(self._kept)

    async def __aexit__(self, *exception: object) -> None:
        for writer in self._kept:
            writer.close()
        await super().__aexit__(*exception)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                size = int(head.split("content-length: ")[1].split()[0])
                is_refused = self.open > self._most
                if is_refused:
                    self.refused += 1
                    writer.write(self._refusal)
                    await reader.readexactly(min(size, self.READS_BYTES))
                    if size > self.READS_BYTES:
                        self._kept.append(writer)
                        return
                    continue
                await reader.readexactly(size)
                writer.write(answer("200 OK", b"TUNL"))
        self.open -= 1
        writer.close()


@in_loop
async def test_no_large_body_goes_out_before_a_further_connection_is_known_to_work() -> None:
    told = Recorded()
    large = bytes(1 << 20)
    async with Squid(2) as front:
        exchanger = HttpExchanger(Dialing(front.url, proxy=None), LaneConfig())
        exchanger.start(told)
        exchanger.send(request(1))
        assert await told.outcomes.get() == b"TUNL"
        for turn in range(3):
            for number in range(6):  # on six connections
                exchanger.send(request(10 * (turn + 1) + number, large))
            assert [await told.outcomes.get() for _ in range(6)] == [b"TUNL"] * 6
        assert front.refused > 0
        assert front.stuck == 0
        await exchanger.close()


@in_loop
async def test_a_large_body_goes_out_in_parts_after_a_refusal_when_another_program_has_taken_a_place() -> None:
    told = Recorded()
    large = bytes(1 << 20)
    async with Squid(2) as front:
        exchanger = HttpExchanger(Dialing(front.url, proxy=None), LaneConfig())
        exchanger.start(told)

        async def both(turn: int, body: bytes) -> list[object]:
            for lane in range(2):
                exchanger.send(request(10 * turn + lane, body))
            return [await told.outcomes.get() for _ in range(2)]

        assert await both(1, b"") == await both(2, large) == [b"TUNL"] * 2
        front.open += 1
        await both(3, b"")
        for turn in range(4, 7):
            await both(turn, large)
        assert front.refused > 0
        assert front.stuck == 0
        await exchanger.close()


@in_loop
async def test_a_connection_on_which_a_large_body_was_refused_is_not_used_again() -> None:
    told = Recorded()
    async with Squid(1) as front:
        exchanger = HttpExchanger(Dialing(front.url, proxy=None), LaneConfig())
        exchanger.start(told)
        front.open = 1
        exchanger.send(request(1, bytes(1 << 20)))
        assert await told.outcomes.get() == b"no"
        front.open = 0  # the operator has raised the limit, say
        exchanger.send(request(2))
        assert await told.outcomes.get() == b"TUNL"
        await exchanger.close()


@in_loop
async def test_a_large_body_waits_only_while_more_connections_are_open_than_have_worked() -> None:
    connections = Connections(Dialing("http://127.0.0.1:9", proxy=None))
    first = connections.take(0)
    assert first is not None
    assert not connections.is_unproven(first, 0)
    second, third = connections.take(0), connections.take(0)
    assert second is not None
    assert third is not None
    assert connections.is_unproven(third, 0.9)
    assert not connections.is_unproven(third, 1)  # nothing was refused
    connections.on_answered(second, 0, by_relay=True)
    assert connections.is_unproven(third, 0)
    connections.on_answered(third, 0, by_relay=True)
    assert not connections.is_unproven(third, 0)
    connections.on_answered(first, 0, by_relay=True)
    assert connections.may_be_one_too_many(third, 0) is False  # it has worked
    fourth = connections.take(0)
    assert fourth is not None
    connections.on_answered(fourth, 0, by_relay=False)  # the proxy itself answered
    assert connections.is_unproven(fourth, 0)
    assert connections.may_be_one_too_many(fourth, 0)
    connections.give_back(fourth)
    assert not connections.is_unproven(third, 0)
    assert connections.may_be_one_too_many(third, 1)  # in doubt, also one that has worked
    assert connections.is_unproven(first, 60.9)  # the relay has answered on it before that refusal alone
    assert not connections.is_unproven(first, 61.1)
    connections.on_answered(first, 2, by_relay=True)
    assert not connections.is_unproven(first, 2)
    for used in (first, second, third):
        connections.give_back(used)
    await connections.close()


@in_loop
async def test_a_request_that_is_refused_on_every_connection_is_reported() -> None:
    told = Recorded()
    async with FewConnections(1, REFUSALS["403"]) as front:
        exchanger = HttpExchanger(Dialing(front.url, proxy=None), LaneConfig())
        exchanger.start(told)
        exchanger.send(request(1))
        assert await told.outcomes.get() == b"TUNL"
        front._most = 0  # now everything is refused
        exchanger.send(request(2))
        assert await told.outcomes.get() == b"no"
        exchanger.send(request(3))
        assert await told.outcomes.get() == b"no"
        await exchanger.close()


@in_loop
async def test_refusals_while_the_relay_does_not_answer_say_nothing_about_connections() -> None:
    connections = Connections(Dialing("http://127.0.0.1:9", proxy=None))
    working, other = connections.take(10), connections.take(10)
    assert working is not None
    assert other is not None
    connections.on_answered(working, 10, by_relay=True)
    assert not connections.may_be_one_too_many(other, 11.1)
    third = connections.take(11.1)
    assert third is not None
    assert connections.may_be_one_too_many(other, 10.9)
    assert connections.take(11) is None
    for used in (working, other, third):
        connections.give_back(used)
    await connections.close()


@in_loop
async def test_while_new_connections_are_cut_they_are_opened_one_at_a_time_after_pauses() -> None:
    connections = Connections(Dialing("http://127.0.0.1:9", proxy=None))
    opened_s, now_s = [], 0.0
    while now_s < 20:
        connection = connections.take(now_s)
        if connection is None:
            now_s = connections.new_from_s
            continue
        opened_s.append(now_s)
        assert now_s == 0 or connections.take(now_s) is None  # one at a time
        connections.on_died(connection, now_s)
        connections.give_back(connection)
    assert opened_s == pytest.approx(
        [0, 0.1, 0.3, 0.7, 1.5, 3.1, 6.1, 9.1, 12.1, 15.1, 18.1]
    )  # at most 5 in 10 s later
    await connections.close()


@in_loop
async def test_a_new_connection_that_is_cut_leaves_those_that_work_in_use() -> None:
    """Repeats use them, too: they would otherwise be replaced by new ones, which are cut."""
    connections = Connections(Dialing("http://127.0.0.1:9", proxy=None))
    working, cut = connections.take(0), connections.take(0)
    assert working is not None
    assert cut is not None
    connections.on_answered(working, 0, by_relay=True)
    connections.on_died(cut, 1)
    connections.give_back(cut)
    connections.retire(1)
    assert not working.is_retired
    assert connections.take(3.9) is None
    connections.give_back(working)
    assert connections.take(3.9) is working
    new = connections.take(4)
    assert new is not None
    assert connections.take(6.9) is None
    connections.on_answered(new, 4.5, by_relay=True)
    assert connections.take(7) is not None  # the pauses become shorter while new ones work
    assert connections.new_from_s == 8.5
    connections.retire(9)
    assert working.is_retired
    for busy in list(connections._busy):
        connections.give_back(busy)
    await connections.close()


@in_loop
async def test_connections_that_are_cut_together_cause_the_pause_of_one() -> None:
    """A relay that is killed cuts all that it has not accepted yet, even what was sent at the moment of the first."""
    connections = Connections(Dialing("http://127.0.0.1:9", proxy=None))
    together = [connections.take(now_s) for now_s in (0, 0, 0, 0, 1, 1)]
    for number, connection in enumerate(together):
        assert connection is not None
        connections.on_died(connection, 1 + number / 100)
        connections.give_back(connection)
    assert connections.new_from_s == pytest.approx(1.1)
    later = connections.take(2)
    assert later is not None
    connections.on_died(later, 2)
    assert connections.new_from_s == pytest.approx(2.2)
    connections.give_back(later)
    await connections.close()


@in_loop
async def test_a_connection_that_is_refused_ends_the_pauses_after_cut_ones() -> None:
    """Nothing listens there: what was cut before has met the end of a relay, and no limit of new connections."""
    connections = Connections(Dialing("http://127.0.0.1:9", proxy=None))
    kept, cut, refused = connections.take(0), connections.take(0), connections.take(0)
    assert kept is not None
    assert cut is not None
    assert refused is not None
    connections.on_answered(kept, 0, by_relay=True)
    connections.on_died(cut, 1)
    assert connections.take(1.1) is None
    connections.on_refused(refused)
    assert connections.take(1.1) is None  # another one works
    connections.on_refused(kept)  # its connection was closed, and it had to open one
    assert connections.take(1.1) is not None
    assert connections.take(1.1) is not None
    for busy in list(connections._busy):
        connections.give_back(busy)
    await connections.close()


@in_loop
async def test_requests_that_a_killed_relay_has_not_accepted_delay_no_later_one() -> None:
    """The system has completed their connections, and cuts them; then nothing listens any more."""
    opened = list[int]()

    class Opened(Recorded):
        def on_opened(self, request_id: int) -> None:
            opened.append(request_id)

    told = Opened()
    with socket.create_server(("127.0.0.1", 0), backlog=16) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        exchanger = HttpExchanger(Dialing(url, proxy=None), LaneConfig())
        exchanger.start(told)
        for number in range(6):
            exchanger.send(request(number))
        await until(lambda: len(opened) == 6)
    for _ in range(6):
        assert "cut" in str(await told.outcomes.get())
    exchanger.send(msgspec.structs.replace(request(0), id=10, repeat=1))
    assert await told.outcomes.get() == "the connection was refused"
    assert exchanger._connections.new_from_s == 0
    await exchanger.close()


@pytest.mark.parametrize(("number", "ends_pauses"), [(errno.ECONNREFUSED, True), (errno.ENETUNREACH, False)])
@in_loop
async def test_no_other_failure_than_a_refusal_ends_the_pauses_after_cut_connections(
    number: int, ends_pauses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*args: object, **options: object) -> None:
        raise aiohttp.ClientConnectorError(KEY, OSError(number, "failed"))

    refused = list[Connection]()
    monkeypatch.setattr(aiohttp.ClientSession, "post", fail)
    monkeypatch.setattr(Connections, "on_refused", lambda self, connection: refused.append(connection))
    told = Recorded()
    exchanger = HttpExchanger(Dialing("http://127.0.0.1:9", proxy=None), LaneConfig())
    exchanger.start(told)
    exchanger.send(request(0))
    await told.outcomes.get()
    assert bool(refused) is ends_pauses
    await exchanger.close()


@in_loop
async def test_the_pause_is_short_again_when_the_last_connection_that_worked_is_cut() -> None:
    connections = Connections(Dialing("http://127.0.0.1:9", proxy=None))
    first, second, cut = connections.take(0), connections.take(0), connections.take(0)
    assert first is not None
    assert second is not None
    assert cut is not None
    for working in (first, second):
        connections.on_answered(working, 0, by_relay=True)
    connections.on_died(cut, 1)
    connections.on_died(first, 1)
    assert connections.new_from_s == 4
    connections.on_died(second, 2)
    assert connections.new_from_s == pytest.approx(2.1)
    connections.on_died(first, 2.05)
    assert connections.new_from_s == pytest.approx(2.1)
    for busy in list(connections._busy):
        connections.give_back(busy)
    await connections.close()


@in_loop
async def test_a_new_connection_that_a_large_body_may_have_ended_delays_no_other_one() -> None:
    """A filter that resets connections for what a body holds says nothing about their number."""
    connections = Connections(Dialing("http://127.0.0.1:9", proxy=None))
    for size, next_s in ((4097, 1.0), (4096, 1.1)):
        connection = connections.take(1)
        assert connection is not None
        connections.on_died(connection, 1, size)
        connections.give_back(connection)
        assert max(1.0, connections.new_from_s) == next_s
    await connections.close()


@in_loop
async def test_a_kept_connection_that_died_delays_no_new_one() -> None:
    connections = Connections(Dialing("http://127.0.0.1:9", proxy=None))
    kept = connections.take(0)
    assert kept is not None
    connections.on_answered(kept, 0, by_relay=True)
    connections.on_died(kept, 1)
    assert connections.take(1) is not None
    connections.give_back(kept)
    assert connections.take(1) is kept
    for busy in list(connections._busy):
        connections.give_back(busy)
    await connections.close()
