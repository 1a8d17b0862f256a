"""The gates: limits on the measures of a run, which decide the exit code."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from loadtests.stress.measures import Row

__all__ = ["Finding", "Thresholds", "judge", "lower_envelope", "settled", "slope_percent_per_minute"]

Points: TypeAlias = Sequence[tuple[float, float]]

_MIB = 1 << 20
_MINUTE_S = 60.0
_FEW = 4  # with fewer points there is no slope
_SHORT_S = 200.0  # if memory was measured for less, its slope shows the load and not a leak
_SETTLED_S = 30.0  # after a change of the loss; by then, transfers have finished most of their retransmissions
_WINDOW_S = 10.0  # a transfer lasts a second or two, so the minimum over this time is the memory that stays


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The limits of a good run. The slope is that of resident memory, without the ramp."""

    failures: int = 0  # failed user actions, at most
    slope_percent: float = 1.0  # per minute, at most
    slope_floor_bytes: int = 4 * _MIB  # a smaller total rise is noise of the allocator
    short_floor_bytes: int = 32 * _MIB  # the same for short runs, where the rising loss needs more memory
    descriptors_left: int = 0
    tasks_left: int = 0
    actions: int = 1  # at least; a run without actions proves nothing
    connections: int = 0  # open at once, at least


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one gate."""

    name: str
    found: str
    limit: str
    ok: bool


def slope_percent_per_minute(levels: Sequence[Points]) -> float:
    """Return the slope of (seconds, value) by least squares, in percent of the mean value per minute.

    Each of `levels` is a group of points. All groups share one slope, but each has its own height.
    """
    count = sum(map(len, levels))
    rise = spread = total = 0.0
    for points in levels:
        if not points:
            continue
        mean_x = sum(x for x, _ in points) / len(points)
        mean_y = sum(y for _, y in points) / len(points)
        rise += sum((x - mean_x) * (y - mean_y) for x, y in points)
        spread += sum((x - mean_x) ** 2 for x, _ in points)
        total += sum(y for _, y in points)
    if count < _FEW or not spread or not total:
        return 0.0
    return rise / spread * _MINUTE_S / (total / count) * 100


def settled(rows: Sequence[Row], judged_from_s: float) -> dict[str, list[Row]]:
    """Group the rows by the loss in force, because more loss is more load and needs more memory.

    Rows before `judged_from_s` are left out, and so are those just after each change of the loss. If a loss comes back,
    its rows join the earlier ones, so that memory kept since then counts as a rise.
    """
    found: dict[str, list[Row]] = {}
    before, since_s = None, 0.0
    for row in rows:
        loss = row.get("loss", "")
        if before is not None and loss != before:
            since_s = row["seconds"] + _SETTLED_S
        before = loss
        if row["seconds"] >= max(judged_from_s, since_s):
            found.setdefault(loss, []).append(row)
    return found


def lower_envelope(points: Points) -> list[tuple[float, float]]:
    """Return the least value of each window: the memory that a process keeps, without that of transfers under way."""
    least: dict[int, tuple[float, float]] = {}
    for x, y in points:
        window = int(x / _WINDOW_S)
        if window not in least or y < least[window][1]:
            least[window] = (x, y)
    return list(least.values())


def _memory_of(process: str, rows: Sequence[Row]) -> list[tuple[float, float]]:
    known = [(row["seconds"], row["rss_bytes"][process]) for row in rows if process in row.get("rss_bytes", {})]
    return lower_envelope(known)


def judge(rows: Sequence[Row], summary: Row, thresholds: Thresholds, judged_from_s: float) -> list[Finding]:
    """Return the results of all gates.

    Each row has the seconds since the start, and the memory of each process in `rss_bytes`.
    """
    actions, failures = summary["actions"], summary["failures"]
    findings = [
        Finding("user actions", f"{actions:,}", f"at least {thresholds.actions:,}", actions >= thresholds.actions),
        Finding(
            "failed user actions",
            f"{failures:,}",
            f"at most {thresholds.failures:,}",
            failures <= thresholds.failures,
        ),
        Finding("wrong bytes", f"{summary['wrong']:,}", "none", not summary["wrong"]),
    ]
    if thresholds.connections:
        most = max((row["connections"] for row in rows), default=0)
        wanted = f"at least {thresholds.connections:,}"
        findings.append(Finding("connections at once", f"{most:,}", wanted, most >= thresholds.connections))
    for process in sorted({name for row in rows for name in row.get("rss_bytes", {})}):
        levels = [_memory_of(process, part) for part in settled(rows, judged_from_s).values()]
        points = sorted(point for level in levels for point in level)
        slope = slope_percent_per_minute(levels)
        measured_s = points[-1][0] - points[0][0] if points else 0.0
        rise = slope / 100 * points[0][1] * measured_s / _MINUTE_S if points else 0.0
        floor_bytes = thresholds.short_floor_bytes if measured_s < _SHORT_S else thresholds.slope_floor_bytes
        findings.append(
            Finding(
                f"memory of {process}",
                f"{slope:+.2f} % per minute",
                f"at most {thresholds.slope_percent:g} %, or {floor_bytes // _MIB} MiB in total",
                slope <= thresholds.slope_percent or rise <= floor_bytes,
            )
        )
    for name, limit in (("descriptors", thresholds.descriptors_left), ("tasks", thresholds.tasks_left)):
        left = summary[f"{name}_left"]
        findings.append(Finding(f"{name} left at the end", f"{left}", f"at most {limit}", left <= limit))
    return findings
