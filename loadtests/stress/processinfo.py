"""What the kernel says of a process: resident memory, descriptors, processor time."""

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ProcessInfo", "look_at"]

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """At one moment."""

    rss_bytes: int
    descriptors: int
    cpu_s: float


def look_at(pid: int) -> ProcessInfo | None:
    """None when it is gone."""
    home = Path("/proc") / str(pid)
    try:
        pages = int((home / "statm").read_text().split()[1])
        # The name in parentheses may have spaces; what follows has not.
        fields = (home / "stat").read_text().rpartition(")")[2].split()
        descriptors = len(os.listdir(home / "fd"))
    except (OSError, IndexError, ValueError):
        return None
    return ProcessInfo(pages * _PAGE_BYTES, descriptors, (int(fields[11]) + int(fields[12])) / _TICKS)
