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
    2 s longer than it takes."""
    async with beside(_tell(report)):
        yield


async def _tell(report: Report) -> None:
    now = asyncio.get_running_loop().time
    said, count, since_s, next_s = "", 0, now(), _QUIET_S
    while True:
        if len(report.findings) != count:
            count, since_s, next_s = len(report.findings), now(), _QUIET_S
        if report.doing != said:
            if not said or report.is_news or report.takes_s >= _QUIET_S:
                takes = f" for {report.takes_s:g} s" if report.takes_s else ""
                say_to_people("asking", f"{report.doing}{takes} ...")
            said, since_s, next_s = report.doing, now(), report.takes_s + _QUIET_S
        elif now() - since_s >= next_s:
            how = f"{now() - since_s:.0f} s since the last finding" if count else "no answer yet, still trying"
            say_to_people("waiting", f"{report.doing}: {how}")
            next_s += _AGAIN_S
        await asyncio.sleep(_LOOK_S)
