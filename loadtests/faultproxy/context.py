"""State that all connections of one proxy share, and the connections to upstream servers."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import h11

from loadtests.faultproxy.gate import Gate, Gates
from loadtests.faultproxy.http import HttpSide, Target
from loadtests.faultproxy.options import FaultProxyOptions
from loadtests.faultproxy.recorder import Recorder
from loadtests.faultproxy.stream import Stream

__all__ = ["Context", "Upstream"]

# Limit for all bodies kept for duplicates together; a request whose body would exceed it is not duplicated.
COPIES_BYTES_MAX = 256 * 1024 * 1024


class Context:
    """One proxy's options, counters, gates, open streams and running tasks."""

    def __init__(self, options: FaultProxyOptions, recorder: Recorder) -> None:
        self.options = options
        self.recorder = recorder
        self.counts = recorder.counts
        self.gates = Gates(recorder)
        slots = options.slots
        self.slot = contextlib.nullcontext() if slots is None else asyncio.Semaphore(slots)
        self.copies_room_bytes = COPIES_BYTES_MAX
        self.tunnels: dict[Stream, Stream] = {}  # the open ones: client's stream -> upstream stream
        self._streams: dict[Stream, None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}

    def next_exchange(self) -> int:
        """Return the number of an exchange whose head has just arrived, counted from 1 over all connections."""
        self.counts.exchanges += 1
        return self.counts.exchanges

    def new_stream(self, gate: Gate, on_made: Callable[[Stream], None] | None = None) -> Stream:
        """Return a new stream, which close() will close. `on_made` is called when its connection is open."""

        def made(stream: Stream) -> None:
            self._streams[stream] = None
            stream.on_closed = lambda: self._streams.pop(stream, None)
            if on_made is not None:
                on_made(stream)

        return Stream(gate, made)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` as a task; close() cancels it if it still runs."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def dial(self, target: Target) -> Stream:
        """Open a new connection upstream. If that fails, count the error and raise OSError."""
        try:
            _, stream = await asyncio.get_running_loop().create_connection(
                lambda: self.new_stream(self.gates.response), *target
            )
        except OSError:
            self.counts.upstream_errors += 1
            raise
        return stream

    async def close(self) -> None:
        """End every task and connection, and wait until all have ended."""
        while self._tasks or self._streams:  # a connection that was just accepted may be added during the loop
            tasks, streams = list(self._tasks), list(self._streams)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for stream in streams:
                stream.abort()
            for stream in streams:
                await stream.wait_closed()


class Upstream:
    """The upstream connection of one client connection; it is kept until a request names another target.

    It is not shared between clients. So a request meets a connection that the target is just closing as often as it
    would without the proxy.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._target: Target | None = None
        self._side: HttpSide | None = None

    async def get(self, target: Target) -> HttpSide:
        """Return a connection to `target` that is ready for a request. Raise OSError if none can be opened."""
        if self._side is not None and self._side.can_go_on and self._target == target:
            self._side.h11.start_next_cycle()
            return self._side
        self.close()
        self._side = HttpSide(await self._context.dial(target), h11.CLIENT)
        self._target = target
        return self._side

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._side is not None:
            self._side.stream.close()
            self._side = None
