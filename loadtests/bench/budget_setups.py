"""What `loadtests.bench.budget` counts: the processes of each set-up, and the units of work that go through them."""

import asyncio
import contextlib
import statistics
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self, cast

import aiohttp
import msgspec

from loadtests.bench.programs import find_peer
from loadtests.bench.road_paths import RELAY_CONFIG, write_tokens
from loadtests.harness.counted import Counted
from loadtests.harness.processes import Process, says_event

__all__ = ["COUNTS", "SETUPS", "BusyError", "Row", "Tools", "count_setup"]

COUNTS = ("calls", "builtin", "packets", "allocations", "system")
SETUPS: Mapping[str, tuple[str, str]] = {
    f"{carrier}-{exit_}": (carrier, exit_) for carrier in ("link", "poll") for exit_ in ("inline", "separate")
}
_UNITS = ("nothing", "echo", "connection", "MiB")
_MIB = 1024 * 1024
_SIZE_BYTES = 8  # a message begins with its size
_ECHO_BYTES = 64
_WARM_ECHOES = 100
_WARM_OTHERS = 5
_QUIET_S = 0.05  # twice the longest time that an ACK waits (PROTOCOL 4.3)
_LOOK_S = 0.02
_SCRAPE_S = 5.0  # three times as often as deploy/prometheus does
_AUDIT = '[audit]\nfile = "audit.jsonl"\n'
_SETTLE_S = 60.0  # takes a tenth of a second, but longer on a busy machine
# A busy machine makes processes wait more often for the same work, so waits do not count.
_COUNTED = "!epoll_wait,epoll_pwait,epoll_pwait2"
# A unit counts if its processes waited no longer than this for a processor, all together: an ACK that waits for 25 ms
# then still leaves with the packet that it waits for.
_WAITED_NS_MAX = 10_000_000
_MORE_TIMES = 2  # so many times as many units are done at most; then those count that waited least
# Counts were right on a machine with eight busy processes per processor. If half of the units wait longer than this,
# timers expire that should not, and the counts tell nothing.
_BUSY_NS = 1_000_000_000


class BusyError(RuntimeError):
    """The machine is so busy that the counts tell nothing."""


class Row(msgspec.Struct):
    """What one unit costs one process, of several units: the medians, and the least count of system calls."""

    setup: str
    process: str
    unit: str
    calls: float
    builtin: float
    packets: float
    allocations: float
    system: float


class Tools(msgspec.Struct, frozen=True):
    """The paths of strace, and of the library that counts allocations."""

    strace: str
    library: str

    @classmethod
    def find(cls, directory: Path) -> Self:
        """Compile the library into `directory`. Raise MissingPeerError without strace or a C compiler."""
        strace, compiler = (find_peer(name, "run make system-deps") for name in ("strace", "cc"))
        library, source = directory / "allocations.so", Path(__file__).with_name("allocations.c")
        subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
        return cls(strace, str(library))


class _Client:
    """A TCP client of `tunnel forward`. Each message comes back from the target when it has arrived there whole."""

    def __init__(self, port: int, settle: Callable[[], Awaitable[None]]) -> None:
        self._port = port
        self._settle = settle

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def send(self, size: int) -> None:
        self._writer.write(size.to_bytes(_SIZE_BYTES) + bytes(size - _SIZE_BYTES))
        await self._reader.readexactly(size)

    async def echo(self) -> None:
        await self.send(_ECHO_BYTES)

    async def mib(self) -> None:
        await self.send(_MIB)

    async def connection(self) -> None:
        other = _Client(self._port, self._settle)
        await other.open()
        await other.echo()
        await self._settle()
        await other.close()

    async def nothing(self) -> None:
        """The question for the counts alone, which is subtracted from each other unit."""


class _Target(asyncio.Protocol):
    """The target of one connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._message = bytearray()

    def data_received(self, data: bytes) -> None:
        self._message += data
        if len(self._message) == int.from_bytes(self._message[:_SIZE_BYTES]):
            self._transport.write(bytes(self._message))
            self._message.clear()


@contextlib.asynccontextmanager
async def _watching(admin: Path) -> AsyncIterator[None]:
    """Look at the relay as a live page does, and read its metrics as Prometheus does."""
    async with aiohttp.ClientSession("http://localhost", connector=aiohttp.UnixConnector(str(admin))) as session:

        async def scrape() -> None:
            while True:
                async with session.get("/metrics") as page:
                    page.raise_for_status()
                    await page.read()
                await asyncio.sleep(_SCRAPE_S)

        async with session.get("/events", timeout=aiohttp.ClientTimeout(total=None)) as events:
            events.raise_for_status()
            tasks = [asyncio.create_task(_read_on(events)), asyncio.create_task(scrape())]
            try:
                yield
                if any(task.done() for task in tasks):
                    raise OSError("the relay has ended what its operator looked at")
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


async def _read_on(events: aiohttp.ClientResponse) -> None:
    while await events.content.readany():
        pass


def _threads(pid: int, table: str) -> list[str]:
    """Return what one of the kernel's tables says of each thread of a process."""
    found = []
    for file in sorted(Path(f"/proc/{pid}/task").glob(f"*/{table}")):
        with contextlib.suppress(OSError):  # a thread that has just ended
            found.append(file.read_text(encoding="utf-8"))
    return found


class _World:
    """The processes of one set-up, while its `async with` block runs."""

    def __init__(self, setup: str, tools: Tools, directory: Path, *, is_watched: bool = False) -> None:
        self._carrier, self._exit = SETUPS[setup]
        self._is_watched = is_watched
        self._tools, self._directory = tools, directory
        self._processes: dict[str, Process] = {}
        self._counted: dict[str, Counted] = {}
        self._tracers: dict[str, Process] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with self._stack as stack:
            server = await asyncio.get_running_loop().create_server(_Target, "127.0.0.1", 0)
            await stack.enter_async_context(server)
            port = server.sockets[0].getsockname()[1]
            config = self._directory / "relay.toml"
            tokens = write_tokens(self._directory / "relay.tokens.toml", "client", "exit")
            text = RELAY_CONFIG.format(target=port)
            if self._exit == "inline":
                text = text.replace('exit = "none"', 'exit = "inline"').replace("exit = true", "connect = []")
            admin = self._directory / "admin"
            if self._is_watched:
                text = f'admin = "unix:{admin}"\n' + text.replace("[users.client]", f"{_AUDIT}[users.client]")
            config.write_text(text, encoding="utf-8")
            line = await self._start("relay", "", "tunnel_servlet", "serve", "-c", str(config))
            if self._is_watched:
                await stack.enter_async_context(_watching(admin))
            relay = ("--relay", str(msgspec.json.decode(line)["url"]), "--proxy", "")
            if self._exit == "separate":
                allow = ("--allow", f"127.0.0.1:{port}")
                await self._start("exit", tokens["exit"], "tunnel_servlet", "exit", *relay, *allow)
            forward = ("forward", *relay, "--carrier", self._carrier, "--json", f"0:127.0.0.1:{port}")
            line = await self._start("client", tokens["client"], "tunnel_client", *forward)
            self.client = _Client(int(msgspec.json.decode(line)["bind"].rpartition(":")[2]), self.settle)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._stack.aclose()

    async def _start(self, name: str, token: str, *command: str) -> str:
        counted = Counted(self._directory / name, ("loadtests.bench.budget_child", self._tools.library))
        environment = {"TUNNEL_TOKEN": token, "TUNNEL_COMPILED": ""}  # the sources, whatever the caller runs
        process = Process(counted.command(*command), ready=_is_ready, environment=environment)
        self._processes[name] = await self._stack.enter_async_context(process)
        self._counted[name] = counted
        return process.ready_line

    async def settle(self) -> None:
        """Return when all threads of the processes have slept for _QUIET_S, however slow the machine is."""
        loop = asyncio.get_running_loop()
        before: list[str] = []
        since_s = loop.time()
        async with asyncio.timeout(_SETTLE_S):
            while loop.time() - since_s < _QUIET_S:
                now = self._look("status")
                if now != before or not all("\nState:\tS" in thread for thread in now):
                    before, since_s = now, loop.time()
                await asyncio.sleep(_LOOK_S)

    def waited_ns(self) -> int:
        """Return for how long the processes have waited for a processor since their start."""
        return sum(int(thread.split()[1]) for thread in self._look("schedstat"))

    def _look(self, table: str) -> list[str]:
        return [thread for process in self._processes.values() for thread in _threads(process.pid, table)]

    async def ask(self) -> dict[str, dict[str, int]]:
        """Return what each process counted since the question before."""
        found = await asyncio.gather(*(self._counted[name].ask(process) for name, process in self._processes.items()))
        return dict(zip(self._processes, found, strict=True))

    async def begin_trace(self) -> None:
        """Begin to count system calls."""
        for name, process in self._processes.items():
            file = str(self._directory / f"{name}.strace")
            command = [self._tools.strace, "-f", "-e", f"trace={_COUNTED}", "-o", file, "-p", str(process.pid)]
            tracer = Process(command, ready=lambda line: "attached" in line)
            self._tracers[name] = await self._stack.enter_async_context(tracer)

    async def end_trace(self) -> dict[str, list[int]]:
        """Return the system calls of each process from question to question."""
        for tracer in self._tracers.values():
            await asyncio.to_thread(tracer.stop)
        return {name: _between_questions(self._directory / f"{name}.strace") for name in self._tracers}


def _is_ready(line: str) -> bool:
    return says_event("listening")(line) or line.startswith("attached")


def _between_questions(file: Path) -> list[int]:
    """Count the lines of strace that begin a system call."""
    found = [0]
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        event = line.split(maxsplit=1)[1]  # after the thread's number
        if event.startswith("--- SIGUSR1"):
            found.append(0)
        elif not event.startswith(("---", "+++", "<...")):  # a signal, an end, the second half of a call
            found[-1] += 1
    return found[1:-1]  # without what came before the first question, and after the last one


class _Sample(msgspec.Struct):
    unit: str
    waited_ns: int
    counts: dict[str, dict[str, int]]
    """By process."""


async def count_setup(setup: str, tools: Tools, units: int, *, is_watched: bool = False) -> list[Row]:
    """Start the processes of a set-up, and return what its units cost, of this number of units.

    `is_watched`: meanwhile, the relay writes its audit, a live page is open, and its metrics are read.
    """
    with TemporaryDirectory() as directory:
        async with _World(setup, tools, Path(directory), is_watched=is_watched) as world:
            client = world.client
            await client.open()
            for _ in range(_WARM_ECHOES):
                await client.echo()
            for _ in range(_WARM_OTHERS):
                await client.connection()
                await client.mib()
            await world.begin_trace()
            await world.settle()
            await world.ask()
            work = (client.nothing, client.echo, client.connection, client.mib)
            samples = [one for unit, do in zip(_UNITS, work, strict=True) for one in await _do(world, unit, do, units)]
            system = await world.end_trace()
    waited_s = statistics.median(sample.waited_ns for sample in samples) / 1e9
    if waited_s * 1e9 > _BUSY_NS:
        raise BusyError(
            f"{setup}: in half of the units, the processes waited {waited_s:.1f} s for a processor, or more"
        )
    for process, counts in system.items():
        for sample, count in zip(samples, counts, strict=True):
            sample.counts[process]["system"] = count
    return [_row(setup, process, unit, samples, units) for process in system for unit in _UNITS[1:]]


async def _do(world: _World, unit: str, do: Callable[[], Awaitable[None]], units: int) -> list[_Sample]:
    """Do one kind of unit until enough of them were not disturbed."""
    found: list[_Sample] = []
    while len(found) < _MORE_TIMES * units and sum(one.waited_ns <= _WAITED_NS_MAX for one in found) < units:
        before_ns = world.waited_ns()
        await do()
        await world.settle()
        waited_ns = world.waited_ns() - before_ns
        found.append(_Sample(unit, waited_ns, await world.ask()))
    return found


def _row(setup: str, process: str, unit: str, samples: list[_Sample], units: int) -> Row:
    """Return the medians of the least disturbed units, without what the question for the counts costs.

    Of system calls it is the least count: a process that waits for a processor only adds some.
    """

    def usual(of: str, count: str) -> float:
        calmest = sorted((one for one in samples if one.unit == of), key=lambda one: one.waited_ns)[:units]
        counts = [one.counts[process][count] for one in calmest]
        return min(counts) if count == "system" else statistics.median(counts)

    return Row(setup, process, unit, *(usual(unit, count) - usual(_UNITS[0], count) for count in COUNTS))
