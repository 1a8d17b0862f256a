"""A command that runs as on a slow machine is stopped with its children, and ends as it would otherwise."""

import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.slowly import continue_all, main, stop_all, tree

PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_until(pid: int, *, stopped: bool) -> None:
    while (state(pid) == "T") != stopped:
        time.sleep(0.01)


def test_a_command_is_stopped_with_its_children_and_goes_on() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        both = tree(process.pid)
        assert len(both) == 2
        assert stop_all(process.pid) == both
        for each in both:
            wait_until(each, stopped=True)
        assert stop_all(process.pid) == []
        continue_all(both)
        for each in both:
            wait_until(each, stopped=False)
        process.send_signal(signal.SIGSTOP)
        wait_until(process.pid, stopped=True)
        assert stop_all(process.pid) == both[1:]  # it does not end what somebody else stopped
        continue_all(both)
        process.communicate(b"\n")


def test_the_exit_code_is_that_of_the_command() -> None:
    assert main(3, [sys.executable, "-c", "raise SystemExit(7)"]) == 7
