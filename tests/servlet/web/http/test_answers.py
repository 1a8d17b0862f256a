"""Answers that leave in one piece are, on the wire, those that aiohttp writes."""

import asyncio
import re

import pytest
from aiohttp import web

from tests.support.loops import in_loop
from tunnel_servlet.web.http.answers import AnswerHead, WholeAnswer

HEADERS = {"Cache-Control": "no-store", "Content-Type": "application/octet-stream"}


async def _asked(request: str, body: bytes, *, is_closed: bool = False) -> tuple[list[bytes], list[bool]]:
    """Return what a server says to the request, with a WholeAnswer and with aiohttp's own, and whether it goes on."""
    head = AnswerHead(HEADERS)

    async def handle(asked: web.BaseRequest) -> web.StreamResponse:
        answer = WholeAnswer(head, body) if asked.path == "/whole" else web.Response(body=body, headers=HEADERS)
        if is_closed:
            answer.force_close()
        return answer

    server = await asyncio.get_running_loop().create_server(web.Server(handle), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    said, goes_on = [], []
    for path in ("/whole", "/other"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(20):
            writer.write(request.replace("PATH", path).encode())
            found = await reader.readuntil(b"\r\n\r\n")
            found += await reader.readexactly(len(body))
            writer.write(b"nonsense\r\n\r\n")  # is answered if the connection goes on
            goes_on.append(bool(await reader.read(1)))
        said.append(re.sub(rb"Date: [^\r]*", b"Date: ?", found))
        writer.close()
    server.close()
    return said, goes_on


@in_loop
@pytest.mark.parametrize("size", [0, 1, 16 * 1024, 100_000])
@pytest.mark.parametrize(
    ("request_", "is_closed", "is_kept"),
    [
        ("GET PATH HTTP/1.1\r\nHost: a\r\n\r\n", False, True),
        ("GET PATH HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", False, False),
        ("GET PATH HTTP/1.1\r\nHost: a\r\n\r\n", True, False),
        ("GET PATH HTTP/1.0\r\nHost: a\r\n\r\n", False, False),
        ("GET PATH HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n", False, True),
    ],
)
async def test_a_whole_answer_is_as_aiohttp_writes_it(request_: str, is_closed: bool, is_kept: bool, size: int) -> None:
    said, goes_on = await _asked(request_, bytes(size), is_closed=is_closed)
    assert said[0] == said[1]
    assert goes_on == [is_kept, is_kept]
