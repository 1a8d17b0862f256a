"""Further requests on an open connection: on the wire they are like those that aiohttp's session sends."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import aiohttp
import msgspec
import pytest

from tests.carriers.origin import Origin, answer
from tests.carriers.rig import Recorded
from tests.support.loops import in_loop
from tunnel.carriers.dialing.dialing import Dialing
from tunnel.carriers.http.http_exchanger import HttpExchanger
from tunnel.exchange import LaneConfig, Lanes
from tunnel.wire import MAGIC, BodyFormat


@asynccontextmanager
async def _exchanger(dialing: Dialing, told: Recorded) -> AsyncIterator[HttpExchanger]:
    exchanger = HttpExchanger(dialing, LaneConfig())
    exchanger.start(told)
    try:
        async with asyncio.timeout(20):
            yield exchanger
    finally:
        await exchanger.close()


async def _ask(exchanger: HttpExchanger, told: Recorded, number: int, **changes: object) -> bytes | str:
    request = Lanes(LaneConfig(), bytes(32), Random(1)).poll_request(0)
    assert request is not None
    exchanger.send(msgspec.structs.replace(request, id=number, **changes))
    return await told.outcomes.get()


def _without_length(head: str) -> str:
    return re.sub(r"(?i)(content-length): \d+", r"\1: ?", head)


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the requests that go through aiohttp's session, as they come."""
    found: list[str] = []
    post = aiohttp.ClientSession.post

    def noted(session: aiohttp.ClientSession, url: object, **options: object) -> object:
        found.append(str(url))
        return post(session, url, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(aiohttp.ClientSession, "post", noted)
    return found


@in_loop
async def test_later_requests_have_the_head_of_the_first_and_pass_the_session_by(sessions: list[str]) -> None:
    told = Recorded()
    async with Origin(answer("200 OK", MAGIC + b"1")) as relay:
        dialing = Dialing(f"{relay.url}/base", proxy=None, token="secret", headers={"X-Gate": "yes"})
        async with _exchanger(dialing, told) as exchanger:
            for number, body in enumerate(([b"a"], [b"bc", b"def"], [bytes(5000)])):
                assert await _ask(exchanger, told, number, body=body) == MAGIC + b"1"
        assert len(sessions) == 1
        assert len(set(relay.ports)) == 1
        assert len(relay.heads) == 3
        assert len({_without_length(head) for head in relay.heads}) == 1
        lengths = [re.search(r"(?i)content-length: (\d+)", head) for head in relay.heads]
        assert [length and length[1] for length in lengths] == ["1", "5", "5000"]
        assert relay.heads[2].startswith("POST /base/exchange HTTP/1.1\r\nHost: ")
        assert "Authorization: Bearer secret\r\n" in relay.heads[2]
        assert "X-Gate: yes\r\n" in relay.heads[2]


@in_loop
async def test_large_bodies_other_types_and_renewed_secrets_go_through_the_session(sessions: list[str]) -> None:
    told = Recorded()
    async with Origin(answer("200 OK", MAGIC)) as relay:
        dialing = Dialing(relay.url, proxy=None, token="first")
        async with _exchanger(dialing, told) as exchanger:
            await _ask(exchanger, told, 1)
            await _ask(exchanger, told, 2, body=[bytes(100_000)])
            assert len(sessions) == 2
            await _ask(exchanger, told, 3, format=BodyFormat.TEXT)
            assert len(sessions) == 3
            dialing.renew(dialing.other_secrets("second", {}, ""), lambda status: None)
            await _ask(exchanger, told, 4, format=BodyFormat.TEXT)
            assert len(sessions) == 4
            await _ask(exchanger, told, 5, format=BodyFormat.TEXT)
            assert len(sessions) == 4
        assert ["Bearer second" in head for head in relay.heads] == [False] * 3 + [True] * 2


class Interim(Origin):
    """Says that it goes on, twice, before each answer."""

    async def respond(self, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 102 Processing\r\n\r\n")
        await writer.drain()
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + self.response)
        await writer.drain()


@in_loop
async def test_interim_responses_are_passed_over(sessions: list[str]) -> None:
    told = Recorded()
    async with Interim(answer("200 OK", MAGIC)) as relay, _exchanger(Dialing(relay.url, proxy=None), told) as exchanger:
        assert [await _ask(exchanger, told, number) for number in range(3)] == [MAGIC] * 3
        assert len(sessions) == 1
        assert len(set(relay.ports)) == 1


class Changing(Origin):
    """Gives the next of several answers to each request."""

    def __init__(self, *responses: bytes) -> None:
        super().__init__(b"")
        self.responses = list(responses)

    async def respond(self, writer: asyncio.StreamWriter) -> None:
        writer.write(self.responses.pop(0))
        await writer.drain()


@in_loop
async def test_an_answer_with_connection_close_leads_to_another_connection() -> None:
    told = Recorded()
    last = answer("200 OK", MAGIC, Connection="close")
    async with (
        Changing(answer("200 OK", MAGIC), last, answer("200 OK", MAGIC)) as relay,
        _exchanger(Dialing(relay.url, proxy=None), told) as exchanger,
    ):
        assert [await _ask(exchanger, told, number) for number in range(3)] == [MAGIC] * 3
        assert relay.ports[0] == relay.ports[1] != relay.ports[2]
        assert len({_without_length(head) for head in relay.heads}) == 1


@in_loop
async def test_redirects_are_reported_and_not_followed(sessions: list[str]) -> None:
    told = Recorded()
    moved = answer("307 Temporary Redirect", b"", Location="http://127.0.0.1:9/other")
    async with (
        Changing(answer("200 OK", MAGIC), moved) as relay,
        _exchanger(Dialing(relay.url, proxy=None), told) as exchanger,
    ):
        await _ask(exchanger, told, 1)
        assert await _ask(exchanger, told, 2) == b"it leads to http://127.0.0.1:9/other"
        assert len(sessions) == 1


@in_loop
async def test_what_is_no_http_is_a_failure_and_the_next_request_gets_another_connection(sessions: list[str]) -> None:
    told = Recorded()
    async with (
        Changing(answer("200 OK", MAGIC), b"\0\1nothing\r\n\r\n", answer("200 OK", MAGIC)) as relay,
        _exchanger(Dialing(relay.url, proxy=None), told) as exchanger,
    ):
        assert await _ask(exchanger, told, 1) == MAGIC
        assert isinstance(await _ask(exchanger, told, 2), str)
        assert await _ask(exchanger, told, 3) == MAGIC
        assert len(sessions) == 1
        assert relay.ports[0] == relay.ports[1] != relay.ports[2]


@in_loop
async def test_plain_requests_through_a_proxy_get_a_head_of_their_own(sessions: list[str]) -> None:
    told = Recorded()
    async with Origin(answer("200 OK", MAGIC)) as proxy:
        dialing = Dialing("http://relay.invalid", proxy=proxy.url, insecure_http=True)
        async with _exchanger(dialing, told) as exchanger:
            for number in range(3):
                assert await _ask(exchanger, told, number) == MAGIC
        assert len(sessions) == 3
        assert all(head.startswith("POST http://relay.invalid/exchange HTTP/1.1\r\n") for head in proxy.heads)
