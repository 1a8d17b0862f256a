"""A recorded run without any fault, for tests that change one measure of it."""

from collections.abc import Callable

from loadtests.stress.measures import Row
from loadtests.stress.outcome import Outcome, Population
from loadtests.stress.shapes import Plan, make_plan
from loadtests.stress.world import SERVERS

__all__ = ["MIB", "PLAN", "good_run"]

MIB = 1 << 20
LOSSES = ["0", "0.01", "0.2"]
PLAN: Plan = make_plan("steps", 50, 240, LOSSES)
PROCESSES = ("users", *SERVERS)
REPAIRS = ("retransmit_reordered", "pto_probe", "retransmit_timeout")


def rows(memory: Callable[[str, int], float], plan: Plan = PLAN) -> list[Row]:
    """Return a row for each second; `memory` returns the bytes of a process at a second."""
    found = []
    for second in range(int(plan.ends_s)):
        stage = plan.at(second)
        assert stage is not None
        is_lossy = stage.loss != "0"
        row: Row = {
            "seconds": float(second),
            "loss": stage.loss,
            "connections": 90,
            "moved_bytes": 1000 * second,
            "kept_bytes": {process: memory(process, second) for process in PROCESSES},
            "resent_new": dict.fromkeys(REPAIRS, 1) if is_lossy else {},
            "lost_new": 5 if is_lossy else 0,
        }
        found.append(row)
    return found


def good_run(memory: Callable[[str, int], float] = lambda process, second: 100.0 * MIB, plan: Plan = PLAN) -> Outcome:
    """Return a run in which every gate holds, with this memory."""
    summary: Row = {
        "processes": 1,
        "actions": 10,
        "failures": 0,
        "wrong": 0,
        "descriptors_left": 0,
        "tasks_left": 0,
        "kinds": {"EchoUser": ["echo"], "BulkUser": ["upload", "download"]},
        "by_action": {name: {"count": 5, "failures": 0} for name in ("echo", "upload")},
    }
    before = {name: {"descriptors": 20} for name in SERVERS}
    end: Row = {"processes_before": before, "processes_after": before, "relay": {"switch": {"routes": 0}}}
    counts = {"tunnel.core.connection.Connection": 7}
    objects = {name: Population(counts, counts, dict(counts)) for name in ("users", "relay", "exit")}
    return Outcome(rows(memory, plan), summary, objects, end)
