"""What the command says when it cannot work, and what works without Spark."""

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


def test_a_directory_that_is_none_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "x")]) == USAGE
    assert f"{tmp_path / 'x'} is no directory" in capsys.readouterr().err


def test_without_spark_it_says_what_to_install(
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
