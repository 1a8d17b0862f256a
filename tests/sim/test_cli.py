"""The commands: output as text and as JSON, the report of a failure, the table of coverage, goodput, and the demo."""

import json
from pathlib import Path

import pytest

from tests.sim import demo, world
from tests.sim.__main__ import main
from tests.sim.coverage import IMPOSSIBLE, STATES, Cells, Table
from tests.sim.faults import FaultKind
from tests.sim.goodput import GOALS, PATHS, Mode, kept
from tests.sim.runner import run_seed
from tests.sim.scenario import Scenario
from tests.sim.violation import Violation
from tunnel.core import State


def test_seeds_run_on_several_processes_and_are_summarised(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "6", "--from", "100", "--jobs", "2", "--coverage"]) == 0
    printed = capsys.readouterr().out
    assert "6 seeds, 0 failed" in printed
    assert "relay restart" in printed


def test_one_seed_is_summarised_as_json_and_traced(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--seed", "5", "--json", "--trace", str(tmp_path)]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["seeds"], summary["failed"], summary["failures"]) == (1, 0, [])
    assert (tmp_path / "seed-5.jsonl").stat().st_size > 0


def test_a_failure_names_its_seed_its_options_and_the_command_to_repeat_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise Violation("a byte was lost")

    monkeypatch.setattr(world, "judge", broken)
    assert main(["--seed", "3"]) == 1
    printed = capsys.readouterr().out
    assert "seed 3 FAILED" in printed
    assert "a byte was lost" in printed
    assert "node 0: client-0" in printed
    assert "python -m tests.sim --seed 3" in printed


def test_an_exception_of_the_code_under_test_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Scenario) -> int:
        raise KeyError("lost")

    monkeypatch.setattr(Scenario, "natural_end_us", broken)
    assert "KeyError" in run_seed(3).failure


def test_the_coverage_table_lists_its_holes() -> None:
    table, cells = Table(), Cells()
    assert len(table.holes()) == len(FaultKind) * len(STATES) - len(IMPOSSIBLE)
    cells.strike(FaultKind.PAUSED, [State.OPEN, State.OPEN, State.CLOSED])
    table.add(cells.plain(), 1000, 2)
    assert f"{FaultKind.PAUSED.value} x {State.OPEN.value}" not in table.holes()
    row = table.as_json()[FaultKind.PAUSED.value]
    assert (row["strikes"], row[State.OPEN.value], row["bytes"], row["connections"]) == (1, 2, 1000, 2)
    assert "endpoint paused" in table.render()


@pytest.mark.parametrize("mode", GOALS, ids=lambda mode: mode.name)
def test_an_upload_reaches_the_goals_for_goodput_on_the_reference_path(mode: Mode) -> None:
    for rate, goal in mode.goals.items():
        assert kept(next(iter(PATHS)), mode, rate, upload=True, seeds=(1,)) >= goal


def test_the_demo_draws_its_picture_and_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    plan = demo.demo_scenario(7).plan
    caused = {*plan.rates} | {each.kind for each in plan.windows} | {each.kind for each in plan.moments}
    assert {*demo.MARKS} == caused
    assert demo.main([]) == 0
    printed = capsys.readouterr().out
    assert "OK: every byte" in printed
    assert "\x1b" not in printed
