"""Messages of a command that cannot work, and the commands that work without Spark."""

import os
from pathlib import Path

import pytest

from tunnel.analysis.cli import main
from tunnel.exit_codes import OK, USAGE
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


def test_the_error_without_spark_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunnel.analysis.cli.find_spec", lambda name: None)
    assert main(["compact", str(tmp_path)]) == USAGE
    assert "pip install 'tunnel-transport[analysis]'" in capsys.readouterr().err


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
    assert main([command, str(tmp_path)]) == USAGE
    assert f"JAVA_HOME is '{tmp_path / 'none'}', which holds no bin/java: install" in capsys.readouterr().err
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main([command, str(tmp_path)]) == USAGE
    assert capsys.readouterr().err == (
        "tunnel-traces: Spark needs Java, but no `java` is in the PATH: "
        "install Java 17 or later, or set JAVA_HOME to its directory\n"
    )


def test_a_temporary_directory_that_is_mounted_noexec_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mounted:
        f_flag = os.ST_NOEXEC

    monkeypatch.setattr("tunnel.analysis.cli._require_java", lambda: None)
    monkeypatch.setattr("os.statvfs", lambda path: Mounted)
    assert main(["report", str(tmp_path)]) == USAGE
    assert "is mounted noexec" in capsys.readouterr().err


def test_a_spark_that_does_not_start_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object, **options: object) -> None:
        raise RuntimeError("\n[GATEWAY] it ended\nsecond line")

    monkeypatch.setattr("tunnel.analysis.cli._require_java", lambda: None)
    monkeypatch.setattr("tunnel.analysis.session.make_session", fails)
    assert main(["report", str(tmp_path), "--memory", "1x"]) == USAGE
    text = capsys.readouterr().err
    assert "Spark does not start ([GATEWAY] it ended): check --memory 1x" in text
    assert "second line" not in text
