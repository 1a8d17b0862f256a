"""Says what the doctor is doing while it finds nothing for a while, so that a path that never answers is no silence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tunnel_client.cli.attaching import beside, say_to_people
from tunnel_client.doctor.findings import Report

__all__ = ["told_of_progress"]

_LOOK_S = 0.1
_SILENT_S = 5.0


@asynccontextmanager
async def told_of_progress(report: Report) -> AsyncIterator[None]:
    """While the block fills the report, say what is tried first, and again when nothing is found for 5 s."""
    async with beside(_tell(report)):
        yield


async def _tell(report: Report) -> None:
    now = asyncio.get_running_loop().time
    count, since_s, next_s = -1, now(), 0.0
    is_first = True
    while True:
        if len(report.findings) != count:
            count, since_s, next_s = len(report.findings), now(), _SILENT_S
        if is_first and report.doing:
            is_first = False
            say_to_people("asking", f"{report.doing} ...")
        if now() - since_s >= next_s:
            say_to_people("waiting", f"{report.doing}: nothing found for {now() - since_s:.0f} s, still trying")
            next_s += _SILENT_S
        await asyncio.sleep(_LOOK_S)
