"""What a hostile path can make a client read: every answer has an end, and little of it is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count, repeat
from random import Random
from typing import Any

import msgspec
import pytest

from tests.carriers.origin import Origin, answer
from tests.carriers.rig import Recorded
from tests.support.loops import in_loop
from tunnel.carriers.dialing.dialing import Dialing
from tunnel.carriers.dialing.proxy_connect import ProxyConnection
from tunnel.carriers.http.http_exchanger import HttpExchanger
from tunnel.exchange import LaneConfig, Lanes, Request

KIB = 1 << 10
MIB = 1 << 20
_OK = b"HTTP/1.1 200 OK\r\n"
_CHUNKED = _OK + b"Transfer-Encoding: chunked\r\n\r\n"
_SENT_MAX = 16 * MIB  # with the buffers of the kernel


def _fields() -> Iterator[bytes]:
    return (b"X-%d: %s\r\n" % (number, b"y" * 1000) for number in count())


ENDLESS: dict[str, tuple[bytes, Iterator[bytes]]] = {
    "interim responses": (b"", repeat(b"HTTP/1.1 102 Processing\r\n\r\n" * 100)),
    "interim responses with fields": (b"", repeat(b"HTTP/1.1 103 Early Hints\r\nLink: %s\r\n\r\n" % (b"x" * 4000))),
    "the extension of a chunk": (_CHUNKED + b"5;", repeat(b"y" * 1000)),
    "the size of a chunk": (_CHUNKED, repeat(b"0" * 1000)),
    "chunks with extensions": (_CHUNKED, repeat(b"1;a=b\r\nx\r\n" * 100)),
    "fields": (_OK, _fields()),
    "one field": (_OK + b"X: ", repeat(b"y" * 1000)),
    "the reason": (b"HTTP/1.1 200 ", repeat(b"y" * 1000)),
    "trailers": (_CHUNKED + b"2\r\nok\r\n0\r\n", _fields()),
    "one trailer": (_CHUNKED + b"2\r\nok\r\n0\r\nX: ", repeat(b"y" * 1000)),
    "a body": (_OK + b"\r\n", repeat(b"y" * 1000)),
    "answers": (b"", repeat(answer("200 OK", b"ok"))),
    "a compressed body": (_OK + b"Content-Encoding: gzip\r\n\r\n", repeat(b"\x1f\x8b" + bytes(1000))),
}


class Endless(Origin):
    """Answers with something that does not end. `size` is how much of it was taken."""

    def __init__(self, kind: str) -> None:
        super().__init__(b"")
        self.size = 0
        self._begin, self._rest = ENDLESS[kind]

    async def respond(self, writer: asyncio.StreamWriter) -> None:
        writer.write(self._begin)
        for piece in self._rest:
            writer.write(piece)
            self.size += len(piece)
            await writer.drain()


def request(*, stream: bool) -> Request:
    found = Lanes(LaneConfig(), bytes(32), Random(1)).poll_request(0)
    assert found is not None
    return msgspec.structs.replace(found, stream=stream)


@pytest.mark.parametrize("kind", ENDLESS)
@in_loop
async def test_an_endless_answer_is_given_up(kind: str) -> None:
    told = Recorded()
    async with Endless(kind) as path:
        exchanger = HttpExchanger(Dialing(path.url, proxy=None), LaneConfig(answer_bytes_max=64 * KIB))
        exchanger.start(told)
        exchanger.send(request(stream=False))
        outcome = await told.outcomes.get()
        assert len(outcome) < MIB
        await exchanger.close()
        assert await path.ended.get() == path.ports[0]
        assert path.size < _SENT_MAX


@pytest.mark.parametrize("kind", [kind for kind in ENDLESS if kind not in ("a body", "chunks with extensions")])
@in_loop
async def test_an_endless_answer_without_a_body_is_given_up_in_place_of_a_stream(kind: str) -> None:
    told = Recorded()
    async with Endless(kind) as path:
        exchanger = HttpExchanger(Dialing(path.url, proxy=None), LaneConfig(answer_bytes_max=64 * KIB))
        exchanger.start(told)
        exchanger.send(request(stream=True))
        outcome = await told.outcomes.get()
        if outcome in (b"ok", "ended"):  # what came before it is passed on as it comes
            outcome = await told.outcomes.get()
        assert isinstance(outcome, str) or kind == "a compressed body"
        await exchanger.close()
        assert await path.ended.get() == path.ports[0]
        assert path.size < _SENT_MAX


@in_loop
async def test_a_proxy_that_floods_the_client_while_nothing_reads_is_held_up() -> None:
    """While the operating system makes the next message of a login, for example."""

    class Wire(asyncio.Transport):
        is_paused = False

        def pause_reading(self) -> None:
            self.is_paused = True

        def resume_reading(self) -> None:
            self.is_paused = False

        def write(self, data: Any) -> None:
            """Do nothing: no proxy is there."""

    wire, dialogue = Wire(), ProxyConnection()
    dialogue.connection_made(wire)
    sent = 0
    while not wire.is_paused and sent < MIB:
        dialogue.data_received(bytes(16 * KIB))
        sent += 16 * KIB
    assert sent < MIB
    with pytest.raises(ConnectionError, match="endless"):
        await dialogue.ask("relay:443", None)
    assert dialogue.transport is wire
