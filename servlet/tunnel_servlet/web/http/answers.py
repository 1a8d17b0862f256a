"""Answers that leave in one piece, with the headers that all of them share."""

from collections.abc import Mapping
from typing import Any

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.helpers import rfc822_formatted_time
from aiohttp.http import SERVER_SOFTWARE, HttpVersion11

__all__ = ["AnswerHead", "WholeAnswer"]

_SMALL_BYTES = 16 * 1024  # larger bodies are written without a copy, by aiohttp


class AnswerHead:
    """The head of answers with the status 200 and these headers."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.headers = headers
        lines = ["HTTP/1.1 200 OK", *(f"{name}: {value}" for name, value in headers.items()), "Content-Length: "]
        self._before = "\r\n".join(lines).encode()
        self._server = f"\r\nServer: {SERVER_SOFTWARE}\r\n\r\n".encode()

    def encode(self, body: bytes) -> bytes:
        """Return the head and the body of an answer, byte by byte as aiohttp writes them."""
        date = rfc822_formatted_time().encode()
        return b"%b%d\r\nDate: %b%b%b" % (self._before, len(body), date, self._server, body)


class WholeAnswer(web.Response):
    """An answer with the status 200. If it is small and the connection goes on, it takes a short way to the wire."""

    def __init__(self, head: AnswerHead, body: bytes) -> None:
        super().__init__(body=body, headers=head.headers)
        self._head = head
        self._plain = body
        self._direct: AbstractStreamWriter | None = None

    @property
    def keep_alive(self) -> bool | None:
        return True if self._direct is not None else super().keep_alive

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        is_forced = super().keep_alive is False
        if is_forced or len(self._plain) > _SMALL_BYTES or request.version != HttpVersion11 or not request.keep_alive:
            return await super().prepare(request)
        self._direct = request.writer
        return self._direct

    async def write_eof(self, data: Any = b"") -> None:
        writer = self._direct
        if writer is None:
            await super().write_eof(data)
        else:
            await writer.write(self._head.encode(self._plain))
            await writer.drain()
