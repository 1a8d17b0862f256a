"""Runs a command as on a slow machine: `python -m tests.slowly 10 .venv/bin/python -m pytest -q tests/loadtests`.

All processes of the command are stopped for nine tenths of the time (FACTOR 10), all at once, and go on for a few
milliseconds. A test that fails then depends on how fast the machine is. The exit code is that of the command.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["continue_all", "main", "stop_all", "tree"]

RUN_S = 0.006


def tree(pid: int) -> list[int]:
    """Return the ids of a process and of all processes that it started, parents first."""
    found = [pid]
    for parent in found:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # the thread has ended
                found += map(int, children.read_text().split())
    return found


def stop_all(pid: int) -> list[int]:
    """Stop a process and its children. Return those that ran; others may have stopped them before, for a test."""
    stopped = []
    for each in tree(pid):
        with contextlib.suppress(OSError):  # the process has ended
            state = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[0]
            if state not in "TtXZ":
                os.kill(each, signal.SIGSTOP)
                stopped.append(each)
    return stopped


def continue_all(pids: list[int]) -> None:
    """Let these processes go on, children first: a parent may end them."""
    for each in reversed(pids):
        with contextlib.suppress(OSError):
            os.kill(each, signal.SIGCONT)


def main(factor: float, command: list[str]) -> int:
    """Run the command; return its exit code."""
    with subprocess.Popen(command) as process:
        while process.poll() is None:
            time.sleep(RUN_S)
            stopped = stop_all(process.pid)
            try:
                time.sleep(RUN_S * (factor - 1))
            finally:
                continue_all(stopped)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
