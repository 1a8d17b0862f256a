"""A stream that moves between carriers: `python -m loadtests.experiments.migrations --encrypted`.

A client and a service exchange bytes in both directions at once over one stream. Meanwhile the client's link is cut and
forbidden, so that the stream goes on with exchanges, and allowed again, so that it returns to a link. In the middle of
the run the link is cut once without being forbidden; at the end the relay is killed once and started again.
"""

import argparse
import asyncio
import enum
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from loadtests.faultproxy import FaultProxy, FaultProxyOptions
from loadtests.faultproxy.options import parse_upstream
from loadtests.harness.encryption import encryption_settings
from loadtests.harness.experiment import command, perform, size_bytes
from loadtests.harness.processes import NotReadyError
from loadtests.harness.relays import RelayProcess
from loadtests.harness.transfer import CHUNK_BYTES, Flow
from tunnel import Attachment, StreamReader, StreamWriter, TunnelError, attach

__all__ = ["Act", "Interruption", "Report", "main", "measure", "planned", "summary"]

_SERVICE = "mirror"
_MIB = 1024 * 1024
_LOOK_S = 0.02
_CHANGE_S = 150.0  # only a client that does not change its carrier at all takes so long


class Act(enum.StrEnum):
    """An act upon the stream's path."""

    TO_POLL = "link cut and forbidden"
    TO_LINK = "link allowed"
    KILL_LINK = "link cut"
    KILL_RELAY = "relay killed and started again"


# Without a link, a client polls and then changes to streams, which may take less than `_LOOK_S`.
_CARRIERS_AFTER = {
    Act.TO_POLL: ("poll", "stream"),
    Act.TO_LINK: ("link",),
    Act.KILL_LINK: ("link",),
    Act.KILL_RELAY: ("link",),
}


class Interruption(msgspec.Struct, frozen=True):
    """One act, from its beginning until the carrier had changed and new bytes had come in both directions."""

    act: Act
    at_bytes: int  # number of bytes that had come to the service
    in_flight_bytes: tuple[int, int]  # upwards and downwards
    seconds: float


class Report(msgspec.Struct):
    """The results of a run. Digests are of the bytes upwards, then downwards."""

    size_bytes: int
    migrations: int
    encrypted: bool = False
    interruptions: list[Interruption] = []
    written_digests: tuple[str, ...] = ()
    received_digests: tuple[str, ...] = ()
    peer_key: str = ""  # of the service, as the client has verified it
    seconds: float = 0.0
    failure: str = ""


def planned(migrations: int) -> list[Act]:
    """Return the acts of a run: pairs of migrations, with the kill of the link in the middle and the relay's last."""
    acts = [Act.TO_POLL, Act.TO_LINK] * (migrations // 2)
    acts.insert(migrations // 4 * 2, Act.KILL_LINK)
    return [*acts, Act.KILL_RELAY]


async def measure(migrations: int, size_bytes: int, *, encrypted: bool = False, shown: bool = False) -> Report:
    """Exchange `size_bytes` in each direction, with this number of migrations. A failure is noted in the report."""
    report = Report(size_bytes, migrations, encrypted)
    with RelayProcess() as relay, tempfile.TemporaryDirectory() as directory:
        token = relay.tokens["client"]
        ours, theirs = encryption_settings(Path(directory) / "key.pem") if encrypted else ({"encryption": "off"}, {})
        options = FaultProxyOptions(upstream=parse_upstream(relay.url))
        async with FaultProxy(options) as proxy:
            service = attach(relay.url, token=token, proxy=None, carrier="link", linger=1.0, **theirs)
            client = attach(proxy.url, token=token, proxy=None, carrier="link", linger=1.0, **ours)
            async with service, client:
                began = time.monotonic()
                try:
                    await _Run(relay, proxy, client, report, shown=shown).play(service)
                except (TunnelError, NotReadyError, TimeoutError) as error:
                    report.failure = str(error) or f"the carrier did not change within {_CHANGE_S:g} s"
                report.seconds = time.monotonic() - began
    report.failure = report.failure or _proves_nothing(report)
    return report


def _proves_nothing(report: Report) -> str:
    """Return why a transfer without an error proves nothing, or an empty string if it does prove something."""
    if [each.act for each in report.interruptions] != planned(report.migrations):
        return f"there were {len(report.interruptions)} of {len(planned(report.migrations))} interruptions"
    if not all(any(each.in_flight_bytes) for each in report.interruptions):
        return "no bytes were in flight at one of the interruptions, so it proves nothing"
    if report.encrypted and not report.peer_key:
        return "the stream was not encrypted, although it had to be"
    return ""


class _Run:
    """One run: both flows, and what happens to their path."""

    def __init__(
        self, relay: RelayProcess, proxy: FaultProxy, client: Attachment, report: Report, *, shown: bool
    ) -> None:
        self._relay = relay
        self._proxy = proxy
        self._client = client
        self._report = report
        self._shown = shown
        self._up = Flow(report.size_bytes, seed=1)
        self._down = Flow(report.size_bytes, seed=2)
        self._flows = (self._up, self._down)

    async def play(self, service: Attachment) -> None:
        """Transfer everything and interrupt it."""
        done = asyncio.Event()

        async def serve(reader: StreamReader, writer: StreamWriter) -> None:
            await asyncio.gather(self._up.read_from(reader), self._down.write_to(writer))
            await done.wait()
            writer.close()

        await service.start_server(serve, _SERVICE)
        reader, writer = await self._client.open_connection(_SERVICE)
        self._report.peer_key = writer.get_extra_info("peer_key") or ""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._up.write_to(writer))
                group.create_task(self._down.read_from(reader))
                group.create_task(self._interrupt())
                for flow in self._flows:
                    await flow.reach(flow.size_bytes)
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        done.set()
        writer.close()
        digests = [flow.digests for flow in self._flows]
        self._report.written_digests = tuple(written for written, _ in digests)
        self._report.received_digests = tuple(received for _, received in digests)
        if not all(flow.is_right for flow in self._flows):
            self._report.failure = "the bytes that arrived are not those that were written"

    async def _interrupt(self) -> None:
        acts = planned(self._report.migrations)
        step_bytes = self._report.size_bytes // (len(acts) + 1)
        for number, act in enumerate(acts, 1):
            for flow in self._flows:  # some bytes must be left for this act and the later ones
                flow.hold(number * step_bytes + max(1, step_bytes - CHUNK_BYTES))
            for flow in self._flows:
                await flow.reach(number * step_bytes)
            in_flight_bytes = (await self._up.put_in_flight(), await self._down.put_in_flight())
            at_bytes, began = self._up.received_bytes, time.monotonic()
            await self._do(act)
            async with asyncio.timeout(_CHANGE_S):
                while not self._is_on_one_of(_CARRIERS_AFTER[act]):
                    await asyncio.sleep(_LOOK_S)
                    if act is Act.TO_POLL:  # an upgrade that had passed the proxy may have opened another tunnel since
                        self._proxy.cut_tunnels()
            await asyncio.gather(*(flow.pass_on() for flow in self._flows))
            done = Interruption(act, at_bytes, in_flight_bytes, time.monotonic() - began)
            self._report.interruptions.append(done)
            if self._shown:
                print(_line(number, len(acts), done), flush=True)
        for flow in self._flows:
            flow.hold(flow.size_bytes)

    def _is_on_one_of(self, carriers: tuple[str, ...]) -> bool:
        return self._client.stats().carrier.startswith(carriers)

    async def _do(self, act: Act) -> None:
        if act is Act.KILL_RELAY:
            await self._relay.replace()
            return
        self._proxy.allow_upgrades(act is not Act.TO_POLL)
        if act is not Act.TO_LINK:
            self._proxy.cut_tunnels()


def _line(number: int, count: int, done: Interruption) -> str:
    up, down = (size / 1024 for size in done.in_flight_bytes)
    where = f"at {done.at_bytes / _MIB:7.1f} MiB  in flight {up:5.0f} KiB up, {down:5.0f} KiB down"
    return f"{number:>3}/{count}  {where}  {done.act}: goes on after {done.seconds:.2f} s"


def summary(report: Report) -> str:
    """Return the report as text for people."""
    rate = 2 * report.size_bytes / _MIB / max(report.seconds, 1e-9)
    how = f"encrypted from end to end, to {report.peer_key}" if report.peer_key else "in clear"
    longest = max((each.seconds for each in report.interruptions), default=0.0)
    lines = (
        f"moved      {report.size_bytes / _MIB:.0f} MiB each way ({how}) in {report.seconds:.1f} s, {rate:.1f} MiB/s",
        f"acts       {report.migrations} migrations, 1 kill of the link, 1 of the relay; longest pause {longest:.2f} s",
        f"written    {' up, '.join(report.written_digests)} down",
        f"received   {' up, '.join(report.received_digests)} down",
        f"FAILED: {report.failure}"
        if report.failure
        else "OK: every byte arrived once and in order, in both directions",
    )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Return 0 if every byte arrived once and in order, 1 if not, and 3 without a result."""
    parser = command(
        "experiments.migrations",
        "One stream, both directions at once, while its carrier changes and link and relay are killed.",
        "--encrypted --migrations 20 --size 1GiB",
    )
    parser.add_argument(
        "--migrations", type=_even, default=20, metavar="N", help="number of migrations, an even one (default 20)"
    )
    parser.add_argument(
        "--size", type=size_bytes, default="1GiB", metavar="SIZE", help="bytes to transfer each way (default 1GiB)"
    )
    parser.add_argument("--encrypted", action="store_true", help="encrypt the stream from end to end")
    options = parser.parse_args(argv)
    how = {"encrypted": options.encrypted, "shown": not options.json}
    return perform(
        measure(options.migrations, options.size, **how),
        verdict=lambda report: 1 if report.failure else 0,
        text=summary,
        as_json=options.json,
    )


def _even(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) % 2 == 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not an even number: each migration to exchanges has one back")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
