"""Combines the rows of a run for `gates` and `page`: one row per second over all processes, and goodput by step."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from loadtests.stress.measures import Row, read_rows

__all__ = ["Outcome", "read_outcome", "without_summary"]

_SUMMED = (
    "connections",
    "users",
    "send_queue_bytes",
    "unsent_bytes",
    "receive_queue_bytes",
    "unreceipted_batches",
    "in_flight_packets",
    "moved_bytes",
    "trace_queue_records",
)
_LARGEST = ("rto_ms", "rto_ms_max", "srtt_ms", "backoff_max")


class Outcome:
    """The combined measures of a run.

    `rows` has one row per second, `summary` the totals and leftovers at the end, `objects` the rows that also count
    objects by type, and `steps` one (loss, seconds, goodput in bytes per second) for each stretch of equal loss.
    """

    def __init__(self, rows: list[Row], summary: Row, objects: list[Row]) -> None:
        self.rows = rows
        self.summary = summary
        self.objects = objects
        self.steps = _steps(rows)

    @property
    def resent(self) -> dict[str, int]:
        """Retransmissions by cause over the run, including those of connections that have ended."""
        found: dict[str, int] = {}
        for row in self.rows:
            for cause, count in row["resent_new"].items():
                found[cause] = found.get(cause, 0) + count
        return found


def without_summary(directory: Path) -> list[int]:
    """Return the ids of the processes that have written measures, but no summary so far."""
    measured, ended = ({_pid(file) for file in directory.glob(f"{name}-*.jsonl")} for name in ("process", "summary"))
    return sorted(measured - ended)


def _pid(file: Path) -> int:
    return int(file.stem.rpartition("-")[2])


def read_outcome(directory: Path) -> Outcome:
    """Read the files of a run. Raise ValueError if there are none, or if a process wrote no summary."""
    if lost := without_summary(directory):
        raise ValueError(
            f"no summary of process {', '.join(map(str, lost))} in {directory}: it ended before it could write one"
        )
    processes, world = read_rows(directory, "process"), read_rows(directory, "world")
    summaries = read_rows(directory, "summary")
    if not processes or not summaries:
        raise ValueError(f"no measures in {directory}: the run ended before it could write them")
    began = processes[0]["time_s"]
    seconds: defaultdict[int, dict[int, Row]] = defaultdict(dict)
    for row in processes:
        seconds[int(row["time_s"] - began)][row["pid"]] = row
    weather = {int(row["time_s"] - began): row for row in world}
    pids = sorted({row["pid"] for row in processes})
    names = {pid: f"users {number}" if len(pids) > 1 else "users" for number, pid in enumerate(pids)}
    rows: list[Row] = []
    resent: dict[int, dict[str, int]] = {}
    latest: Row = {}
    for second in sorted(seconds):
        latest = weather.get(second, latest)
        rows.append(_second(second, seconds[second], latest, resent, names))
    objects = [row for row in processes if "objects" in row]
    return Outcome(rows, _sum_up(summaries), objects)


def _second(
    second: int, processes: dict[int, Row], weather: Row, resent: dict[int, dict[str, int]], names: dict[int, str]
) -> Row:
    found: Row = {"seconds": float(second), "loss": weather.get("loss", ""), "rss_bytes": {}, "descriptors": {}}
    for name in _SUMMED:
        found[name] = sum(row.get(name, 0) for row in processes.values())
    for name in _LARGEST:
        found[name] = max((row.get(name, 0) for row in processes.values()), default=0)
    for pid, row in processes.items():
        found["rss_bytes"][names[pid]] = row["rss_bytes"]
        found["descriptors"][names[pid]] = row["descriptors"]
        found.setdefault("resent_new", {})
        _add_new(found["resent_new"], resent.get(pid, {}), row.get("resent_by_cause", {}))
        resent[pid] = row.get("resent_by_cause", {})
    for name, info in weather.get("processes", {}).items():
        found["rss_bytes"][name] = info["rss_bytes"]
        found["descriptors"][name] = info["descriptors"]
    switch = weather.get("relay", {}).get("switch", {})
    found["mailbox_bytes"] = switch.get("bytes_held", 0)
    found["unconfirmed_bytes"] = switch.get("bytes_outstanding", 0)
    found["routes"] = switch.get("routes", 0)
    return found


def _add_new(total: dict[str, int], before: dict[str, int], now: dict[str, int]) -> None:
    """Add the increase since the last row. Skip a decrease: the sum over open connections falls when one ends."""
    for cause, count in now.items():
        new = count - before.get(cause, 0)
        if new > 0:
            total[cause] = total.get(cause, 0) + new


def _steps(rows: Sequence[Row]) -> list[tuple[str, float, float]]:
    """Return each stretch of equal loss, in order. The first second of a run has no rate."""
    steps: list[tuple[str, float, float]] = []
    for before, row in pairwise(rows):
        seconds = row["seconds"] - before["seconds"]
        moved = row["moved_bytes"] - before["moved_bytes"]
        if steps and steps[-1][0] == row["loss"]:
            _, known_s, known = steps.pop()
        else:
            known_s, known = 0.0, 0.0
        steps.append((row["loss"], known_s + seconds, known + moved))
    return [(loss, seconds, moved / seconds) for loss, seconds, moved in steps if seconds]


def _sum_up(summaries: Sequence[Row]) -> Row:
    names = ("actions", "failures", "wrong", "moved_bytes", "descriptors_left", "tasks_left")
    found: Row = {name: sum(one[name] for one in summaries) for name in names}
    found["errors"] = sorted({error for one in summaries for error in one["errors"]})
    found["new_descriptors"] = [what for one in summaries for what in one["new_descriptors"]]
    actions: Row = {}
    for one in summaries:
        for name, entry in one["by_action"].items():
            known = actions.setdefault(name, {"count": 0, "failures": 0, "p50_ms": 0.0, "p99_ms": 0.0})
            for part in ("count", "failures"):
                known[part] += entry[part]
            for part in ("p50_ms", "p99_ms"):  # the worst of all processes
                known[part] = max(known[part], entry[part])
    found["by_action"] = actions
    return found
