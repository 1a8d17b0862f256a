"""A short run under Locust, in processes of its own: Locust replaces threads and sockets with gevent's."""

import json
import subprocess
import sys
from pathlib import Path

TIMEOUT_S = 120  # a run takes ten seconds on an idle machine

RUN = [
    *(sys.executable, "-m", "loadtests.stress", "--json", "--processes", "2", "--only", "EchoUser,IdleCrowd"),
    *("--crowd", "4", "--each", "10", "--losses", "0", "--seconds", "5", "--weather", ""),
]


def test_users_in_two_processes_are_counted_together(tmp_path: Path) -> None:
    command = [*RUN, "--measures", str(tmp_path / "run"), "--min-connections", "5"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    users = {path.name: json.loads(path.read_text()) for path in (tmp_path / "run").glob("summary-*.jsonl")}
    assert len(users) == 2
    assert all(summary["actions"] > 0 for summary in users.values())
    assert found["summary"]["actions"] == sum(summary["actions"] for summary in users.values())
    assert found["summary"]["failures"] == 0


def test_a_broken_threshold_decides_the_exit_code(tmp_path: Path) -> None:
    command = [*RUN, "--measures", str(tmp_path / "run"), "--min-connections", "100000", "--processes", "1"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    gates = json.loads(ended.stdout.splitlines()[-1])["gates"]
    assert [gate["name"] for gate in gates if not gate["ok"]] == ["connections at once"]
