"""Runs a target in a process of its own and reads the report of that process."""

import importlib.util
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from tests.fuzz.corpus import committed
from tests.fuzz.registry import TARGETS
from tests.fuzz.worker import CRASHED, TOO_SLOW

__all__ = ["BUILD", "HEADINGS", "ROOT", "Result", "choose_engine", "parse_libfuzzer", "run_target"]

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "fuzz"  # git ignores build/
"""corpus/TARGET grows from run to run; crashes/TARGET holds inputs that broke a promise."""

HEADINGS = (
    f"{'target':<12}",
    f"{'executions':>11}",
    f"{'per second':>11}",
    f"{'edges':>6}",
    f"{'features':>9}",
    f"{'corpus':>7}",
    " verdict",
)
_STUCK_S = 1200  # Only a worker that waits for ever takes as long; the worker itself limits its processor time.
_TROUBLE_LINES = 40
_VERDICTS = {CRASHED: "CRASH", TOO_SLOW: "TOO SLOW", -signal.SIGXCPU: "HANGS"}

_STATUS = re.compile(r"^#(\d+)\s+\w+\s+cov: (\d+) ft: (\d+) corp: (\d+)/", re.MULTILINE)
_FINAL = {
    "executions": re.compile(r"^stat::number_of_executed_units: *(\d+)", re.MULTILINE),
    "per_second": re.compile(r"^stat::average_exec_per_sec: *(\d+)", re.MULTILINE),
}
_SAVED = re.compile(r"Test unit written to (\S+)")


class Result(msgspec.Struct):
    """The result of fuzzing one target. None: the engine does not report this number."""

    name: str
    engine: str
    executions: int = 0
    per_second: int = 0
    edges: int | None = None
    features: int | None = None
    corpus: int | None = None
    verdict: str = "ok"
    crashed: bool = False
    trouble: str = ""
    saved: str = ""

    @property
    def repeat_command(self) -> str:
        """The command that runs the crashing input again."""
        if not self.saved:
            return "nothing was saved"
        path = Path(self.saved)
        return f"python -m tests.fuzz --repeat {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}"

    def line(self) -> str:
        """Return this result as a row of the table."""
        cells = [f"{self.name:<12}", f"{self.executions:>11}", f"{self.per_second:>11}"]
        for number, width in ((self.edges, 6), (self.features, 9), (self.corpus, 7)):
            cells.append(f"{'-' if number is None else number:>{width}}")
        return " ".join((*cells, f" {self.verdict}"))

    def as_json(self) -> dict[str, Any]:
        """Return this result in JSON, for programs."""
        return {**msgspec.structs.asdict(self), "repeat": self.repeat_command if self.crashed else ""}


def choose_engine(by_chance: bool) -> tuple[str, str]:
    """Return the engine, and a sentence that explains the choice."""
    if by_chance:
        return "random", "seeded random inputs, as asked; nothing guides them"
    if importlib.util.find_spec("atheris") is None:
        return "random", "atheris is not installed here: seeded random inputs instead, which nothing guides"
    return "atheris", ""


def parse_libfuzzer(result: Result, report: str) -> None:
    """Fill in the numbers of a libFuzzer report."""
    rows = _STATUS.findall(report)
    if rows:
        result.executions, result.edges, result.features, result.corpus = map(int, rows[-1])
    for field, pattern in _FINAL.items():
        found = pattern.findall(report)
        if found:
            setattr(result, field, int(found[-1]))
    saved = _SAVED.findall(report)
    if saved:
        result.saved = saved[-1]


def run_target(name: str, engine: str, seconds: int, build: Path = BUILD, *, seed: int = 0) -> Result:
    """Fuzz one target; never raises, whatever the target does. Seed 0: fuzzing takes another way each time."""
    result = Result(name, engine)
    corpus, crashes = build / "corpus" / name, build / "crashes" / name
    for folder in (corpus, crashes):
        folder.mkdir(parents=True, exist_ok=True)
    for label, raw in committed(TARGETS[name]).items():
        (corpus / f"committed-{label}").write_bytes(raw)
    before = {path.name for path in crashes.iterdir()}
    numbers = [str(seconds), str(seed)]
    command = [sys.executable, "-m", "tests.fuzz.worker", name, engine, *numbers, str(corpus), str(crashes)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=seconds + _STUCK_S, cwd=ROOT, check=False)
    except subprocess.TimeoutExpired:
        result.verdict, result.crashed = "HANGS", True
        return result
    output = done.stdout.decode(errors="replace")  # atheris writes the traceback there
    report = done.stderr.decode(errors="replace")
    if engine == "atheris":
        parse_libfuzzer(result, report)
    else:
        _parse_counts(result, output)
    if done.returncode != 0:
        result.crashed = True
        result.verdict = _VERDICTS.get(done.returncode, f"FAILED with exit code {done.returncode}")
        result.trouble = _trouble(f"{output}\n{report}")
        new = sorted(path.name for path in crashes.iterdir() if path.name not in before)
        result.saved = result.saved or (str(crashes / new[0]) if new else "")
    return result


def _parse_counts(result: Result, output: str) -> None:
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if lines:
        counts = json.loads(lines[-1])
        result.executions, result.per_second = counts["executions"], counts["per_second"]


def _trouble(report: str) -> str:
    """Return the traceback from a report that is full of progress messages."""
    lines = [line for line in report.splitlines() if not line.startswith(("#", "stat::", "INFO:"))]
    starts = [number for number, line in enumerate(lines) if line.startswith("Traceback") or "Uncaught" in line]
    lines = lines[starts[0] :] if starts else lines
    ends = [number for number, line in enumerate(lines) if line.startswith(("WARNING:", "==")) and starts]
    lines = lines[: ends[0]] if ends else lines
    return "\n".join(lines[:_TROUBLE_LINES])
