"""The command: which rows, which output, which exit code."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.field import __main__ as command
from tests.field.results import Result
from tests.field.rows import ROWS, Row
from tests.field.waves import Plan


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Replace the measurement: every row is whole, except that "closes" is broken with poll."""
    asked: list[tuple[str, ...]] = []

    async def measure(rows: Sequence[Row], plan: Plan, tell: Callable[[str], None]) -> list[Result]:
        asked.append(tuple(row.name for row in rows))
        tell("progress")
        results = [Result(row.name, carrier) for row in rows for carrier in plan.carriers]
        for result in results:
            if (result.row, result.carrier) == ("closes", "poll"):
                result.broken = {"up": "why"}
        return results

    monkeypatch.setattr(command, "measure_rows", measure)
    monkeypatch.setattr(command, "missing_programs", lambda rows: [])
    return asked


def test_the_list_has_a_line_for_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(ROWS)


def test_a_half_is_measured_and_the_other_one_added(
    measured: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command.main(["--half", "1", "--json"])
    file = tmp_path / "half.json"
    file.write_text(capsys.readouterr().out)
    command.main(["--half", "2", "--add", str(file)])
    assert measured[0] + measured[1] == tuple(row.name for row in ROWS)
    assert f"{2 * len(ROWS)} results" in capsys.readouterr().out


def test_whole_rows_are_exit_code_0(capsys: pytest.CaptureFixture[str], measured: list[tuple[str, ...]]) -> None:
    assert command.main(["--only", "closes,direct", "--carrier", "auto"]) == 0
    out, err = capsys.readouterr()
    assert "no intermediary" in out
    assert err == ""  # progress is for terminals
    assert measured == [("direct", "closes")]


def test_the_rows_of_repeated_options_are_all_measured(measured: list[tuple[str, ...]]) -> None:
    command.main(["--only", "closes", "--only", "direct", "--carrier", "auto"])
    assert measured == [("direct", "closes")]


def test_a_row_that_is_not_whole_is_exit_code_1() -> None:
    assert command.main(["--only", "closes"]) == 1


def test_results_in_json_are_added_to_later_ones(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert command.main(["--only", "closes", "--carrier", "auto", "--json"]) == 0
    first = capsys.readouterr().out
    file = tmp_path / "results.json"
    file.write_text(first)
    assert command.main(["--only", "direct", "--json", "--add", str(file)]) == 0
    found = [(result["row"], result["carrier"]) for result in json.loads(capsys.readouterr().out)]
    assert found == [("direct", "auto"), ("direct", "poll"), ("closes", "auto")]


def test_a_new_result_replaces_an_earlier_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    file.write_text('[{"row": "direct", "carrier": "auto", "broken": {"up": "why"}}]')
    assert command.main(["--only", "direct", "--add", str(file)]) == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--only", "nowhere"], "no row is named nowhere"),
        (["--add", "missing.json"], "No such file"),
        (["--only", "direct", "--write"], "and apache, "),
    ],
)
def test_wrong_usage_is_explained(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(arguments) == 2
    assert text in capsys.readouterr().err


def test_a_missing_program_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "missing_programs", lambda rows: ["envoy", "mitmdump"])
    assert command.main([]) == 2
    assert "these programs are missing: envoy, mitmdump; run make field-deps" in capsys.readouterr().err


def test_the_document_is_written_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    monkeypatch.setattr(command, "write_document", lambda results, machine, date: written.append(len(results)))
    command.main(["--only", "direct"])
    assert written == []
    command.main(["--write"])
    assert written == [2 * len(ROWS)]


def test_a_known_fault_that_is_mended_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "mended", lambda results: iter(["caddy: up"]))
    assert command.main(["--only", "direct"]) == 0
    assert "still calls it known: caddy: up" in capsys.readouterr().err
