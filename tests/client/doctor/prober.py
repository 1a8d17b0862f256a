"""A fake prober, for tests of one step of the doctor: the test says which reply each request gets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

from tunnel.carriers.dialing.dialing import Dialing
from tunnel.carriers.dialing.failures import Failure
from tunnel.carriers.probes.probe import ProbeError, Prober, Reply
from tunnel.wire import Attached
from tunnel_client.doctor.findings import Finding, Report
from tunnel_client.doctor.trials import Trials

__all__ = ["LIMITS", "Asked", "FakeProber", "Path", "answered", "cut", "finding", "foreign", "prober", "trials"]

EPOCH = 7
LIMITS = Attached(bytes(16), EPOCH, 1, True, 64 << 10, 32 << 10, 30_000, 0, 0, 8)
_EMPTY_BYTES = 40


@dataclass(frozen=True)
class Asked:
    """A request: `kind` is the prober's method, `number` counts the recorded requests from 1."""

    kind: str
    number: int
    size: int = 0
    hold_s: float = 0
    lane: int = 0
    body_type: str = ""


Path = Callable[[Asked], "Reply | None"]
"""Returns the reply to a request, or None to let it reach the relay. It may raise ProbeError."""


def answered(kind: str = "answer", status: int = 200, text: str = "", serial: int = 0, wait_ms: int = 0) -> Reply:
    """Return a reply without headers."""
    return Reply(kind, status, text, 0.001, {}, serial, wait_ms, bytes=_EMPTY_BYTES)


def foreign(status: int, page: str = "", **headers: str) -> Reply:
    """Return an answer that is not a relay's."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply("foreign", status, page[:40], 0.001, names, page=page)


def cut(text: str = "the connection was closed before the answer was complete") -> ProbeError:
    """Return the error for a connection that ended without an answer."""
    return ProbeError(Failure("cut", text))


class _Own:
    opened = 0


class FakeProber:
    """A prober that sends nothing. `attaching`: the outcomes of `attach`, one after the other.

    `caches`: a hop answers `repeat` with its copy of the answer to the last `exchange`. `path`: returns the reply to
    each request that is recorded in `asked`: to all but `attach`, `attach_elsewhere` and `link`. `epochs`: those of the
    relays that answer on new HTTP connections. `link`: the reason why a link fails, or nothing. `reuses`: whether an
    HTTP connection carries several exchanges. `delay_s`: how long an exchange without a hold takes.
    """

    def __init__(
        self,
        attaching: Sequence[Reply | ProbeError] = (),
        *,
        caches: bool = False,
        path: Path = lambda asked: None,
        epochs: Sequence[int] = (),
        link: str = "",
        reuses: bool = True,
        delay_s: float = 0.001,
        url: str = "http://relay.invalid",
        token: str | None = "tnl_x",
        proxy: str | None = None,
    ) -> None:
        self.dialing = Dialing(url, token=token, proxy=proxy, insecure_http=True)
        self.attached: Attached | None = None if attaching else LIMITS
        self.tries = 0
        self.asked: list[Asked] = []
        self.reconnects = 0
        self.is_fresh = False
        self.has_left = False
        self.answer_bytes = self.ask_bytes_max = 64 << 10
        self.moved_bytes = 0
        self.waiting_bytes = 0  # of answers that were asked for and not fetched
        self._attaching = attaching
        self._caches = caches
        self._path = path
        self._epochs = list(epochs)
        self._link = link
        self._reuses = reuses
        self._delay_s = delay_s
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

    async def attach_anew(self) -> Reply:
        self.waiting_bytes = 0
        return answered("attached")

    async def leave(self) -> Reply:
        self.has_left = True
        return answered("answer")

    async def attach_elsewhere(self) -> Reply:
        reply = answered("attached")
        reply.epoch = self._epochs.pop(0) if self._epochs else EPOCH
        return reply

    async def attach_as(self, body_type: str) -> Reply:
        reply = self._find("attach_as", body_type=body_type) or answered("status", 415)
        if reply.kind == "attached":
            self.attached = LIMITS
        return reply

    async def exchange(
        self, size: int = 0, *, hold_s: float = 0, lane: int = 0, own: _Own | None = None, is_text: bool = False
    ) -> Reply:
        self._cached = None
        if own is not None:
            own.opened += own.opened == 0 or not self._reuses
        if self._delay_s and not hold_s:
            await asyncio.sleep(self._delay_s)
        found = self._find("exchange", size, hold_s, lane)
        return found or self._of_lane()

    async def repeat(self, size: int = 0) -> Reply:
        return self._find("repeat", size) or self._of_lane()

    def _of_lane(self) -> Reply:
        if self._cached is not None:
            return self._cached
        self._serial += 1
        reply = answered(serial=self._serial)
        self._cached = reply if self._caches else None
        return reply

    async def ask(self, size: int, *, lane: int = 0, most: int = 0) -> Reply:
        found = self._find("ask", size)
        if found is None:
            self.waiting_bytes += size
        return found or answered()

    async def fetch(self, size: int, *, lane: int = 0, is_repeat: bool = False) -> Reply:
        reply = answered()
        reply.bytes = max(_EMPTY_BYTES, min(size, self.waiting_bytes))
        found = self._find("fetch", reply.bytes)
        if found is None:
            self.waiting_bytes -= min(size, self.waiting_bytes)
        return found or reply

    async def claim_exit(self) -> Reply:
        return self._find("claim_exit") or answered("status", 403)

    async def send_unfinished(self, seconds: float) -> tuple[bool, Reply]:
        return True, self._find("unfinished") or answered("status", 415)

    async def odd_expectation(self) -> Reply:
        return self._find("odd_expectation") or _of_the_relay(417)

    async def big_head(self) -> Reply:
        return self._find("big_head") or _of_the_relay(400)

    async def page(self) -> Reply:
        return self._find("page") or _of_the_relay(405)

    async def link(self, seconds: float, *, stay_s: float = 0, is_websocket: bool = False) -> str:
        return self._link

    async def reconnect(self) -> None:
        self.reconnects += 1

    @asynccontextmanager
    async def own_connection(self) -> AsyncIterator[_Own]:
        yield _Own()

    def _find(self, kind: str, size: int = 0, hold_s: float = 0, lane: int = 0, body_type: str = "") -> Reply | None:
        self.asked.append(Asked(kind, len(self.asked) + 1, size, hold_s, lane, body_type))
        return self._path(self.asked[-1])


def _of_the_relay(status: int) -> Reply:
    return foreign(status, "Bad Request", server="Python/3.11 aiohttp/3.14.5")


def prober(fake: FakeProber) -> Prober:
    """Return the fake prober in the place of a real one."""
    return cast(Prober, fake)


def trials(fake: FakeProber) -> Trials:
    """Return trials on the fake prober."""
    return Trials(prober(fake))


def finding(report: Report, step: str) -> Finding:
    """Return the only finding of a step."""
    (found,) = (finding for finding in report.findings if finding.step == step)
    return found
