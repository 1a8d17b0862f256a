"""Measures many rows in waves of runs. A run measures one row with one carrier. The runs of a wave transfer one after
the other, and are idle side by side."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack

import msgspec

from tests.field.measure import Run, measure_bare
from tests.field.results import Result
from tests.field.rows import Row
from tests.field.stage import start_forwarder, start_target

__all__ = ["Plan", "measure_rows"]

_STARTS = 3  # runs that start at once; a start takes mostly processor time, for three processes of Python
_KILLS = 2
_DOCTORS = 3


class Plan(msgspec.Struct, frozen=True):
    """How to measure."""

    carriers: tuple[str, ...]
    idle_s: float = 70.0
    mib: int | None = None  # at most this much each way
    side_by_side: int = 28  # runs in a wave; each takes about 200 MB


async def measure_rows(rows: Sequence[Row], plan: Plan, tell: Callable[[str], None]) -> list[Result]:
    """Measure each row with each carrier; return the results in that order. `tell` receives lines of progress."""
    with ExitStack() as stack:
        target = await asyncio.to_thread(start_target, stack)
        bare = await asyncio.to_thread(start_forwarder, stack, target)
        runs = [
            Run(row, carrier, target, mib=plan.mib, is_examined=carrier == plan.carriers[0])
            for row in rows
            for carrier in plan.carriers
        ]
        for first in range(0, len(runs), plan.side_by_side):
            wave = runs[first : first + plan.side_by_side]
            tell(f"{first} of {len(runs)} measured; next: {', '.join(_names(wave))}")
            await _measure_wave(wave, plan, bare, tell)
        return [run.result for run in runs]


def _names(runs: Iterable[Run]) -> list[str]:
    return list(dict.fromkeys(run.row.name for run in runs))


async def _measure_wave(wave: Sequence[Run], plan: Plan, bare: int, tell: Callable[[str], None]) -> None:
    try:
        await _at_most(_STARTS, (run.start for run in wave))
        machine = await measure_bare(bare, plan.mib or 32)
        for run in wave:
            await run.transfer(machine)
            tell(f"{run.row.name} {run.result.carrier}: {run.result.used} {run.result.broken or ''}")
        await asyncio.gather(*[run.stay_idle(plan.idle_s) for run in wave])
        await _at_most(_KILLS, (run.kill for run in wave))
        await _at_most(_DOCTORS, (run.examine for run in wave))
    finally:
        await _at_most(_STARTS, (run.close for run in wave))


async def _at_most(limit: int, jobs: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Run all jobs, at most `limit` at once."""
    slots = asyncio.Semaphore(limit)

    async def one(job: Callable[[], Awaitable[None]]) -> None:
        async with slots:
            await job()

    await asyncio.gather(*[one(job) for job in jobs])
