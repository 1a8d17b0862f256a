"""How a program gets a trace: open one, hand it to `attach`, close it at the end."""

from pathlib import Path

from tunnel.traces.record import TraceLevel
from tunnel.traces.writer import TraceWriter

__all__ = ["LEVELS", "TraceWriter", "open_trace"]

LEVELS = tuple(level.name.lower() for level in TraceLevel)  # what open_trace and --trace-level take


def open_trace(directory: str | Path, level: str = "packet", *, name: str = "") -> TraceWriter | None:
    """A trace below `directory`, which is made when it does not exist: `with open_trace("traces") as trace:
    attach(..., trace=trace)`. `level` is "packet" for everything, "connection" for little, "off" for None: no trace.
    `name` goes into the names of its files. OSError when the directory cannot be written."""
    chosen = TraceLevel[level.upper()] if level in LEVELS else None
    if chosen is None:
        raise ValueError(f"level must be one of {', '.join(LEVELS)}, not {level!r}")
    return None if chosen is TraceLevel.OFF else TraceWriter(directory, level=chosen, name=name)
