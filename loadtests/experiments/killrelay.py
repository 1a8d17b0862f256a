"""A transfer through nginx while the relay is killed repeatedly: `python -m loadtests.experiments.killrelay`."""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from loadtests.harness.encryption import encryption_settings
from loadtests.harness.experiment import command, size_bytes
from loadtests.harness.nginx import Nginx
from loadtests.harness.processes import NotReadyError
from loadtests.harness.relays import RelayProcess
from loadtests.harness.transfer import CHUNK_BYTES, Flow, percentile
from tunnel import Attachment, StreamReader, StreamWriter, TunnelError, attach
from tunnel.process.event_loops import new_event_loop

__all__ = ["Kill", "Report", "main", "measure"]

GOAL_S = 2.0
_SERVICE = "sink"
_MIB = 1024 * 1024


class Kill(msgspec.Struct, frozen=True):
    """One `kill -9`. `recovery_s` is the time from the kill to the first byte delivered that was written after it."""

    at_bytes: int
    in_flight_bytes: int
    startup_s: float  # from the kill until the new relay listened
    recovery_s: float


class Report(msgspec.Struct):
    """The results of a run."""

    size_bytes: int
    way: str
    encrypted: bool = False
    kills: list[Kill] = []
    peer_key: str = ""  # of the service, as the client has verified it
    written_digest: str = ""
    received_digest: str = ""
    seconds: float = 0.0
    recovery_p50_s: float = 0.0
    recovery_p99_s: float = 0.0
    startup_p50_s: float = 0.0  # the part of the recovery until the new relay listened
    return_p50_s: float = 0.0  # the part of the recovery after that
    return_p99_s: float = 0.0
    resent: dict[str, int] = {}
    failure: str = ""

    @property
    def is_right(self) -> bool:
        """Whether every byte arrived once and in order, and bytes were in flight at each kill."""
        return not self.failure


async def measure(
    kills: int, size_bytes: int, *, way: str = "up", encrypted: bool = False, shown: bool = False
) -> Report:
    """Transfer `size_bytes` between a client on poll behind nginx and a service on link.

    The relay is killed `kills` times, at equal steps of the progress. `encrypted`: from end to end. A failure is noted
    in the report.
    """
    report = Report(size_bytes, way, encrypted)
    with RelayProcess() as relay, Nginx(relay.url) as proxy, tempfile.TemporaryDirectory() as directory:
        token = relay.tokens["client"]
        ours, theirs = encryption_settings(Path(directory) / "key.pem") if encrypted else ({"encryption": "off"}, {})
        service = attach(relay.url, token=token, proxy=None, carrier="link", linger=1.0, **theirs)
        client = attach(proxy.url, token=token, proxy=None, carrier="poll", linger=1.0, **ours)
        async with service, client:
            began = time.monotonic()
            try:
                await _transfer(service, client, relay, kills, report, shown)
            except (TunnelError, NotReadyError) as error:
                report.failure = str(error)
            report.seconds = time.monotonic() - began
    recoveries = [kill.recovery_s for kill in report.kills]
    report.recovery_p50_s = percentile(recoveries, 0.5)
    report.recovery_p99_s = percentile(recoveries, 0.99)
    report.startup_p50_s = percentile([kill.startup_s for kill in report.kills], 0.5)
    returns = [kill.recovery_s - kill.startup_s for kill in report.kills]
    report.return_p50_s, report.return_p99_s = percentile(returns, 0.5), percentile(returns, 0.99)
    report.failure = report.failure or _proves_nothing(report, kills)
    return report


def _proves_nothing(report: Report, kills: int) -> str:
    """Return why a transfer without an error proves nothing, or an empty string if it does prove something."""
    if not 0 < kills == len(report.kills):
        return f"there were {len(report.kills)} kills, not {max(1, kills)}, so the run proves nothing"
    if not all(kill.in_flight_bytes > 0 for kill in report.kills):
        return "no bytes were in flight at one of the kills, so it proves nothing"
    if report.encrypted and not report.peer_key:
        return "the stream was not encrypted, although it had to be"
    return ""


async def _transfer(
    service: Attachment, client: Attachment, relay: RelayProcess, kills: int, report: Report, shown: bool
) -> None:
    flow = Flow(report.size_bytes, seed=1)
    done = asyncio.Event()

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        await (flow.read_from(reader) if report.way == "up" else flow.write_to(writer))
        await done.wait()
        writer.close()

    await service.start_server(serve, _SERVICE)
    reader, writer = await client.open_connection(_SERVICE)
    report.peer_key = writer.get_extra_info("peer_key") or ""
    ours = flow.write_to(writer) if report.way == "up" else flow.read_from(reader)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(ours)
            group.create_task(_kill(relay, flow, kills, report, shown))
            await flow.reach(flow.size_bytes)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    for attachment in (client, service):
        for stats in attachment.stats().connections.values():
            for cause, count in stats.resent_by_cause.items():
                report.resent[cause] = report.resent.get(cause, 0) + count
    done.set()
    writer.close()
    report.written_digest, report.received_digest = flow.digests
    if not flow.is_right:
        report.failure = "the bytes that arrived are not those that were written"


async def _kill(relay: RelayProcess, flow: Flow, kills: int, report: Report, shown: bool) -> None:
    step_bytes = flow.size_bytes // (kills + 1)
    for number in range(1, kills + 1):
        # Even if this task sees late that the goal is reached, bytes must be left for this kill and the later ones.
        flow.hold(number * step_bytes + max(1, step_bytes - CHUNK_BYTES))
        await flow.reach(number * step_bytes)
        in_flight_bytes, at_bytes = await flow.put_in_flight(), flow.received_bytes
        killed = time.monotonic()
        await relay.replace()
        recovery_s = await flow.pass_on() - killed
        report.kills.append(Kill(at_bytes, in_flight_bytes, relay.startup_s, recovery_s))
        if shown:
            where = f"at {at_bytes / _MIB:7.1f} MiB  in flight {in_flight_bytes / 1024:6.0f} KiB"
            times = f"relay up after {relay.startup_s:.2f} s  first new byte after {recovery_s:.2f} s"
            print(f"kill {number:>3}/{kills}  {where}  {times}", flush=True)
    flow.hold(flow.size_bytes)


def summary(report: Report) -> str:
    """Return the report as text for people."""
    rate = report.size_bytes / _MIB / max(report.seconds, 1e-9)
    resent = ", ".join(f"{cause} {count}" for cause, count in sorted(report.resent.items())) or "none"
    goal = f"goal: p50 at most {GOAL_S:g} s" + ("" if report.recovery_p50_s <= GOAL_S else ", MISSED")
    how = f"{report.way}, encrypted from end to end" if report.encrypted else report.way
    lines = (
        f"moved      {report.size_bytes / _MIB:.0f} MiB ({how}) in {report.seconds:.1f} s, {rate:.1f} MiB/s",
        f"kills      {len(report.kills)}, each with bytes in flight",
        f"resent     packets, both ends: {resent}",
        f"recovery   p50 {report.recovery_p50_s:.2f} s, p99 {report.recovery_p99_s:.2f} s ({goal})",
        (
            f"           until the new relay listened p50 {report.startup_p50_s:.2f} s; from then on p50 "
            f"{report.return_p50_s:.2f} s, p99 {report.return_p99_s:.2f} s"
        ),
        f"written    {report.written_digest}",
        f"received   {report.received_digest}",
        "OK: every byte arrived once and in order" if report.is_right else f"FAILED: {report.failure}",
    )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Return 0 if every byte arrived once and in order, 1 if not, or if the run could not start. The recovery times do
    not affect the exit code."""
    parser = command("experiments.killrelay", __doc__, "--kills 100 --size 1GiB")
    parser.add_argument("--kills", type=int, default=100, metavar="N", help="number of kills (default 100)")
    parser.add_argument(
        "--size", type=size_bytes, default="1GiB", metavar="SIZE", help="bytes to transfer (default 1GiB)"
    )
    parser.add_argument(
        "--way", choices=("up", "down"), default="up", help="direction; up is from the client to the service"
    )
    parser.add_argument("--encrypted", action="store_true", help="encrypt the stream from end to end")
    options = parser.parse_args(argv)
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            how = {"way": options.way, "encrypted": options.encrypted, "shown": not options.json}
            report = runner.run(measure(options.kills, options.size, **how))
    except FileNotFoundError as error:
        parser.error(str(error))
    except (TunnelError, NotReadyError) as error:
        print(f"the run could not start: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(msgspec.json.encode(report).decode() if options.json else summary(report))
    return 0 if report.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
