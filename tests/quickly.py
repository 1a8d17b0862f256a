"""Runs a command as on a fast machine: `python -m tests.quickly 5 .venv/bin/python -m pytest -q tests/real`.

For the command and all processes that it starts, time passes at a fifth of its speed (FACTOR 5): clocks go slowly, and
sleeps and timeouts take five times as long. So the processors, the disks and the loopback device do five times as much
in each second that a program measures. A test that fails then depends on how fast the machine is. Needs Linux and gcc.
The kernel's own timers (TCP's) go on as before, and so do programs that read the clock without the C library, such as
those in Go. The exit code is that of the command.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

__all__ = ["build", "environment", "main"]

SOURCE = Path(__file__).with_suffix(".c")


def build(folder: Path) -> Path:
    """Compile the library that slows the clocks of a process; return its path."""
    library = folder / "quickly.so"
    subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", library, SOURCE], check=True)
    return library


def environment(library: Path, factor: float) -> dict[str, str]:
    """Return what to add to a process's environment so that time passes slowly for it, from now on."""
    now = f"{factor}:{time.time_ns()}:{time.monotonic_ns()}"
    return {"LD_PRELOAD": str(library), "TUNNEL_QUICKLY": now}


def main(factor: float, command: list[str]) -> int:
    """Run the command; return its exit code."""
    with TemporaryDirectory() as folder:
        variables = environment(build(Path(folder)), factor)
        return subprocess.call(command, env={**os.environ, **variables})


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
