"""The result of a report is stored: a report over the same traces starts no engine."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from tests.analysis.plain import compressed, findings_and_rows, plain
from tunnel.analysis.cli import main
from tunnel.analysis.engines.failures import SetupError
from tunnel.analysis.engines.folders import LocalFolder
from tunnel.analysis.kept.intake import intake_of_all
from tunnel.analysis.kept.ledger import Intake, Ledger
from tunnel.analysis.results import result_cache
from tunnel.analysis.results.result import Analysis
from tunnel.ground.exit_codes import OK, USAGE

RESULT = Analysis(begin_us=1, end_us=7, totals={"share": 0.1, "none": None}, points={"1": [{"us": (2, 3)}]})


class Traces:
    """A directory with traces, and their tables."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.tables = directory / "_tables"
        compressed(directory, "a")
        self.take_in()

    def take_in(self) -> None:
        self.intake, _ = findings_and_rows(self.directory, self.tables)

    @property
    def ledger(self) -> Ledger:
        return Ledger(LocalFolder(self.tables))

    def store(self, result: Analysis = RESULT) -> None:
        result_cache.store(self.ledger, self.intake, "duckdb", result)

    def load(self) -> Analysis | None:
        return result_cache.load(self.ledger, self.intake, "duckdb")

    @property
    def stored(self) -> list[Path]:
        return list((self.tables / "results").iterdir())


@pytest.fixture
def traces(tmp_path: Path) -> Traces:
    return Traces(tmp_path)


def test_a_result_is_found_as_it_was_stored(traces: Traces) -> None:
    assert traces.load() is None
    traces.store()
    assert traces.load() == result_cache.as_loaded(RESULT)
    assert result_cache.as_loaded(RESULT).totals == RESULT.totals


def test_values_that_json_lacks_are_stored(traces: Traces) -> None:
    traces.store(Analysis(totals={"nan": math.nan, "inf": math.inf}))
    found = traces.load()
    assert found is not None
    assert math.isnan(found.totals["nan"])
    assert found.totals["inf"] == math.inf


def test_a_result_is_not_found_after_the_tables_have_grown(traces: Traces) -> None:
    traces.store()
    plain(traces.directory, "b.jsonl")
    before = traces.intake
    traces.take_in()
    assert traces.load() is None
    assert result_cache.load(traces.ledger, before, "duckdb") is None
    traces.store()
    assert traces.load() == result_cache.as_loaded(RESULT)
    assert len(traces.stored) == 1


def test_a_result_is_not_found_for_other_findings_about_the_files(traces: Traces) -> None:
    traces.store()
    traces.intake.files[0].problem = "corrupt"
    assert traces.load() is None


def test_a_result_of_other_code_is_not_found(traces: Traces, monkeypatch: pytest.MonkeyPatch) -> None:
    traces.store()
    with monkeypatch.context() as changed:
        changed.setattr(result_cache, "_digest_of_code_and", lambda engine: b"another version")
        assert traces.load() is None
    with monkeypatch.context() as changed:
        changed.setattr(result_cache, "_version_of", lambda engine: "0.1")
        assert traces.load() is None
    assert traces.load() is not None


def test_a_result_of_the_other_engine_is_not_found(traces: Traces) -> None:
    traces.store()
    assert result_cache.load(traces.ledger, traces.intake, "spark") is None


def test_every_module_of_the_analysis_counts_as_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module in Python, a compiled one and a query count; other files do not."""
    monkeypatch.setattr(result_cache, "files", lambda package: tmp_path)
    codes = []
    (tmp_path / "sql").mkdir()
    for name, text in (("a.py", "x"), ("a.py", "y"), ("b.so", "y"), ("sql/d.sql", "y"), ("c.txt", "z")):
        (tmp_path / name).write_text(text)
        codes.append(result_cache._digest_of_code_and("duckdb"))
    assert len(set(codes[:4])) == 4
    assert codes[4] == codes[3]


@pytest.mark.parametrize("damage", [b"", b"x", b"0\n"])
def test_a_damaged_result_is_not_found(damage: bytes, traces: Traces) -> None:
    traces.store()
    (path,) = traces.stored
    whole = path.read_bytes()
    for content in (damage, whole[:-1], whole[:-1] + b"\0"):
        path.write_bytes(content)
        assert traces.load() is None
    path.write_bytes(whole)
    assert traces.load() is not None


def test_a_failure_to_write_a_result_is_ignored(traces: Traces, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: LocalFolder, name: str, content: bytes) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(LocalFolder, "put_if_absent", full)
    traces.store()
    assert traces.load() is None


def intake_now(traces: Traces) -> Intake | None:
    return intake_of_all(LocalFolder(traces.directory), traces.ledger)


def test_findings_are_complete_only_without_new_files(traces: Traces) -> None:
    assert intake_now(traces) == traces.intake
    path = plain(traces.directory, "b.jsonl")
    assert intake_now(traces) is None
    traces.take_in()
    assert intake_now(traces) == traces.intake
    os.utime(path, ns=(1, 1))
    assert intake_now(traces) is None


def test_a_second_report_needs_no_engine(
    traces: Traces, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def running(*arguments: object, **options: object) -> Iterator[None]:
        raise SetupError("an engine was started")
        yield

    monkeypatch.setattr("tunnel.analysis.cli.running", running)
    command = ["report", str(traces.directory), "-o", str(tmp_path / "out" / "report.html")]
    assert main(command) == USAGE
    assert "an engine was started" in capsys.readouterr().err
    traces.store(Analysis(end_us=7_000_000))
    assert main(command) == OK
    assert "The report is in" in capsys.readouterr().out
    assert (tmp_path / "out" / "report.html").read_text().startswith("<!doctype html>")
    assert main([*command, "--json"]) == OK
    assert '"end_us": 7000000' in capsys.readouterr().out
    plain(traces.directory, "b.jsonl")
    assert main(command) == USAGE
    assert "an engine was started" in capsys.readouterr().err


@pytest.mark.parametrize("error", [FileNotFoundError("removed by another report"), PermissionError("not ours")])
def test_a_result_that_cannot_be_read_is_not_found(
    error: OSError, traces: Traces, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces.store()

    def fails(self: LocalFolder, name: str) -> bytes:
        raise error

    with monkeypatch.context() as changed:
        ledger = traces.ledger
        changed.setattr(LocalFolder, "read", fails)
        assert result_cache.load(ledger, traces.intake, "duckdb") is None
    assert traces.load() is not None


def test_a_result_of_another_shape_is_not_found(traces: Traces) -> None:
    traces.store(msgspec.structs.replace(RESULT, begin_us="soon"))
    assert traces.load() is None


def test_the_code_of_traces_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    before = result_cache._digest_of_code_and("duckdb")
    assert before == result_cache._digest_of_code_and("duckdb")
    monkeypatch.setattr(result_cache, "_PACKAGES", ("tunnel.analysis",))
    assert before != result_cache._digest_of_code_and("duckdb")
