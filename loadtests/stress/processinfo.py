"""The kernel's figures of a process: resident memory, descriptors, processor time."""

import os
import socket
from contextlib import suppress
from dataclasses import dataclass

from loadtests.harness.processes import cpu_seconds, resident_bytes

__all__ = ["ProcessInfo", "look_at", "open_descriptors"]


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """The figures of a process at one moment."""

    rss_bytes: int
    descriptors: int
    cpu_s: float


def look_at(pid: int) -> ProcessInfo | None:
    """Return the figures of a process, or None if it has ended."""
    try:
        return ProcessInfo(resident_bytes(pid), len(os.listdir(f"/proc/{pid}/fd")), cpu_seconds(pid))
    except (OSError, IndexError, ValueError):
        return None


def open_descriptors() -> dict[int, str]:
    """Return the open descriptors of this process, with a description of each."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor of the listing itself is closed by now
            found[int(name)] = _what_is(int(name), os.readlink(f"/proc/self/fd/{name}"))
    return found


def _what_is(descriptor: int, link: str) -> str:
    """Describe a socket by its two ends, and any other descriptor by its name."""
    if not link.startswith("socket:"):
        return link
    with socket.socket(fileno=os.dup(descriptor)) as twin:
        peer = ""
        with suppress(OSError):
            peer = f" to {twin.getpeername()}"
        return f"{twin.family.name} {twin.getsockname()}{peer}"
