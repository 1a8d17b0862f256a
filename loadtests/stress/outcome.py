"""Combines the rows of a run for `gates` and `page`: one row per second over all processes, and goodput by step."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from loadtests.stress.measures import Row, read_rows

__all__ = ["Outcome", "Population", "read_outcome", "without_summary"]

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
_STALE_S = 3  # a row of the servers is used for as long; later, their memory is unknown
_LARGEST = ("rto_ms", "rto_ms_max", "srtt_ms", "backoff_max")


class Outcome:
    """The combined measures of a run.

    `rows` has one row per second, in which `kept_bytes` is the memory without the bytes in the queues of users.
    `summary` has the totals and leftovers at the end, and `steps` one (loss, seconds, goodput in bytes per second) for
    each stretch of equal loss. `objects` has for each process the objects of its own types before the load, each count
    during it, and those left at the end; a process that was not counted is missing. `end` is the last row of the
    servers, when every connection has ended; empty if it is missing.
    """

    def __init__(self, rows: list[Row], summary: Row, objects: dict[str, "Population"], end: Row) -> None:
        self.rows = rows
        self.summary = summary
        self.objects = objects
        self.end = end
        self.steps = _steps(rows)

    @property
    def resent(self) -> dict[str, int]:
        """Retransmissions by cause over the run, including those of connections that have ended."""
        found: Counter[str] = Counter()
        for by_cause in self.resent_by_loss.values():
            found.update(by_cause)
        return dict(found)

    @property
    def resent_by_loss(self) -> dict[str, dict[str, int]]:
        """Retransmissions by the loss in force, and by cause."""
        found: dict[str, dict[str, int]] = {}
        for row in self.rows:
            known = found.setdefault(row["loss"], {})
            for cause, count in row["resent_new"].items():
                known[cause] = known.get(cause, 0) + count
        return found

    @property
    def lost_by_loss(self) -> dict[str, int]:
        """The packets that the relay lost on purpose, by the loss in force."""
        found: dict[str, int] = {}
        for row in self.rows:
            found[row["loss"]] = found.get(row["loss"], 0) + row["lost_new"]
        return found


@dataclass(slots=True)
class Population:
    """The objects of one process by type: before the load, the most at any count, and after the last connection."""

    before: dict[str, int]
    most: dict[str, int]
    after: dict[str, int]


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
    processes = [row for row in read_rows(directory, "process") if "error" not in row]
    world = [row for row in read_rows(directory, "world") if "error" not in row]
    ends = read_rows(directory, "end")
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
    resent: dict[int, Row] = {}
    latest: Row = {}
    looked = lost_before = 0
    for second in sorted(seconds):
        if second in weather:
            looked, latest = second, weather[second]
        is_fresh = bool(latest) and second - looked <= _STALE_S
        row = _second(second, seconds[second], latest, resent, names, is_fresh=is_fresh)
        counted = latest.get("loss_counts", {}).get("lost", lost_before)
        row["lost_new"], lost_before = max(0, counted - lost_before), counted
        rows.append(row)
    end = ends[-1] if ends else {}
    return Outcome(rows, _sum_up(summaries), _populations(processes, world, summaries, end, names), end)


def _second(
    second: int,
    processes: dict[int, Row],
    weather: Row,
    resent: dict[int, Row],
    names: dict[int, str],
    *,
    is_fresh: bool,
) -> Row:
    found: Row = {"seconds": float(second), "loss": weather.get("loss", "")}
    found |= {"rss_bytes": {}, "kept_bytes": {}, "descriptors": {}}
    for name in _SUMMED:
        found[name] = sum(row.get(name, 0) for row in processes.values())
    for name in _LARGEST:
        found[name] = max((row.get(name, 0) for row in processes.values()), default=0)
    new: Counter[str] = Counter()
    for pid, row in processes.items():
        found["rss_bytes"][names[pid]] = row["rss_bytes"]
        queues_bytes = row.get("send_queue_bytes", 0) + row.get("receive_queue_bytes", 0)
        found["kept_bytes"][names[pid]] = row["rss_bytes"] - queues_bytes
        found["descriptors"][names[pid]] = row["descriptors"]
        by_cause = row.get("resent_by_cause", {})  # a total, which only grows
        new.update(by_cause)
        new.subtract(resent.get(pid, {}))
        resent[pid] = by_cause
    found["resent_new"] = {cause: count for cause, count in new.items() if count}
    for name, info in weather.get("processes", {}).items() if is_fresh else ():
        found["rss_bytes"][name] = found["kept_bytes"][name] = info["rss_bytes"]
        found["descriptors"][name] = info["descriptors"]
    switch = weather.get("relay", {}).get("switch", {})
    found["mailbox_bytes"] = switch.get("bytes_held", 0)
    found["unconfirmed_bytes"] = switch.get("bytes_outstanding", 0)
    found["routes"] = switch.get("routes", 0)
    return found


def _populations(
    processes: Sequence[Row], world: Sequence[Row], summaries: Sequence[Row], end: Row, names: dict[int, str]
) -> dict[str, Population]:
    """Return the objects of each process of which both counts are known: before the load, and after it."""
    found: dict[str, Population] = {}
    for one in summaries:
        # Locust freezes the objects of a process with users that it forks, so that there may be none before the load.
        if "objects_before" in one and one.get("objects_after") and one.get("pid") in names:
            during = [row["objects"] for row in processes if row["pid"] == one["pid"] and "objects" in row]
            most = _most([one["objects_before"], *during])
            found[names[one["pid"]]] = Population(one["objects_before"], most, one["objects_after"])
    counts = [row["objects"] for row in world if "objects" in row]
    for name, after in end.get("objects_after", {}).items():
        if before := end.get("objects_before", {}).get(name):
            most = _most([before, *(count[name] for count in counts if name in count)])
            found[name] = Population(before, most, after)
    return found


def _most(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for count in counts:
        for kind, number in count.items():
            found[kind] = max(found.get(kind, 0), number)
    return found


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
    found["processes"] = len(summaries)
    found["kinds"] = {kind: done for one in summaries for kind, done in one["kinds"].items()}
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
