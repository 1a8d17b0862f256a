"""How much the memory of a process grew in a run, and for how long that was measured."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from loadtests.stress.measures import Row
from loadtests.stress.shapes import Plan

__all__ = ["Growth", "growth_of", "lower_envelope", "settled", "slope"]

Points: TypeAlias = Sequence[tuple[float, float]]

_FEW = 4  # with fewer points there is no slope
_WINDOW_S_MAX = 10.0  # a transfer lasts a second or two, so the minimum over this time is the memory that stays
_WINDOW_S_MIN = 1.0
_PART = 0.5  # of a window, and of the time to be judged; if less was measured, the rest may hide a leak


@dataclass(frozen=True, slots=True)
class Growth:
    """The growth of a process's memory. `measured_s`: between the first and the last point with the same load.

    `problem` says why this is no measurement; the other figures are then 0.
    """

    bytes_per_s: float = 0.0
    mean_bytes: float = 0.0
    measured_s: float = 0.0
    problem: str = ""

    @property
    def percent_per_minute(self) -> float:
        """The growth, as a share of the memory in use."""
        return self.bytes_per_s * 60 / self.mean_bytes * 100 if self.mean_bytes else 0.0

    @property
    def rise_bytes(self) -> float:
        """The growth over the time measured."""
        return self.bytes_per_s * self.measured_s


def slope(levels: Sequence[Points]) -> float | None:
    """Return the slope of (seconds, value) by least squares, or None if there are too few points.

    Each of `levels` is a group of points. All groups share one slope, but each has its own height.
    """
    rise = spread = 0.0
    for points in levels:
        if not points:
            continue
        mean_x = sum(x for x, _ in points) / len(points)
        mean_y = sum(y for _, y in points) / len(points)
        rise += sum((x - mean_x) * (y - mean_y) for x, y in points)
        spread += sum((x - mean_x) ** 2 for x, _ in points)
    if sum(map(len, levels)) < _FEW or not spread:
        return None
    return rise / spread


def settled(rows: Sequence[Row], plan: Plan) -> dict[tuple[str, int], list[Row]]:
    """Group the rows by the load: the loss in force, and the users wanted. More of either needs more memory.

    Rows before the plan's time to judge are left out, and so are those just after each change of the load. If a load
    comes back, its rows join the earlier ones, so that memory kept since then counts as a rise.
    """
    found: dict[tuple[str, int], list[Row]] = {}
    before, since_s = None, 0.0
    for row in rows:
        stage = plan.at(row["seconds"]) or plan.stages[-1]
        load = (str(row.get("loss", "")), stage.users)
        if before is not None and load != before:
            since_s = row["seconds"] + plan.settle_s
        before = load
        if max(plan.judged_from_s, since_s) <= row["seconds"] < plan.ends_s:
            found.setdefault(load, []).append(row)
    return found


def lower_envelope(points: Points, window_s: float) -> list[tuple[float, float]]:
    """Return the least value of each window: the memory that a process keeps, without that of transfers under way.

    A window with less than half of its points, one a second, is left out: its least value may be a peak.
    """
    windows: dict[int, list[tuple[float, float]]] = {}
    for x, y in points:
        windows.setdefault(int(x / window_s), []).append((x, y))
    return [min(part, key=lambda point: point[1]) for part in windows.values() if len(part) >= window_s * _PART]


def growth_of(process: str, rows: Sequence[Row], plan: Plan) -> Growth:
    """Return the growth of a process's memory, or why it was not measured.

    It was not measured if the process is missing in half of the rows, or has no memory there because it has ended.
    Nor if no load lasted, or came back, over half of the time to be judged: each load has a height of its own, so
    growth between two loads is not seen.
    """
    judged_s = plan.ends_s - plan.judged_from_s
    window_s = max(_WINDOW_S_MIN, min(_WINDOW_S_MAX, plan.settle_s, judged_s / (2 * _FEW)))
    levels, samples, looks = [], 0, 0
    for part in settled(rows, plan).values():
        looked = [(row["seconds"], row["kept_bytes"].get(process, 0)) for row in part]
        known = [(second, size) for second, size in looked if math.isfinite(size) and size > 0]
        looks += len(part)
        samples += len(known)
        levels.append(lower_envelope(known, window_s))
    longest_s = max((points[-1][0] - points[0][0] for points in levels if points), default=0.0)
    found = slope(levels)
    if not looks:
        return Growth(problem=f"not measured: no second of {plan.ends_s:.0f} s is late enough after a change of load")
    if samples < looks * _PART:
        return Growth(problem=f"not measured: its memory is known for {samples} of {looks} s")
    if found is None or longest_s < judged_s * _PART:
        return Growth(problem=f"not measured: {longest_s:.0f} of {judged_s:.0f} s with the same load")
    everything = [y for points in levels for _, y in points]
    return Growth(found, sum(everything) / len(everything), longest_s)
