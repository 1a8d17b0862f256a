"""The client of the target: transfers with a digest, echoes, an idle connection, and a stream in both directions."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from statistics import median

from loadtests.harness.transfer import CHUNK_BYTES, Flow
from tests.field.flows import DOWN_SEED, KILL_SEED, MIB, UP_SEED, expected_digest

__all__ = ["BrokenError", "Echoes", "download", "echo_p50_ms", "pour", "upload"]

_PING = bytes(range(64))


class BrokenError(Exception):
    """A transfer did not end well; the text says how far it came."""


@contextlib.asynccontextmanager
async def _connected(port: int, command: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2 * CHUNK_BYTES)
    try:
        writer.write(f"{command}\n".encode())
        yield reader, writer
    finally:
        writer.transport.abort()  # a connection that broke must not wait for its buffer


@contextlib.asynccontextmanager
async def _within(seconds: float, progress: Callable[[], str]) -> AsyncIterator[None]:
    """Turn a timeout, a connection that ends early, and a line that is too long into BrokenError."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise BrokenError(f"{progress()} in {seconds:.0f} s") from None
    except ConnectionError:
        raise BrokenError(f"reset after {progress()}") from None
    except asyncio.IncompleteReadError:
        raise BrokenError(f"ended after {progress()}") from None
    except ValueError:  # a line without an end
        raise BrokenError("other bytes arrived in place of the digest") from None


async def _write(flow: Flow, writer: asyncio.StreamWriter) -> None:
    """Write the whole flow, and leave the direction open: if it ended, a bare forwarder would end both directions."""
    for chunk in flow.chunks():
        writer.write(chunk)
        await writer.drain()


def _of(flow: Flow, moved: int) -> str:
    return f"{moved / MIB:.1f} of {flow.size_bytes / MIB:.1f} MiB"


async def upload(port: int, size: int, seconds: float) -> float:
    """Send `size` bytes; return the rate in bytes/s, up to the arrival of the digest."""
    flow = Flow(size, UP_SEED)
    async with _within(seconds, lambda: _of(flow, flow.written_bytes) + " written"):
        began = time.monotonic()
        async with _connected(port, f"up {size}") as (reader, writer):
            await _write(flow, writer)
            digest = (await reader.readline()).decode().strip()
        if not digest:
            raise BrokenError(f"ended after {_of(flow, flow.written_bytes)} written, without a digest")
        if digest != flow.digests[0]:
            raise BrokenError("the digests differ")
        return size / (time.monotonic() - began)


async def download(port: int, size: int, seconds: float) -> float:
    """Receive `size` bytes; return the rate in bytes/s."""
    flow = Flow(size, DOWN_SEED)
    async with _within(seconds, lambda: _of(flow, flow.received_bytes)):
        began = time.monotonic()
        async with _connected(port, f"down {size}") as (reader, _):
            while flow.received_bytes < size:
                data = await reader.read(min(CHUNK_BYTES, size - flow.received_bytes))
                if not data:
                    raise BrokenError(f"ended after {_of(flow, flow.received_bytes)}")
                flow.took(data)
            took_s = time.monotonic() - began
            digest = (await reader.readline()).decode().strip()
    if digest != flow.digests[1] or digest != expected_digest(size, DOWN_SEED):
        raise BrokenError("the digests differ")
    return size / took_s


class Echoes:
    """A connection that echoes, for as long as the `async with` block lasts."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> "Echoes":
        async with self._stack as stack:
            self._reader, self._writer = await stack.enter_async_context(_connected(self._port, "echo"))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def once(self, seconds: float) -> float:
        """Send a message and wait for it; return the milliseconds. Raise BrokenError after `seconds`."""
        async with _within(seconds, lambda: "no echo"):
            began = time.monotonic()
            self._writer.write(_PING)
            data = await self._reader.readexactly(len(_PING))
        if data != _PING:
            raise BrokenError("an echo came back changed")
        return (time.monotonic() - began) * 1000


async def echo_p50_ms(echoes: Echoes, count: int, seconds: float) -> float:
    """The median of this number of echoes; of fewer if they take longer than `seconds` together."""
    until = time.monotonic() + seconds
    times = [await echoes.once(seconds)]
    while len(times) < count and time.monotonic() < until:
        times.append(await echoes.once(seconds))
    return median(times)


async def pour(port: int, size: int, at_a_third: Callable[[], Awaitable[None]], seconds: float) -> float:
    """Send `size` bytes to the echo while they come back; call `at_a_third` once a third came back.

    Return the longest time, after that call, in which nothing came back. Raise BrokenError if the bytes that come back
    are not the same, or not all within `seconds`.
    """
    flow = Flow(size, KILL_SEED)
    gap_s = 0.0
    interruption: asyncio.Future[None] | None = None
    async with _within(seconds, lambda: _of(flow, flow.received_bytes)), _connected(port, "echo") as (reader, writer):
        writing = asyncio.ensure_future(_write(flow, writer))
        try:
            last = time.monotonic()
            while flow.received_bytes < size:
                data = await reader.read(CHUNK_BYTES)
                if not data:
                    raise BrokenError(f"ended after {_of(flow, flow.received_bytes)}")
                flow.took(data)
                now = time.monotonic()
                if interruption is not None:
                    gap_s = max(gap_s, now - last)
                elif flow.received_bytes * 3 >= size:
                    interruption = asyncio.ensure_future(at_a_third())
                last = now
            await writing
            if interruption is not None:
                await interruption
        finally:
            await _end(writing, interruption)
    if not flow.is_right:
        raise BrokenError("the digests differ")
    return gap_s


async def _end(writing: "asyncio.Future[None]", interruption: "asyncio.Future[None] | None") -> None:
    """Stop writing; let the interruption finish, so that the relay is there again for the next measurement."""
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    if interruption is not None:
        await asyncio.gather(interruption, return_exceptions=True)
