"""The stress suite under `locust` itself: its own options and its page decide, unless a shape is chosen."""

from __future__ import annotations

import csv
import json
import signal
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from loadtests.harness.ports import hold_port
from loadtests.harness.tree import ROOT

TIMEOUT_S = 500  # a run takes ten seconds on an idle machine, and one with a shape a minute more

pytestmark = pytest.mark.timeout(600)


def command(measures: Path, *options: str) -> list[str]:
    found = [sys.executable, "-m", "locust", "-f", str(ROOT / "loadtests" / "stress" / "locustfile.py")]
    return [*found, "--weather", "", "--losses", "0", "--measures", str(measures), *options, "EchoUser"]


@pytest.mark.timeout(3 * TIMEOUT_S)
def test_without_a_shape_the_options_of_locust_decide(tmp_path: Path) -> None:
    for seconds in (5, 20, 80):  # on a slow machine, no user has acted after 5 s
        run, table = tmp_path / f"run{seconds}", tmp_path / f"table{seconds}"
        options = ["--headless", "-u", "3", "-r", "3", "-t", f"{seconds}s", "--csv", str(table)]
        ended = subprocess.run(
            command(run, *options), cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        said = ended.stdout + ended.stderr
        assert ended.returncode == 0, said
        with Path(f"{table}_stats.csv").open() as file:
            rows = list(csv.DictReader(file))
        if any(row["Type"] == "tunnel" for row in rows):
            break
    assert "Ramping to 3 users" in said
    assert "have no impact" not in said
    (measures,) = run.glob("process-*.jsonl")
    assert max(json.loads(line)["users"] for line in measures.read_text().splitlines()) == 3
    counts = {kind: sum(int(row["Request Count"]) for row in rows if row["Type"] == kind) for kind in ("tunnel", "")}
    assert any(row["Type"] == "METRIC" for row in rows)
    assert counts["tunnel"] == counts[""] > 0  # the row of the totals has no type


def test_a_shape_overrides_the_options_and_says_so(tmp_path: Path) -> None:
    options = ["--headless", "-u", "9", "--shape", "ramp", "--crowd", "2", "--seconds", "3"]
    ended = subprocess.run(
        command(tmp_path / "run", *options), cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    said = ended.stdout + ended.stderr
    assert ended.returncode == 0, said
    assert "the shape ramp decides: -u has no effect" in said
    assert "Ramping to 2 users" in said


def test_the_page_starts_users_and_needs_no_host(tmp_path: Path) -> None:
    with hold_port() as port:
        options = ["--web-host", "127.0.0.1", "--web-port", str(port)]
        running = subprocess.Popen(command(tmp_path / "run", *options), cwd=ROOT, stdin=subprocess.DEVNULL)
    with running:
        try:
            while not listens(port):  # the page starts after the last line that Locust logs
                assert running.poll() is None
            page = f"http://127.0.0.1:{port}"
            text = fetched(page)
            assert '"missing_host_warning": false' in text
            assert '"hide_common_options": true' not in text
            form = urllib.parse.urlencode({"user_count": 2, "spawn_rate": 2, "host": ""}).encode()
            assert json.loads(fetched(f"{page}/swarm", form))["message"] == "Swarming started"
            while (found := json.loads(fetched(f"{page}/stats/requests")))["user_count"] < 2 or count(found) < 3:
                assert running.poll() is None
            assert found["stats"][-1]["name"] == "Aggregated"
            assert found["stats"][-1]["num_requests"] == count(found)
        finally:
            running.send_signal(signal.SIGTERM)
            running.wait(TIMEOUT_S)


def listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def count(found: dict[str, Any]) -> int:
    """Return the number of user actions in Locust's table."""
    return sum(row["num_requests"] for row in found["stats"] if row["method"] == "tunnel")


def fetched(url: str, form: bytes | None = None) -> str:
    with urllib.request.urlopen(url, form, timeout=TIMEOUT_S) as answer:
        return str(answer.read().decode())
