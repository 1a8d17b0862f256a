"""Finds and starts third-party programs to compare with."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from shutil import which

from loadtests.harness.processes import Process

__all__ = ["MissingPeerError", "find_peer", "start_peer", "wait_listening"]

_LISTENS_S = 30.0  # a program may take this long to listen; on an idle machine each takes less than 1 s


class MissingPeerError(RuntimeError):
    """A program to compare with is not installed, or did not start."""


def find_peer(name: str, install: str) -> str:
    """Return the path of a program. If it is not installed, raise MissingPeerError with `install` as the remedy."""
    found = which(name)
    if found is None:
        raise MissingPeerError(f"{name} is not installed: {install}")
    return found


def start_peer(stack: ExitStack, command: Sequence[str], port: int) -> Process:
    """Start a program, and return when it listens at `port`."""
    process = stack.enter_context(Process(command))
    wait_listening(process, port)
    return process


def wait_listening(process: Process, port: int) -> None:
    """Wait until a process listens at `port`, according to the kernel's tables.

    Most programs do not announce that they listen. A test connection would not do, because hts (the server of
    GNU httptunnel) serves only one. Raise MissingPeerError if the process ends or does not listen in time.
    """
    wanted = f":{port:04X}"
    until = time.monotonic() + _LISTENS_S
    while process.is_running and time.monotonic() < until:
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            for line in Path(table).read_text(encoding="ascii").splitlines():
                fields = line.split()
                if fields[1].endswith(wanted) and fields[3] == "0A":  # LISTEN
                    return
        time.sleep(0.01)
    state = "does not listen" if process.is_running else "ended"
    raise MissingPeerError(f"{' '.join(process.command)} {state}: {process.output}")
