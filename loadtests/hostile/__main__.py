"""What a user notices of attackers at the same relay: `python -m loadtests.hostile`.

A victim sends small messages through the relay to an echo server, first alone, then beside each attack. The report
shows the round trips, and the memory of the relay. The exit code is 1 if an attack delays the victim for too long.
"""

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path

import msgspec

import tunnel
from loadtests.harness.processes import NotReadyError, Process, python_command
from loadtests.harness.relays import RelayProcess
from loadtests.hostile.attacker import ATTACKS
from tunnel.event_loops import new_event_loop

__all__ = ["Figures", "main", "measure"]

_PAUSE_S = 0.01
_SETTLE_S = 0.5
_LOST_S = 30.0
_MIB = 1 << 20


class Figures(msgspec.Struct, frozen=True):
    """The victim beside one attack ("alone": none). `failure` says why its connection ended."""

    attack: str
    p50_ms: float
    p99_ms: float
    worst_ms: float
    pings: int
    rss_bytes: int
    failure: str = ""

    def is_good(self, limit_ms: float) -> bool:
        """Whether the victim's connection lived and its round trips stayed within the limit."""
        return not self.failure and self.p99_ms <= limit_ms


async def measure(attack: str, seconds: float) -> Figures:
    """Measure the victim beside an attack, or alone if `attack` is empty."""
    with (
        Process(python_command("loadtests.harness.echo"), ready=lambda line: line.startswith("echo")) as echo,
        RelayProcess(inline_exit=True) as relay,
    ):
        port = int(echo.ready_line.split()[1])
        times: list[float] = []
        failure = ""
        async with tunnel.attach(relay.url, token=relay.tokens["client"], proxy=None, carrier="link") as victim:
            reader, writer = await victim.open_connection("127.0.0.1", port)
            command = python_command("loadtests.hostile.attacker", attack, "--relay", relay.url)
            attacker = Process(
                command,
                ready=lambda line: line.startswith("attacking"),
                environment={"TUNNEL_TOKEN": relay.tokens["attacker"]},
            )
            if attack:
                await attacker.start().ready()
                await asyncio.sleep(_SETTLE_S)
            try:
                times = await _pings(reader, writer, seconds)
            except (ConnectionError, TimeoutError, tunnel.TunnelError) as error:
                failure = str(error) or type(error).__name__
            rss_bytes = _rss_bytes(relay.process.pid)
            if attack:
                attacker.kill()
            writer.close()
    times = sorted(times) or [seconds]
    p50_s, p99_s = (times[int((len(times) - 1) * share)] for share in (0.5, 0.99))
    return Figures(attack or "alone", p50_s * 1e3, p99_s * 1e3, times[-1] * 1e3, len(times), rss_bytes, failure)


async def _pings(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> list[float]:
    times: list[float] = []
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        began = time.monotonic()
        writer.write(b"ping")
        async with asyncio.timeout(_LOST_S):
            await reader.readexactly(4)
        times.append(time.monotonic() - began)
        await asyncio.sleep(_PAUSE_S)
    return times


def _rss_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def main(arguments: list[str] | None = None) -> int:
    """Print the figures. Return 0 if the victim stayed within the limit beside every attack, 1 if not, 3 if a process
    did not start."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.hostile",
        description=__doc__,
        epilog="example: python -m loadtests.hostile --only tiny-packets --seconds 5",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", action="append", choices=ATTACKS, help="this attack alone; repeatable (default: all)")
    parser.add_argument("--seconds", type=float, default=5.0, metavar="S", help="of each measurement (default: 5)")
    parser.add_argument(
        "--limit-ms", type=float, default=250.0, metavar="MS", help="largest 99th percentile (default: 250)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    found: list[Figures] = []
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            for attack in ["", *(options.only or ATTACKS)]:
                found.append(runner.run(measure(attack, options.seconds)))
                if not options.json:
                    print(_line(found[-1]), flush=True)
    except NotReadyError as error:
        print(f"hostile: {error}", file=sys.stderr)
        return 3
    if options.json:
        print(json.dumps([msgspec.to_builtins(each) for each in found]))
    return 0 if all(each.is_good(options.limit_ms) for each in found) else 1


def _line(figures: Figures) -> str:
    return (
        f"{figures.attack:18} p50 {figures.p50_ms:8.1f} ms   p99 {figures.p99_ms:8.1f} ms   "
        f"worst {figures.worst_ms:8.1f} ms   relay {figures.rss_bytes / _MIB:6.0f} MiB   {figures.failure}"
    )


if __name__ == "__main__":
    sys.exit(main())
