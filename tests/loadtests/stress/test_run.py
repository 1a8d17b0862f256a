"""A short run under Locust, in processes of its own: Locust replaces threads and sockets with gevent's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from loadtests.stress.__main__ import main

ROOT = Path(__file__).parent.parent.parent.parent
TIMEOUT_S = 500  # a run takes a minute and a half on an idle machine

pytestmark = pytest.mark.timeout(600)

RUN = [
    *(sys.executable, "-m", "loadtests.stress", "--json", "--processes", "2", "--only", "EchoUser,IdleCrowd"),
    *("--crowd", "4", "--each", "10", "--losses", "0", "--seconds", "20", "--weather", ""),
]


def test_users_in_two_processes_are_counted_together_from_any_directory(tmp_path: Path) -> None:
    command = [*RUN, "--measures", "run", "--min-connections", "5"]
    ended = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    users = {path.name: json.loads(path.read_text()) for path in (tmp_path / "run").glob("summary-*.jsonl")}
    assert len(users) == 2
    assert all(summary["actions"] > 0 for summary in users.values())
    assert found["summary"]["actions"] == sum(summary["actions"] for summary in users.values())
    assert found["summary"]["failures"] == 0


def test_a_relative_directory_for_measures_is_one_of_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.chdir(tmp_path)
    assert main(["--measures", "run", "--trace"]) == 2
    named = [word for word in commands[0] if "run" in Path(word).parts]
    assert [Path(word).relative_to(tmp_path).parts[0] for word in named] == ["run"] * 4
    assert (tmp_path / "run").is_dir()


def test_a_broken_threshold_decides_the_exit_code(tmp_path: Path) -> None:
    command = [*RUN, "--measures", str(tmp_path / "run"), "--min-connections", "100000", "--processes", "1"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    gates = json.loads(ended.stdout.splitlines()[-1])["gates"]
    assert [gate["name"] for gate in gates if not gate["ok"]] == ["connections at once"]


def test_a_directory_with_other_files_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    assert main(["--measures", str(tmp_path)]) == 2
    assert "holds files that are not of a stress run: name a new or an empty directory" in capsys.readouterr().err
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    assert main(["--measures", str(tmp_path / "thesis.txt")]) == 2
