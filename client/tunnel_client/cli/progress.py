"""Says what the doctor is doing while it finds nothing for a while, so that a path that never answers is no silence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tunnel_client.cli.attaching import beside, say_to_people
from tunnel_client.doctor.findings import Report

__all__ = ["told_of_progress"]

_LOOK_S = 0.1
_QUIET_S = 2.0
_AGAIN_S = 5.0


@asynccontextmanager
async def told_of_progress(report: Report) -> AsyncIterator[None]:
    """While the block fills the report, say what is tried first, what takes 2 s or longer, and what finds nothing for
    2 s longer than it takes. A step is said before anything that it finds."""
    progress = _Progress(report)
    report.begun = progress.on_begun
    try:
        async with beside(progress.watch()):
            yield
    finally:
        report.begun = None


class _Progress:
    """Says what a report's examination does."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._is_first = True
        self._count = 0  # findings that were seen
        self._since_s = self._next_s = 0.0
        self._quiet(0.0)

    def on_begun(self, is_news: bool) -> None:
        """Say what begins, if it is the first thing, news, or takes long."""
        report = self._report
        if self._is_first or is_news or report.takes_s >= _QUIET_S:
            takes = f" for {report.takes_s:g} s" if report.takes_s else ""
            say_to_people("asking", f"{report.doing}{takes} ...")
        self._is_first = False
        self._quiet(report.takes_s, _AGAIN_S if is_news else _QUIET_S)

    async def watch(self) -> None:
        """Say now and then what is being tried, while nothing is found."""
        while True:
            await asyncio.sleep(_LOOK_S)
            count, now_s = len(self._report.findings), asyncio.get_running_loop().time()
            if count != self._count:
                self._quiet(0.0)
            elif now_s >= self._next_s:
                how = (
                    f"{now_s - self._since_s:.0f} s since the last finding" if count else "no answer yet, still trying"
                )
                say_to_people("waiting", f"{self._report.doing}: {how}")
                self._next_s += _AGAIN_S

    def _quiet(self, takes_s: float, silence_s: float = 0.0) -> None:
        self._count = len(self._report.findings)
        self._since_s = asyncio.get_running_loop().time()
        self._next_s = self._since_s + takes_s + (silence_s or _QUIET_S)
