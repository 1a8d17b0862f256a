"""The processes of a case: relay, path and service, which run until SIGTERM, and client, which ends by itself."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import time
from collections.abc import AsyncIterator
from multiprocessing.synchronize import Event
from pathlib import Path
from random import Random

import tunnel
from loadtests.diagnosis.cases import Case
from loadtests.faultproxy import FaultProxy, FaultProxyOptions
from loadtests.harness.losses import LossyFilter, parse_model
from tunnel.attached_endpoint import AttachedEndpoint
from tunnel.attaching import attach
from tunnel.attachment import Attachment
from tunnel.carriers.base import Carrier
from tunnel.carriers.dialing.dialing import Dialing
from tunnel.carriers.roads import RoadCarrier
from tunnel.core import EndpointConfig
from tunnel.streams.streams import StreamWriter
from tunnel.traces.writer import TraceWriter
from tunnel_servlet.command.files import Overrides, load_config
from tunnel_servlet.web.running import RunningRelay

__all__ = ["client", "path", "relay", "service"]

NAME = "reports"
HOST = "127.0.0.1"
_PR_SET_PDEATHSIG = 1  # prctl(2)
_DONE = b"!"


def relay(case: Case, directory: str, port: int, ready: Event) -> None:
    """Run the relay until SIGTERM."""
    _prepare(directory, "relay")
    if case.clock_us:
        _set_clock_ahead(case.clock_us)
    asyncio.run(_relay(case, directory, port, ready))


async def _relay(case: Case, directory: str, port: int, ready: Event) -> None:
    overrides = Overrides(
        listen=(f"{HOST}:{port}",),
        is_open=True,
        exit="inline" if case.inline else "none",
        trace="" if "relay" in case.untraced else directory,
    )
    lossy = LossyFilter(parse_model(case.loss), 7) if case.loss else None
    async with RunningRelay(load_config("", overrides), packet_filter=lossy):
        ready.set()
        await _terminated()


def path(case: Case, directory: str, port: int, upstream: int, ready: Event) -> None:
    """Run the fault proxy, or a path with a low rate, until SIGTERM."""
    _prepare(directory, "path")
    asyncio.run(_path(case, directory, port, upstream, ready))


async def _path(case: Case, directory: str, port: int, upstream: int, ready: Event) -> None:
    if case.bytes_per_s:
        async with _narrow(port, upstream, case.bytes_per_s):
            ready.set()
            await _terminated()
        return
    options = FaultProxyOptions(listen=(HOST, port), upstream=(HOST, upstream), seed=5, no_upgrade=True, **case.faults)
    async with FaultProxy(options) as proxy:
        with contextlib.ExitStack() as blocked:
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGUSR1, lambda: blocked.enter_context(proxy.blackhole()))
            loop.add_signal_handler(signal.SIGUSR2, blocked.close)
            ready.set()
            await _terminated()


@contextlib.asynccontextmanager
async def _narrow(port: int, upstream: int, bytes_per_s: int) -> AsyncIterator[None]:
    """Run a path that passes `bytes_per_s` in each direction."""
    free_at = {"up": 0.0, "down": 0.0}

    async def pass_on(way: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(2048):
                free_at[way] = max(free_at[way], time.monotonic()) + len(data) / bytes_per_s
                await asyncio.sleep(free_at[way] - time.monotonic())
                writer.write(data)
                await writer.drain()
            writer.write_eof()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(HOST, upstream, limit=4096)
            await asyncio.gather(pass_on("up", reader, upstream_writer), pass_on("down", upstream_reader, writer))
            upstream_writer.close()
        finally:
            writer.close()

    async with await asyncio.start_server(serve, HOST, port, limit=4096):
        yield


def service(case: Case, directory: str, url: str, port: int, ready: Event, reached: Event) -> None:
    """Run the service, or the TCP server, until SIGTERM. `reached` is set when `acts_after` bytes have been read."""
    _prepare(directory, "service")
    asyncio.run(_service(case, directory, url, port, ready, reached))


async def _service(case: Case, directory: str, url: str, port: int, ready: Event, reached: Event) -> None:
    async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = 0
        with contextlib.suppress(OSError):
            while data := await reader.read(case.read_bytes):
                before, size = size, size + len(data)
                if before < case.acts_after <= size:
                    reached.set()
                    await asyncio.sleep(case.stop_s)
                await asyncio.sleep(case.read_pause_s)
            writer.write(_DONE)
            await writer.drain()
            writer.close()

    if case.inline:
        async with await asyncio.start_server(read, HOST, port):
            ready.set()
            await _terminated()
        return
    with _traced(case, directory, "service") as trace:
        async with _attachment(url, case.window_bytes, trace) as attachment:
            if case.accept_s:
                ready.set()
                await asyncio.sleep(case.accept_s)
            await attachment.start_server(read, NAME)
            ready.set()
            await _terminated()


def _attachment(url: str, window_bytes: int, trace: TraceWriter | None) -> Attachment:
    if not window_bytes:
        return attach(url, proxy=None, carrier="link", name="service", linger=0.0, trace=trace)

    def make(secret: bytes, random: Random) -> Carrier:
        return RoadCarrier(Dialing(url, proxy=None), secret, random, name="service", eager=True)

    config = EndpointConfig(
        window_bytes_start=window_bytes, window_bytes_min=window_bytes, window_bytes_max=window_bytes
    )
    return Attachment(lambda: AttachedEndpoint(make, config, name="service", linger=0.0, trace=trace))


def client(case: Case, directory: str, url: str, port: int, name: str = "client") -> None:
    """Write for `writing_s` at most, wait until the service has read everything, and exit."""
    _prepare(directory, name)
    asyncio.run(_client(case, directory, url, port, name))


async def _client(case: Case, directory: str, url: str, port: int, name: str) -> None:
    data = Random(3).randbytes(case.chunk_bytes)
    with _traced(case, directory, name) as trace:
        async with tunnel.attach(
            url, proxy=None, carrier=case.carrier, name=name, linger=1.0, user_timeout=60.0, trace=trace
        ) as attachment:
            for _ in range(case.connections):
                if case.inline:
                    reader, writer = await attachment.open_connection(HOST, port)
                else:
                    reader, writer = await attachment.open_connection(NAME)
                await _write(case, data, writer)
                writer.write_eof()
                await reader.read()
                writer.close()
                await writer.wait_closed()


async def _write(case: Case, data: bytes, writer: StreamWriter) -> None:
    ends_s = time.monotonic() + case.writing_s
    for number in range(1, case.size_bytes // case.chunk_bytes + 1):
        if time.monotonic() >= ends_s:
            break
        writer.write(data)
        await writer.drain()
        if case.flush_every and number % case.flush_every == 0:
            await writer.flush()
        if case.write_pause_s:
            await asyncio.sleep(case.write_pause_s)


def _traced(case: Case, directory: str, name: str) -> contextlib.AbstractContextManager[TraceWriter | None]:
    return contextlib.nullcontext() if name in case.untraced else TraceWriter(directory, name=name)


async def _terminated() -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()


def _set_clock_ahead(by_us: int) -> None:
    """Set this process's monotonic clock ahead, as on a machine that booted earlier."""
    right = time.monotonic_ns
    time.monotonic_ns = lambda: right() + by_us * 1000


def _prepare(directory: str, name: str) -> None:
    """Let this process die with its parent, and write its output to a file."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log = os.open(Path(directory).parent / f"{Path(directory).name}.{name}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for number in (1, 2):
        os.dup2(log, number)
