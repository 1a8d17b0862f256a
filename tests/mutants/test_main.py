"""Arguments that the command refuses, and those that pytest must not refuse."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.__main__ import PYTEST, ROOT, main


def test_an_unknown_module_is_an_error_of_the_caller(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--modules", "core.nothing"]) == 2
    assert "no module core.nothing" in capsys.readouterr().err


def test_two_runs_cannot_share_a_build_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["--modules", "core.send.rtt", "--build", str(tmp_path)]) == 2
    assert "another run works in" in capsys.readouterr().err


def test_pytest_accepts_the_arguments_beside_the_settings_of_this_project() -> None:
    plugin = PYTEST.index("tests.mutants.plugin")  # left out, because it needs a plan
    options = PYTEST[: plugin - 1] + PYTEST[plugin + 1 :]
    command = [sys.executable, "-m", "pytest", *options, "--collect-only", "tests/messages/sets/test_codec.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
