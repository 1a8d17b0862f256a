"""A prober for one step at a time: the test says what each exchange finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from tunnel.carriers.dialing import Dialing
from tunnel.carriers.probe import ProbeError, Prober, Reply
from tunnel.wire import Attached
from tunnel_client.doctor.findings import Finding, Report

__all__ = ["Played", "answered", "finding", "prober"]

LIMITS = Attached(bytes(16), 1, 1, True, 64 << 10, 32 << 10, 30_000, 0, 0, 8)


def answered(kind: str = "answer", status: int = 200, text: str = "", serial: int = 0, wait_ms: int = 0) -> Reply:
    """Return a reply without headers."""
    return Reply(kind, status, text, 0.001, {}, serial, wait_ms)


class Played:
    """`attaching`: the outcomes of `attach`, one after the other. `caches`: a hop repeats the first answer it saw."""

    def __init__(self, attaching: Sequence[Reply | ProbeError] = (), *, caches: bool = False) -> None:
        self.dialing = Dialing("http://relay.invalid", proxy=None)
        self.attached: Attached | None = None if attaching else LIMITS
        self.tries = 0
        self._attaching = attaching
        self._caches = caches
        self._serial = 0
        self._cached: Reply | None = None

    async def attach(self) -> Reply:
        outcome = self._attaching[self.tries]
        self.tries += 1
        if isinstance(outcome, ProbeError):
            raise outcome
        if outcome.kind == "attached":
            self.attached = LIMITS
        return outcome

    async def exchange(self, size: int = 0, *, hold_s: float = 0, lane: int = 0, own: object = None) -> Reply:
        self._cached = None
        return await self.repeat(size)

    async def repeat(self, size: int = 0) -> Reply:
        if self._cached is not None:
            return self._cached
        self._serial += 1
        reply = answered(serial=self._serial)
        self._cached = reply if self._caches else None
        return reply

    async def unfinished(self, seconds: float) -> tuple[bool, Reply]:
        return True, answered("status", 415)


def prober(played: Played) -> Prober:
    """Return the played prober in the place of a real one."""
    return cast(Prober, played)


def finding(report: Report, step: str) -> Finding:
    """Return the only finding of a step."""
    (found,) = (finding for finding in report.findings if finding.step == step)
    return found
