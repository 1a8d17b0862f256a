"""Requests that are parsed in one piece, because only their heads take time to parse."""

from __future__ import annotations

import pytest
from aiohttp.web import RequestHandler

from tests.servlet.rig import attach_body, relay, until
from tests.servlet.web.rig import BINARY, PING, answer, close, connect, frame, raw, request
from tests.support.loops import HANGING_S, in_loop_within
from tunnel_servlet.web.http.heads import is_plain
from tunnel_servlet.web.http.websocket_guard import FrameGuard

PIECE_BYTES = 4096
PONG = 0xA
TINY = b"1\r\nx\r\n"
LINE = b"POST /exchange HTTP/1.1\r\n"


@pytest.mark.parametrize(
    "data",
    [
        LINE + b"Content-Length: 5\r\n\r\nhello",
        LINE + b"Host: a\r\nCONTENT-LENGTH:\t5 \r\nAccept: */*\r\n\r\nhel",
        b"PUT / HTTP/1.0\r\nContent-Length: 0\r\n\r\n",
        LINE + b"Content-Length: 9000\r\n\r\n" + bytes(9000),
    ],
)
def test_a_request_with_a_body_of_stated_length_is_plain(data: bytes) -> None:
    assert is_plain(data, PIECE_BYTES)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        LINE,
        LINE + b"Content-Length: 5\r\n",
        LINE + b"Content-Length: 4\r\n\r\nhello",  # what follows the body can be anything
        LINE + b"\r\nContent-Length: 5\r\n\r\nhello",
        LINE + b"Content-Length: -5\r\n\r\n",
        LINE + b"Content-Length: 5, 6\r\n\r\nhello",
        LINE + b"X-Content-Length: 5\r\n\r\nhello",
        LINE + b"Content-Length: 9999\r\nTransfer-Encoding: chunked\r\n\r\n" + TINY,
        LINE + b"transfer-encoding : chunked\r\nContent-Length: 9999\r\n\r\n" + TINY,
        LINE + b"Content-Length: 9999\r\nUPGRADE: websocket\r\n\r\n" + TINY,
        LINE + b"X: %b\r\nContent-Length: 5\r\n\r\nhello" % bytes(PIECE_BYTES),
        b"\r\n" + LINE + b"Content-Length: 5\r\n\r\nhello",  # the end of a head that began before
        b"1e\r\n\r\nContent-Length: 9999\r\n\r\n" + TINY,
        b"x POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
        b"POST / HTTP/2\r\nContent-Length: 5\r\n\r\nhello",
        b"CONNECT a:1 HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",  # the parser ignores its length
    ],
)
def test_other_data_may_be_costly(data: bytes) -> None:
    assert not is_plain(data, PIECE_BYTES)


class Parsed:
    """The sizes of the pieces that aiohttp parses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        parse = RequestHandler.data_received

        def note(handler: RequestHandler, data: bytes) -> None:
            self.sizes.append(len(data))
            parse(handler, data)

        monkeypatch.setattr(RequestHandler, "data_received", note)

    async def until(self, total: int) -> None:
        """Wait until this number of bytes has been parsed."""
        await until(lambda: sum(self.sizes) >= total)


@in_loop_within(HANGING_S)
async def test_a_plain_request_is_parsed_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    async with relay() as running:
        parsed = Parsed(monkeypatch)
        reader, writer = await connect(running)
        body = attach_body(7) + bytes(20_000)
        writer.write(request(body, "bob"))
        assert (await answer(reader))[0] == 400  # the body is not an envelope
        assert len(body) < parsed.sizes[0]
        await close(writer)


@pytest.mark.parametrize(
    "begin",
    [
        b"Transfer-Encoding: chunked\r\nX: ",
        b"Content-Length: 0\r\nX: ",
        b"Content-Length: 0\r\n",
    ],
)
@in_loop_within(HANGING_S)
async def test_two_users_a_head_that_claims_to_be_plain_is_refused(
    begin: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head comes in two parts. The second looks like a plain request whose body holds thousands of chunks."""
    async with relay() as running:
        parsed = Parsed(monkeypatch)
        reader, writer = await connect(running)
        writer.write(request(attach_body(7), "bob"))
        await answer(reader)
        writer.write(LINE + begin)
        await parsed.until(len(request(attach_body(7), "bob") + LINE + begin))
        writer.write(LINE + b"Content-Length: 99999\r\n\r\n" + TINY * 5000)
        assert b" 400 " in (await reader.read(-1)).partition(b"\r\n")[0]
        writer.close()


FAKE = LINE + b"Content-Length: 99999\r\n\r\n"


@pytest.mark.parametrize("split", [0, 2, 2 + len(b"%x\r\n" % len(FAKE))])
@in_loop_within(HANGING_S)
async def test_two_users_chunks_that_claim_to_be_a_plain_request_are_parsed_in_pieces(
    split: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first write ends before the empty line of the head, before the first chunk, or before its content."""
    async with relay() as running:
        reader, writer = await connect(running)
        writer.write(request(attach_body(7), "bob"))
        await answer(reader)
        head = request(b"", "bob").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")[:-2]
        chunks = b"\r\n%x\r\n%b\r\n" % (len(FAKE), FAKE) + TINY * 5000
        parsed = Parsed(monkeypatch)
        writer.write(head + chunks[:split])
        await parsed.until(len(head) + split)
        writer.write(chunks[split:])
        await parsed.until(20_000)
        assert max(parsed.sizes) <= PIECE_BYTES
        writer.transport.abort()


@in_loop_within(HANGING_S)
async def test_two_users_frames_that_claim_to_be_a_plain_request_are_parsed_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with relay() as running, raw(running, "bob") as (_, writer):
        parsed = Parsed(monkeypatch)
        begin = frame(BINARY, size=len(FAKE))
        writer.write(begin)
        await parsed.until(len(begin))
        writer.write(FAKE + frame(PING) * 5000)
        await parsed.until(20_000)
        assert max(parsed.sizes) <= PIECE_BYTES


@in_loop_within(HANGING_S)
async def test_two_users_frames_that_come_with_their_request_are_parsed_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first 4 KiB of data hold the head, so that no guard watches the rest yet."""
    sizes, feed = list[int](), FrameGuard.feed_data

    def note(guard: FrameGuard, data: bytes) -> tuple[bool, bytes]:
        sizes.append(len(data))
        return feed(guard, data)

    monkeypatch.setattr(FrameGuard, "feed_data", note)
    count = 8_000
    async with relay() as running, raw(running, "bob", early=frame(PING) * count) as (reader, writer):
        for _ in range(count):
            assert (await reader.readexactly(2))[0] & 0xF == PONG
        assert max(sizes) <= PIECE_BYTES
        assert sum(sizes) == count * len(frame(PING))
        writer.transport.abort()


@in_loop_within(HANGING_S)
async def test_two_users_requests_behind_a_refused_upgrade_are_not_parsed() -> None:
    """aiohttp would parse them outside of the turns."""
    async with relay() as running:
        reader, writer = await connect(running)
        writer.write(request(attach_body(7), "bob"))
        assert (await answer(reader))[0] == 200
        writer.write(b"CONNECT a:1 HTTP/1.1\r\nHost: x\r\n\r\n" + request(attach_body(8), "bob"))
        assert (await reader.read(-1)).count(b"HTTP/1.1 ") == 1
        await close(writer)
