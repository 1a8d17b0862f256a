"""Arguments that the command refuses."""

import fcntl
from pathlib import Path

import pytest

from tests.mutants.__main__ import main


def test_an_unknown_module_is_an_error_of_the_caller(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--modules", "core.nothing"]) == 2
    assert "no module core.nothing" in capsys.readouterr().err


def test_two_runs_cannot_share_a_build_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["--modules", "core.send.rtt", "--build", str(tmp_path)]) == 2
    assert "another run works in" in capsys.readouterr().err
