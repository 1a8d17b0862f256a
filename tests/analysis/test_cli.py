"""Messages of a command that cannot work, and the commands that work without Spark."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.analysis.engines import duckdb
from tunnel.analysis.cli import main
from tunnel.analysis.engines.failures import JobError
from tunnel.analysis.engines.folders import LocalFolder
from tunnel.analysis.kept.ledger import open_ledger
from tunnel.ground.exit_codes import INTERNAL, OK, USAGE
from tunnel.traces import TraceEvent, TraceRecord
from tunnel.traces.jsonl import JsonLinesWriter


@pytest.mark.parametrize("command", ["report", "compact", "export-qlog"])
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == OK
    assert f"example: tunnel-traces {command}" in capsys.readouterr().out


def test_an_error_names_a_path_that_is_no_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "x")]) == USAGE
    assert f"{tmp_path / 'x'} is not a directory" in capsys.readouterr().err
    assert main(["sql", "select 1", str(tmp_path)]) == USAGE
    assert f"; write DIR before QUERY, as in tunnel-traces sql {tmp_path} ...\n" in capsys.readouterr().err
    assert main(["sql", "nowhere", f"select {'1' * 10_000}"]) == USAGE
    assert "DIR before QUERY" not in capsys.readouterr().err


def test_the_error_without_spark_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunnel.analysis.engines.launch.find_spec", lambda name: None)
    assert main(["compact", str(tmp_path), "--engine", "spark"]) == USAGE
    assert "-m pip install pyspark, and install Java 17" in capsys.readouterr().err


def test_qlog_is_written_without_spark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export-qlog", str(tmp_path)]) == USAGE
    assert "run a command with --trace" in capsys.readouterr().err
    with JsonLinesWriter(tmp_path / "a.jsonl") as trace:
        trace(TraceRecord(time_us=1, node="n", event=TraceEvent.ATTACHED))
    assert main(["export-qlog", str(tmp_path), "-o", str(tmp_path / "q")]) == OK
    assert capsys.readouterr().out == f"{tmp_path / 'q' / 'n.sqlog'}\n"


@pytest.mark.parametrize("command", ["report", "compact"])
def test_missing_java_is_one_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    assert main([command, str(tmp_path), "--engine", "spark"]) == USAGE
    assert f"JAVA_HOME is '{tmp_path / 'none'}', which holds no bin/java: install" in capsys.readouterr().err
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main([command, str(tmp_path), "--engine", "spark"]) == USAGE
    assert capsys.readouterr().err == (
        "tunnel-traces: Spark needs Java, but no `java` is in the PATH: "
        "install Java 17 or later, or set JAVA_HOME to its directory\n"
    )


def test_a_temporary_directory_that_is_mounted_noexec_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mounted:
        f_flag = os.ST_NOEXEC

    monkeypatch.setattr("tunnel.analysis.engines.launch._require_java", lambda: None)
    monkeypatch.setattr("os.statvfs", lambda path: Mounted)
    assert main(["report", str(tmp_path), "--engine", "spark"]) == USAGE
    assert "is mounted noexec" in capsys.readouterr().err


def test_a_spark_that_does_not_start_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object, **options: object) -> None:
        raise RuntimeError("\n[GATEWAY] it ended\nsecond line")

    monkeypatch.setattr("tunnel.analysis.engines.launch._require_java", lambda: None)
    monkeypatch.setattr("tunnel.analysis.engines.session.make_session", fails)
    assert main(["report", str(tmp_path), "--engine", "spark", "--memory", "1x"]) == USAGE
    text = capsys.readouterr().err
    assert "Spark does not start ([GATEWAY] it ended): check --memory 1x" in text
    assert text.count("\n") == 1


def test_the_complaint_of_java_is_the_reason(tmp_path: Path) -> None:
    """Java's other lines are not shown."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho WARNING: something >&2\necho Error: this Java is too old >&2\nexit 1\n")
    java.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_GATEWAY_PORT"}
    done = subprocess.run(
        [sys.executable, "-m", "tunnel.analysis", "compact", str(tmp_path), "--engine", "spark"],
        env=environment | {"JAVA_HOME": str(java.parent.parent)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == USAGE
    assert done.stderr.startswith("tunnel-traces: Spark does not start (Error: this Java is too old): check --memory")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["report", "compact"])
def test_a_second_command_on_the_same_tables_is_refused_in_one_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_ledger(LocalFolder(tmp_path / "_tables")):
        assert main([command, str(tmp_path)]) == USAGE
    text = capsys.readouterr().err
    assert f"another command is adding to the tables in {tmp_path / '_tables'} (process {os.getpid()} on " in text
    assert text.count("\n") == 1


def test_a_failed_job_is_one_line_and_not_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def running(*arguments: object, **options: object) -> Iterator[object]:
        with duckdb() as engine:
            yield engine

    def fails(*arguments: object) -> None:
        raise JobError("Spark's job failed")

    monkeypatch.setattr("tunnel.analysis.cli.running", running)
    monkeypatch.setattr("tunnel.analysis.kept.ingest.compact", fails)
    assert main(["compact", str(tmp_path)]) == INTERNAL
    assert capsys.readouterr().err == "tunnel-traces: Spark's job failed\n"
