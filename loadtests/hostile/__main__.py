"""What a user notices of attackers at the same relay, or at the same broker: `python -m loadtests.hostile`.

A victim sends small messages through the relay to an echo server: alone, beside an honest neighbour that sends all it
can or beside an attack, and afterwards. At an exit in a process of its own, its messages are large. At a broker, the
victim sends messages to a topic in memory and fetches them. The report shows the round trips, and the memory and
processor time of the relay or broker.
The exit code is 1 if the figures of an attack are not good: docs/LOADTESTS.md says when.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext

import msgspec

import tunnel
from loadtests.harness.experiment import command
from loadtests.harness.processes import NotReadyError, Process, python_command, says_event
from loadtests.harness.relays import RelayProcess, exit_process
from loadtests.hostile.attacker import ATTACKS, NEIGHBOUR
from loadtests.hostile.broker import PINGS
from loadtests.hostile.broker_attacker import BROKER_ATTACKS, BROKER_NEIGHBOUR
from loadtests.hostile.exit_attacker import EXIT_ATTACKS, EXIT_NEIGHBOUR
from loadtests.hostile.relay import Cost, ask_cost
from tunnel.messages import BrokerClient, ChannelTable
from tunnel.process.event_loops import new_event_loop

__all__ = ["Figures", "main", "measure"]

_PAUSE_S = 0.01
_SETTLE_PAUSE_S = 0.5
_LOST_S = 30.0
# A broker works off what killed connections had sent, some 4 MiB each in buffers of the kernel, at their share of its
# time: produce requests of one empty message took 36 s on two busy processors.
_SETTLE_S_MAX = 90.0
# After an attack, the relay may use more memory than before the attack: this much, a tenth of what it used before, and
# the packets that wait.
_KEPT_BYTES = 16 << 20
_MIB = 1 << 20
# What an attack may always add to the figures beside the neighbour, in ms: less is noise on a machine with two cores.
_FLOOR_MS = 50.0
_P99_FLOOR_MS = 150.0
_EXIT_MESSAGE = bytes(64 * 1024)  # so much that the victim needs its share of the exit's batches
_TRIES = 3  # an attack that harms the victim more than the neighbour does so in each of these measurements

# The attacks, by the honest neighbour with whom they are compared.
_NEIGHBOURS: dict[str, Sequence[str]] = {
    NEIGHBOUR: tuple(ATTACKS),
    EXIT_NEIGHBOUR: tuple(EXIT_ATTACKS),
    BROKER_NEIGHBOUR: tuple(BROKER_ATTACKS),
}
_ALL = [attack for attacks in _NEIGHBOURS.values() for attack in attacks]


class Figures(msgspec.Struct, frozen=True):
    """Figures of the victim before, beside and after one attack. The honest neighbour counts as an attack, too.

    `failure` says why the victim's connection ended.
    """

    attack: str
    alone_p99_ms: float
    p50_ms: float
    p99_ms: float
    worst_ms: float
    after_p99_ms: float
    pings: int
    pings_per_second: float
    turn_ms: float  # the most processor time of one user in one turn of the relay's event loop, during and afterwards
    collector_ms: float  # of the longest run of Python's collector, at the relay
    used_before_bytes: int  # as `used_after_bytes`, before the attack
    rss_bytes: int
    used_after_bytes: int  # used by the relay after the attacker has ended, without what its allocators hold free
    held_after_bytes: int  # packets that wait for an attachment, which may come back after an interruption
    waiting_after_bytes: int  # of unfinished bodies and batches, and of unread answers
    connections_after: int  # the number beyond those that there were before the attack
    failure: str = ""

    def fault(self, limit_ms: float, turn_limit_ms: float) -> str:
        """Return why the figures are not good: the victim's connection must live, its round trips and the relay's turns
        must be measured and stay within their limits, and nothing of the attack may be left. Empty if they are good."""
        if self.failure:
            return self.failure
        if not (self.pings > 0 and self.used_before_bytes > 0 and self.used_after_bytes > 0 and self.turn_ms > 0):
            return "round trips, turns or memory were not measured"
        if not 0 < self.p99_ms <= limit_ms:
            return f"p99 {self.p99_ms:.1f} ms, at most {limit_ms:g}"
        if self.turn_ms > turn_limit_ms:
            return f"a turn of {self.turn_ms:.1f} ms, at most {turn_limit_ms:g}"
        if self.waiting_after_bytes or self.connections_after > 0:
            return f"left: {self.waiting_after_bytes} bytes that wait, {self.connections_after} connections"
        return "" if self.keeps_little else f"{self.used_after_bytes / _MIB:.0f} MiB are in use afterwards"

    def harm(self, neighbour: "Figures", ratio: float) -> str:
        """Return how the victim fares worse beside this attack than beside an honest neighbour: its round trips are
        longer, or fewer, by more than `ratio` and the floor. An empty text if it does not."""
        wanted = (
            ("p50", self.p50_ms, neighbour.p50_ms, _FLOOR_MS),
            ("p99", self.p99_ms, neighbour.p99_ms, _P99_FLOOR_MS),
        )
        for name, found_ms, beside_ms, floor_ms in wanted:
            if found_ms > max(ratio * beside_ms, beside_ms + floor_ms):
                return f"{name} {found_ms:.1f} ms, beside an honest neighbour {beside_ms:.1f} ms"
        found, beside = self.pings_per_second, neighbour.pings_per_second
        if found < min(beside / ratio, 1000 / (1000 / beside + _FLOOR_MS)):
            return f"{found:.1f} round trips a second, beside an honest neighbour {beside:.1f}"
        return ""

    @property
    def keeps_little(self) -> bool:
        """Whether the relay has returned the memory of the attack. This is not asked of the honest neighbour, which
        leaves more: an exit and its target hold data for a connection that may be resumed."""
        kept_bytes = self.used_after_bytes - self.used_before_bytes - self.held_after_bytes
        return self.attack in _NEIGHBOURS or kept_bytes <= _KEPT_BYTES + self.used_before_bytes // 10


async def measure(attack: str, seconds: float) -> Figures:
    """Measure the victim before, beside and after an attack."""
    if attack in BROKER_ATTACKS or attack == BROKER_NEIGHBOUR:
        return await _measure_broker(attack, seconds)
    is_separate = attack in EXIT_ATTACKS or attack == EXIT_NEIGHBOUR
    message = _EXIT_MESSAGE if is_separate else b"ping"
    with (
        Process(python_command("loadtests.harness.echo"), ready=lambda line: line.startswith("echo")) as echo,
        RelayProcess(inline_exit=not is_separate, module="loadtests.hostile.relay", event="costs") as relay,
        exit_process(relay) if is_separate else nullcontext(),
    ):
        port = int(echo.ready_line.split()[1])
        control = int(json.loads(relay.process.ready_line)["control"])
        command = python_command("loadtests.hostile.attacker", attack, "--relay", relay.url, "--echo", str(port))
        if is_separate:
            command = python_command("loadtests.hostile.exit_attacker", attack, "--relay", relay.url)
        attacker = _attacker(command, {"TUNNEL_TOKEN": relay.tokens["attacker"]})
        async with tunnel.attach(relay.url, token=relay.tokens["client"], proxy=None, carrier="link") as victim:
            reader, writer = await victim.open_connection("127.0.0.1", port)

            async def ping() -> None:
                writer.write(message)
                await reader.readexactly(len(message))

            found = await _measured(attack, seconds, control, attacker, ping)
            writer.close()
    return found


async def _measure_broker(attack: str, seconds: float) -> Figures:
    """The victim sends messages to a topic in memory, and fetches them."""
    with tempfile.TemporaryDirectory() as place:
        command = python_command("loadtests.hostile.broker", "--dir", place)
        with Process(command, ready=says_event("costs")) as process:
            said = json.loads(process.ready_line)
            address = str(said["address"])
            attacker = _attacker(python_command("loadtests.hostile.broker_attacker", attack, "--broker", address), {})
            async with ChannelTable() as table:
                client = BrokerClient(table, address)
                consumer = client.consumer(PINGS)

                async def ping() -> None:
                    await client.producer().send(PINGS, b"ping")
                    while not await consumer.fetch():
                        pass

                await ping()
                return await _measured(attack, seconds, int(said["control"]), attacker, ping)


def _attacker(command: list[str], environment: dict[str, str]) -> Process:
    return Process(command, ready=lambda line: line.startswith("attacking"), environment=environment)


async def _measured(
    attack: str, seconds: float, control: int, attacker: Process, ping: Callable[[], Awaitable[None]]
) -> Figures:
    before, times, after, failure, turn_ms = [0.0], [0.0], [0.0], "", 0.0
    try:
        before = await _pings(ping, seconds)
        cost_before = await ask_cost(control)
        await attacker.start().ready()
        await asyncio.sleep(_SETTLE_PAUSE_S)
        await ask_cost(control)
        times = await _pings(ping, seconds)
        during = await ask_cost(control)
        if not attacker.is_running:
            failure = f"the attacker had ended, so that nothing was measured: {attacker.output[-300:]}"
        attacker.kill()
        turn_ms = await _settled(control, cost_before)
        after = await _pings(ping, seconds)
        left = await ask_cost(control)
    except (ConnectionError, TimeoutError, tunnel.TunnelError) as error:
        failure = str(error) or type(error).__name__
        attacker.kill()
        cost_before = during = left = await ask_cost(control)
    return Figures(
        attack,
        _share(before, 0.99),
        _share(times, 0.5),
        _share(times, 0.99),
        _share(times, 1),
        _share(after, 0.99),
        len(times),
        len(times) / seconds,
        max(during.turn_ms, turn_ms, left.turn_ms),
        during.collector_ms,
        cost_before.used_bytes,
        during.rss_bytes,
        left.used_bytes,
        left.held_bytes,
        left.waiting_bytes,
        left.connections - cost_before.connections,
        failure,
    )


async def _settled(control: int, before: Cost) -> float:
    """Wait until no bytes and connections of the attacker are left, but for `_SETTLE_S_MAX` at the longest. Return the
    longest turn meanwhile, in ms: what an attacker has left can cost more than the attack itself."""
    ends, longest_ms = time.monotonic() + _SETTLE_S_MAX, 0.0
    while time.monotonic() < ends:
        cost = await ask_cost(control)
        longest_ms = max(longest_ms, cost.turn_ms)
        if not cost.waiting_bytes and cost.connections <= before.connections:
            break
        await asyncio.sleep(_SETTLE_PAUSE_S)
    return longest_ms


def _share(times: list[float], share: float) -> float:
    return sorted(times)[int((len(times) - 1) * share)] * 1e3


async def _pings(ping: Callable[[], Awaitable[None]], seconds: float) -> list[float]:
    times: list[float] = []
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        began = time.monotonic()
        async with asyncio.timeout(_LOST_S):
            await ping()
        times.append(time.monotonic() - began)
        await asyncio.sleep(_PAUSE_S)
    return times


def main(arguments: list[str] | None = None) -> int:
    """Print the figures. Return 0 if those of every attack are good (`Figures.fault`), 1 if not, 3 if a process did
    not start."""
    parser = command("hostile", __doc__, "--only tiny-packets --seconds 5")
    parser.add_argument(
        "--only",
        action="append",
        choices=_ALL,
        help="this attack, after the neighbour of the same server; repeatable (default: all)",
    )
    parser.add_argument(
        "--seconds", type=float, default=5.0, metavar="S", help="duration of each measurement (default: 5)"
    )
    parser.add_argument(
        "--limit-ms", type=float, default=250.0, metavar="MS", help="largest 99th percentile (default: 250)"
    )
    parser.add_argument(
        "--turn-ms", type=float, default=20.0, metavar="MS", help="longest turn of one user at the relay (default: 20)"
    )
    parser.add_argument(
        "--ratio",
        type=float,
        default=5.0,
        metavar="N",
        help="how many times more an attack may harm the victim than an honest neighbour (default: 5)",
    )
    options = parser.parse_args(arguments)
    if options.seconds <= 0:
        parser.error("--seconds: nothing is measured in no time: use 0.3 or more")
    table = _Table(options)
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            for attack in _in_order(options.only or _ALL):
                runner.run(table.add(attack))
    except NotReadyError as error:
        print(f"hostile: {error}", file=sys.stderr)
        return 3
    if options.json:
        print(json.dumps([msgspec.to_builtins(each) for each in table.found]))
    return 0 if table.is_good else 1


class _Table:
    """The figures of all attacks, and whether they are good."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.found: list[Figures] = []
        self.is_good = True
        self._options = options
        self._neighbour: Figures | None = None

    async def add(self, attack: str) -> None:
        """Measure an attack, or the neighbour of those that follow."""
        if attack in _NEIGHBOURS:
            self._neighbour = await self._measure(attack)
            self.found.append(self._neighbour)
            self.is_good &= self._is_good(self._neighbour)
            return
        for left in reversed(range(_TRIES)):
            figures = await self._measure(attack)
            assert self._neighbour is not None
            is_good = self._is_good(figures)
            harm = figures.harm(self._neighbour, self._options.ratio) if is_good else ""
            if not harm:
                break
            is_good = False
            self._show(f"{attack:23} {harm}{': measured again' if left else ''}")
            if left:
                self._neighbour = await self._measure(self._neighbour.attack)
        self.found.append(figures)
        self.is_good &= is_good

    def _is_good(self, figures: Figures) -> bool:
        fault = figures.fault(self._options.limit_ms, self._options.turn_ms)
        if fault:
            self._show(f"{figures.attack:23} not good: {fault}")
        return not fault

    async def _measure(self, attack: str) -> Figures:
        figures = await measure(attack, self._options.seconds)
        self._show(_line(figures))
        return figures

    def _show(self, line: str) -> None:
        if not self._options.json:
            print(line, flush=True)


def _in_order(attacks: Sequence[str]) -> list[str]:
    """Return the attacks on the relay, on a separate exit and on the broker, each after an honest neighbour."""
    found: list[str] = []
    for neighbour, known in _NEIGHBOURS.items():
        chosen = [each for each in attacks if each in known]
        found += [neighbour, *chosen] if chosen else []
    return found


def _line(figures: Figures) -> str:
    return (
        f"{figures.attack:23} p99 alone {figures.alone_p99_ms:6.1f} ms   beside it p50 {figures.p50_ms:6.1f} "
        f"p99 {figures.p99_ms:7.1f} worst {figures.worst_ms:7.1f} ms   after {figures.after_p99_ms:6.1f} ms   "
        f"turn {figures.turn_ms:4.1f} collector {figures.collector_ms:5.1f} ms   "
        f"server {figures.used_before_bytes / _MIB:4.0f}, {figures.rss_bytes / _MIB:4.0f}, "
        f"{figures.used_after_bytes / _MIB:4.0f} MiB   {figures.failure}"
    )


if __name__ == "__main__":
    sys.exit(main())
