"""Transfers through two relays, of which the one in use is killed, frozen or restarted again and again.

`python -m loadtests.experiments.several --kills 50`. A client and a service sit at both relays. Each kill is a
`kill -9` of the relay that carries the connections, with bytes in flight. That relay starts again only when the
connections go on at the other one. With `--freeze`, the relay is stopped for a minute instead, and then goes on; with
`--rolling`, it drains, ends and starts again, as in an upgrade; with `--alone`, only the service loses it, without a
word, until the connections go on at another one.
"""

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from typing import Any

import msgspec
from xxhash import xxh3_128

from loadtests.faultproxy.grammar import parse_size_bytes
from loadtests.faultproxy.options import FaultProxyOptions
from loadtests.faultproxy.proxy import FaultProxy
from loadtests.harness.processes import NotReadyError
from loadtests.harness.relays import RelayProcess
from loadtests.harness.transfer import CHUNK_BYTES, Flow, percentile
from tunnel import Attachment, StreamReader, StreamWriter, TunnelError, attach
from tunnel.ground.carrier_names import CARRIERS
from tunnel.process.event_loops import new_event_loop

__all__ = ["SIZE_BYTES", "Report", "Run", "least_bytes", "main", "measure", "summary"]

_SERVICE = "sink"
_MIB = 1024 * 1024
_END_S = 60.0  # within which a relay that drains, and that the connections have left, has ended
SIZE_BYTES = 200 * _MIB  # by default, if that is enough
_PLURALS = {"kill": "kills", "freeze": "freezes", "restart": "restarts", "loss": "losses"}
_SIGNALS = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP, "restart": signal.SIGTERM}


class Report(msgspec.Struct):
    """The results of a run. `pauses_s`: from each blow until on each connection a byte had arrived that was written
    after it. What was in flight must arrive first, so with many connections this is also the time of a transfer.
    `stalls_s`: the longest time within each pause in which nothing arrived on a connection."""

    size_bytes: int  # of all connections together
    carrier: str
    blow: str = "kill"
    connections: int = 1
    pauses_s: list[float] = []
    stalls_s: list[float] = []
    seconds: float = 0.0
    written_digest: str = ""
    received_digest: str = ""
    failure: str = ""


class Run(msgspec.Struct, frozen=True):
    """The parameters of a run."""

    kills: int
    size_bytes: int
    carrier: str
    relays: int = 2
    connections: int = 1
    blow: str = "kill"  # or "freeze", or "restart" after a drain, or "loss" for the service alone
    frozen_s: float = 60.0
    is_shown: bool = False


@dataclass
class _Scene:
    """What takes part in a run. `ways`: through them the service reaches the relays, if it is to lose one alone."""

    service: Attachment
    client: Attachment
    relays: list[RelayProcess]
    ways: list[FaultProxy]

    @property
    def used(self) -> int:
        """The number of the relay that carries the connections."""
        counts = [relay.connections for relay in self.client.stats().relays]
        return counts.index(max(counts))

    async def until_at_all(self) -> None:
        """Wait until both ends sit at each relay again, as after some time of use."""
        ends = (self.service, self.client)
        while not all(relay.attached for one in ends for relay in one.stats().relays):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def least_bytes(kills: int, connections: int) -> int:
    """Return the least size with which bytes are left to write at each blow.

    Between two blows, a connection writes up to three chunks: the one with which it reaches the next step, one that is
    in flight at the blow, and one after it.
    """
    return connections * (kills + 1) * 3 * CHUNK_BYTES


async def measure(run: Run) -> Report:
    """Transfer the bytes from the client to the service, and strike the relay in use again and again."""
    report = Report(run.size_bytes, run.carrier, run.blow, run.connections)
    with ExitStack() as stack:
        running = [stack.enter_context(RelayProcess()) for _ in range(run.relays)]
        async with AsyncExitStack() as ways:
            passed = [FaultProxy(FaultProxyOptions(upstream=("127.0.0.1", relay.port))) for relay in running]
            if run.blow == "loss":
                for way in passed:
                    await ways.enter_async_context(way)
            scene = _Scene(
                _attach(running, [way.url for way in passed] if run.blow == "loss" else [], run, same_users=True),
                _attach(running, [], run),
                running,
                passed,
            )
            async with scene.service, scene.client:
                began = time.monotonic()
                try:
                    await _transfer(scene, run, report)
                except (TunnelError, NotReadyError) as error:
                    report.failure = str(error)
                report.seconds = time.monotonic() - began
    if not report.failure and len(report.pauses_s) != max(1, run.kills):
        report.failure = f"there were {len(report.pauses_s)} blows, not {max(1, run.kills)}, so the run proves nothing"
    return report


def _attach(relays: list[RelayProcess], urls: list[str], run: Run, **options: Any) -> Attachment:
    """Return an attachment to all relays, which it reaches at these addresses, or directly."""
    found = urls or [relay.url for relay in relays]
    (url, token), *further = zip(found, [relay.tokens["client"] for relay in relays], strict=True)
    options |= {"token": token, "further_relays": further, "carrier": run.carrier}
    return attach(url, linger=1.0, proxy=None, encryption="off", **options)


async def _transfer(scene: _Scene, run: Run, report: Report) -> None:
    flows = [Flow(run.size_bytes // run.connections, seed) for seed in range(1, run.connections + 1)]
    for flow in flows:
        flow.hold(flow.size_bytes // (run.kills + 1))  # so that no more is in flight at the first blow than at others
    done = asyncio.Event()

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        await flows[int.from_bytes(await reader.readexactly(2), "big")].read_from(reader)
        await done.wait()
        writer.close()

    await scene.service.start_server(serve, _SERVICE)
    writers = [(await scene.client.open_connection(_SERVICE))[1] for _ in flows]
    try:
        async with asyncio.TaskGroup() as group:
            for number, (flow, writer) in enumerate(zip(flows, writers, strict=True)):
                writer.write(number.to_bytes(2, "big"))
                group.create_task(flow.write_to(writer))
            group.create_task(_strike(scene, flows, run, report))
            await asyncio.gather(*(flow.reach(flow.size_bytes) for flow in flows))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    done.set()
    for writer in writers:
        writer.close()
    digests = [flow.digests for flow in flows]
    report.written_digest, report.received_digest = (_joined(side) for side in zip(*digests, strict=True))
    if not report.failure and not all(flow.is_right for flow in flows):
        report.failure = "the bytes that arrived are not those that were written"


def _joined(digests: Iterable[str]) -> str:
    """Return one digest for those of all connections; that of a single one as it is."""
    found = list(digests)
    return found[0] if len(found) == 1 else xxh3_128("".join(found).encode()).hexdigest()


async def _strike(scene: _Scene, flows: list[Flow], run: Run, report: Report) -> None:
    step_bytes = flows[0].size_bytes // (run.kills + 1)
    for number in range(1, run.kills + 1):
        for flow in flows:
            flow.hold(number * step_bytes)
        await asyncio.gather(*(flow.reach(number * step_bytes) for flow in flows))
        await scene.until_at_all()
        used = scene.used
        await asyncio.gather(*(flow.put_in_flight() for flow in flows))
        struck_s = time.monotonic()
        with ExitStack() as blow:
            if run.blow == "loss":
                blow.enter_context(scene.ways[used].blackhole())
            else:
                scene.relays[used].process.signal(_SIGNALS[run.blow])
            for flow in flows:
                flow.begin_quiet(struck_s)
            await asyncio.gather(*(flow.pass_on() for flow in flows))
            report.stalls_s.append(max(flow.longest_quiet_s(time.monotonic()) for flow in flows))
            report.pauses_s.append(time.monotonic() - struck_s)
        if run.is_shown:
            pause_s, stall_s = report.pauses_s[-1], report.stalls_s[-1]
            print(f"{run.blow} {number:>3}/{run.kills}  later bytes after {pause_s:.2f} s, nothing for {stall_s:.2f} s")
            sys.stdout.flush()
        await _bring_back(scene.relays[used], run, struck_s)
    for flow in flows:
        flow.hold(flow.size_bytes)


async def _bring_back(relay: RelayProcess, run: Run, struck_s: float) -> None:
    """Let the relay go on if it is frozen; start it again when it has ended."""
    if run.blow == "loss":
        return
    if run.blow == "freeze":
        await asyncio.sleep(max(0.0, struck_s + run.frozen_s - time.monotonic()))
        relay.process.signal(signal.SIGCONT)
        return
    await asyncio.to_thread(relay.process.wait, _END_S)
    relay.process.start()
    await relay.process.ready()


def summary(report: Report) -> str:
    """Return the report as text for people."""
    pauses = report.pauses_s
    lines = (
        f"moved      {report.size_bytes / _MIB:.0f} MiB by {report.carrier} in {report.seconds:.1f} s",
        f"on         {report.connections} connections",
        f"{_PLURALS[report.blow]:<10} {len(pauses)} of the relay in use, each with bytes in flight",
        f"pauses     {_spread(pauses)}",
        f"stalls     {_spread(report.stalls_s)}",
        f"written    {report.written_digest}",
        f"received   {report.received_digest}",
        "OK: every byte arrived once and in order" if not report.failure else f"FAILED: {report.failure}",
    )
    return "\n".join(lines)


def _spread(seconds: list[float]) -> str:
    p50_s, p99_s = percentile(seconds, 0.5), percentile(seconds, 0.99)
    return f"p50 {p50_s:.2f} s, p99 {p99_s:.2f} s, longest {max(seconds, default=0.0):.2f} s"


def main(argv: list[str] | None = None) -> int:
    """Return 0 if every byte arrived once and in order, otherwise 1."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.experiments.several",
        description=__doc__,
        epilog="example: python -m loadtests.experiments.several --rolling --kills 4 --connections 200",
        allow_abbrev=False,
    )
    parser.add_argument("--relays", type=int, default=2, metavar="N", help="number of relays (default 2)")
    parser.add_argument("--connections", type=int, default=1, metavar="N", help="number of connections (default 1)")
    parser.add_argument("--kills", type=int, metavar="N", help="number of blows (default 50; with --freeze 5)")
    blows = parser.add_mutually_exclusive_group()
    blows.add_argument("--freeze", action="store_true", help="stop the relay in use for a while instead of killing it")
    blows.add_argument("--rolling", action="store_true", help="let the relay in use drain, end and start again instead")
    blows.add_argument("--alone", action="store_true", help="let the service alone lose the relay in use instead")
    parser.add_argument("--frozen", type=float, default=60.0, metavar="SECONDS", help="length of a freeze (default 60)")
    parser.add_argument(
        "--size", metavar="SIZE", help="bytes to transfer (default 200MiB, or as many as connections and blows need)"
    )
    parser.add_argument("--carrier", choices=CARRIERS, default="link", help="the carrier of both ends (default link)")
    parser.add_argument("--json", action="store_true", help="print only JSON")
    options = parser.parse_args(argv)
    kills = options.kills if options.kills is not None else 5 if options.freeze else 50
    least = least_bytes(kills, options.connections)
    try:
        size_bytes = max(SIZE_BYTES, least) if options.size is None else parse_size_bytes(options.size)
    except ValueError as error:
        parser.error(str(error))
    if size_bytes < least:
        blows_at = f"{kills} blows at {options.connections} connections"
        parser.error(f"--size {options.size} is too small for {blows_at}: it must be at least {-(-least // _MIB)}MiB")
    run = Run(
        kills,
        size_bytes,
        options.carrier,
        options.relays,
        options.connections,
        "freeze" if options.freeze else "restart" if options.rolling else "loss" if options.alone else "kill",
        options.frozen,
        not options.json,
    )
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        report = runner.run(measure(run))
    print(msgspec.json.encode(report).decode() if options.json else summary(report))
    return 1 if report.failure else 0


if __name__ == "__main__":
    sys.exit(main())
