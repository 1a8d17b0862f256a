"""The stress run: `python -m loadtests.stress`.

It runs Locust, judges the gates (limits on the measures), and writes a page and, with --trace, a report of the traces.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from loadtests.harness.losses import parse_model
from loadtests.harness.names import AddNames
from loadtests.harness.tree import ROOT
from loadtests.stress.gates import Finding, Thresholds, judge
from loadtests.stress.outcome import Outcome, read_outcome, without_summary
from loadtests.stress.page import render
from loadtests.stress.shapes import SHAPES, Plan, make_plan

__all__ = ["main"]

BROKEN, USAGE = 1, 2
_MARK = "of-a-stress-run"  # the name of a file in a directory that a run may replace
_WORLD = ("TUNNEL_RELAY", "STRESS_TARGET")
_END_S = 60.0  # the longest wait for the users to close their connections


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 if every gate held, 1 if one broke or the report failed, 2 if the run could not be carried out."""
    arguments = _parser().parse_args(argv)
    # Locust and its users run in the directory of the sources, but a relative name refers to the caller's directory.
    directory: Path = arguments.measures.resolve()
    arguments.measures = directory
    try:
        plan = _prepared(arguments)
    except (OSError, ValueError) as error:
        print(f"stress: {error}", file=sys.stderr)
        return USAGE
    command = _locust(arguments)
    print(shlex.join(command), flush=True)
    environment = os.environ | ({"STRESS_CROWD": str(arguments.each)} if arguments.each else {})
    code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    if code:
        print(f"stress: locust ended with exit code {code}", file=sys.stderr)
        return USAGE
    _wait_for_users(directory)
    try:
        outcome = read_outcome(directory)
    except ValueError as error:
        print(f"stress: {error}", file=sys.stderr)
        return USAGE
    count = arguments.processes if arguments.processes > 0 else os.cpu_count() or 1
    findings = judge(outcome, plan, Thresholds(connections=arguments.min_connections, processes=count))
    page = directory / "stress.html"
    page.write_text(render(outcome, findings, shlex.join(command)), encoding="utf-8")
    _tell(outcome, findings, page, as_json=arguments.json)
    reported = _report(directory) if arguments.trace else 0
    return BROKEN if reported or not all(finding.ok for finding in findings) else 0


def _prepared(arguments: argparse.Namespace) -> Plan:
    """Return the plan of a run, and empty its directory. Raise ValueError or OSError if the run is impossible."""
    if all(os.environ.get(name) for name in _WORLD):
        raise ValueError(
            f"{' and '.join(_WORLD)} name running servers, but the gates measure those that a run starts itself: unset "
            "both, or run locust, which has no gates (docs/LOADTESTS.md)"
        )
    losses = [loss for loss in arguments.losses.split(",") if loss]
    for loss in losses:
        parse_model(loss)
    plan = make_plan(arguments.shape, arguments.crowd, arguments.seconds, losses)
    _make_empty(arguments.measures)
    return plan


def _wait_for_users(directory: Path) -> None:
    """Wait for the summary of every process: Locust's first process ends before the others have closed their
    connections."""
    deadline = time.monotonic() + _END_S
    while without_summary(directory) and time.monotonic() < deadline:
        time.sleep(0.2)


def _make_empty(directory: Path) -> None:
    """Make the directory of a run, in place of that of an earlier run. Raise OSError if its files are not of a run."""
    is_of_a_run = (directory / _MARK).exists() or any(directory.glob("process-*.jsonl"))
    if directory.exists() and not is_of_a_run and (not directory.is_dir() or any(directory.iterdir())):
        raise FileExistsError(f"{directory} holds files that are not of a stress run: name a new or an empty directory")
    if directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    (directory / _MARK).touch()


def _locust(arguments: argparse.Namespace) -> list[str]:
    directory: Path = arguments.measures
    command = [sys.executable, "-m", "locust", "-f", str(ROOT / "loadtests" / "stress" / "locustfile.py"), "--headless"]
    command += ["--only-summary", "--html", str(directory / "locust.html"), "--json-file", str(directory / "locust")]
    for name in ("shape", "crowd", "seconds", "losses", "weather", "seed"):
        command += [f"--{name}", str(getattr(arguments, name))]
    command += ["--measures", str(directory)]
    if arguments.trace:
        command += ["--trace", str(directory / "traces")]
    if arguments.relay_config:
        command += ["--relay-config", str(Path(arguments.relay_config).resolve())]
    if arguments.processes != 1:
        command += ["--processes", str(arguments.processes)]
    return command + [name for name in arguments.only.split(",") if name]


def _tell(outcome: Outcome, findings: Sequence[Finding], page: Path, *, as_json: bool) -> None:
    if as_json:
        steps = [{"loss": loss, "seconds": length, "goodput": rate} for loss, length, rate in outcome.steps]
        gates = [asdict(finding) for finding in findings]
        print(json.dumps({"gates": gates, "steps": steps, "summary": outcome.summary, "resent": outcome.resent}))
        return
    print("\ngoodput by step")
    for loss, length, rate in outcome.steps:
        print(f"  loss {loss or '?':>6}  {length:6,.0f} s  {rate / 1e6:8.2f} MB/s")
    for error in outcome.summary["errors"]:
        print(f"  error: {error}")
    if outcome.summary["descriptors_left"]:
        print("descriptors that were opened in the run and are still open:")
        for what in outcome.summary["new_descriptors"]:
            print(f"  {what}")
    print("gates")
    for finding in findings:
        print(f"  {'held  ' if finding.ok else 'BROKEN'}  {finding.name}: {finding.found} ({finding.limit})")
    print(f"page: {page}", flush=True)


def _report(directory: Path) -> int:
    """Run the report of the traces of relay, exit, proxy and users; return its exit code."""
    report = directory / "traces.html"
    command = [
        str(Path(sys.executable).parent / "tunnel-traces"),
        "report",
        str(directory / "traces"),
        "-o",
        str(report),
    ]
    print(shlex.join(command), flush=True)
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.stress",
        description="Simulate users of tunnel sockets while the relay drops more and more packets. Limits (gates) "
        "decide the exit code.",
        epilog="example: python -m loadtests.stress --crowd 200 --seconds 600 --losses 0,0.01,0.05,0.1,0.2 --trace. "
        "Exit codes: 0 every gate held, 1 one broke, 2 the run could not be carried out.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--shape", choices=list(SHAPES), default="steps", help="how users and loss change in time (default: steps)"
    )
    parser.add_argument("--crowd", type=int, default=50, help="number of users (default: 50)")
    parser.add_argument("--seconds", type=float, default=120.0, help="duration of the run (default: 120)")
    parser.add_argument(
        "--losses", default="0,0.01,0.05,0.1,0.2", help="shares of packets that the relay drops, in turn"
    )
    parser.add_argument("--weather", default="--drop-response 0.01", help="options of the fault proxy")
    parser.add_argument("--seed", type=int, default=1, help="seed of the faults (default: 1)")
    parser.add_argument("--processes", type=int, default=1, help="user processes; -1: one per processor (default: 1)")
    parser.add_argument(
        "--measures",
        type=Path,
        default=Path("build/stress"),
        metavar="DIR",
        help="directory for the measures, which the next run with this directory replaces (default: build/stress)",
    )
    parser.add_argument(
        "--only",
        action=AddNames,
        default="",
        metavar="NAMES",
        help="classes of users, as in EchoUser,BulkUser (default: all)",
    )
    parser.add_argument("--each", type=int, default=0, help="connections per IdleCrowd user (default: 20)")
    parser.add_argument(
        "--min-connections", type=int, default=0, help="connections that must be open at once (default: 0)"
    )
    parser.add_argument("--relay-config", default="", metavar="FILE", help="configuration of the relay, for its limits")
    parser.add_argument("--trace", action="store_true", help="write traces, and make a report of them at the end")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
