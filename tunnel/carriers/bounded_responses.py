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

    def feed_data(self, item: Any, size: int = 0) -> None:
        self._responses += item[0].code >= 200 or item[0].code == 101
        super().feed_data(item, size)

    def data_received(self, data: bytes) -> None:
        if self._upgraded:  # what follows has limits of its own
            super().data_received(data)
            return
        before = self._progress()
        super().data_received(data)
        if self._progress() != before:
            self._futile_bytes = 0
            return
        self._futile_bytes += len(data)
        if self._futile_bytes > _FUTILE_BYTES_MAX and self.transport is not None:
            self.set_exception(aiohttp.ClientPayloadError(_FUTILE))
            if self._payload is not None:
                self._payload.set_exception(aiohttp.ClientPayloadError(_FUTILE))
            self.transport.abort()

    def _progress(self) -> tuple[int, int]:
        return self._responses, 0 if self._payload is None else self._payload.total_bytes


def bound_responses(connector: aiohttp.BaseConnector) -> None:
    """Let the connections that this connector opens be bounded. Call it in the event loop that will use them."""
    made: Any = functools.partial(_BoundedHandler, loop=asyncio.get_running_loop())
    connector._factory = made  # noqa: SLF001 - aiohttp has no option for it
