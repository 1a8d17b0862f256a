"""HTTP connections that give up a response of which nothing but overhead comes."""

import asyncio
import functools
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

__all__ = ["bound_responses"]

_FUTILE_BYTES_MAX = 256 * 1024
_FUTILE = "the answer is endless: interim responses or chunk headers come, and no byte of a body"


class _BoundedHandler(ResponseHandler):
    """aiohttp's side of a connection. aiohttp bounds the size of a head, but not the number of interim responses (1xx)
    or the length of a chunk's header: a hostile path could keep a client busy with them for as long as it likes."""

    _futile_bytes = 0  # that came since the last response, or the last byte of a body
    _responses = 0
    _has_chunks = False  # a body without a length has come

    def feed_data(self, item: Any, size: int = 0) -> None:
        head = item[0]
        self._responses += head.code >= 200 or head.code == 101
        self._has_chunks = self._has_chunks or head.chunked
        super().feed_data(item, size)

    def resume_reading(self, resume_parser: bool = True) -> None:
        # As in `tunnel_servlet.web.http.handler`: aiohttp calls this for each part of a body that is taken. While
        # reading is not paused, that would only run the parser on zero bytes, except after a pause for too many chunks.
        if self._reading_paused or self._has_chunks:
            super().resume_reading(resume_parser)

    def data_received(self, data: bytes) -> None:
        if self._upgraded:  # what follows has limits of its own
            super().data_received(data)
            return
        responses, payload = self._responses, self._payload
        size_bytes = 0 if payload is None else payload.total_bytes
        super().data_received(data)
        payload = self._payload
        if self._responses != responses or (0 if payload is None else payload.total_bytes) != size_bytes:
            self._futile_bytes = 0
            return
        self._futile_bytes += len(data)
        if self._futile_bytes > _FUTILE_BYTES_MAX and self.transport is not None:
            self.set_exception(aiohttp.ClientPayloadError(_FUTILE))
            if self._payload is not None:
                self._payload.set_exception(aiohttp.ClientPayloadError(_FUTILE))
            self.transport.abort()


def bound_responses(connector: aiohttp.BaseConnector) -> None:
    """Let the connections that this connector opens be bounded. Call it in the event loop that will use them."""
    made: Any = functools.partial(_BoundedHandler, loop=asyncio.get_running_loop())
    connector._factory = made  # noqa: SLF001 - aiohttp has no option for it
