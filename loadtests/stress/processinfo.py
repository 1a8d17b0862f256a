"""The kernel's figures of a process: resident memory, descriptors, processor time."""

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ProcessInfo", "look_at", "open_descriptors"]

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """The figures of a process at one moment."""

    rss_bytes: int
    descriptors: int
    cpu_s: float


def look_at(pid: int) -> ProcessInfo | None:
    """Return the figures of a process, or None if it has ended."""
    home = Path("/proc") / str(pid)
    try:
        pages = int((home / "statm").read_text().split()[1])
        # The name in parentheses may contain spaces; the fields after it do not.
        fields = (home / "stat").read_text().rpartition(")")[2].split()
        descriptors = len(os.listdir(home / "fd"))
    except (OSError, IndexError, ValueError):
        return None
    return ProcessInfo(pages * _PAGE_BYTES, descriptors, (int(fields[11]) + int(fields[12])) / _TICKS)


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
