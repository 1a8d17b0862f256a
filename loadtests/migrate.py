"""A stream that migrates among roads at random: `python -m loadtests.migrate --times 100 --size 1GiB`.

A client and a service exchange bytes in both directions over one stream. The client's way to the relay leads through a
gate that lets a link, a websocket or neither pass. Again and again the gate closes, resets or silences the connection
in use, or lets a better road pass, and the client must go on with what is left. The longest pause in the bytes that
arrive is measured for each kind of migration, and at the end the digests of both directions are compared.
"""

import asyncio
import contextlib
import enum
import secrets
import socket
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from random import Random

import msgspec
from xxhash import xxh3_128

from loadtests.harness.experiment import command, perform, size_bytes
from loadtests.harness.relays import RelayProcess
from tunnel import Attachment, StreamReader, StreamWriter, TunnelError, attach
from tunnel.attached_endpoint import AttachedEndpoint
from tunnel.carriers.dialing.dialing import Dialing
from tunnel.carriers.roads import RoadCarrier
from tunnel.core import EndpointConfig
from tunnel.ground.carrier_names import ROADS

__all__ = ["Kind", "Migration", "Report", "main", "measure", "summary"]

_MIB = 1 << 20
_SERVICE = "mirror"
_STEP_S = 0.01  # pause between two writes
_SECONDS_EACH = 2.0  # about the time of one migration; from it follows the rate that spreads the bytes over the run
_RATE_MIN = _MIB  # bytes per second
_CHANGE_S = 60.0  # only a client that does not change its road at all takes so long
_LOOK_S = 0.005
_AT_ONCE = struct.pack("ii", 1, 0)  # linger: on, for 0 s


class Kind(enum.StrEnum):
    """How a migration begins."""

    CLOSED = "closed"
    RESET = "reset"
    SILENT = "silent"
    BETTER = "a better road opens"


_PAUSE_S_MAX = {Kind.CLOSED: 1.0, Kind.RESET: 1.0, Kind.SILENT: 2.5, Kind.BETTER: 1.0}


class Migration(msgspec.Struct, frozen=True):
    """One migration, and the longest time in which no byte arrived in one of the directions."""

    before: str
    after: str
    kind: Kind
    pause_s: float


class Report(msgspec.Struct):
    """The results of a run. Digests are of the bytes upwards, then downwards."""

    seed: int
    size_bytes: int = 0
    seconds: float = 0.0
    migrations: list[Migration] = []
    written: tuple[str, ...] = ()
    received: tuple[str, ...] = ()
    failure: str = ""


class _Flow:
    """One direction: writes at a steady rate until it may end, and notes the pauses between the bytes that arrive."""

    def __init__(self, seed: int, size_bytes: int, rate: float) -> None:
        self.may_end = asyncio.Event()
        self.written_bytes = self.received_bytes = 0
        self.pause_s = 0.0  # the longest one since `watch`
        self._size_bytes = size_bytes
        self._chunk_bytes = round(rate * _STEP_S)
        self._random = Random(seed)
        self._sent, self._received = xxh3_128(), xxh3_128()
        self._heard_s = time.monotonic()

    @property
    def digests(self) -> tuple[str, str]:
        """The digests of the bytes written, and of the bytes that arrived."""
        return self._sent.hexdigest(), self._received.hexdigest()

    def watch(self) -> None:
        """Forget the pauses until now."""
        self.pause_s = 0.0
        self._heard_s = time.monotonic()

    async def write_to(self, writer: StreamWriter) -> None:
        """Write until `may_end` is set and all bytes of the run are written, then end the direction."""
        while not self.may_end.is_set() or self.written_bytes < self._size_bytes:
            chunk = self._random.randbytes(self._chunk_bytes)
            self._sent.update(chunk)
            self.written_bytes += len(chunk)
            writer.write(chunk)
            await writer.drain()
            if not self.may_end.is_set():
                await asyncio.sleep(_STEP_S)
        writer.write_eof()

    async def read_from(self, reader: StreamReader) -> None:
        """Read to the end."""
        while data := await reader.read(_MIB):
            now_s = time.monotonic()
            self.pause_s = max(self.pause_s, now_s - self._heard_s)
            self._heard_s = now_s
            self._received.update(data)
            self.received_bytes += len(data)


class _Passage:
    """One connection through the gate. `road` is empty if the connection is not upgraded."""

    def __init__(self, road: str, *writers: asyncio.StreamWriter) -> None:
        self.road = road
        self.writers = writers
        self.flows = asyncio.Event()
        self.flows.set()


class _Gate:
    """Passes connections on to the relay: exchanges always, upgrades if their road is allowed."""

    def __init__(self, port: int) -> None:
        self.allowed: set[str] = set()
        self.url = ""
        self._port = port
        self._passages: dict[_Passage, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "_Gate":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def break_all(self, kind: Kind) -> None:
        """Close, reset or silence all upgraded connections."""
        for passage in list(self._passages):
            if kind is Kind.SILENT:
                passage.flows.clear()
                continue
            for writer in passage.writers:
                sock: socket.socket = writer.get_extra_info("socket")
                if kind is Kind.RESET:
                    with contextlib.suppress(OSError, ValueError):  # it may have ended already
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
                    writer.transport.abort()
                else:
                    writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._pass_on(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lower = head.lower()
        road = "websocket" if b"upgrade: websocket" in lower else "link" if b"upgrade: tunnel-link" in lower else ""
        if road and road not in self.allowed:
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        passage = _Passage(road, writer, back)
        if road:
            self._passages[passage] = None
        try:
            back.write(head)
            await asyncio.gather(_pump(reader, back, passage), _pump(there, writer, passage))
        finally:
            self._passages.pop(passage, None)
            back.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passage: _Passage) -> None:
    try:
        while data := await reader.read(_MIB):
            await passage.flows.wait()
            if writer.is_closing():  # the other direction has ended it; uvloop would raise a RuntimeError
                return
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


async def measure(
    times: int, size_bytes: int, seed: int, told: Callable[[Migration], None] = lambda migration: None
) -> Report:
    """Migrate `times` times while at least `size_bytes` move in each direction. A failure is noted in the report."""
    report = Report(seed)
    rate = max(_RATE_MIN, size_bytes / (times * _SECONDS_EACH))
    flows = [_Flow(seed + number, size_bytes, rate) for number in (1, 2)]
    began_s = time.monotonic()
    with RelayProcess() as relay:
        token = relay.tokens["client"]
        port = int(relay.url.rpartition(":")[2])
        async with _Gate(port) as gate:

            def make(secret: bytes, random: Random) -> RoadCarrier:
                # An eager carrier tries a refused road again within a second each time, instead of with a backoff.
                return RoadCarrier(
                    Dialing(gate.url, token=token, proxy=None), secret, random, name="client", eager=True, roads=ROADS
                )

            gate.allowed = {"link"}
            service = attach(relay.url, token=token, proxy=None, carrier="link", encryption="off", linger=1.0)
            client = Attachment(lambda: AttachedEndpoint(make, EndpointConfig(), linger=1.0))
            async with service, client:
                try:
                    await _play(service, client, flows, _migrate(gate, client, flows, times, seed, report, told))
                except (TunnelError, TimeoutError) as error:
                    report.failure = str(error) or f"the road did not change within {_CHANGE_S:g} s"
    report.seconds = time.monotonic() - began_s
    report.size_bytes = min(flow.received_bytes for flow in flows)
    report.written = tuple(flow.digests[0] for flow in flows)
    report.received = tuple(flow.digests[1] for flow in flows)
    if not report.failure and report.written != report.received:
        report.failure = "the bytes that arrived are not those that were written"
    report.failure = report.failure or _proves_nothing(report, times, size_bytes)
    return report


def _proves_nothing(report: Report, times: int, size_bytes: int) -> str:
    """Return why a transfer without an error proves nothing, or an empty string if it does prove something."""
    if report.size_bytes >= max(1, size_bytes) and len(report.migrations) >= max(1, times):
        return ""
    done = f"{report.size_bytes} of {size_bytes} bytes and {len(report.migrations)} of {times} migrations"
    return f"the run proves nothing: {done}"


async def _play(service: Attachment, client: Attachment, flows: list[_Flow], migrating: Awaitable[None]) -> None:
    up, down = flows
    done = asyncio.Event()

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        await asyncio.gather(up.read_from(reader), down.write_to(writer))
        await done.wait()
        writer.close()

    await service.start_server(serve, _SERVICE)
    reader, writer = await client.open_connection(_SERVICE)

    async def migrate() -> None:
        await migrating
        up.may_end.set()
        down.may_end.set()

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(up.write_to(writer))
            group.create_task(down.read_from(reader))
            group.create_task(migrate())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    async with asyncio.timeout(_CHANGE_S):
        while up.received_bytes < up.written_bytes:  # noqa: ASYNC110 - the reader is in another task, without an event
            await asyncio.sleep(_LOOK_S)
    done.set()
    writer.close()


async def _migrate(
    gate: _Gate,
    client: Attachment,
    flows: list[_Flow],
    times: int,
    seed: int,
    report: Report,
    told: Callable[[Migration], None],
) -> None:
    random = Random(seed)
    choices = ("poll", *ROADS)
    await _until(lambda: _road(client) == "link")
    for _ in range(times):
        before = _road(client)
        after = random.choice([road for road in choices if road != before])
        kinds = [Kind.CLOSED, Kind.RESET, Kind.SILENT]
        is_better = before == "poll" or (before == "websocket" and after == "link")
        kind = Kind.BETTER if before == "poll" else random.choice([*kinds, Kind.BETTER] if is_better else kinds)
        for flow in flows:
            flow.watch()
        gate.allowed = {after} | ({before} if kind is Kind.BETTER else set())
        if kind is not Kind.BETTER:
            gate.break_all(kind)
        await _until(lambda: _road(client) == after)  # noqa: B023 - awaited in this turn of the loop
        heard = [flow.received_bytes for flow in flows]
        await _until(lambda: all(flow.received_bytes > size for flow, size in zip(flows, heard, strict=True)))  # noqa: B023
        migration = Migration(before, after, kind, max(flow.pause_s for flow in flows))
        report.migrations.append(migration)
        told(migration)
        await asyncio.sleep(random.random() * 0.5)


def _road(client: Attachment) -> str:
    carrier = client.stats().carrier.partition(" ")[0]
    return carrier if carrier in ROADS else "poll"  # "poll" means exchanges, with streamed answers or without


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(_CHANGE_S):
        while not condition():  # noqa: ASYNC110 - the library gives no event for it
            await asyncio.sleep(_LOOK_S)


def summary(report: Report) -> str:
    """Return the report as text for people."""
    lines = [f"moved      {report.size_bytes / _MIB:.0f} MiB each way in {report.seconds:.1f} s, seed {report.seed}"]
    for kind in Kind:
        pauses = sorted(migration.pause_s for migration in report.migrations if migration.kind is kind)
        if pauses:
            middle, most = pauses[len(pauses) // 2], pauses[-1]
            lines.append(f"{kind!s:20} {len(pauses):4} times, pause {middle:.2f} s, at most {most:.2f} s")
    lines.append(f"written    {' up, '.join(report.written)} down")
    lines.append(f"received   {' up, '.join(report.received)} down")
    lines.append(f"FAILED: {report.failure}" if report.failure else "OK: every byte arrived once and in order")
    lines += [f"FAILED: {text}" for text in _too_long(report)]
    return "\n".join(lines)


def _too_long(report: Report) -> list[str]:
    return [
        f"{one.before} to {one.after} ({one.kind}) took {one.pause_s:.2f} s, and may take {_PAUSE_S_MAX[one.kind]:g} s"
        for one in report.migrations
        if one.pause_s > _PAUSE_S_MAX[one.kind]
    ]


def main(argv: list[str] | None = None) -> int:
    """Return 0 if every byte arrived and no pause was too long, 1 if not, and 3 without a result."""
    parser = command(
        "migrate",
        "One stream, both directions at once, whose client migrates among roads at random.",
        "--times 20 --size 64MiB",
    )
    parser.add_argument("--times", type=int, default=20, metavar="N", help="number of migrations (default 20)")
    parser.add_argument(
        "--size", type=size_bytes, default="64MiB", metavar="SIZE", help="bytes each way, at least (default 64MiB)"
    )
    parser.add_argument("--seed", type=int, metavar="S", help="choose the same migrations as another run")
    options = parser.parse_args(argv)
    if options.times < 1:
        parser.error("--times must be at least 1")
    seed = secrets.randbelow(1 << 32) if options.seed is None else options.seed

    def tell(one: Migration) -> None:
        if sys.stderr.isatty() and not options.json:
            print(f"{one.before} to {one.after} ({one.kind}): {one.pause_s:.2f} s", file=sys.stderr)

    return perform(
        measure(options.times, options.size, seed, tell),
        verdict=lambda report: 1 if report.failure or _too_long(report) else 0,
        text=summary,
        as_json=options.json,
    )


if __name__ == "__main__":
    sys.exit(main())
