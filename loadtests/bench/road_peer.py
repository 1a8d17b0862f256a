"""The processes that `loadtests.bench.road` starts: `python -m loadtests.bench.road_peer ROLE ...`.

A client and a target speak a small protocol on any stream: a command of 16 bytes, then bytes up, bytes down, or echoes.
The measured path is between them. Each serving role prints a line `ready ADDRESS` when it is ready. The client prints
its figures as JSON and ends.
"""

import argparse
import asyncio
import cProfile
import json
import os
import signal
import struct
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import tunnel
from tunnel.ground.carrier_names import CARRIERS
from tunnel.process.event_loops import new_event_loop

__all__ = ["SERVICE", "Client", "main"]

SERVICE = "bench"
MESSAGE = bytes(range(64))  # of an echo
_COMMAND = struct.Struct("!8sQ")  # command, number of bytes
_UP, _DOWN, _ECHO = b"up", b"down", b"echo"
_BLOCK = bytes(256 * 1024)
_CONNECT_S = 30.0
_WARM_S = 60.0  # a path that has not moved an eighth of the bytes by then is broken
_MEASURE_S = 240.0
_BUFFER_S = 0.05  # a slow path also buffers the bytes that its rate passes in this time


class Target(asyncio.Protocol):
    """The target of one connection: counts bytes up, sends bytes down, or echoes."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._head = b""
        self._echoing = False
        self._left = 0  # bytes still to be received
        self._unsent = 0
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._left:
            self._left -= len(data)
            if self._left <= 0:
                self._transport.write(_COMMAND.pack(b"done", 0))
            return
        if self._echoing:
            self._transport.write(data)
            return
        self._head += data
        if len(self._head) < _COMMAND.size:
            return
        name, size = _COMMAND.unpack_from(self._head)
        rest, self._head = self._head[_COMMAND.size :], b""
        what = name.rstrip(b"\0")
        if what == _UP:
            self._left = size
        elif what == _DOWN:
            self._unsent = size
            self._send()
        else:
            self._echoing = True  # the last command of a connection: lasts until its end
        if rest:
            self.data_received(rest)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._send()

    def _send(self) -> None:
        while self._unsent and not self._paused:
            part = _BLOCK if self._unsent >= len(_BLOCK) else _BLOCK[: self._unsent]
            self._unsent -= len(part)
            self._transport.write(part)


class Client(asyncio.Protocol):
    """The client of one connection: runs one command at a time; `up`, `down` and `echo` return seconds."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._loop = asyncio.get_running_loop()
        self._wanted = 0
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._unsent = 0
        self._paused = False
        self._echoes = 0
        self._sent_ns = 0
        self._echo_ns: list[int] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(exc or ConnectionResetError("the path ended"))

    def data_received(self, data: bytes) -> None:
        self._wanted -= len(data)
        if self._wanted > 0:
            return
        if self._echoes:
            self._echo_ns.append(time.perf_counter_ns() - self._sent_ns)
            self._echoes -= 1
            if self._echoes:
                self._send_echo()
                return
        if not self._done.done():
            self._done.set_result(None)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._send()

    def close(self) -> None:
        """End the connection when all has been sent."""
        self._transport.close()

    async def up(self, size: int) -> float:
        """Send `size` bytes; return the seconds until the target has them all."""
        self._unsent = size
        return await self._run(_UP, size, _COMMAND.size, self._send)

    async def down(self, size: int) -> float:
        """Request `size` bytes; return the seconds until all have arrived."""
        return await self._run(_DOWN, size, size, lambda: None)

    async def echo(self, count: int) -> list[float]:
        """Send `count` echoes one after the other; return the seconds of each."""
        self._echoes = count
        self._echo_ns = []
        await self._run(_ECHO, 0, 0, self._send_echo)
        return [nanoseconds / 1e9 for nanoseconds in self._echo_ns]

    async def _run(self, what: bytes, size: int, wanted: int, begin: Callable[[], None]) -> float:
        self._done = self._loop.create_future()
        self._wanted = wanted
        start = time.perf_counter()
        self._transport.write(_COMMAND.pack(what, size))
        begin()
        await self._done
        return time.perf_counter() - start

    def _send_echo(self) -> None:
        self._wanted = len(MESSAGE)
        self._sent_ns = time.perf_counter_ns()
        self._transport.write(MESSAGE)

    def _send(self) -> None:
        while self._unsent and not self._paused:
            part = _BLOCK if self._unsent >= len(_BLOCK) else _BLOCK[: self._unsent]
            self._unsent -= len(part)
            self._transport.write(part)


@dataclass(slots=True)
class SlowPath:
    """What a forwarder does to each direction: a delay, and a rate for all its connections together, 0 for none."""

    delay_s: float = 0.0
    rate_bps: float = 0.0
    """Bytes per second."""
    free_at_s: list[float] = field(default_factory=lambda: [0.0, 0.0])
    """When it will have let through all bytes that have come so far, up and down."""

    @property
    def is_slow(self) -> bool:
        return bool(self.delay_s or self.rate_bps)

    def passes_s(self, size: int, way: int, now_s: float) -> float:
        """Return when bytes that have come now arrive."""
        if self.rate_bps:
            self.free_at_s[way] = max(self.free_at_s[way], now_s) + size / self.rate_bps
        return max(self.free_at_s[way], now_s) + self.delay_s

    def is_full(self, way: int, now_s: float) -> bool:
        """Whether its buffer takes no more: it holds what the rate passes in 50 ms."""
        return bool(self.rate_bps) and self.free_at_s[way] > now_s + _BUFFER_S


class Forwarder(asyncio.Protocol):
    """One side of a bare forwarder: writes the bytes that it receives to the other side, perhaps later.

    A slow path delays all bytes, and lets through a number of bytes per second.
    """

    def __init__(self, path: SlowPath, upstream: tuple[str, int] | None) -> None:
        self.transport: asyncio.Transport
        self._loop = asyncio.get_running_loop()
        self._path = path
        self._upstream = upstream
        self._dialling: asyncio.Task[None] | None = None
        self.other: Forwarder | None = None
        self._late: deque[bytes] = deque()
        self._is_held = False
        self._way = int(upstream is None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self._upstream is not None:
            self._dialling = self._loop.create_task(self._dial(*self._upstream))

    async def _dial(self, host: str, port: int) -> None:
        _, other = await self._loop.create_connection(lambda: Forwarder(self._path, None), host, port)
        self.other, other.other = other, self
        while self._late and not self._path.is_slow:  # bytes that arrived before the upstream connection
            self._pass()

    def data_received(self, data: bytes) -> None:
        if self._path.is_slow or self.other is None:
            self._late.append(data)
        if self._path.is_slow:
            self._loop.call_at(self._path.passes_s(len(data), self._way, self._loop.time()), self._pass)
            self._pause_or_read()
        elif self.other is not None:
            self.other.transport.write(data)

    def _pass(self) -> None:
        if self.other is None:
            return
        self.other.transport.write(self._late.popleft())
        if self._path.is_slow:
            self._pause_or_read()

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.hold(held=True)

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.hold(held=False)

    def hold(self, *, held: bool) -> None:
        """Stop reading while the other side takes no more, or go on."""
        self._is_held = held
        self._pause_or_read()

    def _pause_or_read(self) -> None:
        if self.transport.is_closing():
            return
        # Without bytes of its own that are late, nothing would let it read again.
        if self._is_held or (self._late and self._path.is_full(self._way, self._loop.time())):
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None:
            self.other.transport.close()


def _ready(text: str) -> None:
    print(f"ready {text}", flush=True)


async def _serve(make: Callable[[], asyncio.Protocol]) -> None:
    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
    async with server:
        _ready(str(server.sockets[0].getsockname()[1]))
        await server.serve_forever()


async def _target(arguments: argparse.Namespace) -> None:
    await _serve(Target)


async def _forward(arguments: argparse.Namespace) -> None:
    path = SlowPath(arguments.delay_ms / 1000, arguments.mb_s * 1e6)
    await _serve(lambda: Forwarder(path, ("127.0.0.1", arguments.port)))


def _trace(arguments: argparse.Namespace) -> tunnel.TraceWriter | None:
    """Open a trace at the level of packets, if one is wanted. It stays open until the process ends."""
    return tunnel.open_trace(arguments.trace, name=arguments.role) if arguments.trace else None


async def _service(arguments: argparse.Namespace) -> None:
    trace = _trace(arguments)
    async with tunnel.attach(arguments.relay, proxy=None, carrier=arguments.carrier, trace=trace) as attachment:
        await attachment.create_server(Target, SERVICE)
        _ready(SERVICE)
        await asyncio.Event().wait()


async def _client(arguments: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    if not arguments.relay:
        # Some peers do not announce that they are ready. The first transfer, before the measurement, waits for them.
        transport, client = await loop.create_connection(Client, "127.0.0.1", arguments.port)
        await _measure(client, arguments)
        transport.close()
        return
    token = os.environ.get("TUNNEL_TOKEN") or None
    attachment = tunnel.attach(
        arguments.relay,
        token=token,
        proxy=None,
        carrier=arguments.carrier,
        trace=_trace(arguments),
        peer_key=arguments.peer_key,
    )
    async with attachment:
        target = ("127.0.0.1", arguments.port) if arguments.port else (SERVICE, None)
        connection, client = await attachment.create_connection(Client, *target, timeout=_CONNECT_S)
        await _measure(client, arguments)
        connection.abort()


async def _measure(client: Client, arguments: argparse.Namespace) -> None:
    size, warm = arguments.size, arguments.echoes // 10
    wanted = arguments.what.split(",")
    figures: dict[str, Any] = {}
    until = time.perf_counter() + arguments.warm_s
    async with asyncio.timeout(_WARM_S + arguments.warm_s):
        # warm up, so that limits which the carrier learns are learned before the measurement
        await client.up(max(1, size // 8))
        await client.down(max(1, size // 8))
        while time.perf_counter() < until:
            await client.down(max(1, size // 8))
    cpu_s = time.process_time()
    async with asyncio.timeout(_MEASURE_S):
        if "up" in wanted:
            figures["up"] = size / await client.up(size)
        if "down" in wanted:
            figures["down"] = size / await client.down(size)
        if "echo" in wanted:
            figures["echo"] = (await client.echo(warm + arguments.echoes))[warm:]
    figures["cpu_s"] = time.process_time() - cpu_s
    print(json.dumps(figures), flush=True)


_ROLES: dict[str, Callable[[argparse.Namespace], Awaitable[None]]] = {
    "target": _target,
    "forward": _forward,
    "service": _service,
    "client": _client,
}


def main(arguments: list[str] | None = None) -> int:
    """Run one role until SIGTERM; the client ends after its measurement."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.bench.road_peer",
        description=__doc__,
        epilog="example: python -m loadtests.bench.road_peer client --port 4000 --size 1000000",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("role", choices=sorted(_ROLES))
    parser.add_argument("--port", type=int, default=0, help="port to which forwarders and clients connect")
    parser.add_argument("--relay", default="", metavar="URL", help="reach the target through this relay")
    parser.add_argument("--peer-key", action="append", default=[], help="the key that the exit must have")
    parser.add_argument("--carrier", default="link", choices=CARRIERS)
    parser.add_argument(
        "--trace", default="", metavar="DIR", help="trace every packet of a client or a service to this directory"
    )
    parser.add_argument("--delay-ms", type=float, default=0, help="delay of a forwarder, in each direction")
    parser.add_argument("--mb-s", type=float, default=0, help="megabytes per second of a forwarder (default: no limit)")
    parser.add_argument("--warm-s", type=float, default=0, help="seconds of transfers before the measurement, at least")
    parser.add_argument("--size", type=int, default=64 * 1024 * 1024, help="bytes in each direction")
    parser.add_argument("--echoes", type=int, default=1000)
    parser.add_argument("--what", default="up,down,echo", help="commands of a client (default: up,down,echo)")
    parser.add_argument(
        "--profile", default="", metavar="FILE", help="write a profile (cProfile) to this file at the end"
    )
    options = parser.parse_args(arguments)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        if not options.profile:
            runner.run(_until_told(_ROLES[options.role](options)))
        else:
            with cProfile.Profile() as profile:
                runner.run(_until_told(_ROLES[options.role](options)))
            profile.dump_stats(str(Path(options.profile)))
    return 0


async def _until_told(role: Awaitable[None]) -> None:
    """Run a role, and end it cleanly at SIGTERM, so that a profile is written."""
    task = asyncio.ensure_future(role)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return


if __name__ == "__main__":
    sys.exit(main())
