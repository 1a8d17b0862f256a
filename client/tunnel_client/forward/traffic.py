"""The traffic totals of a command, over its open connections and those that have ended."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import structlog

from tunnel import Attachment, RateLimit
from tunnel.process.command_line import shows_people, tell
from tunnel.streams.splice import TunnelSide

__all__ = ["Traffic", "TrafficReport"]

_log = structlog.get_logger("tunnel")
_MIB = 1024 * 1024
_CAUSES_MAX = 20  # further causes are counted together, as "other"


class TrafficReport(msgspec.Struct):
    """Totals since the start.

    `round_trip_us` and `rto_us` are the largest of the open connections or, if none is open, those of the last that
    ended.
    """

    attached: bool = False
    carrier: str = ""
    connections_open: int = 0
    connections: int = 0
    connections_failed: int = 0  # not opened, or ended with an error
    bytes_up: int = 0  # written here, and acknowledged by the peer endpoint
    bytes_down: int = 0  # received, and passed on to the local program
    packets_sent: int = 0
    resent: dict[str, int] = {}  # packets that this side sent again, by cause
    spurious: int = 0  # of the resent packets, those that were proven unnecessary
    exchanges_failed: dict[str, int] = {}  # failures of exchanges and links, by cause; counted only within `reported`
    round_trip_us: int = 0
    rto_us: int = 0


class Traffic:
    """Counts the traffic of a command, or of one entry of a file, and lets its connections share a rate.

    The command announces each connection; within `reported`, the attachment reports failures of exchanges and links.
    """

    def __init__(self, attachment: Attachment, limit: RateLimit | None = None) -> None:
        self._limit = limit
        self.failed = 0  # connections
        self.failure = ""  # why a connection failed last; empty again after one has been opened
        self._attachment = attachment
        self._open: dict[TunnelSide, None] = {}
        self._ended = TrafficReport()
        self._failures: Counter[str] = Counter()

    def on_opened(self, side: TunnelSide) -> None:
        """Count a new connection through the tunnel."""
        self.failure = ""
        self._open[side] = None
        if self._limit is not None:
            side.limit_rate(self._limit)

    def limit_rate(self, limit: RateLimit | None) -> None:
        """Let the connections, those that are open and later ones, share this limit; None: no limit."""
        self._limit = limit
        for side in self._open:
            side.limit_rate(limit)

    @property
    def connections_open(self) -> int:
        """The number of connections that are open."""
        return len(self._open)

    def fail(self, text: str) -> None:
        """Count a connection that was not opened, or that ended with an error."""
        self.failed += 1
        self.failure = text

    def on_ended(self, side: TunnelSide) -> None:
        """Add a connection that has ended to the totals."""
        del self._open[side]
        _add(self._ended, side)

    def read_closed(self, text: str) -> None:
        """Count the failure of an exchange or a link. The attachment calls this method of an ErrorListener."""
        cause = text.partition(":")[0]
        if cause not in self._failures and len(self._failures) >= _CAUSES_MAX:
            cause = "other"
        self._failures[cause] += 1

    def report(self) -> TrafficReport:
        """Return the totals up to now, and the state of the attachment."""
        stats = self._attachment.stats()
        return msgspec.structs.replace(
            self.totals(), attached=stats.attached, carrier=stats.carrier, exchanges_failed=dict(self._failures)
        )

    def totals(self) -> TrafficReport:
        """Return the totals up to now, without the attachment, which may have ended."""
        report = msgspec.structs.replace(
            self._ended,
            connections_open=len(self._open),
            connections_failed=self.failed,
            resent=dict(self._ended.resent),
        )
        if self._open:
            report.round_trip_us = report.rto_us = 0
        for side in self._open:
            _add(report, side)
        return report

    @asynccontextmanager
    async def report_every(self, seconds: float) -> AsyncIterator[None]:
        """Report the totals every `seconds` and at the end, or never if it is 0.

        On a terminal, the report is a line; otherwise it is an event in the log.
        """
        if not seconds:
            yield
            return
        self._attachment.add_error_listener(self)
        task = asyncio.get_running_loop().create_task(self._tell(seconds))
        try:
            yield
        finally:
            task.cancel()
            self._log()

    async def _tell(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            self._log()

    def _log(self) -> None:
        report = self.report()
        if shows_people():
            tell(_line(report))
        else:
            _log.info("traffic", **msgspec.to_builtins(report))


def _line(report: TrafficReport) -> str:
    """Return the report as one line for a terminal."""
    parts = [
        "attached" if report.attached else "not attached",
        report.carrier.partition(" ")[0],
        f"connections {report.connections_open} open, {report.connections} in all, {report.connections_failed} failed",
        f"up {report.bytes_up / _MIB:.1f} MiB",
        f"down {report.bytes_down / _MIB:.1f} MiB",
        f"RTT {report.round_trip_us / 1000:.1f} ms",
        f"failed exchanges {sum(report.exchanges_failed.values())}",
        f"resent packets {sum(report.resent.values())}",
    ]
    return " | ".join(parts)


def _add(report: TrafficReport, side: TunnelSide) -> None:
    stats = side.stats()
    report.connections += 1
    report.bytes_up += stats.bytes_acknowledged
    report.bytes_down += stats.bytes_delivered
    report.packets_sent += stats.packets_sent
    report.spurious += stats.packets_spurious
    for cause, count in stats.resent_by_cause.items():
        report.resent[cause] = report.resent.get(cause, 0) + count
    if side.is_over:
        report.round_trip_us, report.rto_us = stats.round_trip_us, stats.rto_us
    else:
        report.round_trip_us, report.rto_us = (
            max(report.round_trip_us, stats.round_trip_us),
            max(report.rto_us, stats.rto_us),
        )
