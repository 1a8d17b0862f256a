"""`python -m tests.sim`: run seeds, print failures and how to repeat them; tables of coverage and of goodput."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any

from tests.sim import goodput, several
from tests.sim.clock import SECOND
from tests.sim.coverage import Table
from tests.sim.runner import Outcome, run_seeds

__all__ = ["main"]

_OF_ONE_RELAY = ("hostile", "encrypted", "streamed", "ladder", "general_way", "trace", "coverage", "goodput", "json")
SEEDS_THAT_COVER = 2000  # with this many seeds, a hole in the table of coverage is a failure


def main(arguments: list[str] | None = None) -> int:
    """Return 1 if a promise was broken, the table has a hole, or a goal for goodput was missed; otherwise 0."""
    options = _parse(arguments)
    if options.goodput:
        return goodput.main(as_json=options.json)
    first, count = (options.seed, 1) if options.seed is not None else (options.first, options.seeds)
    if options.relays > 1:
        return several.main(first, count, options.relays, options.jobs)
    started = time.monotonic()
    outcomes, table = [], Table()
    for outcome in run_seeds(first, count, options.jobs, options.trace or "", **_additions(options)):
        outcomes.append(outcome)
        table.add(outcome.cells, outcome.delivered_bytes, outcome.connections)
        if outcome.failure and not options.json:
            print(outcome.report(), flush=True)
        elif sys.stderr.isatty():
            print(f"\rseed {outcome.seed}", end="", file=sys.stderr)
    failed = [outcome for outcome in outcomes if outcome.failure]
    holes = table.holes() if options.coverage and count >= SEEDS_THAT_COVER else []
    summary = _summary(outcomes, len(failed), time.monotonic() - started)
    if options.json:
        print(json.dumps(_as_json(summary, failed, table if options.coverage else None, holes)))
    else:
        if options.seed is not None and not failed:
            print("\n".join(outcomes[0].options))
        if options.coverage:
            print(table.render())
            print("".join(f"not covered: {hole}\n" for hole in holes), end="")
        print(_words(summary))
    return 1 if failed or holes else 0


def _additions(options: argparse.Namespace) -> dict[str, bool]:
    additions = {name: getattr(options, name) for name in ("hostile", "encrypted", "streamed", "ladder")}
    return {**additions, "short_way": not options.general_way}


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, metavar="N", help="the number of seeds to run (default 100)")
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="S", help="the first of them (default 0)")
    parser.add_argument("--seed", type=int, metavar="S", help="run this one seed, and print its scenario")
    parser.add_argument("--hostile", action="store_true", help="add hostile users to every seed, not only to some")
    parser.add_argument("--encrypted", action="store_true", help="encrypt all streams of every seed, not only some")
    parser.add_argument(
        "--streamed",
        action="store_true",
        help="let all endpoints of every seed ask for streamed answers",
    )
    parser.add_argument("--ladder", action="store_true", help="let all endpoints of every seed move between roads")
    parser.add_argument("--general-way", action="store_true", help="let no packet take the short way through the relay")
    parser.add_argument("--relays", type=int, default=1, metavar="N", help="run seeds with N relays (several.py)")
    parser.add_argument("--trace", metavar="DIR", help="write the trace of each seed to DIR/seed-S.jsonl")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (default: all cores)"
    )
    parser.add_argument("--coverage", action="store_true", help="print fault kinds x connection states")
    parser.add_argument(
        "--goodput", action="store_true", help="instead of the checks, measure how much throughput remains under loss"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    options = parser.parse_args(arguments)
    without = [name for name in _OF_ONE_RELAY if getattr(options, name)]
    if options.relays > 1 and without:
        parser.error(f"--relays takes none of: {', '.join('--' + name.replace('_', '-') for name in without)}")
    return options


def _summary(outcomes: list[Outcome], failed: int, wall_s: float) -> dict[str, Any]:
    return {
        "seeds": len(outcomes),
        "failed": failed,
        "connections": sum(outcome.connections for outcome in outcomes),
        "exchanges": sum(outcome.exchanges for outcome in outcomes),
        "restarts": sum(outcome.restarts for outcome in outcomes),
        "encrypted": sum(outcome.encrypted for outcome in outcomes),
        "hostile_seeds": sum(outcome.hostile for outcome in outcomes),
        "hostile_acts": sum(outcome.hostile_acts for outcome in outcomes),
        "roads_tried": sum(outcome.roads_tried for outcome in outcomes),
        "roads_used": sum(outcome.roads_used for outcome in outcomes),
        "roads_left": sum(outcome.roads_left for outcome in outcomes),
        "faults": sum(row.get("", 0) for outcome in outcomes for row in outcome.cells.values()),
        "delivered_bytes": sum(outcome.delivered_bytes for outcome in outcomes),
        "virtual_s": sum(outcome.virtual_us for outcome in outcomes) // SECOND,
        "cpu_ms_mean": sum(outcome.cpu_ms for outcome in outcomes) // max(1, len(outcomes)),
        "cpu_ms_max": max((outcome.cpu_ms for outcome in outcomes), default=0),
        "wall_s": round(wall_s, 1),
    }


def _words(summary: dict[str, Any]) -> str:
    return (
        f"{summary['seeds']} seeds, {summary['failed']} failed: {summary['connections']} connections "
        f"({summary['encrypted']} encrypted), "
        f"{summary['delivered_bytes'] / 1e6:.1f} MB in {summary['exchanges']} exchanges, {summary['faults']} faults, "
        f"{summary['restarts']} relay restarts, roads tried {summary['roads_tried']} times, "
        f"used {summary['roads_used']} times and left {summary['roads_left']} times, "
        f"{summary['hostile_acts']} acts of hostile users in "
        f"{summary['hostile_seeds']} seeds, {summary['virtual_s'] / 3600:.1f} virtual hours; "
        f"{summary['wall_s']} s, {summary['cpu_ms_mean']} ms of CPU a seed (at most {summary['cpu_ms_max']})"
    )


def _as_json(summary: dict[str, Any], failed: list[Outcome], table: Table | None, holes: list[str]) -> dict[str, Any]:
    result: dict[str, Any] = dict(summary)
    result["failures"] = [
        {"seed": outcome.seed, "failure": outcome.failure, "options": outcome.options} for outcome in failed
    ]
    if table is not None:
        result["coverage"] = table.as_json()
        result["not_covered"] = holes
    return result


if __name__ == "__main__":
    sys.exit(main())
