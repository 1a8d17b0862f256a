"""Child processes, started as a user would start them.

A process is ready when its output says so. It is killed when its parent dies, and its last lines of output are kept.
"""

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from loadtests.harness.compiled import compiled_environment, wants_compiled
from loadtests.harness.tree import ROOT, python_path

__all__ = ["NotReadyError", "Process", "cpu_seconds", "python_command", "relay_command", "resident_bytes", "says_event"]

READY_S = 60.0  # a start takes 1 s, but longer on a busy machine
STOP_S = 20.0
KEPT_LINES = 200
_PR_SET_PDEATHSIG = 1  # prctl(2)
_CPUCLOCK_SCHED = 2  # linux/posix-timers_types.h: the time that the scheduler has measured, in ns


class NotReadyError(RuntimeError):
    """The process ended before it was ready, or was not ready in time; the text has its last lines."""


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command `python -m MODULE ...`, with the running Python."""
    return [sys.executable, "-m", module, *arguments]


def relay_command(*arguments: str) -> list[str]:
    """Return the command `tunnel-relay ...`."""
    return python_command("tunnel_servlet", *arguments)


def says_event(name: str) -> Callable[[str], bool]:
    """Return a `ready` function that accepts a line of a JSON log with this event."""

    def is_it(line: str) -> bool:
        try:
            found = json.loads(line)
        except ValueError:
            return False
        return isinstance(found, dict) and found.get("event") == name

    return is_it


class Process:
    """A child process whose standard output and error are one stream of lines.

    At the end of a `with` or `async with` block the process is killed. `ready` is called for each line; the first line
    that it accepts becomes `ready_line`. Without `ready` the process is ready at once. With TUNNEL_COMPILED=1 in its
    environment it runs the compiled build (`make compiled`).
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        ready: Callable[[str], bool] | None = None,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> None:
        self.command = list(command)
        self.ready_line = ""
        self._ready = ready
        self._environment = {**os.environ, "PYTHONPATH": python_path(), **(environment or {})}
        if wants_compiled(self._environment):
            self._environment |= compiled_environment(ROOT)
        self._directory = directory
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._settled = threading.Event()  # ready, or ended
        self._child: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    # Start and end

    def start(self) -> Self:
        """Start the process without waiting. A process that has ended may be started again."""
        assert self._child is None or self._child.poll() is not None, "the process is still running"
        self._settled.clear()
        self.ready_line = ""
        self._child = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=self._environment,
            cwd=self._directory,
            preexec_fn=_die_with_parent,
        )
        assert self._child.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._child.stdout,), daemon=True)
        self._reader.start()
        return self

    def wait_ready(self, seconds: float = READY_S) -> Self:
        """Wait until the process is ready. Raise NotReadyError if it ends first, or if `seconds` have passed."""
        if self._ready is None:
            return self
        is_settled = self._settled.wait(seconds)
        if not self.ready_line:
            state = "ended before it was ready" if is_settled else f"was not ready within {seconds:.0f} s"
            raise NotReadyError(f"{' '.join(self.command)}: {state}\n{self.output}")
        return self

    async def ready(self, seconds: float = READY_S) -> Self:
        """Wait as `wait_ready` does, without blocking the event loop."""
        return await asyncio.to_thread(self.wait_ready, seconds)

    def kill(self) -> None:
        """Send SIGKILL and wait until the process has ended."""
        self.signal(signal.SIGKILL)
        self.wait()

    def stop(self) -> int:
        """Send SIGTERM, then SIGKILL if the process has not ended after STOP_S; return its exit code."""
        self.signal(signal.SIGTERM)
        try:
            return self.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.wait()

    def signal(self, number: int) -> None:
        """Send a signal to the process if it is still running."""
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(number)

    def wait(self, seconds: float | None = None) -> int:
        """Wait until the process has ended and its output was read; return its exit code.

        Raise subprocess.TimeoutExpired after `seconds`.
        """
        assert self._child is not None
        assert self._reader is not None
        code = self._child.wait(seconds)
        self._reader.join(STOP_S)  # a grandchild may hold the pipe open for longer
        return code

    # State

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._child is not None
        return self._child.pid

    @property
    def is_running(self) -> bool:
        """Whether the process was started and has not ended."""
        return self._child is not None and self._child.poll() is None

    @property
    def output(self) -> str:
        """The last lines of output, at most KEPT_LINES."""
        return "".join(self._lines)

    def __enter__(self) -> Self:
        if self._child is None:
            self.start()
            try:
                self.wait_ready()
            except BaseException:
                self.kill()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._child is not None:
            self.kill()

    async def __aenter__(self) -> Self:
        if self._child is None:
            self.start()
            try:
                await self.ready()
            except BaseException:
                self.kill()
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._child is not None:
            await asyncio.to_thread(self.kill)

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self._lines.append(line)
                if self._ready is not None and not self.ready_line and self._ready(line):
                    self.ready_line = line
                    self._settled.set()
        self._settled.set()


_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def _die_with_parent() -> None:
    """Make the kernel kill this child when its parent dies, so that a killed test leaves no server running.

    Runs in the child before the program starts.
    """
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a running process. On a busy machine it tells more than wall time.

    The process's own clock counts nanoseconds. /proc/PID/stat counts ticks of 10 ms, in which 500 echoes can be missed.
    """
    # The number of another process's clock, as clock_getcpuclockid(3) computes it; Python has no name for it.
    return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)


def resident_bytes(pid: int) -> int:
    """Return the memory of a running process that is in RAM."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
