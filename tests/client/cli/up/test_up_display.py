"""What `tunnel up` shows: live lines on a terminal, plain lines on a dumb one, events for a program."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loadtests.harness.processes import Process, python_command, says_event
from loadtests.harness.relays import RelayProcess
from loadtests.harness.tree import python_path
from tests.client.cli.up.rig import private
from tunnel_client.cli.up.display import Display
from tunnel_client.status import ClientReport, EntryReport

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture(scope="module")
def relay() -> Iterator[RelayProcess]:
    with RelayProcess(inline_exit=True) as running:
        yield running


@pytest.fixture
def path(relay: RelayProcess, tmp_path: Path) -> Path:
    private(tmp_path / "token", relay.tokens["client"])
    found = tmp_path / "t.toml"
    found.write_text(
        f'[relay]\nurl = "{relay.url}"\nproxy = "none"\ntoken-file = "token"\n'
        f'[forward]\ndb = "0:127.0.0.1:5432"\n[proxy]\ntaken = "{relay.port}"\n'
    )
    return found


@contextmanager
def on_a_terminal(path: Path, **variables: str) -> Iterator[Callable[[str], str]]:
    """Run `tunnel up` with a terminal as standard error; yield a function that reads until it finds a text."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        python_command("tunnel_client", "up", "-c", str(path)),
        env={**os.environ, "PYTHONPATH": python_path(), "TERM": "xterm", "COLUMNS": "120", **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    )
    os.close(theirs)
    shown = ""

    def until(text: str) -> str:
        nonlocal shown
        while text not in shown:
            shown += os.read(ours, 65536).decode(errors="replace")
        return shown

    try:
        yield until
        process.send_signal(signal.SIGTERM)
        threading.Thread(target=_drain, args=(ours,), daemon=True).start()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def _drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 65536):
            pass
    except OSError:
        pass
    os.close(descriptor)


def test_a_terminal_shows_one_live_line_for_each_entry(path: Path) -> None:
    with on_a_terminal(path) as until:
        until("-> 127.0.0.1:5432  0 open, 0 in all, 0 failed; up 0 B, down 0 B")
        shown = until("FAILED: cannot listen on 127.0.0.1:")
        assert f"tunnel up {path}, for " in shown
        assert "\x1b[" in shown
        assert "tunnel: proxy taken: cannot listen on 127.0.0.1:" in shown  # the log line about this failure


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_without_escape_codes_shows_plain_lines(variables: dict[str, str], path: Path) -> None:
    with on_a_terminal(path, **variables) as until:
        until("tunnel: attached: ")
        until("-> 127.0.0.1:5432")
        shown = until("trying again every 5 s")
        assert "\x1b" not in shown
        assert "in all" not in shown


def test_a_program_reads_events_and_nothing_else(path: Path) -> None:
    with Process(python_command("tunnel_client", "up", "-c", str(path), "--json"), ready=says_event("listening")) as up:
        listening = json.loads(up.ready_line)
        assert listening["entry"] == "forward db"
        assert listening["leads"].endswith(" -> 127.0.0.1:5432")
        assert up.stop() == 0
        events = [json.loads(line)["event"] for line in up.output.splitlines()]
        assert events[0] == "attached"
        assert set(events) == {"attached", "listening", "not_served"}


def test_status_shows_the_entries_with_their_errors(path: Path, tmp_path: Path) -> None:
    environment = {"XDG_RUNTIME_DIR": str(tmp_path)}
    command = python_command("tunnel_client", "up", "-c", str(path))
    with Process(command, ready=says_event("not_served"), environment=environment) as up:
        status = [sys.executable, "-m", "tunnel_client", "status", "--once"]
        variables = {**os.environ, **environment, "PYTHONPATH": python_path()}
        shown = subprocess.run(status, env=variables, capture_output=True, text=True, check=True).stdout
        assert f"up {path}  (process {up.pid}, for " in shown
        assert "  proxy taken  proxy on 127.0.0.1:" in shown
        assert "FAILED: cannot listen on 127.0.0.1:" in shown
        assert "  forward db   127.0.0.1:" in shown


# the thread that draws


def report(*entries: EntryReport) -> ClientReport:
    return ClientReport(7, "up t.toml", 0.0, True, "link http://relay", "", 0, [], list(entries))


class StuckTerminal(io.StringIO):
    """A terminal whose reader has pressed Ctrl-S."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()

    def write(self, text: str) -> int:
        self.goes_on.wait()
        return super().write(text)


def test_a_terminal_that_stands_still_delays_no_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunnel_client.cli.up.display._END_S", 0.01)
    terminal = StuckTerminal()
    display = Display(terminal)
    display.report = report(EntryReport("forward db", "a -> b", "serving"))
    for number in range(5000):
        display.write(f"line {number}\n")
    display.flush()
    display.close()
    terminal.goes_on.set()
    display._thread.join()
    assert "line 4999" in terminal.getvalue()
    assert "line 0\n" not in terminal.getvalue()  # the oldest lines were dropped


def test_log_lines_appear_above_the_entries_and_still_after_the_end() -> None:
    terminal = io.StringIO()
    display = Display(terminal)
    assert display.isatty()
    display.write("above\n")
    display.report = report(EntryReport("forward db", "a -> b", "failed", "x" * 500))
    display.close()
    display.write("after\n")
    shown = terminal.getvalue()
    assert shown.index("above") < shown.index("tunnel up t.toml, for ") < shown.index("after")
    assert "FAILED: xxx" in shown
    assert "x" * 300 not in shown  # cut to the width
