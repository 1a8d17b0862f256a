"""The fault proxy itself: a listener, its connections and its blackholes."""

import asyncio
import contextlib
import dataclasses
from types import TracebackType
from typing import Self

from loadtests.faultproxy.connection import serve_connection
from loadtests.faultproxy.context import Context
from loadtests.faultproxy.faults import FaultKind
from loadtests.faultproxy.http import authority
from loadtests.faultproxy.options import FaultProxyOptions
from loadtests.faultproxy.recorder import Counts, Recorder
from loadtests.faultproxy.stream import Stream
from tunnel.traces.record import TraceFault, TraceSink

__all__ = ["FaultProxy"]

# Under one_connection, how long a new connection waits for the old one to end. A client that closes one connection and
# opens another at once does both before the proxy notices the close.
ONE_CONNECTION_GRACE_S = 0.1


class FaultProxy:
    """A proxy in this event loop: `async with FaultProxy(options) as proxy: ... proxy.url ... proxy.counts`."""

    def __init__(self, options: FaultProxyOptions, *, trace: TraceSink | None = None) -> None:
        self._options = options
        self._recorder = Recorder(options.node, trace)
        self._context: Context | None = None
        self._server: asyncio.Server | None = None
        self._alone = asyncio.Lock()  # under one_connection, held by the open client connection

    @property
    def counts(self) -> Counts:
        """The counters so far; they stay readable after the proxy has closed."""
        return self._recorder.counts

    @property
    def address(self) -> tuple[str, int]:
        """The host and port that the proxy listens on."""
        assert self._server is not None, "the proxy is not running"
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    @property
    def url(self) -> str:
        """The URL that clients use as the origin server, or as their proxy."""
        return f"http://{authority(self.address)}"

    def blackhole(self, side: str = "") -> "contextlib.AbstractContextManager[None]":
        """Let no byte of requests, of responses or, by default, of both pass until the end of the `with` block."""
        assert self._context is not None, "the proxy is not running"
        return self._context.gates.blackhole(side)

    def allow_upgrades(self, allowed: bool) -> None:
        """Pass Upgrade on from now on, or remove it from requests, as the option `no_upgrade` does."""
        assert self._context is not None, "the proxy is not running"
        self._context.options = dataclasses.replace(self._context.options, no_upgrade=not allowed)

    def cut_tunnels(self) -> int:
        """Reset both connections of every tunnel that CONNECT or Upgrade has opened. Return the number of tunnels."""
        assert self._context is not None, "the proxy is not running"
        tunnels = list(self._context.tunnels.items())
        for client, upstream in tunnels:
            client.reset()
            upstream.reset()
        return len(tunnels)

    async def __aenter__(self) -> Self:
        """Start to listen. Raise OSError if the address cannot be used."""
        self._context = Context(self._options, self._recorder)
        host, port = self._options.listen
        self._server = await asyncio.get_running_loop().create_server(self._accept, host, port)
        if self._options.blackhole is not None:
            self._context.spawn(self._context.gates.run(self._options.blackhole))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close every connection at once. Duplicates that are not yet due are never sent."""
        assert self._server is not None
        assert self._context is not None
        self._server.close()
        await self._context.close()
        await self._server.wait_closed()

    def _accept(self) -> Stream:
        assert self._context is not None
        return self._context.new_stream(self._context.gates.request, self._connected)

    def _connected(self, stream: Stream) -> None:
        assert self._context is not None
        serve = self._serve_alone if self._options.one_connection else self._serve
        self._context.spawn(serve(stream))

    async def _serve(self, stream: Stream) -> None:
        assert self._context is not None
        await serve_connection(self._context, stream)

    async def _serve_alone(self, stream: Stream) -> None:
        try:
            async with asyncio.timeout(ONE_CONNECTION_GRACE_S):
                await self._alone.acquire()
        except TimeoutError:
            self._recorder.fault(FaultKind.ONE_CONNECTION, TraceFault.CONNECTION_REFUSED)
            stream.reset()
            return
        try:
            await self._serve(stream)
        finally:
            self._alone.release()
