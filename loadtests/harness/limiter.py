"""A reverse proxy that limits a client, as web servers and firewalls do: `LIMITS` is the table of its limits.

It forwards requests, and counts all that come, with the times at which they came.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

import msgspec

from tunnel.system.linger import reset_when_closed

__all__ = ["LIMITS", "Limit", "Limiter"]

_HEAD_BYTES_MAX = 1 << 16
_BLOCK_BYTES = 1 << 16
_REASONS = {
    403: "Forbidden",
    413: "Content Too Large",
    429: "Too Many Requests",
    502: "Bad Gateway",
    503: "Service Unavailable",
}
_PAGE = b"<html><head><title>%d %s</title></head><body>The limiter of this load test refuses.</body></html>"


class Limit(msgspec.Struct):
    """The requests that a limiter refuses or delays, from `after_s` on. A field that has its default limits nothing."""

    words: str
    after_s: float = 0.0
    status: int = 0  # answers requests with this status, without Retry-After
    body_bytes: int = 0  # only to requests with larger bodies
    for_s: float = float("inf")  # as long as this
    ban_s: float = 0.0  # instead, until no request has come for this time: each one renews the ban
    interval_s: float = 0.0  # lets one request pass in this time. The others queue, also those whose client has gone
    connections: int = 0  # resets further new connections in `window_s`; those that it resets count, too
    window_s: float = 10.0


LIMITS: Mapping[str, Callable[[], Limit]] = {
    "none": lambda: Limit("no limit"),
    "429": lambda: Limit("always 429", status=429),
    "429-later": lambda: Limit("after 5 s, always 429", after_s=5.0, status=429),
    "ban": lambda: Limit("after 5 s, a ban (429) of 10 s that each request renews", 5.0, status=429, ban_s=10.0),
    "queue": lambda: Limit("one request per second, the others queue", interval_s=1.0),
    "connections": lambda: Limit("five new connections in 10 s", connections=5),
    "restart": lambda: Limit("the same, and after 5 s, 502 for 3 s", 5.0, status=502, for_s=3.0, connections=5),
    "2k": lambda: Limit("bodies of at most 2 kB (413)", status=413, body_bytes=2000),
    "403": lambda: Limit("after 5 s, 403 for a minute", 5.0, status=403, for_s=60.0),
}


class Limiter:
    """The proxy, at a free port of 127.0.0.1, while its `async with` block runs. It serves one client."""

    def __init__(self, limit: Limit, upstream: int) -> None:
        self.requests_s: list[float] = []  # since the first connection
        self.connections_s: list[float] = []
        self.refused = 0
        self.port = 0
        self._limit = limit
        self._upstream = upstream
        self._began_s: float | None = None
        self._asked_s = 0.0  # when the newest request came that was refused
        self._is_over = False  # the ban has ended
        self._free_s = 0.0  # when the next request in the queue passes
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_HEAD_BYTES_MAX)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await self._server.wait_closed()

    @property
    def elapsed_s(self) -> float:
        """The time since the first connection."""
        now_s = asyncio.get_running_loop().time()
        if self._began_s is None:
            self._began_s = now_s
        return now_s - self._began_s

    # decisions

    def _connects(self, now_s: float) -> bool:
        self.connections_s.append(now_s)
        limit = self._limit
        recent = sum(now_s - limit.window_s < before_s for before_s in self.connections_s)
        return not limit.connections or now_s < limit.after_s or recent <= limit.connections

    def _refuses(self, now_s: float) -> bool:
        limit = self._limit
        if not limit.status or not limit.after_s <= now_s < limit.after_s + limit.for_s or self._is_over:
            return False
        if limit.ban_s:
            self._is_over = self._asked_s > 0.0 and now_s - self._asked_s >= limit.ban_s
            self._asked_s = now_s
        return not self._is_over

    def _queue_s(self, now_s: float) -> float:
        if not self._limit.interval_s:
            return 0.0
        self._free_s = max(now_s, self._free_s + self._limit.interval_s)
        return self._free_s - now_s

    # connections

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        upstream: asyncio.StreamWriter | None = None
        passing: asyncio.Task[None] | None = None
        try:
            if not self._connects(self.elapsed_s):
                reset_when_closed(writer.get_extra_info("socket"))
                return
            back, upstream = await asyncio.open_connection("127.0.0.1", self._upstream)
            passing = asyncio.create_task(_pass(back, writer))
            while await self._request(reader, writer, upstream):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            for one in (writer, upstream):
                if one is not None:
                    one.close()
            if passing is not None:
                await passing
            self._writers.discard(writer)

    async def _request(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upstream: asyncio.StreamWriter
    ) -> bool:
        """Serve one request. Return whether another one may follow on this connection."""
        head = await reader.readuntil(b"\r\n\r\n")
        asked = dict(line.lower().split(b": ", 1) for line in head[:-4].split(b"\r\n")[1:])
        body = await reader.readexactly(int(asked.get(b"content-length", b"0")))
        now_s = self.elapsed_s
        self.requests_s.append(now_s)
        if len(body) >= self._limit.body_bytes and self._refuses(now_s):
            self.refused += 1
            status, reason = self._limit.status, _REASONS[self._limit.status]
            page = _PAGE % (status, reason.encode())
            fields = f"Server: limiter\r\nContent-Length: {len(page)}"
            writer.write(f"HTTP/1.1 {status} {reason}\r\n{fields}\r\n\r\n".encode() + page)
            return True
        await asyncio.sleep(self._queue_s(now_s))
        upstream.write(head + body)
        if b"upgrade" in asked:
            await _pass(reader, upstream)
            return False
        return True


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass all bytes on, and then the end."""
    with contextlib.suppress(OSError):
        while data := await reader.read(_BLOCK_BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()
