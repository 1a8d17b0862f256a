"""The gates: limits on the measures of a run, which decide the exit code.

A gate whose measure is missing is broken, and says "not measured".
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loadtests.harness.losses import parse_model
from loadtests.stress.memory import growth_of
from loadtests.stress.objects import TOLERANCE, left_over
from loadtests.stress.outcome import Outcome
from loadtests.stress.repairs import KINDS, why_not_expected
from loadtests.stress.shapes import Plan
from loadtests.stress.world import COUNTED, SERVERS

__all__ = ["Finding", "Thresholds", "judge"]

_MIB = 1 << 20
_SHORT_S = 400.0  # if memory was measured for less, its slope shows the first minute, in which pools are filled
_SHOWN = 3  # types of objects in a finding


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The limits of a good run.

    A memory that grows by less than the floor is good, whatever the slope. In a short run the floor is higher: twice
    what users, relay and exit grew without a leak. The relay remembers routes for 60 s, and pools are filled for the
    first time.
    """

    slope_percent: float = 1.0  # per minute, at most
    slope_floor_bytes: int = 4 * _MIB  # a smaller total rise is noise of the allocator
    short_floor_bytes: int = 24 * _MIB
    descriptors_left: int = 0  # in a process with users
    server_descriptors_left: int = 4  # connections that relay, exit and proxy keep open among themselves
    connections: int = 0  # open at once, at least
    processes: int = 1  # with users


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one gate."""

    name: str
    found: str
    limit: str
    ok: bool


def judge(outcome: Outcome, plan: Plan, thresholds: Thresholds) -> list[Finding]:
    """Return the results of all gates."""
    return [
        *_actions(outcome, thresholds),
        *_memory(outcome, plan, thresholds),
        *_leftovers(outcome, thresholds),
        *_losses(outcome, plan),
        *_repairs(outcome, plan),
    ]


def _at_most(name: str, found: int, limit: int) -> Finding:
    return Finding(name, f"{found:,}", f"at most {limit:,}" if limit else "none", found <= limit)


def _at_least(name: str, found: int, limit: int) -> Finding:
    return Finding(name, f"{found:,}", f"at least {limit:,}", found >= limit)


def _actions(outcome: Outcome, thresholds: Thresholds) -> Iterator[Finding]:
    summary = outcome.summary
    yield _at_least("processes with users", summary["processes"], thresholds.processes)
    yield _at_least("user actions", summary["actions"], 1)
    done = {name for name, entry in summary["by_action"].items() if entry["count"] > entry["failures"]}
    idle = sorted(kind for kind, names in summary["kinds"].items() if not done & set(names))
    yield Finding("kinds of users without an action", ", ".join(idle) or "none", "none", not idle)
    yield _at_most("failed user actions", summary["failures"], 0)
    yield _at_most("wrong bytes", summary["wrong"], 0)
    if thresholds.connections:
        most = max((row["connections"] for row in outcome.rows), default=0)
        yield _at_least("connections at once", most, thresholds.connections)


def _memory(outcome: Outcome, plan: Plan, thresholds: Thresholds) -> Iterator[Finding]:
    users = {name for row in outcome.rows for name in row["kept_bytes"] if name.startswith("users")}
    for process in sorted(users or {"users"}) + list(SERVERS):
        growth = growth_of(process, outcome.rows, plan)
        floor_bytes = thresholds.short_floor_bytes if growth.measured_s < _SHORT_S else thresholds.slope_floor_bytes
        limit = f"at most {thresholds.slope_percent:g} % per minute, or {floor_bytes // _MIB} MiB in total"
        if growth.problem:
            yield Finding(f"memory of {process}", growth.problem, limit, ok=False)
            continue
        is_small = growth.percent_per_minute <= thresholds.slope_percent or growth.rise_bytes <= floor_bytes
        text = f"{growth.percent_per_minute:+.2f} % per minute, {growth.rise_bytes / _MIB:+.1f} MiB"
        yield Finding(f"memory of {process}", f"{text} in {growth.measured_s:.0f} s", limit, is_small)


def _leftovers(outcome: Outcome, thresholds: Thresholds) -> Iterator[Finding]:
    summary = outcome.summary
    yield _at_most("descriptors left in users", summary["descriptors_left"], thresholds.descriptors_left)
    yield _at_most("tasks left in users", summary["tasks_left"], 0)
    before, after = (outcome.end.get(f"processes_{when}", {}) for when in ("before", "after"))
    for name in SERVERS:
        limit = thresholds.server_descriptors_left
        if name in before and name in after:
            left = after[name]["descriptors"] - before[name]["descriptors"]
            yield _at_most(f"descriptors left in {name}", max(0, left), limit)
        else:
            yield Finding(f"descriptors left in {name}", "not measured", f"at most {limit}", ok=False)
    routes = outcome.end.get("relay", {}).get("switch", {}).get("routes")
    yield Finding("routes left at the relay", "not measured" if routes is None else f"{routes:,}", "none", routes == 0)
    users = {name for name in outcome.objects if name not in COUNTED}
    expected = [f"users {number}" for number in range(summary["processes"])] if summary["processes"] > 1 else ["users"]
    for process in [*sorted(users | set(expected)), *COUNTED]:
        processes = 1 if process in users else max(1, summary["processes"])
        limit_text = f"at most {TOLERANCE * processes} of a type more than before the load"
        if process not in outcome.objects:
            yield Finding(f"objects left in {process}", "not measured", limit_text, ok=False)
            continue
        population = outcome.objects[process]
        left = left_over(population.before, population.after, processes)
        shown = [f"{kind} {was:,} to {now:,}" for kind, (was, now) in list(left.items())[:_SHOWN]]
        total = f"{sum(population.before.values()):,} before, {sum(population.after.values()):,} after"
        yield Finding(f"objects left in {process}", "; ".join([total, *shown]), limit_text, not left)


def _losses(outcome: Outcome, plan: Plan) -> Iterator[Finding]:
    lossy = list(dict.fromkeys(loss for loss, _ in plan.losses if parse_model(loss).share))
    if lossy:
        lost = {loss: outcome.lost_by_loss.get(loss, 0) for loss in lossy}
        text = ", ".join(f"{count:,} at {loss}" for loss, count in lost.items())
        yield Finding("packets lost at the relay", text, "some at each loss", all(lost.values()))


def _repairs(outcome: Outcome, plan: Plan) -> Iterator[Finding]:
    found = outcome.resent_by_loss
    users: Sequence[str] = list(outcome.summary["kinds"])
    for cause, name in KINDS.items():
        counts = {loss: by_cause[cause] for loss, by_cause in found.items() if by_cause.get(cause)}
        text = ", ".join(f"{count:,} at {loss or '?'}" for loss, count in counts.items()) or "none"
        reason = why_not_expected(cause, plan, users)
        limit = f"not expected: {reason}" if reason else "some"
        yield Finding(f"repairs by {name}", text, limit, bool(counts or reason))
