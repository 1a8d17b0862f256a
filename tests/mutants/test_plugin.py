"""The mutants of a tiny project: some are noticed, one is not, one never ends, and one is never reached."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from loadtests.harness.tree import python_path
from tests.mutants.__main__ import PYTEST
from tests.mutants.plugin import CLEANING, Outcome
from tests.mutants.tree import mutated
from tests.mutants.verdicts import changes

ROOT = Path(__file__).resolve().parents[2]
SOURCE = """
def count(limit):
    number = 0
    while number < limit:
        number += 1
    return number


def unused(number):
    return number + 1
"""
TESTS = """
from box import count


def test_it_counts():
    assert count(2) == 2
"""


def run(folder: Path, tests: str, *before: str) -> tuple[int, dict[str, str]]:
    """The exit code of pytest, and the outcome of each change. `before`: other files of tests, which run first."""
    text, names = mutated("box.py", SOURCE)
    (folder / "box.py").write_text(text)
    (folder / "test_box.py").write_text(tests)
    (folder / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    plan, results = folder / "plan.json", folder / "results.jsonl"
    plan.write_text(json.dumps([{"module": "box", "own_tests": "test_box", "mutants": names}]))
    options = [f"--mutants-plan={plan}", f"--mutants-results={results}", "--mutants-cpu=0", "--mutants-children=2"]
    command = [sys.executable, "-m", "pytest", *PYTEST, *options, *before, "test_box.py"]
    done = subprocess.run(
        command, cwd=folder, env={"PYTHONPATH": python_path()}, capture_output=True, text=True, timeout=500, check=False
    )
    lines = results.read_text().splitlines() if results.exists() else []
    found = {line["mutant"]: line["outcome"] for line in map(json.loads, lines)}
    words = changes(text)
    return done.returncode, {words[name]: outcome for name, outcome in found.items()}


@pytest.mark.timeout(600)  # it burns some seconds of CPU, which a busy machine may not have at once
def test_mutants_are_killed_survive_time_out_or_are_never_reached(tmp_path: Path) -> None:
    code, found = run(tmp_path, TESTS)
    assert code == 0
    assert found["count: 0 => 1 #1"] == Outcome.SURVIVED
    assert found["count: < => <= #1"] == Outcome.KILLED
    assert found["count: += => -= #1"] == Outcome.TIMEOUT
    assert found["count: 0 => None #1"] == Outcome.KILLED
    assert found["unused: + => - #1"] == Outcome.UNREACHED


def test_a_test_that_fails_without_a_mutant_ends_the_run(tmp_path: Path) -> None:
    code, found = run(tmp_path, TESTS.replace("== 2", "== 3"))
    assert code != 0
    assert not found


def test_a_test_with_fixtures_may_follow_one_of_another_file_and_a_plain_one(tmp_path: Path) -> None:
    """pytest would refuse to set it up while the first file, which it still knows, waits to be torn down."""
    (tmp_path / "test_a.py").write_text("def test_first(tmp_path):\n    pass\n\ndef test_second():\n    pass\n")
    code, found = run(tmp_path, TESTS.replace("it_counts()", "it_counts(tmp_path)"), "test_a.py")
    assert code == 0
    assert found["count: < => <= #1"] == Outcome.KILLED


def test_no_fixture_of_all_tests_keeps_them_from_being_just_called(request: pytest.FixtureRequest) -> None:
    """Ten times as long would be spent on each test of each mutant."""
    assert set(request.fixturenames) - {"request"} <= CLEANING
